"""Text2potential: staged potentials over the privileged state, from goals, diagnoses and plain words."""

from lerobot_coda.potential.names import Names
from lerobot_coda.potential.plans import from_goal
from lerobot_coda.potential.staged import Stage, StagedPotential
from lerobot_coda.potential.terms import Term
from lerobot_coda.potential.text import from_text, to_text

__all__ = ["Names", "Stage", "StagedPotential", "Term", "from_goal", "from_text", "to_text"]
