"""Validation in sequence: the cheapest test first, scenes in batches, none for what is decided.

1. Evidence and specificity, from stored episodes: nothing is simulated.
2. Re-creation, half of the pairs at a time.
3. Intervention, likewise, for what was re-created.

Who draws the scenes and plays them is a `Player`: a round of the loop, or a benchmark.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lerobot_coda.critic.clusters import FailureCluster
from lerobot_coda.critic.diagnosis import Diagnosis
from lerobot_coda.critic.evidence import Claimed
from lerobot_coda.critic.intervene import REMEDIES
from lerobot_coda.critic.simulator import diagnose
from lerobot_coda.critic.validate import Intervened, Verdict, claims, judge, put_to, screen, spent
from libero_pro.episode import Episode

Pair = tuple[Episode, Episode]
LOOKS = 2  # of a round at the pairs of a test; where one has to do, it stands for the second


@dataclass
class Trial:
    """A diagnosis under test: what has been played for it so far, and the verdict as it stands.

    program   hash of the generation program that is to re-create it;  `claim` a critic's about the whole cluster
    pairs     (program scene, control scene), looked at `looks` times
    contrasts (cause kept, cause removed), looked at `contrast_looks` times;  `tried`: failures that were intervened on
    """

    cluster: FailureCluster
    program: str
    claim: Claimed | None = None
    pairs: list[Pair] = field(default_factory=list)
    looks: int = 0
    contrasts: list[Pair] = field(default_factory=list)
    contrast_looks: int = 0
    tried: int = 0
    verdict: Verdict | None = None

    @property
    def wants_pairs(self) -> bool:
        """Whether re-creation is open."""
        found = self.verdict
        return found is None or (found.outcome == "undecided" and found.decided_by == "re-creation")

    @property
    def wants_contrasts(self) -> bool:
        """Whether it was re-created, and what removing its cause does is not known."""
        found = self.verdict
        return found is not None and (
            (found.outcome == "validated" and not found.intervention)
            or (found.outcome == "undecided" and found.decided_by == "intervention")
        )

    def failures(
        self, diagnoses: Mapping[str, Diagnosis], episodes: Mapping[str, Episode]
    ) -> list[tuple[Episode, Claimed]]:
        """What can be intervened on: the cluster's own failures, then those that the program re-created.

        Not those from released starts, which nothing is generated from.
        """
        own = [
            (episodes[d.episode], said)
            for d, said in claims(self.cluster, diagnoses, self.claim)
            if d.episode in episodes and episodes[d.episode].scene.init_state_id is None
        ]
        again = []
        for episode, _ in self.pairs:
            found = diagnose(episode)
            if found is not None and found.mode == self.cluster.mode:
                again.append((episode, found if self.claim is None else put_to(self.claim, found)))
        return own + again


class Player(Protocol):
    """Draws scenes and plays the policy in them. `look` counts the batches of a test, from 0."""

    def pairs(self, trials: Sequence[Trial], count: int, look: int) -> list[list[Pair]]:
        """`count` new (program scene, control scene) pairs for each trial, fewer where the gates reject too many."""

    def contrasts(self, trials: Sequence[Trial], count: int, look: int) -> list[list[Pair]]:
        """`count` new (cause kept, cause removed) pairs for each trial, of its next `failures`; adds to `tried`.

        Fewer, or none, where the cause cannot be removed.
        """


def validate(
    trials: Sequence[Trial],
    player: Player,
    diagnoses: Mapping[str, Diagnosis],
    episodes: Mapping[str, Episode],
    *,
    pairs: int,
    alpha: float,
) -> None:
    """Gives every trial its verdict; each of the two simulator tests plays at most `pairs` new pairs for it.

    diagnoses  all diagnoses by hash;  `episodes` the probe's, by key
    """

    def decide(trial: Trial) -> None:
        at = spent(alpha, max(0, trial.contrast_looks - 1))
        trial.verdict = judge(
            trial.cluster,
            trial.program,
            trial.pairs,
            diagnoses,
            episodes,
            alpha=spent(alpha, max(0, trial.looks - 1)),
            claim=trial.claim,
            intervened=(
                Intervened(REMEDIES[trial.cluster.mode].name, trial.contrasts, at) if trial.contrasts else None
            ),
        )

    for trial in trials:
        if trial.looks or screen(trial.cluster, diagnoses, episodes, trial.claim).refuted_by is not None:
            decide(trial)
    counts = batches(pairs, alpha)
    for look, count in enumerate(counts):
        open_ = [trial for trial in trials if trial.wants_pairs]
        for trial, played in zip(open_, player.pairs(open_, count, look) if open_ else (), strict=True):
            trial.pairs += played
            trial.looks += LOOKS // len(counts)
            decide(trial)
    for look, count in enumerate(counts):
        open_ = [trial for trial in trials if trial.wants_contrasts]
        for trial, played in zip(open_, player.contrasts(open_, count, look) if open_ else (), strict=True):
            trial.contrasts += played
            trial.contrast_looks += LOOKS // len(counts)
            decide(trial)


def batches(pairs: int, alpha: float) -> tuple[int, ...]:
    """Pairs of each look: two halves, if the first half could decide anything, else all at once."""
    half = (pairs + 1) // 2
    return (half, pairs - half) if 0.5**half < spent(alpha, 0) and half < pairs else (pairs,)
