"""How each failure is made: the expert works, and at the right moment its hands are taken over.

Every fault is a procedure over an `Actor`. It says at which stage and instants the failure happened because it made it
happen there, and it checks by contacts and positions that nothing else did. NotPlanted says that it can't be made.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from lerobot_coda.critic.bench.actor import Actor, NotPlanted
from lerobot_coda.critic.bench.moments import (
    about_object,
    another,
    approaching,
    circle,
    free_side,
    free_spot,
    half_size,
    on_its_way,
    one_of,
    onwards,
    released_on,
    untouched,
)
from lerobot_coda.critic.diagnosis import Cause, Stage
from libero_pro.expert.geometry import overlaps
from libero_pro.expert.grasps import TIP, hand_boxes
from libero_pro.expert.motion import CLOSE, OPEN
from libero_pro.expert.placements import Place
from libero_pro.goals import owner
from libero_pro.scene import Goal

_FLAT, _BROAD = 0.06, 0.05  # height and breadth (m) of things that others can be put on
_UNDER, _ABOVE = 0.045, 0.055  # metres: what was never higher than that slipped, what was lost higher was dropped
_SET_DOWN = 0.03  # metres that an object may fall and was still set down
_STUCK = 0.003  # metres in three steps


class Made(NamedTuple):
    """What a procedure made: the stage, first and last instant of the failure, and what else it is about."""

    stage: Stage
    first: int
    last: int
    other: str | None = None


def missed_grasp(a: Actor) -> Made:
    """Closes beside the object, or above it; a drawer's handle is missed by closing before it."""
    a.follow_to("descend", "advance")
    part, beside = a.part, bool(a.rng.random() < 0.5)
    if part is not None and not part.hinge:
        point, stage = a.world.grip.copy(), Stage.REACH
    else:
        grasp = a.plans.grasps.get(a.target)
        if grasp is None:
            raise NotPlanted("the object is not grasped from above")
        body = a.world.body(a.target) if part is None else part.body
        boxes = a.world.boxes(a.target) if part is None else a.world.part(body)
        rotation = a.world.data.xmat[body].reshape(3, 3)
        taken = grasp.goal(a.world.data.xpos[body], rotation)
        if beside:
            offset = free_side(a, taken, (boxes.low() + boxes.high()) / 2)
            point, stage = taken + offset, Stage.REACH
        else:
            point, stage = np.array([*taken[:2], boxes.high()[2] + TIP + a.rng.uniform(0.006, 0.02)]), Stage.GRASP
        a.go(np.array([*point[:2], max(a.world.grip[2], point[2])]), OPEN)
        if not a.go(point, OPEN):
            raise NotPlanted("the hand did not get there")
    first = a.instant
    a.move(np.zeros(3), int(a.rng.integers(13, 19)), CLOSE)
    last = a.instant
    a.rise(a.rng.uniform(0.08, 0.16))
    a.go_on()
    untouched(a)
    return Made(stage, first, last)


def pushed_away(a: Actor) -> Made:
    """The closed fingers run into the object from the side and shove it."""
    about_object(a)
    a.follow_to("descend")
    boxes = a.world.boxes(a.target)
    low, high = boxes.low(), boxes.high()
    middle, z = (low + high) / 2, low[2] + TIP + min(0.02, 0.3 * (high[2] - low[2]))
    goal = a.place().xy - middle[:2]
    goal = goal / max(float(np.linalg.norm(goal)), 1e-9)
    length = float(a.rng.uniform(0.11, 0.16))
    for angle in a.rng.permutation(np.arange(8) * np.pi / 4):
        way = np.array([np.cos(angle), np.sin(angle), 0.0])
        half = float(np.abs(way[:2]) @ (high - low)[:2] / 2)
        start = np.array([*middle[:2], z]) - way * (half + 0.05)
        end = start + way * (length + 0.02)
        free = not overlaps(hand_boxes(start, 0.0, margin=0.004), a.world.others()).any()
        beyond = a.world.others(a.target)
        if way[:2] @ goal < 0.3 and free and not overlaps(hand_boxes(end, 0.0, margin=0.01), beyond).any():
            break
    else:
        raise NotPlanted("there is no room to push it")
    before = a.world.position(a.target)
    a.rise(0.04, CLOSE)
    a.go(np.array([*start[:2], a.world.grip[2]]), CLOSE)
    if not a.go(start, CLOSE, near=0.015):
        raise NotPlanted("the hand did not get there")
    first = None
    for _ in range(60):
        if (a.world.grip - end) @ way > -0.01:
            break
        a.go(end, CLOSE, steps=1, speed=0.6)
        if first is None and np.linalg.norm(a.world.position(a.target) - before) > 0.005:
            first = a.instant
    last = a.instant
    a.rise(0.12)
    a.rest(8, 40)
    if first is None or np.linalg.norm((a.world.position(a.target) - before)[:2]) < 0.05:
        raise NotPlanted("the object was not moved")
    return Made(Stage.GRASP, first, last)


def slipped(a: Actor) -> Made:
    """The fingers lose their hold as the object begins to rise."""
    about_object(a)
    a.follow_to("lift", "transport")
    height, highest = a.rng.uniform(0.0, 0.025), 0.0
    a.follow(lambda _: a.lifted() >= height or a.holding != a.target)
    up = np.array([0.0, 0.0, a.rng.uniform(0.06, 0.2), 0.0, 0.0, 0.0, CLOSE])

    def lift() -> np.ndarray:
        nonlocal highest
        highest = max(highest, a.lifted())
        return up

    first = a.lose(lift)
    if highest > _UNDER:
        raise NotPlanted("it was lifted clear before it slipped")
    last = a.instant
    a.rise(0.1)
    a.go_on()
    return Made(Stage.GRASP, first, last)


def dropped(a: Actor) -> Made:
    """The fingers lose their hold on the way."""
    on_its_way(a)
    move = onwards(a)
    height = 0.0

    def carry_on() -> np.ndarray:
        nonlocal height
        height = a.lifted() if a.holding == a.target else height
        return move()

    first = a.lose(carry_on)
    if height < _ABOVE:
        raise NotPlanted("it was lost near the ground")
    last = a.instant + 5
    a.go_on()
    return Made(Stage.TRANSPORT, first, last)


def early_release(a: Actor) -> Made:
    """The fingers open on the way; a drawer or knob is let go before its threshold."""
    if a.part is not None:
        share = a.rng.uniform(0.25, 0.7)
        start = a.to_go()
        a.follow(lambda d: d.phase in ("pull", "turn", "push") and a.to_go() < (1 - share) * start)
        first = a.instant
        a.move(np.zeros(3), 10, OPEN)
        a.rise(0.1)
        a.rest(8, 40)
        if a.to_go() > 0.9 * start:
            raise NotPlanted("it moved back")
        return Made(Stage.TRANSPORT, first, first + 10)
    on_its_way(a)
    first = a.instant
    a.move(a.rng.uniform(-0.2, 0.2, 3) * [1, 1, 0], 10, OPEN)
    last = a.instant
    a.go_on()
    return Made(Stage.TRANSPORT, first, last)


def wrong_place(a: Actor) -> Made:
    """Sets the object down on a free spot beside the receptacle."""
    about_object(a)
    a.follow_to("lift", "transport")
    ground = min(float(a.world.boxes(name).low()[2]) for name in a.sim.object_names)
    place = a.place()
    least = 0.13 + half_size(a)
    spots = [
        place.xy + circle(least + a.rng.uniform(*wider), a.rng) for wider in ((0.0, 0.04), (0.03, 0.1), (0.1, 0.2))
    ]
    xy = free_spot(a, np.concatenate(spots), ground)
    first = a.put_down(Place(xy, ground + 0.006, ground, ""), _SET_DOWN)
    last = a.instant
    a.rest(5, 30)
    released_on(a, None)
    return Made(Stage.PLACE, first, last)


def wrong_receptacle(a: Actor) -> Made:
    """Puts the object onto something else."""
    about_object(a)
    destination = a.predicate[2]
    names = a.world.names()
    mine = {a.target, owner(destination, names)}
    surfaces = [
        region
        for region in a.sim.reader.region_names
        if region not in names
        and region not in a.joints
        and owner(region, names) not in (*a.world.movable, None, *mine)
    ]
    sizes = {name: a.world.boxes(name).high() - a.world.boxes(name).low() for name in a.sim.object_names}
    others = [n for n, size in sizes.items() if n not in mine and size[2] < _FLAT and size[:2].min() > _BROAD]
    other = one_of(a, [*surfaces, *others])
    goal: Goal = (("on", a.target, other),)
    a.follow(lambda d: d.phase == "release", goal)
    first = a.instant
    a.move(np.zeros(3), 9, OPEN)
    a.rise(0.1)
    last = a.instant
    a.rest(5, 30)
    on = owner(other, names) or other
    released_on(a, on)
    return Made(Stage.PLACE, first, last, on)


def not_released(a: Actor) -> Made:
    """Holds the object over the receptacle until the end."""
    about_object(a)
    a.follow_to("lower")
    first = a.instant
    a.rest(25, 70)
    if a.holding != a.target:
        raise NotPlanted("it was lost")
    return Made(Stage.PLACE, first, a.instant)


def unsatisfied(a: Actor) -> Made:
    """Puts the object on the receptacle, too far off its middle for the predicate."""
    about_object(a)
    a.follow_to("lift", "transport")
    place = a.place()
    names = a.world.names()
    site = a.world.site(a.predicate[2]) if a.predicate[2] not in names else None
    if site is None:
        offset = circle(a.rng.uniform(0.04, 0.06), a.rng)[0]
    else:
        axis = int(a.rng.integers(2))
        offset = np.zeros(2)
        offset[axis] = a.rng.choice([-1.0, 1.0]) * (site[1][axis] + a.rng.uniform(0.012, 0.03))
    first = a.put_down(replace(place, xy=place.xy + offset, lean=None))
    last = a.instant
    a.rest(5, 30)
    released_on(a, owner(a.predicate[2], names))
    return Made(Stage.PLACE, first, last)


def unreachable(a: Actor) -> Made:
    """Presses on the table at a free spot, or stretches for what is out of reach, with or without the object."""
    carried = a.part is None and bool(a.rng.random() < 0.35)
    if carried:
        on_its_way(a)
    else:
        approaching(a)
    gripper = CLOSE if carried else OPEN
    if a.rng.random() < 0.7:
        ground = min(float(a.world.boxes(name).low()[2]) for name in a.sim.object_names)
        spots = [a.world.grip[:2] + circle(radius, a.rng) for radius in a.rng.uniform(0.0, 0.25, 3)]
        spot = free_spot(a, np.concatenate(spots), ground, 0.06)
        a.go(np.array([*spot, a.world.grip[2]]), gripper, near=0.02)
        a.go(np.array([*spot, ground + 0.07]), gripper, near=0.02)
        way = np.array([0.0, 0.0, -1.0])
    else:
        out = a.world.grip[:2] - a.world.shoulder[:2]
        way = np.array([*(out / np.abs(out).max()), 0.0])
    at = a.world.grip + 1.0
    while np.linalg.norm(a.world.grip - at) > _STUCK:
        at = a.world.grip.copy()
        a.move(way, 3)
    first = a.instant
    a.move(way, int(a.rng.integers(35, 70)))
    _with_it(a, carried)
    if np.linalg.norm(a.world.grip - at) > 0.03:
        raise NotPlanted("the hand moved on")
    return Made(Stage.TRANSPORT if carried else Stage.REACH, first, a.instant)


def _with_it(a: Actor, carried: bool) -> None:
    """NotPlanted unless the object is still held, or, where it was never taken, still stands where it stood."""
    if not carried:
        untouched(a)
    elif a.holding != a.target:
        raise NotPlanted("it was lost")


def stalled(a: Actor) -> Made:
    """Stops on the way to the object, around it, or on the way with it, and stays."""
    stage = one_of(a, [Stage.REACH, Stage.GRASP, Stage.TRANSPORT])
    if stage is Stage.REACH:
        approaching(a)
    elif stage is Stage.GRASP:
        a.follow_to("close")
        a.move(np.zeros(3), 1, OPEN)
    elif a.part is not None:
        start = a.to_go()
        a.follow(lambda d: d.phase in ("pull", "turn") and a.to_go() < start * 0.8)
    else:
        on_its_way(a)
    first = a.instant
    a.rest(40, 90)
    _with_it(a, stage is Stage.TRANSPORT and a.part is None)
    return Made(stage, first, a.instant)


def drifted(a: Actor) -> Made:
    """Leaves the workspace, with or without the object."""
    carried = a.part is None and bool(a.rng.random() < 0.35)
    if carried:
        on_its_way(a)
    else:
        approaching(a)
    first = a.instant
    way = np.array([a.rng.uniform(-0.4, 0.1), a.rng.uniform(-0.9, 0.9), a.rng.uniform(0.6, 1.0)])
    a.move(way * a.rng.uniform(0.75, 1.0), int(a.rng.integers(55, 80)))
    _with_it(a, carried)
    things = [a.world.position(name) for name in a.sim.object_names if name != a.target or not carried]
    if min(float(np.linalg.norm(a.world.grip - thing)) for thing in things) < 0.45:
        raise NotPlanted("the arm did not get far enough")
    return Made(Stage.TRANSPORT if carried else Stage.REACH, first, a.instant)


def out_of_time(a: Actor) -> Made:
    """Begins late or works slowly, and is cut on its way."""
    if a.rng.random() < 0.5:
        a.rest(20, 45)
    else:
        a.pace *= 0.55
    stage = one_of(a, [Stage.REACH, Stage.TRANSPORT])
    if stage is Stage.REACH:
        approaching(a)
    elif a.part is not None:
        start = a.to_go()
        a.follow(lambda d: d.phase in ("pull", "turn") and a.to_go() < start * 0.8)
    else:
        on_its_way(a)
    return Made(stage, max(a.instant - 1, 0), a.instant)


def wrong_object(a: Actor) -> Made:
    """Takes another object and keeps it, drops it on the way, or only closes on it; or moves another part a little."""
    goal, other = another(a)
    if len(goal[0]) == 2:
        first, last = _moved_a_little(a, goal, other)
    else:
        a.follow(lambda d: d.phase == "close", goal)
        first = a.instant
        if a.rng.random() < 0.3:
            a.move(np.zeros(3), 16, CLOSE)
            if a.holding != other:
                raise NotPlanted("it did not get hold of the other object")
            last = a.instant
        else:
            a.follow(lambda d: d.phase == "transport", goal)
            for _ in range(int(a.rng.integers(4, 14))):
                a.act(a.paced(a.expert(goal).action))
            last = a.instant
            if a.rng.random() < 0.4:
                a.move(np.zeros(3), 10, OPEN)
    a.rest(15, 60)
    if a.sim.reader.goal_holds(goal).all():
        raise NotPlanted("the other task was done")
    return Made(Stage.REACH, first, last, other)


def _moved_a_little(a: Actor, goal: Goal, other: str) -> tuple[int, int]:
    """Works on another part, stops well before its threshold, and lets go; the instants between which it does."""
    joint = a.joints[other]
    threshold = joint.threshold(goal[0][0])
    begin = abs(joint.position(a.world) - threshold)
    a.follow(lambda d: d.phase in ("pull", "turn") and abs(joint.position(a.world) - threshold) < 0.75 * begin, goal)
    first = a.instant
    a.move(np.zeros(3), 8, OPEN)
    return first, a.instant


def ignored_instruction(a: Actor) -> Made:
    """Does another task, from beginning to end."""
    goal, other = another(a)
    a.follow(lambda d: d.phase in ("close", "pull", "turn", "push"), goal)
    first = a.instant
    a.follow(lambda d: d.phase == "done", goal)
    if not a.sim.reader.goal_holds(goal).all():
        raise NotPlanted("the other task was not done")
    last = a.instant
    a.rest(3, 30)
    return Made(Stage.REACH, first, last, other)


FAULTS: Mapping[Cause, Callable[[Actor], Made]] = MappingProxyType({
    Cause.WRONG_OBJECT: wrong_object,
    Cause.IGNORED_INSTRUCTION: ignored_instruction,
    Cause.MISSED_GRASP: missed_grasp,
    Cause.PUSHED_AWAY: pushed_away,
    Cause.SLIPPED: slipped,
    Cause.DROPPED: dropped,
    Cause.EARLY_RELEASE: early_release,
    Cause.WRONG_PLACE: wrong_place,
    Cause.WRONG_RECEPTACLE: wrong_receptacle,
    Cause.NOT_RELEASED: not_released,
    Cause.UNSATISFIED: unsatisfied,
    Cause.OUT_OF_TIME: out_of_time,
    Cause.UNREACHABLE: unreachable,
    Cause.STALLED: stalled,
    Cause.DRIFTED: drifted,
})  # fmt: skip
