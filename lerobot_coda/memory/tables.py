"""The tables of the memory: three linked families, the decisions that they led to, and what all of them refer to.

    construction   programs -> scenes -> scene_verdicts (one a gate); proposals (what was proposed, and why refused)
    failures       episodes (of scenes) -> diagnoses -> clusters -> reviews (a critic's answer on a cluster)
                   and verdicts (on a cluster and the program compiled from it)
    progress       measurements (of programs), usage (what it cost)
    decisions      decisions (on programs), rounds
    common         runs, blobs (big things, which stand beside the database as files)

A change of this module needs a migration in `migrations/versions`; a test compares the two.
"""

from typing import Any, ClassVar

from sqlalchemy import JSON, Float, ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """Every table: identity is the content hash, `body` is the whole record, the other columns are what is searched."""

    type_annotation_map: ClassVar = {float: Float}
    hash: Mapped[str] = mapped_column(primary_key=True)
    body: Mapped[dict[str, Any]] = mapped_column(JSON)


class RunRow(Base):
    """A run that writes here; `recipe` is the hash of what it runs. A memory of one run alone needs none."""

    __tablename__ = "runs"
    name: Mapped[str] = mapped_column(index=True)
    arm: Mapped[str]
    seed: Mapped[int]
    recipe: Mapped[str]


class BlobRow(Base):
    """A file of the blob folder: its SHA-256 in full, its size in bytes, and what it is ("text", "sheet", ...)."""

    __tablename__ = "blobs"
    kind: Mapped[str]
    size: Mapped[int]


class Program(Base):
    """A generation and a training program; `parent` is the program it was made from, `other` a second one if joined."""

    __tablename__ = "programs"
    name: Mapped[str] = mapped_column(index=True)
    mode: Mapped[str]
    parent: Mapped[str | None] = mapped_column(ForeignKey("programs.hash"))
    other: Mapped[str | None] = mapped_column(ForeignKey("programs.hash"))


class Scene(Base):
    """A generated scene, accepted or not."""

    __tablename__ = "scenes"
    program: Mapped[str | None] = mapped_column(ForeignKey("programs.hash"), index=True)
    suite: Mapped[str]
    task_id: Mapped[int]
    instruction: Mapped[str]


class SceneVerdict(Base):
    """What a validity gate said of a scene; `gate` is the one that rejected it, or "all"."""

    __tablename__ = "scene_verdicts"
    scene: Mapped[str] = mapped_column(ForeignKey("scenes.hash"), index=True)
    gate: Mapped[str] = mapped_column(index=True)
    accepted: Mapped[bool]
    reason: Mapped[str]


class EpisodeRow(Base):
    """An episode; `path` is its file, relative to the run."""

    __tablename__ = "episodes"
    scene: Mapped[str] = mapped_column(ForeignKey("scenes.hash"), index=True)
    actor: Mapped[str] = mapped_column(index=True)
    purpose: Mapped[str]
    success: Mapped[bool]
    invalid: Mapped[str | None]
    steps: Mapped[int]
    path: Mapped[str]
    run: Mapped[str | None] = mapped_column(ForeignKey("runs.hash"))


class DiagnosisRow(Base):
    """A critic's claim about an episode."""

    __tablename__ = "diagnoses"
    episode: Mapped[str] = mapped_column(ForeignKey("episodes.hash"), index=True)
    cause: Mapped[str] = mapped_column(index=True)
    stage: Mapped[str]
    mode: Mapped[str]
    critic: Mapped[str]


class Cluster(Base):
    """A failure cluster; its members stand in `body["diagnoses"]` and in `cluster_members`.

    `parent` is the cluster as it was before a critic's review changed its stage, mode or causes.
    """

    __tablename__ = "clusters"
    mode: Mapped[str] = mapped_column(index=True)
    suite: Mapped[str]
    size: Mapped[int]
    parent: Mapped[str | None] = mapped_column(ForeignKey("clusters.hash"))


class Member(Base):
    """Which diagnosis belongs to which cluster."""

    __tablename__ = "cluster_members"
    cluster: Mapped[str] = mapped_column(ForeignKey("clusters.hash"), index=True)
    diagnosis: Mapped[str] = mapped_column(ForeignKey("diagnoses.hash"), index=True)


class ReviewRow(Base):
    """A critic's answer on a cluster. `invalid` says why it could not be used; `answer` is the raw text's blob.

    tokens    tokens read and written;  `cost` in US dollars, 0 where the critic runs here;  `seconds` of wall time
    """

    __tablename__ = "reviews"
    cluster: Mapped[str] = mapped_column(ForeignKey("clusters.hash"), index=True)
    critic: Mapped[str] = mapped_column(index=True)
    version: Mapped[str]
    invalid: Mapped[str | None]
    answer: Mapped[str | None] = mapped_column(ForeignKey("blobs.hash"))
    tokens: Mapped[int]
    cost: Mapped[float]
    seconds: Mapped[float]


class ProposalRow(Base):
    """Something a critic or a rule proposed. `kind` is "program", "potential" or "diagnosis", `body` what was proposed.

    `refused` says why it was turned down; None where it was accepted, and `program` is then what it became.
    """

    __tablename__ = "proposals"
    kind: Mapped[str] = mapped_column(index=True)
    author: Mapped[str]
    cluster: Mapped[str | None] = mapped_column(ForeignKey("clusters.hash"), index=True)
    program: Mapped[str | None] = mapped_column(ForeignKey("programs.hash"))
    refused: Mapped[str | None]
    answer: Mapped[str | None] = mapped_column(ForeignKey("blobs.hash"))


class VerdictRow(Base):
    """The verdict on a cluster and the program compiled from it; its evidence and counts are the body."""

    __tablename__ = "verdicts"
    cluster: Mapped[str] = mapped_column(ForeignKey("clusters.hash"), index=True)
    program: Mapped[str] = mapped_column(ForeignKey("programs.hash"), index=True)
    outcome: Mapped[str] = mapped_column(index=True)
    p_value: Mapped[float]


class MeasurementRow(Base):
    """Paired success of a program before and after a round."""

    __tablename__ = "measurements"
    program: Mapped[str] = mapped_column(ForeignKey("programs.hash"), index=True)
    round: Mapped[int]
    progress: Mapped[float]
    p_value: Mapped[float]
    run: Mapped[str | None] = mapped_column(ForeignKey("runs.hash"))


class UsageRow(Base):
    """What a step of a round used; the body is its whole `Usage`.

    environments, env_steps (all purposes together) and seconds of wall time.
    """

    __tablename__ = "usage"
    run: Mapped[str | None] = mapped_column(ForeignKey("runs.hash"), index=True)
    round: Mapped[int]
    step: Mapped[str]
    environments: Mapped[int]
    env_steps: Mapped[int]
    seconds: Mapped[float]


class DecisionRow(Base):
    """What became of a program after a round, and the program that follows it."""

    __tablename__ = "decisions"
    program: Mapped[str] = mapped_column(ForeignKey("programs.hash"), index=True)
    round: Mapped[int]
    action: Mapped[str]
    reason: Mapped[str]
    successor: Mapped[str | None] = mapped_column(ForeignKey("programs.hash"))
    run: Mapped[str | None] = mapped_column(ForeignKey("runs.hash"))


class RoundRow(Base):
    """A finished round's summary."""

    __tablename__ = "rounds"
    round: Mapped[int]
    run: Mapped[str | None] = mapped_column(ForeignKey("runs.hash"))


FAMILIES: dict[str, tuple[type[Base], ...]] = {
    "construction": (Program, Scene, SceneVerdict, ProposalRow),
    "failures": (EpisodeRow, DiagnosisRow, Cluster, Member, ReviewRow, VerdictRow),
    "progress": (MeasurementRow, UsageRow),
    "decisions": (DecisionRow, RoundRow),
    "common": (RunRow, BlobRow),
}
TABLES: dict[str, type[Base]] = {table.__tablename__: table for family in FAMILIES.values() for table in family}
