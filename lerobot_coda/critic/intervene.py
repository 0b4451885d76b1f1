"""Interventions: take the claimed cause away, leave everything else, and see whether the policy then succeeds.

Each mode has a `Remedy`. It turns a failed episode into a `Contrast` of two new scenes that differ in the claimed cause
alone; the policy plays both, and the success with the cause removed is compared with that of the cause kept, pair by
pair. Neither scene is the failed one itself: a scene that was chosen because it failed would do better on any second
try, so it is no control.

    localization   removed: the claimed object stands where the task's own target stands unperturbed
                   kept:    another object stands there, the claimed one where it was
    grasp          removed: the expert has played through it, the object hangs in the hand
                   kept:    the expert has played up to it, the open hand is around the object
    transport      removed: the object hangs over the receptacle;  kept: it was just lifted
    placement      removed: the receptacle stands where it stands unperturbed;  kept: two other objects trade places
    motion         removed: the open hand is at the object;  kept: the scene from its start
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from lerobot_coda.critic.diagnosis import Mode
from lerobot_coda.critic.evidence import Claimed
from lerobot_coda.critic.measure import goal_objects, measure, unsatisfied
from lerobot_coda.critic.simulator import AT_RECEPTACLE, CLEAR
from libero_pro.episode import Episode
from libero_pro.goals import player
from libero_pro.layouts import layout
from libero_pro.operations import Resumption
from libero_pro.record import RecordError
from libero_pro.scene import Pose, SceneSpec
from libero_pro.suites import get_task

Instant = Literal["start", "reached", "lifted", "carried"]
AT_PLACE = 0.08  # an object this near a place (m) has to leave it for another one
UNMOVED = 0.03  # ... and this near the place where it stands unperturbed, nothing is to be undone


@dataclass(frozen=True)
class Remedy:
    """How a cause is removed: by moving a thing (`moves`), or by the expert's hand at the start of the episode.

    handover  (kept, removed): the instants of the expert's episode from which the policy goes on
    """

    name: str
    moves: Literal["target", "receptacle"] | None = None
    handover: tuple[Instant, Instant] | None = None


REMEDIES: Mapping[Mode, Remedy] = MappingProxyType({
    Mode.LOCALIZATION: Remedy("object at the unperturbed place", moves="target"),
    Mode.GRASP: Remedy("start after the grasp", handover=("reached", "lifted")),
    Mode.TRANSPORT: Remedy("start after the transport", handover=("lifted", "carried")),
    Mode.PLACEMENT: Remedy("receptacle at the unperturbed place", moves="receptacle"),
    Mode.MOTION: Remedy("start at the object", handover=("start", "reached")),
})  # fmt: skip


@dataclass(frozen=True)
class Contrast:
    """Two scenes that differ in the claimed cause alone."""

    kept: SceneSpec
    removed: SceneSpec


def contrast(remedy: Remedy, failed: Episode, claim: Claimed, expert: Episode | None = None) -> Contrast | None:
    """The pair of scenes for one failed episode and what is claimed of it; None where there is nothing to remove.

    expert  the expert's episode in the same scene; only a remedy with a `handover` needs it
    Released starts and resumed scenes are left alone, and so are claims about parts of fixtures.
    """
    scene = failed.scene
    if scene.init_state_id is not None or scene.start is not None or not claim.objects:
        return None
    if remedy.handover is not None:
        return None if expert is None else _handed_over(remedy.handover, expert, claim.objects[0])
    return _moved(remedy, failed, claim.objects[0])


# Moving a thing back.


def _moved(remedy: Remedy, failed: Episode, target: str) -> Contrast | None:
    """The thing trades places with what stands at the unperturbed place, or another one does."""
    task = get_task(failed.scene.suite, failed.scene.task_id)
    nominal = layout(task.suite, task.task_id).objects
    own = player(task.goal(), task.objects(), remedy.moves or "")
    at = nominal.get(own or "")
    asked_for, receptacle = goal_objects(unsatisfied(failed), failed.object_names)
    thing = target if remedy.moves == "target" else receptacle
    if at is None or thing is None or thing not in failed.object_names:
        return None
    poses = _poses(failed)
    place, where = np.array(at.position[:2]), np.array(poses[thing].position[:2])
    if np.linalg.norm(place - where) < UNMOVED:
        return None
    spared = {thing, asked_for if remedy.moves == "receptacle" else None, receptacle}
    others = sorted((name for name in poses if name not in spared), key=lambda name: (_gap(poses, name, place), name))
    if remedy.moves == "target":
        if not others:
            return None
        # The control comes as near as can be to moving the thing itself: the object that has as far to go.
        distance = float(np.linalg.norm(place - where))
        free = [name for name in others if _gap(poses, name, place) >= AT_PLACE]
        decoy = min(free, key=lambda name: (abs(_gap(poses, name, place) - distance), name), default=None)
        kept = None if decoy is None else _trade(poses, decoy, place, others)
    else:
        kept = _swap(poses, others[0], others[1]) if len(others) > 1 else None
    if kept is None:
        return None
    return Contrast(_placed(failed.scene, kept), _placed(failed.scene, _trade(poses, thing, place, others)))


def _poses(episode: Episode) -> dict[str, Pose]:
    """Where everything stood at the start."""
    return {
        name: Pose(
            position=tuple(round(float(value), 4) for value in position),  # type: ignore[arg-type]
            quaternion=tuple(round(float(value), 5) for value in quaternion),  # type: ignore[arg-type]
        )
        for name, position, quaternion in zip(
            episode.object_names, episode.object_pos[0], episode.object_quat[0], strict=True
        )
    }


def _gap(poses: Mapping[str, Pose], name: str, place: np.ndarray) -> float:
    return float(np.linalg.norm(np.array(poses[name].position[:2]) - place))


def _at(pose: Pose, place: np.ndarray) -> Pose:
    """The same thing at another place (2,), at its own height."""
    return Pose(
        position=(round(float(place[0]), 4), round(float(place[1]), 4), pose.position[2]), quaternion=pose.quaternion
    )


def _trade(poses: Mapping[str, Pose], name: str, place: np.ndarray, others: list[str]) -> dict[str, Pose]:
    """`name` goes to the place; whoever of the others stands there goes where it came from."""
    result = dict(poses)
    result[name] = _at(poses[name], place)
    for other in others:
        if other != name and _gap(poses, other, place) < AT_PLACE:
            result[other] = _at(poses[other], np.array(poses[name].position[:2]))
            break
    return result


def _swap(poses: Mapping[str, Pose], a: str, b: str) -> dict[str, Pose]:
    xy_a, xy_b = np.array(poses[a].position[:2]), np.array(poses[b].position[:2])
    return {**poses, a: _at(poses[a], xy_b), b: _at(poses[b], xy_a)}


def _placed(scene: SceneSpec, poses: Mapping[str, Pose]) -> SceneSpec:
    return scene.model_copy(update={"objects": dict(poses), "program": None})


# Starting after the failing stage.


def _handed_over(instants: tuple[Instant, Instant], expert: Episode, target: str) -> Contrast | None:
    """Both starts are instants of the expert's episode, so they differ in what the expert did between them alone."""
    found = [_instant(name, expert, target) for name in instants]
    if any(step is None for step in found):
        return None
    try:
        kept, removed = (Resumption.of(expert, step).start for step in found if step is not None)
    except RecordError:  # a released start, or fixtures that a stored instant cannot place
        return None
    plain: dict[str, Any] = {"objects": {}, "arm": None, "program": None}
    return Contrast(
        expert.scene.model_copy(update={**plain, "start": kept}),
        expert.scene.model_copy(update={**plain, "start": removed}),
    )


def _instant(name: Instant, expert: Episode, target: str) -> int | None:
    """The step of an expert's episode at which the target was reached, lifted clear, or over its receptacle."""
    if name == "start":
        return 0
    if target not in expert.object_names or expert.invalid is not None:
        return None
    index = expert.object_names.index(target)
    held = np.flatnonzero(expert.held == index)
    if not len(held):
        return None
    if name == "reached":  # the last step before the fingers begin to close on it
        open_before = np.flatnonzero(expert.actions[: held[0], 6] < 0)
        return int(open_before[-1]) if len(open_before) else None
    rise = expert.object_pos[:, index, 2] - expert.object_pos[0, index, 2]
    lifted = held[rise[held] >= CLEAR]
    if name == "lifted":
        return int(lifted[0]) if len(lifted) else None
    predicate = next((p for p in expert.scene.goal if len(p) > 2 and p[1] == target), None)
    if predicate is None:
        return None
    over = lifted[measure(expert, predicate).destination[lifted] < AT_RECEPTACLE / 2]
    return int(over[0]) if len(over) else None
