"""How the hand moves: proportional control below speed limits; upright, but leaning where the arm is stretched."""

from dataclasses import dataclass

import numpy as np

from libero_pro.expert.geometry import rotation_vector, turn_z
from libero_pro.expert.world import World

OPEN, HOLD, CLOSE = -1.0, 0.0, 1.0  # gripper commands
MAX_TRANSLATION = 0.85  # of the action range, so that nothing saturates
MAX_ROTATION = 0.5
_POSITION_GAIN = 1.3 / 0.05  # action per meter
_ROTATION_GAIN = 1.0 / 0.5  # action per radian
_ARM_LENGTH = 0.719  # shoulder to wrist, straight, meters
_UPRIGHT_REACH = 0.67  # shoulder to wrist up to which the hand stands upright
_LEAN_LENGTH = 0.2  # about what the wrist gains per radian of lean
_MAX_LEAN = 0.35  # rad
_NEAR = 0.36  # from the shoulder, in the plane, the elbow hardly folds enough for an upright hand, m
_NEAR_LEAN = 0.25  # rad
# Axes of the grip site at the robot's start in every LIBERO scene: fingers down, tilted by 3.25 degrees.
_TILT = 0.05678
HOME = np.array([[0.0, np.sqrt(1 - _TILT**2), -_TILT], [1.0, 0.0, 0.0], [0.0, -_TILT, -np.sqrt(1 - _TILT**2)]])


@dataclass(frozen=True)
class Decision:
    """What the expert wants at an instant.

    phase   where in its work it sees itself;  `task` is the predicate that it works on
    action  (7,) float32;  `point` (3,) is where the grip point should go
    """

    phase: str
    action: np.ndarray
    point: np.ndarray
    task: tuple[str, ...] = ()


def towards(
    world: World, phase: str, point: np.ndarray, turn: np.ndarray, gripper: float, speed: float = MAX_TRANSLATION
) -> Decision:
    """The decision to move to a grip point (3,) and through a rotation vector (3,), no faster than `speed`."""
    return Decision(phase, np.array([*motion(world, point, turn, speed), gripper], np.float32), np.asarray(point))


def reachable(world: World, point: np.ndarray) -> bool:
    """The leaning hand gets to a grip point (3,) with the elbow still bent."""
    return world.upright_reach(point) < _ARM_LENGTH + 0.8 * _MAX_LEAN * _LEAN_LENGTH


def strain(world: World, point: np.ndarray) -> float:
    """Cost of working at a grip point (3,): 0 where the arm is bent, 1 about 5 cm beyond."""
    return max(0.0, world.upright_reach(point) - 0.70) / 0.05


def hand_turn(world: World, yaw: float, point: np.ndarray, *, bent: bool = False) -> np.ndarray:
    """Rotation vector (3,) in the world from the hand's axes to those for work at a point: `yaw`, and perhaps a lean.

    Leaning about the closing axis, fingertips outwards, keeps the wrist near and the elbow bent where the point is far
    out. `bent`: where it is close to the shoulder, fingertips lean inwards, which keeps the elbow off its limit.
    """
    lean = np.clip((world.upright_reach(point) - _UPRIGHT_REACH) / _LEAN_LENGTH, 0.0, _MAX_LEAN)
    if bent and np.linalg.norm((point - world.shoulder)[:2]) < _NEAR:
        lean = -_NEAR_LEAN
    wanted = turn_z(yaw) @ HOME
    across, c, s = wanted[:, 0], np.cos(lean), np.sin(lean)
    out = np.cross(across, [0.0, 0.0, 1.0])
    sign = -1.0 if world.outward(out) else 1.0  # turning about the closing axis by +lean moves the fingers to -out
    k = np.array([[0.0, -across[2], across[1]], [across[2], 0.0, -across[0]], [-across[1], across[0], 0.0]]) * sign
    return rotation_vector((np.eye(3) + s * k + (1 - c) * k @ k) @ wanted @ world.hand.T)


def motion(world: World, point: np.ndarray, turn: np.ndarray, speed: float = MAX_TRANSLATION) -> np.ndarray:
    """Translation and rotation (6,) of the action that leads to a grip point and through a rotation vector (3,)."""
    wanted = (point - world.grip) * _POSITION_GAIN
    # A nearly straight arm brakes badly, and once straight it is stuck.
    slow = np.clip((0.985 - world.reach / _ARM_LENGTH) / 0.04, 0.35, 1.0) if world.outward(wanted) else 1.0
    horizontal = _limited(wanted[:2], speed * slow)
    vertical = _limited(wanted[2:], speed)
    return np.concatenate([horizontal, vertical, _limited(turn * _ROTATION_GAIN, MAX_ROTATION)])


def _limited(vector: np.ndarray, limit: float) -> np.ndarray:
    """The vector, shortened so that no component exceeds the limit."""
    return vector * min(1.0, limit / max(float(np.abs(vector).max()), 1e-9))
