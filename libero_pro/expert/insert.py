"""Insert: put an object into a niche, under a roof, with the hand pointing in through the open side.

The pinch is planned together with the way in: what matters is not how an object is taken most easily, but how it can
be taken so that hand and object pass below the roof and between the walls.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np

from libero_pro.expert.geometry import Boxes, overlaps, turn_z
from libero_pro.expert.grasps import PAD_HALF, UPRIGHT, candidates
from libero_pro.expert.motion import CLOSE, OPEN, Decision, towards
from libero_pro.expert.placements import clearance
from libero_pro.expert.poses import DOWN, Pose, attainable, boxes_of, free, hand_axes
from libero_pro.expert.travel import travel
from libero_pro.expert.world import World
from libero_pro.goals import owner
from libero_pro.record import RecordError

_PITCHES = np.deg2rad((45.0, 35.0, 55.0, 25.0, 15.0, 65.0))  # of the hand below the horizontal
_AZIMUTHS = np.deg2rad((0.0, 20.0, -20.0, 40.0, -40.0))  # of the hand off the way in
_DEPTHS = (0.014, 0.022, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08)  # of the fingertips below the highest point, m
_OPENING = 0.0774
_STANDOFF = 0.09  # the hand comes straight in from this far, m
_DROP = 0.006  # an object is let go this far above the niche's floor, m
_WITHIN = 0.008  # of the region's edge an object's origin must not be, m
_BESIDE = 0.004  # from the walls on its way, m
_OUTSIDE = 0.05  # before the region an object's front is out of the niche, m
_OVER = 0.03  # other things on the way an object is carried, m
_STEP = 0.01  # of the grid of places, m
_DEEP = 0.06  # inside the region; farther is not worth anything, m
_WORTH = 15.0  # cost per meter that an object stands less far inside
_DEEP_ENOUGH = 0.018  # of the grip point below the edge of what is pinched, m
_SHALLOW = 250.0  # cost per meter less than that
_GOOD = 4.0  # cost of a plan beyond which others are looked for
_PINCHES = 40  # tried at most for each pitch
_WIDE, _NARROW, _GRAZING = 0.008, 0.001, -0.004  # margins around the hand, whose boxes are a little too large, m
_ON_COURSE, _LEVEL = 0.008, 0.003  # aside and in height, m
_SETTLED = 0.015  # finger speed below which a grip is firm, m/s
_SPEED = 0.5


@dataclass(frozen=True)
class Niche:
    """A region under a roof that is open at one side.

    inward   unit vector (3,) from the open side into it
    center, half  (3,) of the region, half sizes along the world's axes
    floor    height of what an object will stand on;  `walls`: the boxes around it, those of the `receptacle`
    """

    inward: np.ndarray
    center: np.ndarray
    half: np.ndarray
    floor: float
    walls: Boxes
    receptacle: str

    @property
    def across(self) -> np.ndarray:
        """Unit vector (3,), horizontal, along the opening."""
        return np.cross(DOWN, self.inward)

    @property
    def depth(self) -> float:
        """Half size (m) of the region along `inward`."""
        return float(np.abs(self.inward) @ self.half)


@dataclass(frozen=True)
class Insertion:
    """How an object that stands at `position`, turned by `rotation`, is taken; the pose is in its frame."""

    pose: Pose
    width: float
    position: np.ndarray
    rotation: np.ndarray

    def now(self, world: World, target: str) -> Pose:
        """The planned hand pose at the object where it is now."""
        rotation = world.rotation(target)
        return Pose(world.position(target) + rotation @ self.pose.point, rotation @ self.pose.axes)

    def stale(self, world: World, target: str) -> bool:
        """The object has moved so much since planning that another plan may be better."""
        turned = float(np.trace(world.rotation(target).T @ self.rotation))
        return bool(np.linalg.norm(world.position(target) - self.position) > 0.01 or turned < 1 + 2 * np.cos(0.1))


def find_niche(world: World, predicate: tuple[str, ...]) -> Niche | None:
    """The niche that an In predicate speaks of, None if its region has no roof or no open side."""
    if predicate[0] != "in":
        return None
    site, receptacle = world.site(predicate[2]), owner(predicate[2], world.names())
    if site is None or receptacle is None or receptacle in world.movable:
        return None
    center, half = site
    walls = world.boxes(receptacle)
    extents = walls.extents()
    over = (np.abs(walls.centers - center)[:, :2] < extents[:, :2]).all(axis=1)
    below, above = walls.centers[over, 2] + extents[over, 2], walls.centers[over, 2] - extents[over, 2]
    if not (above > center[2]).any() or not (below < center[2]).any():
        return None
    floor = float(below[below < center[2]].max())
    reach = float(np.abs(half).max()) + 0.2
    for inward in np.array([[0.0, 1.0, 0.0], [0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]):
        slit = np.full(3, 0.02) + np.abs(inward) * reach / 2
        if not overlaps(Boxes((center - inward * reach / 2)[None], np.eye(3)[None], slit[None]), walls).any():
            return Niche(inward, center, half, floor, walls, receptacle)
    return None


def plan_insertion(world: World, target: str, niche: Niche) -> Insertion:
    """The pinch with which the object gets far enough into the niche at least cost; RecordError if there is none."""
    position, rotation = world.position(target), world.rotation(target)
    others = world.others(target)
    places, missing = _places(world, target, niche)
    found: list[tuple[float, Pose, float, np.ndarray]] = []
    for margin, azimuth, pitch in product((_WIDE, _NARROW), _AZIMUTHS, _PITCHES):
        if pitch == _PITCHES[0] and any(cost < _GOOD for cost, *_ in found):
            break  # the wider and the straighter, the better
        ahead = turn_z(azimuth) @ niche.inward
        approach = np.sin(pitch) * DOWN + np.cos(pitch) * ahead
        for cost, pose, width in _pinches(world, target, approach, np.cross(DOWN, ahead))[:_PINCHES]:
            if not free(pose, _OPENING, others, [-approach * d for d in (0.0, 0.03, _STANDOFF)], 0.001):
                continue
            fits = np.flatnonzero(_passing(pose, places - position, niche, margin))
            if len(fits):
                best = fits[missing[fits].argmin()]
                found.append((cost + missing[best], pose, width, places[best] - position))
    for _, pose, width, offset in sorted(found, key=lambda one: one[0]):
        way = [np.zeros(3), -pose.approach * _STANDOFF, offset, offset - niche.inward * _way_out(world, target, niche)]
        if attainable(world, pose, way):
            carried = Pose(rotation.T @ (pose.point - position), rotation.T @ pose.axes)
            return Insertion(carried, width, position, rotation)
    raise RecordError(
        f"'{target}' under the roof is out of the arm's reach"
        if found
        else f"the expert finds no pinch with which '{target}' passes under the roof"
    )


def take(world: World, target: str, plan: Insertion) -> Decision:
    """Before the object, in along the hand, close; out again after a miss."""
    pose = plan.now(world, target)
    approach, turn = pose.approach, pose.turn(world)
    offset = world.grip - pose.point
    depth = float(offset @ approach)
    aside = float(np.linalg.norm(offset - depth * approach))
    aligned = aside < 0.012 and np.linalg.norm(turn) < 0.15
    if aligned and abs(depth) < 0.008 and aside < 0.008:
        if world.width > max(0.0035, 0.5 * plan.width):
            return towards(world, "close", pose.point, turn, CLOSE)
        return towards(world, "back", pose.point - approach * (_STANDOFF + 0.02), turn, OPEN)
    if aligned and -_STANDOFF - 0.03 < depth < 0.012:
        if world.width < min(plan.width + 0.012, 0.075):
            return towards(world, "back", pose.point - approach * (_STANDOFF + 0.02), turn, OPEN)
        closer = float(np.clip((0.012 - aside) / 0.006, 0.0, 1.0))
        ahead = pose.point - approach * (1 - closer) * min(_STANDOFF, -min(depth, 0.0))
        return towards(world, "descend", ahead, turn, OPEN, _SPEED)
    return travel(world, "approach", pose.shifted(-approach * _STANDOFF), OPEN, turned=True)


def insert(world: World, target: str, niche: Niche) -> Decision:
    """What is held goes up, before the niche, straight in, down, and is let go.

    Raises RecordError if hand and object, as they are, fit nowhere inside.
    """
    grip, position = world.grip, world.position(target)
    if world.finger_speed > _SETTLED and not world.hangs(target):
        return towards(world, "close", grip, np.zeros(3), CLOSE)
    place, deep = _nearest_place(world, target, niche)
    left = place - position
    ahead = float(left @ niche.inward)
    aside = left - ahead * niche.inward
    on_course = np.linalg.norm(aside[:2]) < _ON_COURSE and abs(aside[2]) < _LEVEL
    if abs(ahead) < _ON_COURSE and on_course:
        return towards(world, "release", grip, np.zeros(3), OPEN)
    way_out = _way_out(world, target, niche) + deep
    if on_course or ahead < way_out - 0.02:
        forward = ahead if on_course else 0.0 if np.linalg.norm(aside) < 2 * _ON_COURSE else -0.05
        return towards(world, "insert", grip + aside + niche.inward * forward, np.zeros(3), CLOSE, _SPEED)
    before = place - niche.inward * (way_out + 0.01)
    bottom = float(world.boxes(target).low()[2])
    over = clearance(world, position[:2], before[:2], 0.06, target, niche.receptacle) + _OVER
    near = float(np.linalg.norm((before - position)[:2])) < 0.03
    height = before[2] if near else max(before[2], position[2] + over - bottom)
    across = 1.0 if near else float(np.clip((position[2] - height + 0.03) / 0.02, 0.0, 1.0))
    step = np.array([*(across * (before - position)[:2]), height - position[2]])
    return towards(world, "transport" if across > 0 else "lift", grip + step, np.zeros(3), CLOSE, _SPEED)


def sheltered(world: World) -> bool:
    """Something is right above the hand."""
    above = [np.array([0.0, 0.0, rise]) for rise in (0.03, 0.06)]
    return not free(Pose(world.grip, world.hand), world.width, world.others(), above, 0.0)


def leave(world: World) -> Decision:
    """Open, then back out the way the hand points."""
    if world.width < 0.06:
        return towards(world, "release", world.grip, np.zeros(3), OPEN)
    return towards(world, "withdraw", world.grip - world.hand[:, 2] * 0.05, np.zeros(3), OPEN)


def _nearest_place(world: World, target: str, niche: Niche) -> tuple[np.ndarray, float]:
    """Where the held object goes, (3,), and how far (m) inside the region's edge that is."""
    places, missing = _places(world, target, niche)
    position, pose = world.position(target), Pose(world.grip, world.hand)
    for margin in (_WIDE, _NARROW, _GRAZING):
        fits = np.flatnonzero(_passing(pose, places - position, niche, margin))
        if len(fits):
            best = fits[np.lexsort((np.abs((places[fits] - position) @ niche.across), missing[fits]))[0]]
            return places[best], float((places[best] - niche.center) @ niche.inward + niche.depth)
    raise RecordError(f"the hand does not pass under the roof as it holds '{target}'")


def _places(world: World, target: str, niche: Niche) -> tuple[np.ndarray, np.ndarray]:
    """Positions (p, 3) of the object's origin in the niche to which a straight way in is free, and their costs (p,)."""
    boxes, position = world.boxes(target), world.position(target)
    low, high = boxes.low() - position, boxes.high() - position
    room = float(np.abs(niche.across) @ niche.half) - _WITHIN
    ways = np.arange(-room, room + 1e-6, _STEP)
    deeps = np.arange(_WITHIN, niche.depth, _STEP)
    grid = np.array([(way, deep) for deep in deeps for way in ways])
    places = niche.center + grid[:, :1] * niche.across + (grid[:, 1:] - niche.depth) * niche.inward
    places[:, 2] = niche.floor + _DROP - low[2]
    half = (high - low) / 2 + np.abs(niche.inward) * _OUTSIDE + np.abs(niche.across) * _BESIDE
    swept = Boxes(
        places + (low + high) / 2 - niche.inward * _OUTSIDE,
        np.repeat(np.eye(3)[None], len(places), axis=0),
        np.repeat(half[None], len(places), axis=0),
    )
    free_ways = ~overlaps(niche.walls, swept)
    return places[free_ways], _WORTH * np.maximum(_DEEP - grid[free_ways, 1], 0.0)


def _passing(pose: Pose, offsets: np.ndarray, niche: Niche, margin: float) -> np.ndarray:
    """(p,) bool: the open hand at the pose moved by offsets (p, 3) touches no wall, nor on its way in or out."""
    if not len(offsets):
        return np.zeros(0, bool)
    ways = [np.zeros(3), *(-pose.approach * d for d in (0.03, 0.07)), *(-niche.inward * d for d in (0.04, 0.08))]
    hand = Boxes.joined([boxes_of(pose.shifted(way), _OPENING, margin) for way in ways])
    n = len(hand)
    every = Boxes(
        (hand.centers[None] + offsets[:, None]).reshape(-1, 3),
        np.tile(hand.axes, (len(offsets), 1, 1)),
        np.tile(hand.halves, (len(offsets), 1)),
    )
    struck = np.asarray(overlaps(niche.walls, every).reshape(-1, n).any(axis=1))
    return ~struck


def _way_out(world: World, target: str, niche: Niche) -> float:
    """How far (m) before the region's edge the object's origin must be for its front to be out of the niche."""
    points = world.boxes(target)
    return (
        float(max(points.high() @ niche.inward, points.low() @ niche.inward))
        - float(world.position(target) @ niche.inward)
        + _OUTSIDE
    )


def _pinches(world: World, target: str, approach: np.ndarray, closing: np.ndarray) -> list[tuple[float, Pose, float]]:
    """(cost, pose, width) of the pinches of an object along `approach`, closing along `closing`, cheapest first."""
    axes = hand_axes(approach, closing)
    turn = UPRIGHT @ axes.T  # to a frame in which the hand points straight down
    points = world.boxes(target).filled() @ turn.T
    found = []
    for cost, grip, _, width in candidates(points, [0.0], True, _DEPTHS):
        apart = np.abs(points - grip)
        held = points[(apart[:, 0] < PAD_HALF) & (apart[:, 1] < width / 2 + 0.003), 2]
        shallow = max(0.0, _DEEP_ENOUGH - float(held.max() - grip[2]))  # the pads hold little of it, and it turns
        found.append((cost + _SHALLOW * shallow, Pose(turn.T @ grip, axes), width))
    return sorted(found, key=lambda one: one[0])
