"""Text2potential: staged potentials over the privileged state."""

from lerobot_coda.potential.staged import Stage, StagedPotential

__all__ = ["Stage", "StagedPotential"]
