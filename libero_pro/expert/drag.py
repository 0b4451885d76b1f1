"""Drag: hook a hollow object from inside with closed fingers and draw it out from under what hangs over it."""

from dataclasses import dataclass
from itertools import product

import numpy as np

from libero_pro.expert.grasps import FINGER_HALF, TIP
from libero_pro.expert.motion import CLOSE, MAX_TRANSLATION, Decision, towards
from libero_pro.expert.placements import sidesteps
from libero_pro.expert.poses import Pose, both_ways, free, hand_axes
from libero_pro.expert.travel import travel
from libero_pro.expert.world import World

_LEAD = 0.03  # the drawn hand runs ahead of the wall by so much, m
_SPEED = 0.5
_SLOWLY = 0.06  # over the object the hand comes down slowly, m
_ABOVE_FLOOR = (0.012, 0.02, 0.028)  # of the fingertips, m
_SPREAD = 0.0165  # half of what closed fingers measure along the closing axis, m
_LEANS = (0.0, 0.15, 0.3)  # of the hand away from what hangs over, rad
_DOWN_FROM = (0.0, 0.08, 0.16, 0.24)  # heights at which the way down is checked, m


@dataclass(frozen=True)
class Hook:
    """The closed hand at an inner wall of an object at `position` (3,), and the unit direction (2,) to draw it in."""

    pose: Pose
    out: np.ndarray
    position: np.ndarray


def plan_drag(world: World, target: str) -> Hook | None:
    """The first way out from under what hangs over the object for which the hand gets inside; None if there is none."""
    points, obstacles = world.boxes(target).filled(), world.others(target)
    middle = (points.min(axis=0) + points.max(axis=0)) / 2
    for way, lift in product(sidesteps(world, target), _ABOVE_FLOOR):
        out = way / np.linalg.norm(way)
        along = (points - middle)[:, :2] @ out
        across = (points - middle)[:, :2] @ np.array([-out[1], out[0]])
        floor = points[(np.abs(along) < 0.01) & (np.abs(across) < 0.01), 2]
        tips = float(floor.max() if len(floor) else points[:, 2].min()) + lift
        wall = (np.abs(across) < _SPREAD) & (along > 0) & (points[:, 2] > tips)
        if not wall.any() or points[wall, 2].max() < tips + 0.01:
            continue
        inside = float(along[wall].min()) - FINGER_HALF - 0.003
        point = np.array([*(middle[:2] + out * inside), tips + TIP])
        for lean in _LEANS:
            approach = np.array([*(-np.sin(lean) * out), -np.cos(lean)])
            pose = Pose(point, both_ways(hand_axes(approach, np.array([-out[1], out[0], 0.0])))[0])
            if inside > 0 and free(pose, 0.0, obstacles, [np.array([0.0, 0.0, h]) for h in _DOWN_FROM], 0.008):
                return Hook(pose, out, world.position(target))
    return None


def drag(world: World, target: str, pose: Pose, out: np.ndarray) -> Decision:
    """Over the inside of the object with closed fingers, down, and off with it."""
    grip, point = world.grip, pose.point
    apart = (grip - point)[:2]
    aside, ahead = float(abs(apart @ np.array([-out[1], out[0]]))), float(apart @ out)
    turn = pose.turn(world)
    closed = world.width < 0.012
    if closed and grip[2] < point[2] + 0.012 and aside < 0.012 and -0.012 < ahead < 0.03:
        return towards(world, "drag", np.array([*(point[:2] + out * _LEAD), point[2]]), turn, CLOSE, _SPEED)
    if closed and np.linalg.norm(apart) < 0.006 and np.linalg.norm(turn) < 0.2:
        near = grip[2] < point[2] + _SLOWLY
        return towards(world, "descend", point, turn, CLOSE, _SPEED if near else MAX_TRANSLATION)
    top = float(world.boxes(target).high()[2]) + TIP + 0.015
    if 0.006 < np.linalg.norm(apart) < 0.03 and grip[2] < top - 0.01:
        return towards(world, "rise", np.array([grip[0], grip[1], top + 0.01]), turn, CLOSE)
    return travel(world, "approach", Pose(np.array([*point[:2], max(top, point[2])]), pose.axes), CLOSE, turned=True)
