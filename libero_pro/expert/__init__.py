"""A privileged scripted expert: solves BDDL pick-and-place goals from poses, box geometry and joints, never from names.

`Expert(simulator)` labels any state with an action; `solve(simulator, scene)` records a demonstration.
"""

from libero_pro.expert.expert import Expert
from libero_pro.expert.solve import solve

__all__ = ["Expert", "solve"]
