"""What a goal asks for, in the order to do it: open, turn, place, close; and what a predicate needs beforehand."""

from dataclasses import dataclass

import numpy as np

from libero_pro.expert.articulation import Articulation, articulation
from libero_pro.expert.world import World
from libero_pro.goals import owner
from libero_pro.record import RecordError
from libero_pro.scene import Goal

ORDER = {"open": 0, "turnon": 1, "turnoff": 1, "in": 2, "on": 2, "close": 3}
_ENOUGH = 0.12  # a drawer that is out this far (m) takes an object


@dataclass(frozen=True)
class Subtask:
    """One thing to do: `predicate` is what it brings about, `held` whether that is so now."""

    predicate: tuple[str, ...]
    held: bool


def subtasks(
    goal: Goal, holds: np.ndarray, world: World, joints: dict[str, Articulation], names: tuple[str, ...]
) -> list[Subtask]:
    """The goal's predicates in working order, each preceded by what it needs: a drawer is opened before it is filled.

    Raises RecordError for a predicate that none of the six skills' forms fits.
    """
    found: list[Subtask] = []
    order = sorted(range(len(goal)), key=lambda i: (ORDER.get(goal[i][0], 9), i))
    for i in order:
        predicate, held = goal[i], bool(holds[i])
        if predicate[0] not in ORDER:
            raise RecordError(f"the expert cannot solve goal {predicate}: '{predicate[0]}' is none of {sorted(ORDER)}")
        if ORDER[predicate[0]] == 2:
            if not held and (drawer := closed_container(world, predicate, joints, names)) is not None:
                opening = Subtask(("open", drawer.name), False)
                if opening not in found:
                    found.append(opening)
        else:
            articulation(joints, predicate)
        found.append(Subtask(predicate, held))
    return found


def share(goal: Goal, predicate: tuple[str, ...]) -> tuple[int, int]:
    """(i, n): the predicate is the i-th of n in the goal that put something onto the same destination."""
    alike = [other for other in goal if other[0] == predicate[0] and other[-1] == predicate[-1] and len(other) == 3]
    return (alike.index(predicate), len(alike)) if predicate in alike else (0, 1)


def closed_container(
    world: World, predicate: tuple[str, ...], joints: dict[str, Articulation], names: tuple[str, ...]
) -> Articulation | None:
    """The drawer or door that must be opened, or opened further, for an In predicate."""
    if predicate[0] != "in":
        return None
    found = joints.get(predicate[2]) or joints.get(owner(predicate[2], names) or "")
    return found if found is not None and "open" in found.ranges and not _wide_enough(world, found) else None


def _wide_enough(world: World, drawer: Articulation) -> bool:
    """An object can be put in."""
    if drawer.hinge:
        return drawer.holds(world, "open")
    return drawer.left(world, "open") < abs(drawer.target("open") - drawer.threshold("close")) - _ENOUGH
