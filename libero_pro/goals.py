"""Which object a goal moves and where to: the roles that experts, critics and potentials speak of."""

from dataclasses import dataclass

from libero_pro.record import RecordError
from libero_pro.scene import Goal


@dataclass(frozen=True)
class Roles:
    """`target` is the object to move, `receptacle` the object it goes on or in, `region` the site named by the goal."""

    target: str
    receptacle: str
    region: str


def placements(goal: Goal) -> list[tuple[str, str]]:
    """The (object, destination) pairs of the goal's In and On predicates, in order."""
    return [(predicate[1], predicate[2]) for predicate in goal if predicate[0] in ("in", "on") and len(predicate) == 3]


def owner(region: str, names: tuple[str, ...] | list[str]) -> str | None:
    """The object or fixture a region belongs to: the longest name that the region's name starts with."""
    owners = [name for name in names if region == name or region.startswith(name + "_")]
    return max(owners, key=len) if owners else None


def player(goal: Goal, names: tuple[str, ...] | list[str], role: str) -> str | None:
    """The one of `names` (movable instances) that is the goal's "target" or "receptacle", None if none is.

    As `roles`, for goals that need not have both: a receptacle may be a fixture, or there may be no placement at all.
    """
    for target, region in placements(goal):
        if target in names:
            return target if role == "target" else owner(region, names)
    return None


def roles(goal: Goal, names: tuple[str, ...] | list[str]) -> Roles:
    """Roles of the goal's first placement among the given object names.

    Raises RecordError when the goal places nothing, or places it on something that `names` does not hold.
    """
    pairs = placements(goal)
    if not pairs:
        raise RecordError(f"goal {goal} places no object (only In and On goals have a target and a receptacle)")
    target, region = pairs[0]
    receptacle = owner(region, names)
    if target not in names or receptacle is None:
        raise RecordError(
            f"goal {goal}: '{target}' or the owner of '{region}' is not among the objects {sorted(names)}"
        )
    return Roles(target, receptacle, region)
