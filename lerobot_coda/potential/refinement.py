"""How a diagnosis changes a potential, as data: by the rule of its mode, or by a plan that was written for it."""

from pydantic import Field, model_validator

from lerobot_coda.critic.diagnosis import Mode
from lerobot_coda.potential.names import Names
from lerobot_coda.potential.refine import refined
from lerobot_coda.potential.staged import StagedPotential
from libero_pro.record import Record


class Refinement(Record):
    """What a training program asks of the potential.

    mode     the failure mode whose stage is split;  `objects` the instructed objects that failures were about
    written  a plan in place of the rule's, for the goals with the canonical plan `instead_of` (its hash)
    """

    mode: Mode
    objects: tuple[str, ...] = Field(default=(), max_length=40)
    written: StagedPotential | None = None
    instead_of: str | None = None

    @model_validator(mode="after")
    def _whole(self) -> "Refinement":
        if (self.written is None) != (self.instead_of is None):
            raise ValueError("'written' and 'instead_of' belong together: give both or neither")
        if self.written is not None and self.written.latched:
            raise ValueError("'written' is latched, and the loop's value function does not see the stage: unlatch it")
        return self

    def apply(self, potential: StagedPotential, canonical: str, names: Names) -> StagedPotential:
        """The finer potential of goals with the canonical plan of that hash; the same one where it asks for nothing.

        RecordError if what comes out does not fit the scene.
        """
        if self.written is None:
            return refined(potential, self.mode, self.objects, names)
        if canonical != self.instead_of:
            return potential
        self.written.check(names)
        return self.written
