"""A privileged scripted expert: solves BDDL goals from poses, box geometry and joints, never from names.

`Expert(simulator).act()` answers any live state, `solve(simulator, scene)` records a demonstration, and
`relabel(simulator, episode)` says what the expert would have done in the states of somebody else's episode.
"""

from libero_pro.expert.expert import Expert
from libero_pro.expert.relabel import relabel
from libero_pro.expert.solve import solve

__all__ = ["Expert", "relabel", "solve"]
