"""Where to grasp: top-down pinches of an object's boxes that leave room for the fingers and the hand.

Of all candidates the one of least cost is taken: no turn of the hand, deep, through the middle, across parallel faces.
Ties (the two sides of a bowl) go to the side the closing axis points to, so equal scenes get equal grasps.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from libero_pro.expert.geometry import Boxes, overlaps, turn_z

# The hand in the frame of its grip point, fully open: (along the closing axis, across it, up), meters.
OPENING = 0.0387  # inner face of a pad
FINGER = 0.058  # outer face of a finger
FINGER_HALF = 0.0105  # half the breadth of a finger
TIP = 0.0095  # fingertip below the grip point
PALM = 0.031  # bottom of the hand above the grip point
PALM_HALF = (0.104, 0.0205)
_HAND = ((PALM, PALM_HALF), (0.045, (0.055, 0.025)), (0.070, (0.035, 0.032)))  # it grows broader upwards
PAD_HALF = 0.008  # half the width of a pad
WIDEST = 0.068  # opening less what alignment needs
UPRIGHT = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, -1.0]])  # axes of a hand that points straight down
_DEPTHS = (0.022, 0.014, 0.03, 0.04, 0.05)  # of the grip point below the top, the best first, m
TIGHT = 0.001  # around the hand, m
_SWEEP = 0.30  # the hand comes from this far above


@dataclass(frozen=True)
class Grasp:
    """A pinch in the object's own frame, so that it moves with the object.

    point  (3,) where the grip point should be, relative to the body origin
    yaw    turn of the hand about the vertical, away from the robot's start, when the object stands at `rotation`
    width  what will be between the pads, meters
    """

    point: np.ndarray
    yaw: float
    width: float
    position: np.ndarray
    rotation: np.ndarray

    def goal(self, position: np.ndarray, rotation: np.ndarray) -> np.ndarray:
        """Grip point (3,) in the world for an object that is now at this pose."""
        return position + rotation @ self.point

    def stale(self, position: np.ndarray, rotation: np.ndarray) -> bool:
        """The object has moved so much since planning that another grasp may be better."""
        turned = np.arccos(np.clip((np.trace(rotation.T @ self.rotation) - 1) / 2, -1, 1))
        return bool(np.linalg.norm(position - self.position) > 0.01 or turned > 0.1)


def hand_boxes(grip: np.ndarray, yaw: float, sweep: float = _SWEEP, margin: float = 0.0) -> Boxes:
    """Two open fingers and the palm at `grip`, extended upwards by `sweep` (the way they came)."""
    axes = turn_z(yaw) @ UPRIGHT
    finger = (FINGER - OPENING) / 2
    parts = [(side * (OPENING + finger), (finger, FINGER_HALF), -TIP, PALM) for side in (-1.0, 1.0)]
    parts += [(0.0, half, low, sweep) for low, half in _HAND]
    centers = [grip + axes @ [along, 0.0, 0.0] + [0.0, 0.0, (low + high) / 2] for along, _, low, high in parts]
    halves = [[half[0] + margin, half[1] + margin, (high - low) / 2] for _, half, low, high in parts]
    return Boxes(np.array(centers), np.repeat(axes[None], len(parts), axis=0), np.array(halves))


def plan_grasp(
    target: Boxes,
    obstacles: Boxes,
    position: np.ndarray,
    rotation: np.ndarray,
    strain: Callable[[np.ndarray], float] = lambda point: 0.0,
    margin: float = TIGHT,
) -> Grasp | None:
    """The cheapest free pinch of the object at this pose, or None if there is no free one.

    `strain` is the cost of bringing the hand to a point (3,); a quarter turn of the hand costs 2. `margin` (m) is kept
    around the hand.
    """
    points = target.filled()
    center = (target.low() + target.high()) / 2
    near = np.linalg.norm((obstacles.centers - center)[:, :2], axis=1) < 0.25 + np.linalg.norm(obstacles.halves, axis=1)
    obstacles = obstacles.where(near)
    for off_center in (False, True):
        found = sorted(candidates(points, _yaws(rotation), off_center), key=lambda one: one[0] + strain(one[1]))
        for _, grip, yaw, width in found:
            if not overlaps(hand_boxes(grip, yaw, margin=margin), obstacles).any():
                return Grasp(rotation.T @ (grip - position), yaw, width, position.copy(), rotation.copy())
    return None


def _yaws(rotation: np.ndarray) -> list[float]:
    """Hand turns in (-90, 90] degrees: a fixed fan, and those that align with the object's own horizontal axes."""
    turns = [0.0, *(sign * np.deg2rad(angle) for angle in (15, 30, 45, 60) for sign in (1, -1)), np.pi / 2]
    for axis in rotation.T:
        if np.linalg.norm(axis[:2]) > 0.9:
            own = np.arctan2(axis[1], axis[0])
            turns += [own, own + np.pi / 2]
    wrapped = [turn - np.pi * np.ceil(turn / np.pi - 0.5) for turn in turns]
    return list(dict.fromkeys(round(float(turn), 3) for turn in wrapped))


def candidates(
    points: np.ndarray, yaws: list[float], off_center: bool, depths: tuple[float, ...] = _DEPTHS
) -> Iterator[tuple[float, np.ndarray, float, float]]:
    """(cost, grip point, yaw, width) of the pinches from above that the object's own shape allows.

    points  (n, 3) throughout the object;  `depths` of the grip point below the highest of them, m
    """
    top, bottom = points[:, 2].max(), points[:, 2].min()
    lowest = bottom + TIP + 0.001
    heights = dict.fromkeys(max(top - depth, lowest) for depth in depths)
    for yaw in yaws:
        turned = points @ turn_z(yaw)
        u_all, v_all = turned[:, 1], turned[:, 0]
        middle = (v_all.min() + v_all.max()) / 2
        half = (v_all.max() - v_all.min()) / 2
        shifts = np.arange(-0.06, 0.061, 0.01) if off_center else np.zeros(1)
        for shift in shifts[np.abs(shifts) < half]:
            slab = np.abs(v_all - middle - shift)
            for rank, height in enumerate(heights):
                for width, at, skew in _pinches(u_all, v_all - middle - shift, points[:, 2], slab, height, off_center):
                    side = at - u_all.mean()
                    cost = (
                        2.0 * abs(yaw) / (np.pi / 2)
                        + 0.15 * rank
                        + 3.0 * width
                        + max(0.0, skew - 0.0005) / 0.001
                        + abs(shift) / 0.01
                        - (0.05 * np.sign(side) if abs(side) > 0.005 else 0.0)
                    )
                    grip = turn_z(yaw) @ np.array([middle + shift, at, height])
                    yield cost, grip, yaw, width


def _pinches(
    u: np.ndarray, v: np.ndarray, z: np.ndarray, slab: np.ndarray, height: float, squarely: bool
) -> Iterator[tuple[float, float, float]]:
    """(width, center along u, skew) of each run of material between the pads at `height` that fingers can straddle.

    `squarely`: the pads must meet it near their middle; they slip off the end of a curved wall.
    """
    between = (slab < PAD_HALF + 0.002) & (z > height - 0.0116) & (z < height + 0.0044)
    if not between.any():
        return
    order = np.sort(u[between])
    cuts = np.flatnonzero(np.diff(order) > 0.02)
    starts, ends = order[np.r_[0, cuts + 1]], order[np.r_[cuts, len(order) - 1]]
    in_fingers = (slab < FINGER_HALF + 0.002) & (z > height - TIP)
    under_palm = (slab < PALM_HALF[1]) & (z > height + PALM - 0.002)
    for start, end in zip(starts, ends, strict=True):
        width, at = float(end - start), float(start + end) / 2
        if width > WIDEST:
            continue
        reach = np.abs(u - at)
        if (in_fingers & (reach > OPENING - 0.002) & (reach < FINGER + 0.001)).any():
            continue
        if (under_palm & (reach < PALM_HALF[0])).any():
            continue
        inside = between & (u >= start - 1e-6) & (u <= end + 1e-6)
        if squarely and not all(abs(v[inside & (np.abs(u - end) < 0.0025)].mean()) < 0.004 for end in (start, end)):
            continue
        near, far = u[inside & (v < 0)], u[inside & (v >= 0)]
        skew = 0.0
        if len(near) and len(far):
            skew = max(abs(near.min() - far.min()), abs(near.max() - far.max()))
        if skew < 0.004:
            yield width, at, float(skew)
