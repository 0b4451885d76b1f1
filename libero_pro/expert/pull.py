"""Pull: take a drawer by its handle and draw it out."""

from itertools import product

import numpy as np

from libero_pro.expert.articulation import Articulation
from libero_pro.expert.geometry import Boxes
from libero_pro.expert.motion import CLOSE, HOLD, OPEN, Decision, towards
from libero_pro.expert.poses import DOWN, Pose, attainable, both_ways, free, hand_axes
from libero_pro.expert.travel import travel
from libero_pro.expert.world import World
from libero_pro.record import RecordError

_PITCHES = np.deg2rad((40.0, 35.0, 45.0, 30.0, 25.0, 20.0, 14.0, 50.0, 8.0))  # below the horizontal
_BEFORE = (0.002, 0.006, 0.010)  # the grip point stays this far before the middle of the bar, m
_STANDOFF = 0.09  # the hand comes straight in from this far, m
_LEAD = 0.035  # the pulled grip point runs ahead of the handle by so much, m
_SPEED = 0.6
_OPENING = 0.0774
_SETTLED = 0.015  # m/s


def handle(world: World, drawer: Articulation, out: np.ndarray) -> Boxes:
    """The box of a drawer that reaches farthest along `out`: its handle bar."""
    boxes = world.part(drawer.body)
    reach = boxes.centers @ out + np.abs(np.einsum("nij,i->nj", boxes.axes, out) * boxes.halves).sum(axis=1)
    return boxes.where(np.array([int(reach.argmax())]))


def plan_pull(world: World, drawer: Articulation, predicate: str) -> Pose:
    """The pinch of the handle, from above and outside, that nothing obstructs and that can be drawn all the way.

    Raises RecordError if there is none.
    """
    out = drawer.direction(world, predicate, np.zeros(3))
    bar = handle(world, drawer, out)
    obstacles = Boxes.joined([world.rest(drawer.body), _but(world.part(drawer.body), bar)])
    still = world.rest(drawer.body)
    left = max(drawer.left(world, predicate), 0.0)
    blocked = True
    for pitch, before in product(_PITCHES, _BEFORE):
        approach = np.sin(pitch) * DOWN - np.cos(pitch) * out
        for axes in both_ways(hand_axes(approach, np.cross(bar_axis(bar, out), approach))):
            pose = Pose(bar.centers[0] - before * approach, axes)
            if not free(pose, _OPENING, obstacles, [-approach * d for d in (0.0, 0.02, 0.05, _STANDOFF)]):
                continue
            if not free(pose.shifted(out * left), _OPENING, still, [np.zeros(3), -0.5 * left * out]):
                continue
            blocked = False
            if attainable(world, pose, [np.zeros(3), -approach * _STANDOFF, out * left]):
                return pose
    raise RecordError(
        f"the expert finds no free pinch of the handle of '{drawer.name}'"
        if blocked
        else f"the handle of '{drawer.name}' is out of the arm's reach"
    )


def pull(world: World, drawer: Articulation, predicate: str, pose: Pose) -> Decision:
    """Before the handle, in, close, draw; let go and out again once the drawer is where it should be.

    `pose` pinches the handle where it is now.
    """
    out = drawer.direction(world, predicate, np.zeros(3))
    approach = pose.approach
    turn = pose.turn(world)
    offset = world.grip - pose.point
    depth = float(offset @ approach)
    aside = float(np.linalg.norm(offset - depth * approach))
    twisted = float(np.linalg.norm(turn))
    gripped = all(world.touches_part(drawer.body)) and world.width < 0.045 and np.linalg.norm(offset) < 0.03
    if drawer.left(world, predicate) > 0:
        if gripped and world.finger_speed < _SETTLED:
            return towards(world, "pull", pose.point + out * _LEAD, turn, CLOSE, _SPEED)
        if depth > -0.008 and aside < 0.008 and twisted < 0.15:
            if world.width > 0.008:
                return towards(world, "close", pose.point, turn, CLOSE)
            return towards(world, "back", pose.point - approach * (_STANDOFF + 0.02), turn, OPEN)  # missed it
        if aside < 0.015 and twisted < 0.15 and depth < 0.01:
            if world.width < 0.07:
                return towards(world, "back", pose.point - approach * (_STANDOFF + 0.02), turn, OPEN)
            closer = min(1.0, max(0.0, (0.015 - aside) / 0.007))
            ahead = pose.point - approach * (1 - closer) * min(_STANDOFF, -min(depth, 0.0))
            return towards(world, "advance", ahead, turn, OPEN, _SPEED)
    elif world.width < 0.06 and np.linalg.norm(offset) < 0.05:
        return towards(world, "release", world.grip, np.zeros(3), OPEN)
    elif aside < 0.04 and -_STANDOFF < depth < 0.03:
        return towards(world, "withdraw", world.grip - approach * 0.05, turn, OPEN)
    else:
        return towards(world, "done", world.grip, np.zeros(3), HOLD)
    return travel(world, "approach", pose.shifted(-approach * _STANDOFF), OPEN)


def bar_axis(bar: Boxes, out: np.ndarray) -> np.ndarray:
    """Horizontal unit vector (3,) along a handle: across the direction it is pulled in."""
    along = np.cross(DOWN, out)
    return along / np.linalg.norm(along)


def _but(boxes: Boxes, bar: Boxes) -> Boxes:
    return boxes.where(np.linalg.norm(boxes.centers - bar.centers[0], axis=1) > 1e-9)
