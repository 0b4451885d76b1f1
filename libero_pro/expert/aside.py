"""Aside: what an opening drawer would wall in first goes where it can still be taken once the drawer is open."""

from functools import partial
from itertools import product

import numpy as np

from libero_pro.expert.articulation import Articulation
from libero_pro.expert.geometry import Boxes
from libero_pro.expert.grasps import Grasp, plan_grasp
from libero_pro.expert.motion import Decision, strain
from libero_pro.expert.pick import Plans, pick, plan_pick
from libero_pro.expert.place import falling, let_go
from libero_pro.expert.placements import DROP, Detour, Place, column_tops
from libero_pro.expert.pull import plan_pull
from libero_pro.expert.world import World
from libero_pro.record import RecordError

_AROUND = 0.01  # a waiting object nothing stands, m
_ROOM = 0.015  # around the hand that takes it, m
_FAR, _STEP = 0.36, 0.02  # of the grid of places around the region of the open drawer, m
_EVEN = 0.002  # m
_MOVED = 0.01  # m
_CLEAR = 0.03  # between fingers and the object that they have let go, m


def make_room(world: World, drawer: Articulation, predicate: tuple[str, ...], plans: Plans) -> Decision | None:
    """One step of moving aside the object of an In predicate before its drawer is opened; None if it may stay."""
    target, position = predicate[1], world.position(predicate[1])
    detour = plans.detours.get(target)
    if detour is None or np.linalg.norm(position - detour.position) > _MOVED:
        blocked = _walled_in(world, drawer, target) and isinstance(plan_pick(world, target, drawn=False), Grasp)
        place = find_waiting_place(world, drawer, predicate) if blocked else None
        detour = plans.detours[target] = Detour(position, place)
    if detour.place is not None and not falling(world, target, detour.place):
        return pick(world, target, detour.place, plans)
    if not world.straddles(target, _CLEAR):
        return None
    letting_go = let_go(world, target, Place(position[:2], position[2], position[2], ""))
    return None if letting_go.phase == "done" else letting_go


def waiting_place(world: World, drawer: Articulation, predicate: tuple[str, ...], plans: Plans) -> Place | None:
    """Where an object that is in the hand already waits for its drawer to be opened; None if there is no such place."""
    detour = plans.detours.get(predicate[1])
    if detour is None or detour.place is None:
        detour = Detour(world.position(predicate[1]), find_waiting_place(world, drawer, predicate))
        plans.detours[predicate[1]] = detour
    return detour.place


def _walled_in(world: World, drawer: Articulation, target: str) -> bool:
    """Once the drawer is open there is neither a free grasp of the object nor a way to draw it out."""
    return plan_pick(world.imagined({drawer.address: drawer.end("open")}, {}), target, drawn=False) is None


def find_waiting_place(world: World, drawer: Articulation, predicate: tuple[str, ...]) -> Place | None:
    """The place nearest to an object, in reach of its drawer, where it is in nobody's way and easily taken again.

    It is on what the drawer's fixture stands on. The hand has room there, before and after the drawer is opened, and
    still gets to the handle.
    """
    target = predicate[1]
    opened = {drawer.address: drawer.end("open")}
    after = world.imagined(opened, {})
    site = after.site(predicate[2])
    if site is None:
        return None
    center, boxes, position = site[0][:2], world.boxes(target), world.position(target)
    ground = float(column_tops(center, np.full(2, 0.005), world.arena).max(initial=0.0))
    low, high = boxes.low(), boxes.high()
    middle, half = (low + high)[:2] / 2 - position[:2], (high - low)[:2] / 2 + _AROUND
    obstacles = after.others(target)
    steps = np.arange(-_FAR, _FAR + _STEP / 2, _STEP)
    grid = center + np.array(list(product(steps, steps)))
    for xy in grid[np.argsort(np.linalg.norm(grid - position[:2], axis=1), kind="stable")]:
        if not _vacant(xy + middle, half, ground, obstacles, world.arena):
            continue
        origin = np.array([*xy, ground + position[2] - low[2]])
        there = world.imagined(opened, {target: origin})
        rotation = there.rotation(target)
        grasp = plan_grasp(
            there.boxes(target), there.others(target), origin, rotation, partial(strain, world), margin=_ROOM
        )
        if grasp is None or strain(world, grasp.goal(origin, rotation)) > 0:
            continue
        if _opens(world.imagined({}, {target: origin}), drawer):
            return Place(xy, ground + DROP, ground, "")
    return None


def _vacant(xy: np.ndarray, half: np.ndarray, ground: float, obstacles: Boxes, arena: Boxes) -> bool:
    """Nothing is over the ground within half sizes (2,) of a point (2,), and there is ground at the corners."""
    if column_tops(xy, half, obstacles).max(initial=0.0) > ground + _EVEN:
        return False
    corners = [xy + half * sign for sign in product((-1.0, 1.0), (-1.0, 1.0))]
    return all(column_tops(at, np.zeros(2), arena).max(initial=0.0) > ground - _EVEN for at in corners)


def _opens(world: World, drawer: Articulation) -> bool:
    """The hand gets to the drawer's handle."""
    try:
        plan_pull(world, drawer, "open")
    except RecordError:
        return False
    return True
