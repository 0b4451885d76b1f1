"""Travel: bring the empty hand from anywhere to a pose in the open, over what stands in between."""

import numpy as np

from libero_pro.expert.geometry import overlaps
from libero_pro.expert.grasps import TIP
from libero_pro.expert.motion import Decision, hand_turn, towards
from libero_pro.expert.placements import clearance
from libero_pro.expert.poses import Pose, boxes_of
from libero_pro.expert.world import World

_LEANING = 0.5  # rad from the vertical: more than work from above ever asks for
_CLEAR = 0.012  # m to anything, for the wrist to turn


def travel(world: World, phase: str, pose: Pose, gripper: float, *, turned: bool = False) -> Decision:
    """Up to a clear height, across, and down to the pose, turning on the way; `turned`: before the way down."""
    grip, point = world.grip, pose.point
    apart = float(np.linalg.norm((grip - point)[:2]))
    cruise = max(clearance(world, grip[:2], point[:2], 0.07) + TIP + 0.02, point[2])
    far = np.clip((apart - 0.02) / 0.05, 0.0, 1.0)
    turn = pose.turn(world)
    free = 1.0 if apart < 0.03 else np.clip((grip[2] - (cruise - 0.045)) / 0.03, 0.0, 1.0)
    height = point[2] + far * (cruise - point[2])
    if turned and np.linalg.norm(turn) > 0.15:
        height = max(height, grip[2])
    step = np.array([*(grip[:2] + free * (point[:2] - grip[:2])), height])
    return towards(world, phase, step, turn, gripper)


def leaning(world: World) -> bool:
    """The hand stands so much aslant that it must be brought upright before it works from above."""
    return bool(np.arccos(np.clip(-world.hand[2, 2], -1.0, 1.0)) > _LEANING)


def straighten(world: World, gripper: float) -> Decision:
    """Back out the way the hand points until nothing is near, then up and upright."""
    pose = Pose(world.grip, world.hand)
    hand = boxes_of(pose, world.width, _CLEAR)
    if overlaps(hand, world.others()).any():
        return towards(world, "withdraw", world.grip - pose.approach * 0.05, np.zeros(3), gripper)
    turn = hand_turn(world, 0.0, world.grip)
    return towards(world, "straighten", world.grip + np.array([0.0, 0.0, 0.05]), turn, gripper)
