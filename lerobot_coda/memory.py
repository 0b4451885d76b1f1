"""The shared memory: what was learned about building environments, about failing, and about progress.

Three linked families of append-only, content-addressed tables:

    construction   programs -> scenes -> scene_verdicts (one a gate)
    failures       episodes (of scenes) -> diagnoses -> clusters -> verdicts (on a cluster and a program)
    progress       measurements and decisions (of programs), rounds

SQLite in WAL mode by default, any SQLAlchemy URL otherwise. Adding a record again is a no-op; there is no call that
changes or deletes one, and on SQLite triggers refuse it. Arrays stand beside the database as files.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import DDL, JSON, ForeignKey, create_engine, event, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DatabaseError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from libero_pro.record import RecordError


class Base(DeclarativeBase):
    """Every table: identity is the content hash, `body` is the whole record."""

    hash: Mapped[str] = mapped_column(primary_key=True)
    body: Mapped[dict[str, Any]] = mapped_column(JSON)


class Program(Base):
    """A generation and a training program; `parent` is the program that it refines."""

    __tablename__ = "programs"
    name: Mapped[str] = mapped_column(index=True)
    mode: Mapped[str]
    parent: Mapped[str | None] = mapped_column(ForeignKey("programs.hash"))


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


class DiagnosisRow(Base):
    """A critic's claim about an episode."""

    __tablename__ = "diagnoses"
    episode: Mapped[str] = mapped_column(ForeignKey("episodes.hash"), index=True)
    cause: Mapped[str] = mapped_column(index=True)
    stage: Mapped[str]
    mode: Mapped[str]
    critic: Mapped[str]


class Cluster(Base):
    """A failure cluster; its members stand in `body["diagnoses"]` and in `cluster_members`."""

    __tablename__ = "clusters"
    mode: Mapped[str] = mapped_column(index=True)
    suite: Mapped[str]
    size: Mapped[int]


class Member(Base):
    """Which diagnosis belongs to which cluster."""

    __tablename__ = "cluster_members"
    cluster: Mapped[str] = mapped_column(ForeignKey("clusters.hash"), index=True)
    diagnosis: Mapped[str] = mapped_column(ForeignKey("diagnoses.hash"), index=True)


class VerdictRow(Base):
    """The verdict on a cluster and the program compiled from it."""

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


class DecisionRow(Base):
    """What became of a program after a round, and the program that follows it."""

    __tablename__ = "decisions"
    program: Mapped[str] = mapped_column(ForeignKey("programs.hash"), index=True)
    round: Mapped[int]
    action: Mapped[str]
    reason: Mapped[str]
    successor: Mapped[str | None] = mapped_column(ForeignKey("programs.hash"))


class RoundRow(Base):
    """A finished round's summary."""

    __tablename__ = "rounds"
    round: Mapped[int]


for _table in Base.metadata.tables.values():
    for _verb in ("UPDATE", "DELETE"):
        event.listen(
            _table,
            "after_create",
            DDL(
                f"CREATE TRIGGER IF NOT EXISTS no_{_verb.lower()}_{_table.name} BEFORE {_verb} ON {_table.name} "
                f"BEGIN SELECT RAISE(ABORT, 'memory is append-only'); END"
            ).execute_if(dialect="sqlite"),
        )


def content_hash(*parts: Any) -> str:
    """16 hex digits identifying JSON-serializable parts."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Memory:
    """An open memory. `target` is a file path (SQLite) or a SQLAlchemy URL."""

    def __init__(self, target: str | Path):
        url = str(target) if "://" in str(target) else f"sqlite:///{Path(target)}"
        if url.startswith("sqlite:///"):
            Path(url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
        self._engine: Engine = create_engine(url)
        if self._engine.dialect.name == "sqlite":
            event.listen(self._engine, "connect", _configure_sqlite)
        try:
            Base.metadata.create_all(self._engine)
        except DatabaseError as error:
            raise RecordError(f"memory {target} cannot be opened: {error.orig}; move it away or name another") from None

    def close(self) -> None:
        """Closes every connection."""
        self._engine.dispose()

    def add(self, table: type[Base], rows: Iterable[Mapping[str, Any]]) -> int:
        """Appends rows (dicts of the table's columns) in one transaction; returns how many were new.

        A hash that is there already is left as it is, so replaying a step after a crash changes nothing.
        """
        rows = [dict(row) for row in rows]
        if not rows:
            return 0
        dialect = postgresql if self._engine.dialect.name == "postgresql" else sqlite
        with Session(self._engine) as session, session.begin():
            before = session.scalar(select(func.count()).select_from(table)) or 0
            session.execute(dialect.insert(table).on_conflict_do_nothing(index_elements=["hash"]), rows)
            return (session.scalar(select(func.count()).select_from(table)) or 0) - before

    def get(self, table: type[Base], hash: str) -> dict[str, Any]:
        """One record's body; RecordError if the memory does not hold it."""
        with Session(self._engine) as session:
            row = session.get(table, hash)
            if row is None:
                raise RecordError(f"memory holds no {table.__tablename__} with hash {hash}")
            return dict(row.body)

    def rows(self, table: type[Base], **equal: Any) -> list[dict[str, Any]]:
        """All rows whose columns equal the given values, as dicts, in order of insertion."""
        columns = table.__table__.columns
        with Session(self._engine) as session:
            query = select(table.__table__).filter_by(**equal)
            return [dict(zip(columns.keys(), row, strict=True)) for row in session.execute(query)]

    def count(self, table: type[Base], **equal: Any) -> int:
        """Number of rows whose columns equal the given values."""
        with Session(self._engine) as session:
            return session.scalar(select(func.count()).select_from(table).filter_by(**equal)) or 0

    def lineage(self, scene: str) -> dict[str, Any]:
        """Everything linked to a scene: the program that made it, what was diagnosed there, and what that led to."""
        found = self.rows(Scene, hash=scene)
        if not found:
            raise RecordError(f"memory holds no scene with hash {scene}")
        episodes = self.rows(EpisodeRow, scene=scene)
        diagnoses = [d for e in episodes for d in self.rows(DiagnosisRow, episode=e["hash"])]
        members = [m for d in diagnoses for m in self.rows(Member, diagnosis=d["hash"])]
        clusters = sorted({m["cluster"] for m in members})
        verdicts = [v for c in clusters for v in self.rows(VerdictRow, cluster=c)]
        led_to = sorted({v["program"] for v in verdicts})
        return {
            "scene": found[0],
            "made_by": self.rows(Program, hash=found[0]["program"]) if found[0]["program"] else [],
            "gates": self.rows(SceneVerdict, scene=scene),
            "episodes": episodes,
            "diagnoses": diagnoses,
            "clusters": clusters,
            "verdicts": verdicts,
            "led_to": [p for h in led_to for p in self.rows(Program, hash=h)],
            "measurements": [m for h in led_to for m in self.rows(MeasurementRow, program=h)],
            "decisions": [d for h in led_to for d in self.rows(DecisionRow, program=h)],
        }


def _configure_sqlite(connection: Any, _record: Any) -> None:
    """Several readers beside a writer, links enforced, and patience instead of `database is locked`."""
    for pragma in ("journal_mode=WAL", "foreign_keys=ON", "busy_timeout=30000", "synchronous=NORMAL"):
        connection.execute(f"PRAGMA {pragma}")
