"""Push: close a drawer or a door with the fingertips of the closed hand."""

from itertools import product

import numpy as np

from libero_pro.expert.articulation import Articulation
from libero_pro.expert.geometry import Boxes
from libero_pro.expert.grasps import FINGER_HALF, TIP
from libero_pro.expert.motion import CLOSE, HOLD, Decision, towards
from libero_pro.expert.poses import DOWN, Pose, attainable, both_ways, free, hand_axes
from libero_pro.expert.travel import travel
from libero_pro.expert.world import World
from libero_pro.record import RecordError

_PITCHES = np.deg2rad((90.0, 60.0, 45.0, 30.0))  # of the hand below the horizontal, the steepest that is free
_SPREAD = 0.0165  # half of what closed fingers measure along the closing axis, m
_STANDOFF = 0.06  # m
_LEAD = 0.035  # the pushing fingers run ahead by so much, m
_SPEED = 0.6
_TOUCH = 0.012  # m
_BEYOND = 0.001  # past the threshold, m or rad: nothing springs back
_DIPS = (0.015, 0.03, 0.05)  # fingertips below the top edge, m


def plan_push(world: World, joint: Articulation, predicate: str) -> Pose:
    """Where closed fingers meet the moving part to push it all the way; RecordError if there is no free way.

    A drawer is pushed at its front, a door far from its hinge. The pose moves with the part.
    """
    part = world.part(joint.body)
    left = max(joint.left(world, predicate), 0.0)
    changes = joint.sign(predicate) * left * np.array([0.0, 0.5, 1.0])
    inside = [name for name in world.movable if _within(world.position(name), part)]
    still = world.rest(joint.body, *inside)
    tried = "blocked"
    for point, normal in _contacts(world, joint, predicate, part):
        across = np.cross(normal, DOWN)
        for pitch in _PITCHES:
            approach = np.sin(pitch) * DOWN + np.cos(pitch) * normal
            half = FINGER_HALF * np.sin(pitch) + TIP * np.cos(pitch)
            for axes in both_ways(hand_axes(approach, across)):
                pose = Pose(point - normal * (half + 0.001), axes)
                way = [_carried(world, joint, pose, change) for change in changes]
                if not free(pose, 0.0, still, [-normal * _STANDOFF, np.zeros(3)]):
                    continue
                if not all(free(p, 0.0, still, [np.zeros(3)], 0.0) for p in way):
                    continue
                tried = "reach"
                if all(attainable(world, p, [np.zeros(3)]) for p in way):
                    return pose
    raise RecordError(
        f"the expert finds no free way to push '{joint.name}'"
        if tried == "blocked"
        else f"pushing '{joint.name}' is out of the arm's reach"
    )


def push(world: World, joint: Articulation, predicate: str, pose: Pose) -> Decision:
    """Before the part, up to it, and on; away once it is where it should be. `pose` is where the part is now."""
    grip, turn = world.grip, pose.turn(world)
    normal = joint.direction(world, predicate, pose.point)
    offset = grip - pose.point
    behind = -float(offset @ normal)
    aside = float(np.linalg.norm(offset + behind * normal))
    if joint.holds(world, predicate, beyond=_BEYOND):
        if behind < 0.03 and aside < 0.06:
            return towards(world, "withdraw", grip - normal * 0.05, np.zeros(3), CLOSE)
        return towards(world, "done", grip, np.zeros(3), HOLD)
    if world.width < 0.012 and aside < 0.02 and np.linalg.norm(turn) < 0.3 and behind < _STANDOFF + 0.02:
        lead = _LEAD if behind < _TOUCH else 0.0
        return towards(world, "push" if lead else "advance", pose.point + normal * lead, turn, CLOSE, _SPEED)
    return travel(world, "approach", pose.shifted(-normal * _STANDOFF), CLOSE, turned=True)


def _within(point: np.ndarray, boxes: Boxes) -> bool:
    """The point is over the boxes' footprint: what stands there moves with them."""
    return bool((boxes.low()[:2] < point[:2]).all() and (point[:2] < boxes.high()[:2]).all())


def _carried(world: World, joint: Articulation, pose: Pose, change: float) -> Pose:
    """The pose after the part has moved: the contact goes along, the hand keeps its axes."""
    return Pose(joint.moved(world, pose.point, change), pose.axes)


def _contacts(world: World, joint: Articulation, predicate: str, part: Boxes) -> list[tuple[np.ndarray, np.ndarray]]:
    """Points of the part's outer face and the directions in which they go."""
    if not joint.hinge:
        way = joint.direction(world, predicate, np.zeros(3))
        reach = part.centers @ -way + np.abs(np.einsum("nij,i->nj", part.axes, way) * part.halves).sum(axis=1)
        bar = part.where(np.array([int(reach.argmax())]))
        front = bar.centers[0] - way * (reach.max() + bar.centers[0] @ way)
        return [(front, way)]
    anchor, axis = world.data.xanchor[joint.joint], world.data.xaxis[joint.joint]
    panel = part.where(np.array([int(np.argmax(part.halves.prod(axis=1)))]))
    center, extent = panel.centers[0], panel.extents()[0]
    out = (center - anchor) - axis * ((center - anchor) @ axis)
    found = []
    for share, dip in product((1.5, 1.2, 1.75), _DIPS):
        point = anchor + out * share
        point[2] = center[2] + extent[2] - dip + TIP
        way = joint.direction(world, predicate, point)
        thick = float(np.abs(panel.axes[0].T @ way) @ panel.halves[0])
        found.append((point + way * (float((center - point) @ way) - thick), way))
    return found
