"""Moments and spots: when a fault begins, where there is room for it, and what holds when it is over."""

from collections.abc import Callable

import numpy as np

from lerobot_coda.critic.bench.actor import Actor, NotPlanted
from libero_pro.expert.geometry import Boxes, overlaps
from libero_pro.expert.grasps import hand_boxes
from libero_pro.goals import owner
from libero_pro.scene import Goal
from libero_pro.suites import tasks

AWAY = 0.13  # metres between an object on its way and its place: clearly before it
_FROM = 0.16  # metres from the object at which an approach must begin to be one
_CLEAR = 0.06  # metres risen: clear of its neighbors
_STILL_THERE = 0.02  # an object that nobody touched may have moved less than this, m
_SLOWLY = 0.3  # pace at which an object is carried while it slips: it must not arrive


def about_object(a: Actor) -> None:
    """NotPlanted where the goal is about a part."""
    if a.part is not None:
        raise NotPlanted("the goal is about a part")


def one_of[T](a: Actor, options: list[T]) -> T:
    """One of the options, or NotPlanted."""
    if not options:
        raise NotPlanted("there is nothing else to choose")
    return options[int(a.rng.integers(len(options)))]


def approaching(a: Actor) -> None:
    """Follows the expert to a random point of its way to the object, clearly before it."""
    a.follow_to("approach")
    begin = a.from_target()
    if begin < _FROM:
        raise NotPlanted("the hand starts at the object")
    reach = max(0.12, a.rng.uniform(0.35, 0.9) * begin)
    a.follow(lambda d: d.task == a.predicate and (a.from_target() < reach or d.phase != "approach"))
    if a.from_target() < 0.11:
        raise NotPlanted("the hand came too near to the object")


def on_its_way(a: Actor) -> None:
    """Follows the expert to a random point of the way with the object: lifted clear, clearly before its place."""
    about_object(a)
    a.follow_to("transport")
    begin = a.to_go()
    if begin < AWAY + 0.02:
        raise NotPlanted("the way is too short")
    left = a.rng.uniform(AWAY, begin)
    a.follow(
        lambda d: d.task == a.predicate and ((a.to_go() <= left and a.lifted() > _CLEAR) or d.phase != "transport")
    )
    if a.lifted() < _CLEAR or a.to_go() < AWAY - 0.02:
        raise NotPlanted("it is not lifted clear on the way")
    boxes, others = a.world.boxes(a.target), a.world.others(a.target)
    if a.holding != a.target or overlaps(Boxes(boxes.centers, boxes.axes, boxes.halves + 0.02), others).any():
        raise NotPlanted("it is not held clear of everything")


def onwards(a: Actor) -> Callable[[], np.ndarray]:
    """Slowly on to the place, as long as the object is held; then straight on."""
    last = a.expert().action * _SLOWLY

    def action() -> np.ndarray:
        nonlocal last
        if a.holding == a.target:
            last = a.expert().action * _SLOWLY
        return last

    return action


def another(a: Actor) -> tuple[Goal, str]:
    """A goal about another object or part: the same with another object, or another task of the suite."""
    spoken = {word for predicate in a.scene.goal for word in predicate[1:]}
    spoken |= {owner(word, a.world.names()) or word for word in spoken if a.part is None}
    found: list[tuple[Goal, str]] = []
    if a.part is None:
        relation, _, destination = a.predicate
        found += [(((relation, name, destination),), name) for name in a.sim.object_names if name not in spoken]
    for task in tasks(a.scene.suite):
        goal = task.goal()
        known = {*a.sim.object_names, *a.sim.reader.region_names}
        about = goal[0][1]
        if len(goal) == 1 and about not in spoken and set(goal[0][1:]) <= known:
            found.append((goal, about))
    goal, other = one_of(a, found)
    if a.sim.reader.goal_holds(goal).all():
        raise NotPlanted("the other task is done already")
    return goal, other


def free_side(a: Actor, point: np.ndarray, middle: np.ndarray) -> np.ndarray:
    """An offset (3,) of a grip point, away from the object's middle, at which the open hand touches nothing."""
    out = (point - middle)[:2]
    for angle in a.rng.permutation(np.arange(12) * np.pi / 6):
        way = np.array([np.cos(angle), np.sin(angle)])
        if np.linalg.norm(out) > 0.02 and way @ out < 0.5 * np.linalg.norm(out):
            continue
        for size in np.arange(0.035, 0.1, 0.01):
            offset = np.array([*(way * size), 0.0])
            if not overlaps(hand_boxes(point + offset, 0.0, margin=0.006), a.world.others()).any():
                return offset
    raise NotPlanted("there is no free spot beside it")


def half_size(a: Actor) -> float:
    """Half the breadth (m) of the region that the object goes to, beyond that of a plate."""
    site = a.world.site(a.predicate[2])
    return 0.0 if site is None else max(0.0, float(site[1][:2].max()) - 0.05)


def circle(radius: float, rng: np.random.Generator) -> np.ndarray:
    """(12, 2) offsets on a circle, in random order."""
    angles = rng.permutation(np.arange(12) * np.pi / 6)
    return radius * np.column_stack([np.cos(angles), np.sin(angles)])


def free_spot(a: Actor, spots: np.ndarray, ground: float, half: float | None = None) -> np.ndarray:
    """The first of the spots (k, 2) on the ground where what is held (or a box of half size `half`) finds room."""
    boxes = a.world.boxes(a.target) if a.part is None else Boxes.none()
    extent = (boxes.high() - boxes.low())[:2] / 2 + 0.012 if half is None else np.full(2, half)
    others = a.world.others(*((a.target,) if a.holding == a.target else ()))
    for spot in spots:
        column = Boxes(np.array([[*spot, ground + 0.105]]), np.eye(3)[None], np.array([[*extent, 0.1]]))
        near = a.world.upright_reach(np.array([*spot, ground + 0.05])) < 0.69
        if near and not overlaps(column, others).any():
            return spot
    raise NotPlanted("there is no free spot")


def untouched(a: Actor) -> None:
    """NotPlanted where the object was moved from where it stood."""
    if a.moved() > _STILL_THERE:
        raise NotPlanted("the object was moved")


def released_on(a: Actor, support: str | None) -> None:
    """Checks that the object lies on `support` (None: on neither its receptacle nor another object), let go."""
    state = a.sim.state()
    touching = {x if y == a.target else y for x, y in state.contacts if a.target in (x, y)}
    if "gripper" in touching:
        raise NotPlanted("it is still touched")
    if support is not None and support not in touching:
        raise NotPlanted(f"it does not lie on {support}")
    if support is None and touching - {"table"}:
        raise NotPlanted(f"it touches {sorted(touching - {'table'})}")
