"""Hand poses that are not top-down: leaning against a drawer's handle, a door or a plate; which of them are free."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from libero_pro.expert.geometry import Boxes, overlaps, rotation_vector
from libero_pro.expert.grasps import FINGER, FINGER_HALF, OPENING, PALM, TIP
from libero_pro.expert.motion import HOME
from libero_pro.expert.reach import misses
from libero_pro.expert.world import World

DOWN = np.array([0.0, 0.0, -1.0])
_FINGER_DEPTH = FINGER - OPENING  # along the closing axis
# The hand behind the fingers, in slices away from the grip point: (from, to, half along the closing axis, half across).
_BODY = ((PALM, 0.123, 0.104, 0.0205), (0.045, 0.123, 0.055, 0.032), (0.123, 0.24, 0.04, 0.04))
_REACHED = 0.012  # what inverse kinematics may leave: m + rad / 10


@dataclass(frozen=True)
class Pose:
    """A grip point (3,) and the hand's axes (3, 3): closing direction, across it, and out of the hand."""

    point: np.ndarray
    axes: np.ndarray

    @property
    def approach(self) -> np.ndarray:
        """Unit vector (3,) out of the hand."""
        return self.axes[:, 2]

    def shifted(self, offset: np.ndarray) -> "Pose":
        """The same pose elsewhere."""
        return Pose(self.point + offset, self.axes)

    def turn(self, world: World) -> np.ndarray:
        """Rotation vector (3,) from the hand's axes now to these."""
        return rotation_vector(self.axes @ world.hand.T)


def hand_axes(approach: np.ndarray, closing: np.ndarray) -> np.ndarray:
    """Axes (3, 3) of a hand that points along `approach` and closes along `closing`, made orthogonal to it."""
    z = approach / np.linalg.norm(approach)
    x = closing - z * (closing @ z)
    x = x / np.linalg.norm(x)
    return np.stack([x, np.cross(z, x), z], axis=1)


def both_ways(axes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The axes and those with the fingers exchanged, the one nearer to the robot's start first."""
    other = axes * np.array([-1.0, -1.0, 1.0])
    pair = sorted((axes, other), key=lambda a: -float(np.trace(a.T @ HOME)))
    return pair[0], pair[1]


def boxes_of(pose: Pose, opening: float, margin: float = 0.0) -> Boxes:
    """Fingers `opening` apart (m, between the pads) and the hand behind them."""
    half = opening / 2
    parts = [
        (side * (half + _FINGER_DEPTH / 2), (_FINGER_DEPTH / 2, FINGER_HALF), -TIP, 0.05) for side in (-1.0, 1.0)
    ] + [(0.0, (along, across), low, high) for low, high, along, across in _BODY]
    centers = [pose.point + pose.axes @ [shift, 0.0, -(low + high) / 2] for shift, _, low, high in parts]
    halves = [[size[0] + margin, size[1] + margin, (high - low) / 2 + margin] for _, size, low, high in parts]
    return Boxes(np.array(centers), np.repeat(pose.axes[None], len(parts), axis=0), np.array(halves))


def free(pose: Pose, opening: float, obstacles: Boxes, way: Iterable[np.ndarray], margin: float = 0.002) -> bool:
    """Nothing is in the hand's place, there and at the offsets (3,) of `way` from it."""
    near = obstacles.where(
        np.linalg.norm(obstacles.centers - pose.point, axis=1) < 0.45 + np.linalg.norm(obstacles.halves, axis=1)
    )
    return not any(overlaps(boxes_of(pose.shifted(offset), opening, margin), near).any() for offset in way)


def attainable(world: World, pose: Pose, way: Iterable[np.ndarray]) -> bool:
    """The arm reaches the pose and its copies at the offsets (3,) of `way` within its joint limits."""
    return all(misses(world, pose.point + offset, pose.axes) < _REACHED for offset in way)
