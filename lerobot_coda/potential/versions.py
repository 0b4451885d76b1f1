"""The potential of a training set, as one version: the goals' canonical plans, and the accepted refinements of them.

V = Phi + V_theta holds one V_theta for all states, so the potential must be one function over a whole training set:
chunks whose two ends, or episodes whose columns, come from different versions teach the value function differences
that are none of the task's. A set is therefore labeled by one `Potentials`, whose hash is the version.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field, field_validator

from lerobot_coda.potential.acceptance import Acceptance, Thresholds, accept
from lerobot_coda.potential.names import Names
from lerobot_coda.potential.plans import plan_of
from lerobot_coda.potential.refinement import Refinement
from lerobot_coda.potential.staged import StagedPotential
from lerobot_coda.potential.text import to_text
from libero_pro.episode import Episode
from libero_pro.record import Record, RecordError


class Potentials(Record):
    """One version.

    form     staged: as below;  none: Phi = 0 everywhere, which is value learning without a potential
    refined  canonical plan's hash -> the plan that replaces it, for every goal that has that canonical plan
    """

    schema_version: Literal[1] = 1
    form: Literal["staged", "none"] = "staged"
    refined: dict[str, StagedPotential] = Field(default_factory=dict)

    @field_validator("refined")
    @classmethod
    def _unlatched(cls, refined: dict[str, StagedPotential]) -> dict[str, StagedPotential]:
        if latched := next((name for name, potential in refined.items() if potential.latched), None):
            raise ValueError(f"the potential for {latched} is latched, and a value function must see the stage then")
        return refined

    def of(self, episode: Episode) -> StagedPotential | None:
        """The potential of an episode's goal; None where there is to be none."""
        if self.form == "none":
            return None
        plan = plan_of(episode)
        return self.refined.get(plan.hash, plan)

    def evaluate(self, episode: Episode) -> np.ndarray:
        """Phi at each instant, (T+1,) float32 in [0, 1]; 0 at a terminal."""
        potential = self.of(episode)
        phi = np.zeros(len(episode) + 1) if potential is None else potential.evaluate(episode)
        return phi.astype(np.float32)


class Tried(Record):
    """A refinement that was judged, for the goals of one form: who asked for it, what came of it, and why."""

    program: str
    goal: str
    canonical: str
    potential: str  # in the readable form; "" where there was none to judge
    accepted: bool
    reason: str
    acceptance: Acceptance | None = None


class Settled(Record):
    """What a round's refinements came to: the version to train with, and every refinement that was judged."""

    potentials: Potentials
    tried: tuple[Tried, ...] = ()


def settle(
    asked: Sequence[tuple[str, Refinement]], episodes: Sequence[Episode], thresholds: Thresholds | None = None
) -> Settled:
    """Judges refinements, (program's name, refinement) each, on stored episodes; each builds on those accepted before.

    Episodes are grouped by their goal's canonical plan; a refinement is accepted or refused for each group on that
    group's episodes alone. Where it is refused, the plan stays as it was, with the reason.
    """
    groups: dict[str, list[Episode]] = {}
    for episode in episodes:
        if episode.invalid is None and len(episode):
            groups.setdefault(plan_of(episode).hash, []).append(episode)
    refined: dict[str, StagedPotential] = {}
    tried: list[Tried] = []
    for canonical, own in sorted(groups.items()):
        original = current = plan_of(own[0])
        for program, refinement in asked:
            shown = next((e for e in own if set(refinement.objects) & set(_spoken(e))), own[0])
            said: dict[str, Any] = {"program": program, "goal": _goal_text(shown), "canonical": canonical}
            try:
                candidate = refinement.apply(current, canonical, Names.of_episode(shown))
            except RecordError as error:
                tried.append(Tried(**said, potential="", accepted=False, reason=str(error)))
                continue
            if candidate == current:
                continue
            found = accept(candidate, own, thresholds)
            said |= {"potential": to_text(candidate), "acceptance": found}
            tried.append(Tried(**said, accepted=found.accepted, reason=found.reason))
            current = candidate if found.accepted else current
        if current != original:
            refined[canonical] = current
    return Settled(potentials=Potentials(refined=refined), tried=tuple(tried))


def _spoken(episode: Episode) -> list[str]:
    return [name for predicate in episode.scene.goal for name in predicate[1:]]


def _goal_text(episode: Episode) -> str:
    return "; ".join(" ".join(predicate) for predicate in episode.scene.goal)
