"""Slide: drive a flat, broad thing over the table with the open fingers as a fork until its rim wedges between them.

No pinch from above holds a plate: its rim is a gentle slope. Two fingers that straddle a chord of it do, once they have
been pushed against the rim; they then close and carry it. Until then the thing slides towards its place.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from libero_pro.expert.geometry import Boxes, turn_z
from libero_pro.expert.grasps import FINGER_HALF, OPENING, TIP
from libero_pro.expert.motion import CLOSE, OPEN, Decision, towards
from libero_pro.expert.placements import Place, column_tops
from libero_pro.expert.poses import Pose, both_ways, free, hand_axes
from libero_pro.expert.reach import misses
from libero_pro.expert.travel import travel
from libero_pro.expert.world import World
from libero_pro.record import RecordError

_ABOVE = 0.0015  # of the fingertips over what the thing lies on, m
_BEHIND = (0.04, 0.025, 0.012, 0.006)  # the fork goes down this far behind the thing, where there is room, m
_LEAD = 0.045
_SPEED = 0.5
_SQUEEZE = 0.03  # the closing fork goes on pushing this far ahead, so that what it squeezes out does not escape, m
OPENED = 0.0775  # fingers that are closer have begun to close, m
FIRM = 0.0755  # fingers that are closer hold a rim firmly, m
_MISSED = 0.055  # fingers that are closer hold no rim, m
_ARRIVED = 0.012  # m
_SHORT = 0.06  # a way on which the rim surely wedges, m
_SIDES = 16  # from which it is tried
_DOWN = 0.02  # a fork that is higher over what the thing lies on is not behind it, m
_LEVEL = 0.002  # what reaches no higher than this over its lowest point, m, it slides on
_TURNED = 0.2  # rad
_LEANS = (0.0, 0.2, 0.35)  # of the hand over the thing, where something stands behind it, rad
_MOVING = 0.02  # m/s
_UP = np.array([0.0, 0.0, 0.06])


def slides(world: World, target: str) -> bool:
    """The thing is broader than the open hand and flatter than a finger, however it lies."""
    boxes, rotation = world.boxes(target), world.rotation(target)
    own = Boxes(boxes.centers @ rotation, rotation.T @ boxes.axes, boxes.halves)
    size = own.high() - own.low()
    return bool(size[:2].min() > 2 * OPENING and size[2] < 0.03)


def slide(world: World, target: str, place: Place) -> Decision:
    """Behind the thing, down, and on towards its place.

    Straight if the fork fits behind the thing, else along a world axis; else, and if it is to be carried to another
    level anyway, from any side, until it is held and can be carried. Raises RecordError if there is no room anywhere.
    """
    boxes, grip = world.boxes(target), world.grip
    low, high = boxes.low(), boxes.high()
    position = world.position(target)[:2]
    left = place.xy - position
    ways = [left, left * [0.0, 1.0], left * [1.0, 0.0]]
    if abs(place.ground - low[2]) > 0.02:
        ways += [_SHORT * np.array(way) for way in ((0.0, 1.0), (0.0, -1.0), (1.0, 0.0), (-1.0, 0.0))]
    # Pushed hard, a thing tilts a little into what it lies on, where the fork does not follow.
    level = max(float(low[2]), float(column_tops(position, np.full(2, 0.005), world.arena).max(initial=0.0)))

    def pushes() -> Iterator[_Push]:
        radius = float((high - low)[:2].mean() / 2)
        yield from _pushes(position, ways, radius, float(low[2]))
        yield from _pushes(position, _around(world, target, left), radius, level)

    if grip[2] < level + TIP + _DOWN:
        for push in pushes():
            if push.engaged(world):
                return push.onward(world, target)
    obstacles = world.others(target)
    for push, behind in ((push, behind) for push in pushes() for behind in _BEHIND):
        start = push.pose.shifted(np.array([*(-push.out * behind), 0.0]))
        if not free(start, 2 * OPENING, obstacles, [np.zeros(3), _UP], 0.001):
            continue
        if misses(world, start.point, start.axes) > 0.012:
            continue
        turn, apart = start.turn(world), float(np.linalg.norm(grip[:2] - start.point[:2]))
        if apart < 0.005 and np.linalg.norm(turn) < _TURNED:
            return towards(world, "descend", start.point, turn, OPEN, _SPEED)
        if grip[2] < high[2] + TIP + 0.02 and np.linalg.norm(grip[:2] - position) < (high - low)[0] / 2 + 0.08:
            return towards(world, "rise", grip + _UP, np.zeros(3), OPEN)
        return travel(world, "approach", start.shifted(_UP), OPEN, turned=True)
    if world.speed(target) > _MOVING:
        return towards(world, "wait", grip, np.zeros(3), OPEN)  # it is still falling
    raise RecordError(f"the arm cannot get behind '{target}' to push it")


def _around(world: World, target: str, way: np.ndarray) -> list[np.ndarray]:
    """Short ways (2,) in all directions: those on which nothing is ahead first, of these the nearest to `way` (2,)."""
    boxes, obstacles = world.boxes(target), world.others(target)
    low, high = boxes.low(), boxes.high()
    middle, half = (low + high)[:2] / 2, (high - low)[:2] / 2
    along = _SHORT * way / max(float(np.linalg.norm(way)), 1e-9)

    def ranked(turn: float) -> tuple[bool, float]:
        ahead = middle + turn_z(turn)[:2, :2] @ along
        return bool(column_tops(ahead, half, obstacles).max(initial=0.0) > low[2] + _LEVEL), abs(turn)

    turns = sorted(np.linspace(-np.pi, np.pi, _SIDES, endpoint=False), key=ranked)
    return [turn_z(turn)[:2, :2] @ along for turn in turns]


def _pushes(position: np.ndarray, ways: Iterable[np.ndarray], radius: float, bottom: float) -> Iterator["_Push"]:
    """Pushes of a round thing along ways (2,) that are long enough, by a hand that stands more and more over it."""
    for way, lean in product(ways, _LEANS):
        if np.linalg.norm(way) > _ARRIVED:
            yield _Push.of(position, way, radius, bottom + TIP + _ABOVE, lean)


@dataclass(frozen=True)
class _Push:
    """The fork where it touches a round thing, the unit direction (2,) that it pushes in, and how far (m) to push."""

    pose: Pose
    out: np.ndarray
    left: float

    @classmethod
    def of(cls, position: np.ndarray, way: np.ndarray, radius: float, height: float, lean: float) -> "_Push":
        left = float(np.linalg.norm(way))
        out = way / left
        # From the middle of the thing to a fork with two tines that touches its rim.
        reach = float(np.sqrt(max(radius**2 - OPENING**2, 0.0))) + FINGER_HALF
        approach = np.array([*(-np.sin(lean) * out), -np.cos(lean)])
        axes = both_ways(hand_axes(approach, np.array([-out[1], out[0], 0.0])))[0]
        return cls(Pose(np.array([*(position - out * reach), height + FINGER_HALF * np.sin(lean)]), axes), out, left)

    def _offset(self, world: World) -> tuple[float, float]:
        """How far the hand is aside (signed) and behind (m)."""
        offset = (world.grip - self.pose.point)[:2]
        return float(offset @ [-self.out[1], self.out[0]]), -float(offset @ self.out)

    def engaged(self, world: World) -> bool:
        """The fork is down and behind the thing."""
        aside, behind = self._offset(world)
        down = world.width > _MISSED and world.grip[2] < self.pose.point[2] + 0.008
        return bool(
            down
            and abs(aside) < 0.02
            and -0.015 < behind < max(_BEHIND) + 0.02
            and np.linalg.norm(self.pose.turn(world)) < 1.5 * _TURNED
        )

    def onward(self, world: World, target: str) -> Decision:
        """One step of the push; once the rim is in the fork it closes, still pushing, until it has a firm hold."""
        wedged = any(target in side for side in world.touching()) or world.width < OPENED
        ahead = _SQUEEZE if wedged else min(_LEAD, self.left + 0.01)
        point = self.pose.point + np.array([*(self.out * ahead), 0.0])
        phase, gripper = ("wedge", CLOSE) if wedged else ("slide", OPEN)
        return towards(world, phase, point, self.pose.turn(world), gripper, _SPEED)
