"""Many scenes through the validity gates, in worker processes; the expert's demonstrations on the way if asked for."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from libero_pro.forked import run_in_forks
from libero_pro.record import RecordError
from libero_pro.replacement import task_of
from libero_pro.scene import SceneSpec
from libero_pro.suites import Task
from libero_pro.validity import Verdict, check
from libero_pro.workers import Ask


@dataclass(frozen=True)
class Demonstrations:
    """The expert must solve a scene (gate "solved"), and its episode is kept as `folder/<scene hash>.npz`.

    noise  probability per step of a disturbance;  seed: with the scene, all that decides what is drawn
    """

    folder: Path
    noise: float = 0.0
    seed: int = 0

    def __call__(self, simulator: Any, scene: SceneSpec) -> bool:
        """Whether the expert solves the scene."""
        from libero_pro.expert import solve

        rng = np.random.default_rng([self.seed, int(scene.hash, 16)])
        try:
            episode = solve(simulator, scene, noise=self.noise, rng=rng)
        except RecordError:  # a goal without a skill, or nothing to grasp the object by
            return False
        if not episode.success:
            return False
        episode.save(self.folder / f"{scene.hash}.npz")
        return True


def judge(
    scenes: Sequence[SceneSpec],
    *,
    workers: int = 2,
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
        else:
            yield passed[outcome.index], outcome.result
    if lost:
        raise RecordError(f"not every scene could be judged, run the same again for the rest; {lost}")


def _simulator(task: Task) -> Any:
    from libero_pro.simulator import Simulator

    return Simulator(task)


def _check(sim: Any, scene: SceneSpec, ask: Ask, *, demonstrations: Demonstrations | None) -> Verdict:
    return check(scene, sim, solve=demonstrations)
