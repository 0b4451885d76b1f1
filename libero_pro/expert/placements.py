"""Where to put an object down: over the middle of its destination, on a free spot, as low as the hand can go."""

from dataclasses import dataclass

import numpy as np

from libero_pro.expert.geometry import Boxes, overlaps, turn_z
from libero_pro.expert.grasps import FINGER, FINGER_HALF, PALM, PALM_HALF, TIP
from libero_pro.expert.world import World
from libero_pro.goals import owner
from libero_pro.record import RecordError

DROP = 0.006  # an object is let go this far above what it will rest on
_BELOW_RIM = 0.03  # or, into a container, with its lowest point this far below the walls: they guide the fall
_WALL_WITHIN = 0.10
_FLOOR = 0.005  # boxes that reach less far than this over a point are at its side, m
_UPHILL = 0.04  # on a slope things are put down this far above the middle of the region, m
_LEAN = 0.6  # rad
_MUCH_LOWER = 0.08  # m
_MIDDLES = (1.0, 0.7, 0.4)  # shares of a footprint under which nothing should be
_APART = 0.75  # share of a region's half width at which two things on it stand
_BELOW_REGION = 0.01  # LIBERO's In predicate extends a region down by so much, m
_POINT = np.full(2, 0.005)  # half sizes (m) within which something is over a point
_BESIDE = 0.005  # what hangs over less than this much of an object's edge lets it pass, m


@dataclass(frozen=True)
class Place:
    """Where a held object goes.

    xy      (2,) for its body origin
    bottom  height for its lowest point when it is let go, as far as the object itself is concerned
    ground  height of what it will rest on
    rests   the goal still holds when the object has been let go and lies still; if not, it must be held there
    lean    (3,) rotation vector in the world that leans a tall object uphill, where its support slopes
    yaw     turn of the hand about the vertical, away from the robot's start, with which it is put down
    """

    xy: np.ndarray
    bottom: float
    ground: float
    receptacle: str
    rests: bool = True
    yaw: float = 0.0
    lean: np.ndarray | None = None


@dataclass(frozen=True)
class Detour:
    """Where an object that stands at `position` (3,) waits for its drawer to open; no place if it need not."""

    position: np.ndarray
    place: Place | None


def find_place(world: World, predicate: tuple[str, ...], share: tuple[int, int] = (0, 1)) -> Place:
    """The place that an In or On predicate asks for; RecordError if the expert cannot get there.

    share  (i, n): it is the i-th of n objects that go onto the same region, which are put side by side
    """
    relation, target, destination = predicate
    boxes = world.boxes(target)
    footprint = _footprint(boxes)
    shift = footprint[0] - world.position(target)[:2]
    site = world.site(destination)
    center: np.ndarray = np.zeros(2)
    room: np.ndarray = np.zeros(2)
    if destination in world.names():
        receptacle, center = destination, world.position(destination)[:2]
    elif site is not None:
        # A region of the table belongs to no object; what lies beneath then is the table.
        receptacle = owner(destination, world.names()) or ""
        center, room = site[0][:2], np.maximum(site[1][:2] - 0.015, 0.0)
    else:
        raise RecordError(f"the expert cannot place anything on '{destination}': it is neither an object nor a region")
    static = world.others(*world.movable)
    beneath = Boxes.joined([static, world.boxes(receptacle)]) if receptacle in world.movable else static
    occupied = Boxes.joined([world.boxes(name) for name in world.movable if name not in (target, receptacle)])
    level = float(column_tops(center, np.full(2, 0.005), beneath).max(initial=0.0))
    occupied = occupied.where(occupied.centers[:, 2] > level)  # what lies below the destination is in nobody's way
    spots = _spots(center, room)
    if share[1] > 1 and relation == "on" and site is not None:
        # Along x: the open fingers reach far along y.
        spots.insert(0, center + _APART * room * [2.0 * share[0] / (share[1] - 1) - 1.0, 0.0])
    if relation == "in" and site is not None and receptacle not in world.movable:
        spots = _uncovered(spots, shift, footprint[1], static, site[0][2], site[0][2] + site[1][2])
    if site is not None and _covered(static, site[0]):
        spots = _open_spots(spots, shift, footprint[1], static, float(site[0][2]))
        if not spots:
            raise RecordError(f"the expert cannot reach '{destination}' from above yet: something is over it")
    xy = _freest(spots, shift, footprint[1], occupied)
    tops = column_tops(xy + shift, footprint[1], beneath)
    centered = column_tops(xy, footprint[1], beneath)
    if relation == "in" and centered.max(initial=0.0) < tops.max(initial=0.0) - 0.01:
        xy, tops = xy - shift, centered  # its middle fits between the walls, its origin does not
    ground = float(tops.max(initial=0.0))
    lean = None
    if relation == "on" and receptacle in world.names() and receptacle not in world.movable:
        slope = _slope(world.boxes(receptacle), center)
        if slope is not None:
            normal, point = slope
            uphill = -normal[:2] / np.linalg.norm(normal[:2])
            xy = center + _UPHILL * uphill
            ground = float(point[2] - normal[:2] @ (xy - point[:2]) / normal[2])
            if boxes.high()[2] - boxes.low()[2] > 2 * footprint[1].max():
                lean = _LEAN * np.array([-uphill[1], uphill[0], 0.0])
    bottom = ground + DROP
    yaw = 0.0
    if relation == "in" and receptacle:
        bottom = max(bottom, _walls(world.boxes(receptacle), xy) - _BELOW_RIM)
        if site is not None:
            yaw = _fitting_yaw(world, boxes, site[1][:2])
            if yaw == 0.0 and receptacle not in world.movable and world.holds(target):
                yaw = _lowest_yaw(world, target, xy, bottom)
            origin = float(world.position(target)[2] - boxes.low()[2])  # above the lowest point
            lowest = site[0][2] - site[1][2] - _BELOW_REGION
            if receptacle not in world.movable and world.holds(target) and ground + origin < lowest:
                return Place(xy, lowest + 0.012 - origin, ground, receptacle, False, yaw)
    return Place(xy, bottom, ground, receptacle, True, yaw, lean)


def _slope(boxes: Boxes, xy: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Upward normal (3,) and a surface point (3,) of the broad, sloping board nearest below or beside a point (2,)."""
    thin = boxes.halves.argmin(axis=1)
    normals = boxes.axes[np.arange(len(boxes)), :, thin]
    normals = normals * np.sign(normals[:, 2:])
    sloping = (normals[:, 2] > 0.5) & (normals[:, 2] < 0.97) & (np.median(boxes.halves, axis=1) > 0.04)
    if not sloping.any():
        return None
    boxes, normals = boxes.where(sloping), normals[sloping]
    tops = boxes.centers[:, 2] + boxes.extents()[:, 2]
    if (np.abs(boxes.centers[:, :2] - xy) > boxes.extents()[:, :2] + 0.03).any(axis=1)[tops.argmax()]:
        return None
    i = int(tops.argmax())
    return normals[i], boxes.centers[i] + normals[i] * boxes.halves[i].min()


def _fitting_yaw(world: World, held: Boxes, room: np.ndarray) -> float:
    """The first of the hand's turns 0 and +-90 degrees with which what it holds fits into +-room (2,), else 0."""
    now = np.arctan2(world.hand[1, 0], world.hand[0, 0]) - np.pi / 2
    for yaw in (0.0, np.pi / 2, -np.pi / 2):
        turned = Boxes(held.centers @ turn_z(yaw - now).T, turn_z(yaw - now) @ held.axes, held.halves)
        if ((turned.high() - turned.low())[:2] / 2 <= room).all():
            return yaw
    return 0.0


def release_height(world: World, target: str, place: Place) -> float:
    """Height of the grip point at which the object is let go: low, but neither hand nor fingers strike anything."""
    at = place.xy + world.grip[:2] - world.position(target)[:2]
    return _lowest_grip(world, target, at, place.bottom, place.yaw)


def _lowest_yaw(world: World, target: str, xy: np.ndarray, bottom: float) -> float:
    """The hand's turn, 0 or +-90 degrees, with which it gets lowest over a place (2,); 0 unless another is much better.

    An upright hand is five times as broad along its closing axis as across it.
    """
    now = np.arctan2(world.hand[1, 0], world.hand[0, 0]) - np.pi / 2
    offset = world.grip - world.position(target)
    heights = {
        yaw: _lowest_grip(world, target, xy + (turn_z(yaw - now) @ offset)[:2], bottom, yaw)
        for yaw in (0.0, np.pi / 2, -np.pi / 2)
    }
    best = min(heights, key=lambda yaw: heights[yaw])
    return best if heights[best] < heights[0.0] - _MUCH_LOWER else 0.0


def _lowest_grip(world: World, target: str, at: np.ndarray, bottom: float, yaw: float) -> float:
    """Height to which the hand, turned by `yaw`, can go down at a point (2,) with the target at `bottom`."""
    low = bottom + world.grip[2] - world.boxes(target).low()[2]
    obstacles = world.others(target)
    # At the start's yaw the hand closes along y.
    order = -1 if abs(yaw) < 0.1 else 1
    palm = column_tops(at, np.array(PALM_HALF)[::order], obstacles).max(initial=0.0)
    fingers = column_tops(at, np.array([FINGER + 0.008, FINGER_HALF])[::order], obstacles).max(initial=0.0)
    return max(low, palm - PALM + 0.008, fingers + TIP + 0.003)


def clearance(world: World, start: np.ndarray, end: np.ndarray, radius: float, *ignored: str) -> float:
    """Height of the tallest thing that the way from `start` to `end` (2,) comes within `radius` of, 0 for none.

    What stands beside the start and is left behind does not count: the way up past it is vertical.
    """
    boxes = world.others(*ignored)
    extents = boxes.extents()
    way = start + np.linspace(0.0, 1.0, 16)[:, None] * (end - start)
    apart = np.maximum(np.abs(boxes.centers[None, :, :2] - way[:, None]) - extents[None, :, :2], 0.0)
    distance = np.linalg.norm(apart, axis=2)
    passed = (distance.min(axis=0) < radius) & ((distance.min(axis=0) < distance[0] - 0.002) | (distance[0] < 0.01))
    return float((boxes.centers[:, 2] + extents[:, 2])[passed].max(initial=0.0))


def cruise_height(world: World, target: str, place: Place, start: np.ndarray, end: np.ndarray, *ignored: str) -> float:
    """Height at which the lowest point of what moves clears everything on the way."""
    level = neighbors_top(world, target, place.receptacle)
    return max(level, clearance(world, start, end, 0.06, *ignored)) + 0.015


def sidesteps(world: World, target: str) -> list[np.ndarray]:
    """Horizontal ways (2,) out from under what hangs over an object, shortest first; none if nothing does."""
    mine = world.boxes(target)
    low, high = mine.low(), mine.high()
    boxes = world.others(target)
    extents = boxes.extents()
    under = boxes.centers - extents
    apart = np.abs(boxes.centers[:, :2] - (low + high)[:2] / 2) - extents[:, :2]
    above = (under[:, 2] > high[2] - 0.002) & (apart < (high - low)[:2] / 2 - _BESIDE).all(axis=1)
    if not above.any():
        return []
    first, last = under[above][:, :2].min(axis=0) - 0.02, (boxes.centers + extents)[above][:, :2].max(axis=0) + 0.02
    ways = [np.array([first[0] - high[0], 0.0]), np.array([last[0] - low[0], 0.0])]
    ways += [np.array([0.0, first[1] - high[1]]), np.array([0.0, last[1] - low[1]])]
    return sorted(ways, key=lambda way: float(np.linalg.norm(way)))


def neighbors_top(world: World, target: str, destination: str) -> float:
    """Height of the tallest movable object on the level of the target or its destination.

    A hand may meet it on any way; and as it does not matter where it stands, equal tasks are done at equal heights.
    """
    levels = [world.boxes(name).low()[2] for name in (target, destination) if name in world.movable]
    tops = [0.0]
    for name in world.movable:
        boxes = world.boxes(name)
        if name != target and min(abs(boxes.low()[2] - level) for level in levels) < 0.05:
            tops.append(float(boxes.high()[2]))
    return max(tops)


def _covered(boxes: Boxes, point: np.ndarray, half: np.ndarray = _POINT) -> bool:
    """A box lies over the point or within half sizes (2,) of it: a roof, or the cabinet around a closed drawer."""
    extents = boxes.extents()
    over = (np.abs(boxes.centers[:, :2] - point[:2]) < extents[:, :2] + half).all(axis=1)
    return bool((over & (boxes.centers[:, 2] - extents[:, 2] > point[2] + 0.03)).any())


def _walls(boxes: Boxes, xy: np.ndarray) -> float:
    """Height of the second lowest of the walls at the four sides of a point: the tallest box near it on each.

    So what a drawer is drawn out of, at one side, counts no more than what a thing in it may lean on.
    """
    extents, away = boxes.extents(), boxes.centers[:, :2] - xy
    gaps = np.abs(away) - extents[:, :2]
    side = gaps.argmax(axis=1)
    nearest = gaps[np.arange(len(boxes)), side]
    signs = np.sign(away[np.arange(len(boxes)), side])
    tops = boxes.centers[:, 2] + extents[:, 2]
    beside = (nearest > -_FLOOR) & (gaps < _WALL_WITHIN).all(axis=1)
    sides = [tops[beside & (side == axis) & (signs == sign)] for axis in (0, 1) for sign in (-1.0, 1.0)]
    heights = sorted(float(side.max()) for side in sides if len(side))
    return heights[min(1, len(heights) - 1)] if heights else 0.0


def _footprint(boxes: Boxes) -> tuple[np.ndarray, np.ndarray]:
    """Center (2,) and half sizes (2,) of the part of an object that touches the ground."""
    extents = boxes.extents()
    bottoms = boxes.centers[:, 2] - extents[:, 2]
    ground = bottoms < bottoms.min() + 0.008
    low = (boxes.centers - extents)[ground, :2].min(axis=0)
    high = (boxes.centers + extents)[ground, :2].max(axis=0)
    return (low + high) / 2, (high - low) / 2


def _spots(center: np.ndarray, room: np.ndarray) -> list[np.ndarray]:
    """Points around a center within +-room, the center first."""
    steps = (0.0, 0.5, -0.5, 1.0, -1.0)
    offsets = sorted(((x, y) for x in steps for y in steps), key=lambda step: abs(step[0]) + abs(step[1]))
    return [center + np.array(offset) * room for offset in offsets]


def _open_spots(
    spots: list[np.ndarray], shift: np.ndarray, half: np.ndarray, static: Boxes, height: float
) -> list[np.ndarray]:
    """The spots with nothing over them at a height, first those with nothing over the whole footprint either."""
    found = [spot for spot in spots if not _covered(static, np.array([*spot, height]))]
    return sorted(found, key=lambda spot: _covered(static, np.array([*(spot + shift), height]), half))


def _uncovered(
    spots: list[np.ndarray], shift: np.ndarray, half: np.ndarray, static: Boxes, middle: float, top: float
) -> list[np.ndarray]:
    """The spots over which nothing hangs, where something above a region's `top` hangs over the first.

    Beneath those there is nothing above the region's `middle`. All spots, if there is no such spot.
    """
    heights = [float(column_tops(spot + shift, half, static).max(initial=0.0)) for spot in spots]
    if heights[0] <= top:
        return spots
    return [spot for spot, height in zip(spots, heights, strict=True) if height < middle] or spots


def _freest(spots: list[np.ndarray], shift: np.ndarray, half: np.ndarray, occupied: Boxes) -> np.ndarray:
    """The first spot with nothing under a footprint of half sizes (2,), else with nothing under its middle."""
    for share in _MIDDLES:
        for spot in spots:
            if not len(column_tops(spot + shift, share * half, occupied)):
                return spot
    return spots[0]


def column_tops(xy: np.ndarray, half: np.ndarray, obstacles: Boxes) -> np.ndarray:
    """Tops of the boxes that a vertical column of world-aligned half size (2,) meets."""
    reach = half + np.linalg.norm(obstacles.halves, axis=1)[:, None]
    candidates = obstacles.where((np.abs(obstacles.centers[:, :2] - xy) < reach).all(axis=1))
    column = Boxes(np.array([[*xy, 1.0]]), np.eye(3)[None], np.array([[*half, 2.0]]))
    met = candidates.where(overlaps(column, candidates))
    return met.centers[:, 2] + met.extents()[:, 2]
