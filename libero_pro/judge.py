"""Many scenes through the validity gates, in worker processes; the expert's demonstrations on the way if asked for."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from libero_pro.episode import Episode
from libero_pro.forked import run_in_forks
from libero_pro.record import RecordError
from libero_pro.replacement import task_of
from libero_pro.scene import SceneSpec
from libero_pro.suites import Task
from libero_pro.validity import Verdict, check
from libero_pro.workers import Ask, Workers


@dataclass(frozen=True)
class Demonstrations:
    """The expert must solve a scene (gate "solved"), and its episode is kept as `folder/<scene hash>.npz`.

    noise  probability per step of a disturbance;  seed: with the scene, all that decides what is drawn
    """

    folder: Path
    noise: float = 0.0
    seed: int = 0

    def show(self, simulator: Any, scene: SceneSpec) -> Episode | None:
        """The expert's episode, or None where it does not solve the scene."""
        from libero_pro.expert import solve

        rng = np.random.default_rng([self.seed, int(scene.hash, 16)])
        try:
            episode = solve(simulator, scene, noise=self.noise, rng=rng)
        except RecordError:  # a goal without a skill, or nothing to grasp the object by
            return None
        return episode if episode.success else None


def judge(
    scenes: Sequence[SceneSpec],
    *,
    workers: Workers = 2,
    static: bool = False,
    demonstrations: Demonstrations | None = None,
) -> Iterator[tuple[int, Verdict]]:
    """Yields (index, verdict) of every scene once, in the order in which they are known.

    static          only the gates that need no physics: enough for a scene of which an image is all that is wanted
    demonstrations  the expert must solve the scene, and its episode is kept

    The verdict depends on the scene alone, not on `workers`. RecordError names a scene that could not be judged at
    all (its worker was lost twice): that says nothing of the scene; what was yielded before holds.
    """
    passed = []
    for index, scene in enumerate(scenes):
        verdict = check(scene)
        if verdict.accepted and not static:
            passed.append(index)
        else:
            yield index, verdict
    outcomes = run_in_forks(
        [scenes[index] for index in passed],
        make_state=_simulator,
        work=partial(_check, demonstrations=demonstrations),
        workers=workers,
        key=task_of,
    )
    lost = ""
    for outcome in outcomes:
        if outcome.result is None:
            lost = f"scene {outcome.job.hash} of {outcome.job.suite} {outcome.job.task_id}: {outcome.error}"
            continue
        verdict, shown = outcome.result
        if demonstrations is not None and shown is not None:
            shown.save(demonstrations.folder / f"{shown.scene.hash}.npz")
        yield passed[outcome.index], verdict
    if lost:
        raise RecordError(f"not every scene could be judged, run the same again for the rest; {lost}")


def _simulator(task: Task) -> Any:
    from libero_pro.simulator import Simulator

    return Simulator(task)


def _check(
    sim: Any, scene: SceneSpec, ask: Ask, *, demonstrations: Demonstrations | None
) -> tuple[Verdict, Episode | None]:
    """The verdict, and the episode: a worker may be on a machine without the folder."""
    if demonstrations is None:
        return check(scene, sim), None
    shown = None

    def solve(simulator: Any, scene: SceneSpec) -> bool:
        nonlocal shown
        shown = demonstrations.show(simulator, scene)
        return shown is not None

    return check(scene, sim, solve=solve), shown
