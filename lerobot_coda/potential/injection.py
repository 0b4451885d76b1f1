"""Failures made from demonstrations, to judge potentials by: the same start, the expert's actions spoiled on the way.

A demonstration is replayed with its gripper opened, its way shifted, or its motion stopped; or what the expert does for
another object is replayed in the scene. What succeeds all the same is no failure and is left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from libero_pro.episode import Episode
from libero_pro.expert import solve
from libero_pro.goals import owner
from libero_pro.record import RecordError
from libero_pro.recorder import EpisodeRecorder
from libero_pro.scene import SceneSpec
from libero_pro.simulator import SimulationError, Simulator

Failure = Literal["drop", "wrong_object", "missed_grasp", "early_release", "stop"]
FAILURES: tuple[Failure, ...] = ("drop", "wrong_object", "missed_grasp", "early_release", "stop")

_SETTLE = 10  # no-op steps before an episode, as the protocol has them
_SHIFT, _SHIFT_STEPS, _AHEAD = 0.9, 4, 18  # a translation of about 10 cm, so many steps before the fingers close
_WRONG_STEPS = 220  # at most, for another object
_FIRM = 3  # instants; a touch that lasts less is none
_TRIES = 3  # other objects, directions


@dataclass(frozen=True)
class _Grip:
    """Instants between which a demonstration holds what the goal is about: [start, stop)."""

    start: int
    stop: int

    def at(self, share: float) -> int:
        """The instant at a share of the interval."""
        return self.start + max(1, round(share * (self.stop - self.start)))


def inject(sim: Simulator, demonstration: Episode, kind: Failure, rng: np.random.Generator) -> Episode | None:
    """A failed episode of a kind in the demonstration's scene; None where the kind does not apply or does not fail.

    drop          opens at a third of the time that the object is held, and moves on
    early_release the same as late in that time as it is still a failure, at three quarters at most
    missed_grasp  is 10 cm beside the object when it closes;  stop  stands still from the middle of the way on
    wrong_object  does for another object (or part) what was asked for the goal's
    """
    for scene, actions in _spoiled(sim, demonstration, kind, rng):
        episode = _replay(sim, scene, actions, kind)
        if episode is None or episode.success:
            continue
        if kind == "missed_grasp" and _grip(episode) is not None:  # took hold of it all the same
            continue
        return episode
    return None


def _spoiled(
    sim: Simulator, demonstration: Episode, kind: Failure, rng: np.random.Generator
) -> Iterator[tuple[SceneSpec, np.ndarray]]:
    """Actions to try, one set after the other."""
    scene, actions = demonstration.scene, demonstration.actions
    if kind == "wrong_object":
        for goal in _other_goals(demonstration, rng):
            try:
                other = solve(sim, scene.model_copy(update={"goal": goal}), max_steps=_WRONG_STEPS)
            except RecordError:
                continue
            if other.success:
                yield scene, other.actions
        return
    grip = _grip(demonstration)
    if grip is None:
        return
    if kind in ("drop", "early_release"):
        for share in (0.35,) if kind == "drop" else (0.75, 0.65, 0.55):
            spoiled = actions.copy()
            spoiled[grip.at(share) :, 6] = -1.0
            yield scene, spoiled
    elif kind == "stop":
        spoiled = actions.copy()
        middle = grip.at(0.5)
        spoiled[middle:, :6] = 0.0
        spoiled[middle:, 6] = actions[middle - 1, 6]
        yield scene, spoiled
    else:
        closing = max(0, grip.start - _AHEAD)
        for angle in rng.uniform(0, 2 * np.pi) + np.arange(_TRIES) * 2 * np.pi / _TRIES:
            shift = np.zeros((_SHIFT_STEPS, 7), np.float32)
            shift[:, :2] = _SHIFT * np.array([np.cos(angle), np.sin(angle)])
            shift[:, 6] = -1.0
            yield scene, np.concatenate([actions[:closing], shift, actions[closing:]])


def _replay(sim: Simulator, scene: SceneSpec, actions: np.ndarray, kind: Failure) -> Episode | None:
    """The scene under given actions, until they end or the goal holds; None where the physics ends it."""
    sim.reset(scene)
    try:
        sim.settle(_SETTLE)
        recorder = EpisodeRecorder(sim, scene, "expert")
        recorder.start()
        for action in actions:
            if recorder.step(action):
                break
    except SimulationError:
        return None
    return recorder.finish(truncated=True, injected=kind)


def _grip(demonstration: Episode) -> _Grip | None:
    """From the first to the last instant at which the first thing of the goal that is held (or touched: a part) is."""
    e = demonstration
    for predicate in e.scene.goal:
        name = predicate[1]
        if name in e.object_names:
            on = e.held == e.object_names.index(name)
        elif name in e.part_names and e.touched is not None:
            on = e.touched[:, len(e.object_names) + e.part_names.index(name)]
        else:
            continue
        instants = np.flatnonzero(on)
        if len(instants) >= _FIRM:
            return _Grip(int(instants[0]), int(instants[-1]) + 1)
    return None


def _other_goals(demonstration: Episode, rng: np.random.Generator) -> list[tuple[tuple[str, ...], ...]]:
    """Single-predicate goals like the first one, about something else."""
    e = demonstration
    kind, name, *rest = e.scene.goal[0]
    spoken = {word for predicate in e.scene.goal for word in predicate[1:]}
    pool = e.object_names
    if name not in pool:  # the other drawers of a cabinet
        cabinet = owner(name, [region for region in e.region_names if region != name])
        pool = tuple(part for part in e.part_names if cabinet and part.startswith(f"{cabinet}_") and part != name)
    others = [o for o in pool if o not in spoken and not any(word.startswith(o + "_") for word in spoken)]
    picked = rng.permutation(len(others))[:_TRIES]
    return [((kind, others[i], *rest),) for i in picked]
