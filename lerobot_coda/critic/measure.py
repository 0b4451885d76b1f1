"""Measuring: from the arrays of an episode to the facts about the goal predicate that it failed at.

Thresholds are constants with their reason, in metres and control steps.
"""

from functools import cache

import numpy as np

from lerobot_coda.critic.facts import LIFTED, Closing, Facts, Hold
from libero_pro.episode import Episode
from libero_pro.goals import owner
from libero_pro.layouts import layout
from libero_pro.record import RecordError
from libero_pro.suites import get_task

FIRM = 2  # instants between both pads that are a hold; a shorter touch is none
GAP = 3  # instants without contact within one hold: pinched things bounce between the pads
OPENS = 10  # control steps between the command to open and the loss of a wide object
TAKES = 24  # control steps at most from the command to close to both pads touching something
CLOSES = 5  # control steps that a closing takes to touch anything
USUAL_HALF, USUAL_TOP = 0.035, 0.05  # of an object that no layout tells
OVER = 0.045  # fingers that end less than about 3 cm over an object are at it
OFF_REGION = 0.05  # what lies higher than it stood, this little outside of a fixture's region, lies on the fixture
FAR_AWAY = 0.3  # the hand is this much farther (3-D) from all that stood around than at the start: out of the workspace
NEARBY = 0.02  # this much farther than ever before the hand begins to leave
STANDS = 0.015  # the hand stays within so much of its last place: it stands still
SECOND = 20  # control steps
TWITCH = 14  # control steps in which the fingers do not come together: closed for less was no attempt, if the hand
ABANDONED = 0.03  # came so much nearer (m) to the target afterwards
MOVED_PART = 0.1  # of its way to the threshold: a part that was moved, not brushed
MOVES = 0.005  # of its way in a control step: a part that is being moved
ON_PART = 0.03  # a gripper that closes this near a handle is at it


def goal_objects(predicate: tuple[str, ...], names: tuple[str, ...]) -> tuple[str | None, str | None]:
    """(target, receptacle) of a goal predicate as object names, None where it is a fixture or there is none."""
    target = predicate[1] if len(predicate) > 1 and predicate[1] in names else None
    return target, owner(predicate[2], names) if len(predicate) > 2 else None


def unsatisfied(episode: Episode) -> tuple[str, ...]:
    """The predicate that an episode failed at: of those that do not hold at the end, in the goal's order, the first
    that was worked on (held or moved), else the first that was touched, else the first (of all if every one holds)."""
    goal = episode.scene.goal
    final = episode.goal_holds[-1] if len(episode.goal_holds) else np.zeros(len(goal), bool)
    open_ = [predicate for predicate, holds in zip(goal, final, strict=False) if not holds] or [goal[0]]
    if len(open_) == 1 or not len(episode):
        return open_[0]
    worked = [p for p in open_ if _holds(episode, p[1]) or _progress(episode, p).max() > MOVED_PART]
    return (worked or [p for p in open_ if _touches(episode, p[1]).any()] or open_)[0]


def measure(episode: Episode, predicate: tuple[str, ...] | None = None) -> Facts:
    """The facts of an episode about a goal predicate, by default the one it failed at; works on successes too."""
    e = episode
    predicate = predicate or unsatisfied(e)
    names = e.object_names
    target, receptacle = goal_objects(predicate, names)
    index = names.index(target) if target else -1
    destination, outside = _destination(e, predicate, index, receptacle)
    path = e.object_pos[:, index] if target else np.repeat(e.eef_pos[:1], len(e.eef_pos), axis=0)
    moved = np.linalg.norm(path - path[0], axis=-1)
    beyond, distance = _distances(e, predicate, index)
    touches = np.flatnonzero(_touches(e, predicate[1]))
    spoken = {word for spoken in e.scene.goal for word in spoken[1:]}
    spoken |= {name for name in (target, receptacle) if name}
    closings = _closings(e, beyond, distance, spoken, _elsewhere(e, predicate))
    others = [hold for name in names if name not in spoken for hold in _holds(e, name)]
    others.sort(key=lambda hold: hold.first - hold.last)
    away = np.linalg.norm(e.object_pos[0][None] - e.eef_pos[:, None], axis=-1).min(axis=1, initial=np.inf)
    near = np.flatnonzero(away <= away.min() + NEARBY)
    apart = np.flatnonzero(np.linalg.norm(e.eef_pos - e.eef_pos[-1], axis=-1) > STANDS)
    late = e.eef_pos[-SECOND - 1 :]
    commands = np.abs(e.actions[-SECOND:, :3])
    return Facts(
        predicate=predicate,
        target=target,
        receptacle=receptacle,
        steps=len(e),
        holds=_holds(e, target) if target else (),
        others=tuple(others),
        other_to_receptacle=_apart(e, others[0].name, receptacle) if others and receptacle else float("inf"),
        destination=destination,
        outside=outside,
        rest_object=_support(e, index, predicate) if target else None,
        displaced=float(np.linalg.norm((path[-1] - path[0])[:2])),
        pushed=int(np.argmax(moved > 0.01)) if (moved > 0.01).any() else -1,
        released=int(touches[-1]) if len(touches) else -1,
        closings=closings,
        attempt=_attempt(closings),
        nearest=float(beyond.min()),
        progress=_progress(e, predicate),
        other_part=_other_part(e, predicate),
        still=min(int(apart[-1]) + 1 if len(apart) else 0, len(e)),
        late_path=float(np.linalg.norm(np.diff(late, axis=0), axis=-1).sum()),
        late_command=float(commands.max(axis=1).mean()) if len(commands) else 0.0,
        away=float(away[-1] - away[0]),
        left=min(int(near[-1]) + 1 if len(near) else 0, len(e)),
    )


@cache
def extent(suite: str, task_id: int, name: str) -> tuple[float, float]:
    """(half the larger side of an object's footprint, height of its top over its origin) in metres, as measured in the
    base task; usual ones for an object that it does not have."""
    try:
        placed = layout(get_task(suite, task_id).base_suite, task_id).objects[name]
    except (RecordError, KeyError):
        return USUAL_HALF, USUAL_TOP
    x0, y0, x1, y1 = placed.footprint
    return max(x1 - x0, y1 - y0) / 2, placed.top


def _holds(e: Episode, name: str) -> tuple[Hold, ...]:
    """Every hold of an object, in time."""
    if name not in e.object_names:
        return ()
    index = e.object_names.index(name)
    instants = np.flatnonzero(e.held == index)
    if not len(instants):
        return ()
    height = e.object_pos[:, index, 2]
    found = []
    for run in np.split(instants, np.flatnonzero(np.diff(instants) > GAP) + 1):
        first, last = int(run[0]), int(run[-1])
        told = e.actions[:, 6] > 0
        before = told[max(first - TAKES, 0) : last + 1]
        at_end = last >= len(e) - 1
        rise = float((height[first : last + 1] - height[0]).max())
        closing = bool((before[1:] & ~before[:-1]).any() or (first < TAKES and before.any()))
        if (len(run) < FIRM and not at_end) or not (closing or (before.any() and rise >= LIFTED)):
            continue  # fingers that were closed before push with both pads
        late = max(last - OPENS, first)
        opens = np.flatnonzero(~told[late : last + 1])
        let_go = late + int(opens[0]) if len(opens) else last  # the pads may go along for a while
        fall = float(height[let_go] - height[-1])
        found.append(Hold(name, first, last, rise, at_end, bool(len(opens)), fall))
    return tuple(found)


def _destination(e: Episode, predicate: tuple[str, ...], index: int, receptacle: str | None) -> tuple:
    """(T+1,) distance from the destination's middle, and (T+1,) from outside of its region."""
    nowhere = np.full(len(e.eef_pos), np.inf)
    if index < 0 or len(predicate) < 3:
        return nowhere, nowhere
    target, region = e.object_pos[:, index, :2], predicate[2]
    if region in e.region_names and e.region_pos is not None and e.region_half is not None:
        k = e.region_names.index(region)
        gap = np.abs(target - e.region_pos[:, k, :2])
        beyond = np.maximum(gap - e.region_half[k, :2], 0.0)
        return np.linalg.norm(gap, axis=-1), np.linalg.norm(beyond, axis=-1)
    if receptacle is None:
        return nowhere, nowhere
    apart = np.linalg.norm(target - e.object_pos[:, e.object_names.index(receptacle), :2], axis=-1)
    return apart, apart


def _distances(e: Episode, predicate: tuple[str, ...], index: int) -> tuple[np.ndarray, np.ndarray]:
    """(T+1,) how far the hand is from being at the target (0: at it), and from its middle; of a part both (3-D) from
    where it is taken hold of."""
    if index >= 0:
        return _gap(e, index), np.linalg.norm((e.object_pos[:, index] - e.eef_pos)[:, :2], axis=-1)
    part = _part(e, predicate[1])
    if part is None or e.part_point is None:
        nowhere = np.full(len(e.eef_pos), np.inf)
        return nowhere, nowhere
    distance = np.linalg.norm(e.part_point[:, part] - e.eef_pos, axis=-1)
    return np.maximum(distance - ON_PART, 0.0), distance


def _apart(e: Episode, name: str, other: str) -> float:
    """Distance of two objects at the end."""
    a, b = (e.object_pos[-1, e.object_names.index(thing), :2] for thing in (name, other))
    return float(np.linalg.norm(a - b))


def _gap(e: Episode, index: int) -> np.ndarray:
    """(T+1,) how far the hand is from the upright cylinder around an object, up to `OVER` over its top; 0 inside."""
    half, top = extent(e.scene.suite, e.scene.task_id, e.object_names[index])
    apart = e.eef_pos - e.object_pos[:, index]
    beside = np.maximum(np.linalg.norm(apart[:, :2], axis=-1) - half, 0.0)
    return np.hypot(beside, np.maximum(apart[:, 2] - top - OVER, 0.0))


def _part(e: Episode, name: str) -> int | None:
    return e.part_names.index(name) if name in e.part_names else None


def _touches(e: Episode, name: str) -> np.ndarray:
    """(T+1,) bool: the gripper touches the object or part; without that array, whether both pads hold the object."""
    if e.touched is None:
        return e.held == (e.object_names.index(name) if name in e.object_names else -2)
    things = (*e.object_names, *e.part_names)
    return e.touched[:, things.index(name)] if name in things else np.zeros(len(e.touched), bool)


def _progress(e: Episode, predicate: tuple[str, ...]) -> np.ndarray:
    """(T+1,) way of a predicate's part from where it was at the start (0) to its threshold (1)."""
    part = _part(e, predicate[1]) if len(predicate) == 2 else None
    if part is None or e.part_pos is None or e.part_range is None:
        return np.zeros(len(e.eef_pos))
    return _way(e, part, e.part_range[part][1 if predicate[0] in ("open", "turnon") else 0])


def _way(e: Episode, part: int, threshold: float) -> np.ndarray:
    position = e.part_pos[:, part] if e.part_pos is not None else np.zeros(len(e.eef_pos))
    left = threshold - position[0]
    return (position - position[0]) / left if abs(left) > 1e-6 else np.zeros(len(position))


def _other_part(e: Episode, predicate: tuple[str, ...]) -> tuple[str, float, int, int] | None:
    """The other part that was moved farthest: its name, the share of the way to where it counts as the opposite of what
    it was at which it ended, its first and last instant."""
    if e.part_pos is None or e.part_range is None:
        return None
    spoken, best = set(predicate[1:]), None
    spoken |= {word for other in e.scene.goal for word in other[1:]}
    for part, name in enumerate(e.part_names):
        if name in spoken:
            continue
        closed, opened = e.part_range[part]
        start = e.part_pos[0, part]
        way = _way(e, part, opened if abs(start - opened) > abs(start - closed) else closed)
        if way.max() > MOVED_PART and (best is None or way[-1] > best[1]):
            moved = np.flatnonzero(way > 0.02)
            best = (name, float(way[-1]), int(moved[0]), int(np.argmax(way)))
    return best


def _elsewhere(e: Episode, predicate: tuple[str, ...]) -> np.ndarray:
    """(T+1,) bool: what another of the goal's predicates is about is held, or is a part that moves."""
    found = np.zeros(len(e.eef_pos), bool)
    for other in e.scene.goal:
        if other[1] == predicate[1]:
            continue
        progress = _progress(e, other)
        found |= np.abs(np.diff(progress, prepend=progress[:1])) > MOVES
        for hold in _holds(e, other[1]):
            found[hold.first : hold.last + 1] = True
    return found


def _closings(
    e: Episode, beyond: np.ndarray, distance: np.ndarray, spoken: set[str], elsewhere: np.ndarray
) -> tuple[Closing, ...]:
    """Every time that the gripper was told to close for long enough to take something.

    Not where it took what another of the goal's predicates is about (`elsewhere`, by instant): that was no attempt at
    this one.
    """
    closed = np.concatenate([[False], e.actions[:, 6] > 0, [False]])
    starts, stops = np.flatnonzero(~closed[:-1] & closed[1:]), np.flatnonzero(closed[:-1] & ~closed[1:])
    outside = {name: _gap(e, i) for i, name in enumerate(e.object_names) if name not in spoken}
    found = []
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        if stop - start < CLOSES or elsewhere[start : stop + 1].any():
            continue
        other = min(outside, key=lambda name: float(outside[name][start]), default=None)
        away = float(outside[other][start]) if other else float("inf")
        abandoned = stop - start < TWITCH and bool(beyond[stop:].min(initial=np.inf) < beyond[start] - ABANDONED)
        touching = other is not None and (e.touched is None or bool(_touches(e, other)[start : stop + 1].any()))
        found.append(
            Closing(start, stop, float(distance[start]), float(beyond[start]), other, away, touching, abandoned)
        )
    return tuple(found)


def _attempt(closings: tuple[Closing, ...]) -> Closing | None:
    """The closing that came nearest to the target, of those after which the hand did not come nearer still."""
    kept = [closing for closing in closings if not closing.abandoned]
    return min(kept, key=lambda closing: closing.beyond, default=None)


def _support(e: Episode, index: int, predicate: tuple[str, ...]) -> str | None:
    """What the target lies on or in at the end, judged by where the middles are; None for the table or its goal's."""
    here = e.object_pos[-1, index]
    own = owner(predicate[2], (*e.object_names, *e.region_names)) if len(predicate) > 2 else None
    found: list[tuple[float, str]] = []
    raised = here[2] > e.object_pos[0, index, 2] + LIFTED  # it lies on something
    for i, name in enumerate(e.object_names):
        apart = float(np.linalg.norm((e.object_pos[-1, i] - here)[:2]))
        if i != index and name != own and apart < _reach(e, name) and here[2] > e.object_pos[-1, i, 2] - 0.01:
            found.append((apart, name))
    if e.region_pos is not None and e.region_half is not None:
        for k, region in enumerate(e.region_names):
            of = owner(region, tuple(name for name in e.region_names if name != region))
            if of is None or own in (region, of) or region in e.part_names:
                continue  # a patch of the table, what the goal names, or a fixture itself
            beyond = np.maximum(np.abs(e.region_pos[-1, k, :2] - here[:2]) - e.region_half[k, :2], 0.0)
            above = here[2] - (e.region_pos[-1, k, 2] - e.region_half[k, 2])
            if np.linalg.norm(beyond) < (OFF_REGION if raised else 0.02) and -0.02 < above < 0.2:
                found.append((float(np.linalg.norm(beyond)), of))
    return min(found, default=(0.0, None))[1]


def _reach(e: Episode, name: str) -> float:
    """Middles this near mean that one lies on the other."""
    return max(extent(e.scene.suite, e.scene.task_id, name)[0], 0.03)
