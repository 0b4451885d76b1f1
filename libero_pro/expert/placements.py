"""Where to put an object down: over the middle of its destination, on a free spot, as low as the hand can go."""

from dataclasses import dataclass

import numpy as np

from libero_pro.expert.geometry import Boxes, overlaps
from libero_pro.expert.grasps import FINGER, FINGER_HALF, PALM, PALM_HALF, TIP
from libero_pro.expert.world import World
from libero_pro.goals import owner
from libero_pro.record import RecordError

_DROP = 0.006  # an object is let go this far above what it will rest on
_BELOW_RIM = 0.03  # or, into a container, with its lowest point this far below the walls: they guide the fall
_WALL_WITHIN = 0.10


@dataclass(frozen=True)
class Place:
    """Where a held object goes.

    xy      (2,) for its body origin
    bottom  height for its lowest point when it is let go, as far as the object itself is concerned
    ground  height of what it will rest on
    """

    xy: np.ndarray
    bottom: float
    ground: float
    receptacle: str


def find_place(world: World, predicate: tuple[str, ...]) -> Place:
    """The place that an In or On predicate asks for; RecordError if the expert cannot get there."""
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
    occupied = world.others(*(name for name in world.names() if name not in world.movable), target, receptacle)
    spots = _spots(center, room)
    xy = next((spot for spot in spots if not len(_column_tops(spot + shift, footprint[1], occupied))), center)
    tops = _column_tops(xy + shift, footprint[1], beneath)
    if site is not None and _covered(static, site[0]):
        raise RecordError(f"the expert cannot reach '{destination}' from above yet: something is over it")
    ground = float(tops.max(initial=0.0))
    bottom = ground + _DROP
    if relation == "in" and receptacle:
        bottom = max(bottom, _walls(world.boxes(receptacle), xy) - _BELOW_RIM)
    return Place(xy, bottom, ground, receptacle)


def release_height(world: World, target: str, place: Place) -> float:
    """Height of the grip point at which the object is let go: low, but neither hand nor fingers strike anything."""
    grip = world.grip
    low = place.bottom + grip[2] - world.boxes(target).low()[2]
    at = place.xy + grip[:2] - world.position(target)[:2]
    obstacles = world.others(target)
    # The hand is at the start's yaw when it puts something down: it closes along y.
    palm = _column_tops(at, np.array(PALM_HALF)[::-1], obstacles).max(initial=0.0)
    fingers = _column_tops(at, np.array([FINGER_HALF, FINGER + 0.008]), obstacles).max(initial=0.0)
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


def _covered(boxes: Boxes, point: np.ndarray) -> bool:
    """A box lies over the point: a roof, or the cabinet around a closed drawer."""
    extents = boxes.extents()
    over = (np.abs(boxes.centers[:, :2] - point[:2]) < extents[:, :2] + 0.005).all(axis=1)
    return bool((over & (boxes.centers[:, 2] - extents[:, 2] > point[2] + 0.03)).any())


def _walls(boxes: Boxes, xy: np.ndarray) -> float:
    """Height of the tallest box around a point."""
    extents = boxes.extents()
    near = (np.abs(boxes.centers[:, :2] - xy) - extents[:, :2] < _WALL_WITHIN).all(axis=1)
    return float((boxes.centers[:, 2] + extents[:, 2])[near].max(initial=0.0))


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


def _column_tops(xy: np.ndarray, half: np.ndarray, obstacles: Boxes) -> np.ndarray:
    """Tops of the boxes that a vertical column of world-aligned half size (2,) meets."""
    reach = half + np.linalg.norm(obstacles.halves, axis=1)[:, None]
    candidates = obstacles.where((np.abs(obstacles.centers[:, :2] - xy) < reach).all(axis=1))
    column = Boxes(np.array([[*xy, 1.0]]), np.eye(3)[None], np.array([[*half, 2.0]]))
    met = candidates.where(overlaps(column, candidates))
    return met.centers[:, 2] + met.extents()[:, 2]
