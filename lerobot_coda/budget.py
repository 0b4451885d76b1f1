"""Budget: what a run has used, in the units in which arms are compared.

`environments` are generated scenes in which anybody acts (probe and demonstration), `layouts` are generated scenes
rendered once for grounding. Environment steps are metered apart by purpose: `probe` (the policy in generated scenes),
`expert` (demonstrations), `validation`, `evaluation`. Seconds are wall time per stage.
"""

from collections import Counter
from typing import Literal, Self

from pydantic import Field

from libero_pro.record import Record

Purpose = Literal["probe", "expert", "validation", "evaluation"]
PURPOSES: tuple[Purpose, ...] = ("probe", "expert", "validation", "evaluation")


class Usage(Record):
    """What was used; usages add up. A run's total is the sum over its finished steps, so a killed run counts right."""

    environments: int = 0
    validation_environments: int = 0
    layouts: int = 0
    steps: dict[str, int] = Field(default_factory=dict)
    seconds: dict[str, float] = Field(default_factory=dict)

    def __add__(self, other: Self) -> "Usage":
        return Usage(
            environments=self.environments + other.environments,
            validation_environments=self.validation_environments + other.validation_environments,
            layouts=self.layouts + other.layouts,
            steps=dict(Counter(self.steps) + Counter(other.steps)),
            seconds={
                stage: round(self.seconds.get(stage, 0.0) + other.seconds.get(stage, 0.0), 2)
                for stage in (*self.seconds, *(s for s in other.seconds if s not in self.seconds))
            },
        )


class Limits(Record):
    """What a run may use. None: no limit. A round that would not fit is not begun, a round's share never exceeds it."""

    environments: int | None = Field(default=None, ge=1)
    environments_per_round: int = Field(ge=4)
    layouts_per_round: int = Field(default=0, ge=0)
    hours: float | None = Field(default=None, gt=0)

    def environments_left(self, used: Usage) -> int:
        """Environments the next round may generate."""
        if self.environments is None:
            return self.environments_per_round
        return max(0, min(self.environments_per_round, self.environments - used.environments))

    def spent(self, used: Usage, minimum: int, hours: float) -> str | None:
        """Why no further round of at least `minimum` environments may begin after `hours`; None if one may."""
        if self.environments_left(used) < minimum:
            return f"{used.environments} of {self.environments} environments are used; a round needs {minimum}"
        if self.hours is not None and hours >= self.hours:
            return f"{hours:.2f} of {self.hours:g} hours are used"
        return None
