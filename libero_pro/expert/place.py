"""Place: lift what is held, bring it over its destination, lower, let go, withdraw."""

import numpy as np

from libero_pro.expert.geometry import Boxes, rotation_vector, turn_by
from libero_pro.expert.grasps import TIP
from libero_pro.expert.motion import CLOSE, OPEN, Decision, hand_turn, towards
from libero_pro.expert.placements import Place, clearance, cruise_height, release_height, sidesteps
from libero_pro.expert.world import World

_MOVING = 0.02  # m/s
_LEAN_WITHIN = 0.12  # of its place an object is leaned, m
_SETTLED = 0.015  # finger speed below which a grip is firm, m/s


def carry(world: World, target: str, place: Place) -> Decision:
    """Lift, bring over the place at a clear height, lower, let go."""
    position, grip = world.position(target), world.grip
    bottom = world.boxes(target).low()[2]
    offset = grip[:2] - position[:2]
    apart = float(np.linalg.norm(position[:2] - place.xy))
    release = release_height(world, target, place)
    turn = hand_turn(world, place.yaw, np.array([*(place.xy + offset), release]))
    if apart > 0.03 and world.finger_speed > _SETTLED and not world.hangs(target):
        return towards(world, "close", grip, np.zeros(3), CLOSE)  # lift when the fingers have come to rest
    ways = sidesteps(world, target)
    if ways:
        return towards(world, "sidestep", grip + np.array([*ways[0], 0.01]), np.zeros(3), CLOSE)
    if place.lean is not None and apart < _LEAN_WITHIN:
        turn = leaning_turn(world, turn, place.lean)
    turned = (place.yaw == 0.0 and place.lean is None) or np.linalg.norm(turn) < 0.1
    if apart < 0.012 and grip[2] < release + 0.010 and turned:
        if not place.rests:
            return towards(world, "done", np.array([*(place.xy + offset), release]), turn, CLOSE)
        return towards(world, "release", np.array([*(place.xy + offset), max(release, grip[2] - 0.005)]), turn, OPEN)
    clear = cruise_height(world, target, place, position[:2], place.xy, target)
    travel = max(grip[2] - bottom + clear, release)
    far = np.clip((apart - 0.010) / 0.02, 0.0, 1.0)
    free = 1.0 if apart < 0.03 else np.clip((bottom - (clear - 0.04)) / 0.035, 0.0, 1.0)
    height = release + far * (travel - release) if turned else max(travel, grip[2])
    goal_xy = place.xy + offset
    point = np.array([*(grip[:2] + free * (goal_xy - grip[:2])), height])
    phase = "lower" if far < 1 else "transport" if free > 0 else "lift"
    return towards(world, phase, point, free * turn if turned else turn, CLOSE)


def leaning_turn(world: World, turn: np.ndarray, lean: np.ndarray) -> np.ndarray:
    """Rotation vector (3,) of a turn that is followed by a lean."""
    return rotation_vector(turn_by(lean) @ turn_by(turn))


def let_go(world: World, target: str, place: Place) -> Decision:
    """Open, then go straight up out of the way."""
    around = clearance(world, world.grip[:2], world.grip[:2], 0.08, target) if place.receptacle else 0.0
    return let_go_of(world, world.boxes(target), any(target in side for side in world.touching()), around)


def let_go_of(world: World, boxes: Boxes, touched: bool, around: float = 0.0, rise: float = 0.01) -> Decision:
    """Open if need be, then go straight up, clear of what was held and of what stands up to `around` (m) beside it.

    `rise` (m) is how far beyond that it aims.
    """
    grip = world.grip
    away = max(float(boxes.high()[2]), around) + TIP + 0.02
    turn = hand_turn(world, 0.0, grip)
    if world.width < 0.03 or touched:
        return towards(world, "release", grip, turn, OPEN)
    if grip[2] > away:
        return towards(world, "done", grip, turn, OPEN)
    return towards(world, "retreat", np.array([grip[0], grip[1], away + rise]), turn, OPEN)


def falling(world: World, target: str, place: Place) -> bool:
    """Let go above its place, not yet there; what lies on something else there is not on its way any more."""
    apart = np.linalg.norm(world.position(target)[:2] - place.xy)
    above = float(world.boxes(target).low()[2]) - place.ground
    moving = world.speed(target) > _MOVING
    return bool(apart < 0.03 and ((above > 0.003 and (moving or not world.lies(target))) or (above > -0.01 and moving)))
