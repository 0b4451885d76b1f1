"""A critic's review of a failure cluster: one protocol, whoever answers.

A critic is asked once a cluster and shown a few clips of it. What it answers is a `Claim`, no more than a proposal:
validation tests it. Where a critic has no usable answer, the claim of a fallback (the simulator critic) stands, and the
review says why.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, Self

from pydantic import Field, model_validator

from lerobot_coda.critic.clusters import FailureCluster
from lerobot_coda.critic.diagnosis import Cause, Diagnosis, Difficulty, Stage, episode_key
from lerobot_coda.critic.simulator import CRITIC_VERSION
from libero_pro.episode import Episode
from libero_pro.record import Record

SIMULATOR = "simulator"


class Clip(NamedTuple):
    """One episode that a critic is shown.

    diagnosis  what the simulator critic says of it; None where not even its outcome may be told (a critic on trial)
    sheet      PNG of its frames, None until one is drawn (`lerobot_coda.critic.sheet`)
    """

    episode: Episode
    diagnosis: Diagnosis | None = None
    sheet: Path | None = None


class Claim(Record):
    """What went wrong, in the terms of `Diagnosis`. `span` is in control steps of the first clip."""

    stage: Stage
    cause: Cause
    objects: tuple[str, ...] = Field(default=(), max_length=6)
    predicate: tuple[str, ...] = Field(default=(), max_length=4)
    span: tuple[int, int] = (0, 0)
    explanation: str = Field(max_length=600)
    difficulty: dict[str, Difficulty] = Field(default_factory=dict, max_length=8)
    confidence: float = Field(ge=0.0, le=1.0)

    @model_validator(mode="after")
    def _ordered(self) -> "Claim":
        if not 0 <= self.span[0] <= self.span[1]:
            raise ValueError(f"span {list(self.span)} is not [first, last] with 0 <= first <= last")
        return self


class CriticUsage(Record):
    """What asking cost. `unmetered` counts answers whose tokens nobody told; `cost` is in the prices' currency."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    unmetered: int = 0
    cost: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: Self) -> "CriticUsage":
        return CriticUsage(
            **{name: round(getattr(self, name) + getattr(other, name), 8) for name in CriticUsage.model_fields}
        )


class Review(Record):
    """What became of asking a critic about a cluster.

    cluster   hash of the cluster it was asked about;  `prompt` hash of all that a critic is told besides the episodes
    question  hash of the whole question, sheets and settings included: the same one need not be asked twice
    claim     the claim that stands, made by `decided` (a critic's name); None: the critic saw no failure, or `invalid`
    invalid   why the asked critic gave no usable claim, in one sentence
    raw       path of what it last said, relative to the folder that the critic was opened with
    """

    schema_version: Literal[1] = 1
    cluster: str
    critic: str
    version: str
    prompt: str = ""
    question: str = ""
    claim: Claim | None = None
    decided: str = ""
    invalid: str | None = None
    raw: str | None = None
    usage: CriticUsage = CriticUsage()


class Critic(Protocol):
    """Whoever can be asked. `review` never raises for what a model or a server does: that is an invalid review."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    def review(self, cluster: FailureCluster, clips: Sequence[Clip]) -> Review: ...


class SimulatorCritic:
    """The claim that most of a cluster's diagnoses make; needs no model and no sheet."""

    name = SIMULATOR
    version = CRITIC_VERSION

    def review(self, cluster: FailureCluster, clips: Sequence[Clip]) -> Review:
        """The majority claim, told by the first clip that makes it; never invalid."""
        cause, stage = next(iter(cluster.causes)), cluster.stage
        told = [clip.diagnosis for clip in clips if clip.diagnosis is not None]
        same = [d for d in told if str(d.cause) == cause and d.stage == stage] or told
        share = cluster.causes[cause] / cluster.size
        claim = Claim(
            stage=stage,
            cause=Cause(cause),
            objects=same[0].objects if same else cluster.objects[:6],
            predicate=same[0].predicate if same else (),
            span=same[0].span if same else (0, 0),
            explanation=(same[0].explanation if same else f"{cluster.title}, most often in stage {stage}")[:600],
            difficulty=same[0].difficulty if same else {},
            confidence=round(share * (same[0].confidence if same else 1.0), 4),
        )
        return Review(cluster=cluster.hash, critic=self.name, version=self.version, claim=claim, decided=self.name)


def reviewed(
    clusters: Iterable[FailureCluster], clips: Mapping[str, Sequence[Clip]], critic: Critic, fallback: Critic
) -> list[tuple[FailureCluster, Review]]:
    """Asks the critic about each cluster, with its `clips` by cluster hash.

    Returns each cluster as the claim that stands has it, with the review. The critic knows that these are failures: an
    answer that sees none is as unusable as no answer.
    """
    pairs = []
    for cluster in clusters:
        shown = clips.get(cluster.hash, ())
        review = critic.review(cluster, shown)
        if review.claim is None:
            stands = fallback.review(cluster, shown)
            why = review.invalid or "it saw no failure in episodes whose goal does not hold"
            review = review.model_copy(update={"claim": stands.claim, "decided": stands.critic, "invalid": why})
        pairs.append((follow(cluster, review.claim) if review.claim else cluster, review))
    return pairs


def follow(cluster: FailureCluster, claim: Claim) -> FailureCluster:
    """The cluster as the claim has it: its mode, stage and cause; unchanged where its diagnoses say the same."""
    if claim.stage == cluster.stage and claim.cause == next(iter(cluster.causes)):
        return cluster
    mode = _diagnosis(claim, suite=cluster.suite, task_id=cluster.tasks[0]).mode
    changed = {"mode": mode, "stage": claim.stage, "causes": {str(claim.cause): cluster.size}}
    return cluster.model_copy(update=changed)


def as_diagnosis(review: Review, clip: Clip) -> Diagnosis | None:
    """What the asked critic claims of one of its clips, as its own diagnosis; None where it has no usable claim."""
    if review.claim is None or review.decided != review.critic:
        return None
    episode = clip.episode
    return _diagnosis(
        review.claim,
        episode=episode_key(episode.actor, episode.scene.hash),
        scene=episode.scene.hash,
        suite=episode.scene.suite,
        task_id=episode.scene.task_id,
        critic=review.critic,
        version=review.version,
        prompt=review.prompt,
    )


def choose(
    cluster: FailureCluster, diagnoses: Mapping[str, Diagnosis], episodes: Mapping[str, Episode], count: int
) -> list[Clip]:
    """`count` clips to show of a cluster: of as many (task, cause) pairs as there are, the commonest first.

    `diagnoses` by hash, `episodes` by episode key; members whose episode is missing cannot be shown.
    """
    members = [diagnoses[h] for h in cluster.diagnoses if diagnoses[h].episode in episodes]
    common = Counter((d.task_id, d.cause) for d in members)
    seen: Counter[tuple[int, Cause]] = Counter()
    ranked = []
    for d in members:  # sorted by hash: which of the alike are shown is arbitrary and always the same
        kind = (d.task_id, d.cause)
        ranked.append((seen[kind], -common[kind], d.hash, d))
        seen[kind] += 1
    return [Clip(episodes[d.episode], d) for *_, d in sorted(ranked, key=lambda row: row[:3])[:count]]


def _diagnosis(claim: Claim, *, episode: str = "", scene: str = "", **fields: object) -> Diagnosis:
    told = {name: getattr(claim, name) for name in Claim.model_fields}
    return Diagnosis.model_validate({"episode": episode, "scene": scene, **told, **fields})
