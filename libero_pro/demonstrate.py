"""Demonstrations of many scenes by the scripted expert, in worker processes, resumable.

for episode in demonstrate(scenes, workers=2, noise=0.03, out=folder):  # in completion order
    ...
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
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
from libero_pro.workers import Ask, Workers

REFUSED = "refused"


def demonstrate(
    scenes: Sequence[SceneSpec],
    *,
    workers: Workers = 2,
    noise: float = 0.0,
    seed: int = 0,
    out: Path | None = None,
    max_steps: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    timeout_s: float = 300.0,
) -> Iterator[Episode]:
    """Yields one episode for each distinct scene, in completion order; stored ones come first.

    workers   processes, 0 runs everything in this one; or a crew elsewhere (`libero_pro.ray_workers`)
    noise     probability per step that a disturbance begins (see `libero_pro.expert.solve`); what is drawn depends on
              `seed` and the scene alone, so neither on `workers` nor on the order of `scenes`
    out       folder that keeps each episode as `<scene hash>.npz`; a run that is started again loads what is there,
              unless it was recorded under another noise, seed or step limit
    progress  called with (done, total)

    An episode the expert does not solve is a failure with the reason in `tags["expert"]`. A scene that cannot be run (a
    goal without a skill, no free grasp, diverging physics, a worker lost twice) gives an episode with `invalid` set;
    `tags["outcome"]` is "refused" where it was the expert that did not know how.
    RecordError for a scene of an unknown task or a noise outside [0, 1].
    """
    if not 0.0 <= noise <= 1.0:
        raise RecordError(f"noise is a probability in [0, 1], not {noise}")
    for scene in scenes:
        task_of(scene)
    conditions = {"noise": f"{noise:g}", "seed": str(seed), "max_steps": str(max_steps)}
    distinct = list({scene.hash: scene for scene in scenes}.values())
    done, missing = 0, []
    for scene in distinct:
        episode = None if out is None else _stored(Path(out), scene, conditions)
        if episode is None:
            missing.append(scene)
            continue
        done += 1
        if progress is not None:
            progress(done, len(distinct))
        yield episode
    outcomes = run_in_forks(
        missing,
        make_state=_build,
        work=partial(_solve, noise=noise, seed=seed, max_steps=max_steps),
        workers=workers,
        key=task_of,
        timeout_s=timeout_s,
    )
    for outcome in outcomes:
        episode = outcome.result
        if episode is None:  # not `or`: an episode without a step is falsy, yet has its reason
            episode = Episode.unrun(outcome.job, "expert", outcome.error or "no result")
        episode = replace(episode.tagged(**conditions), wall_s=round(outcome.wall_s, 3))
        if out is not None:
            episode.save(Path(out) / f"{episode.scene.hash}.npz")
        done += 1
        if progress is not None:
            progress(done, len(distinct))
        yield episode


def correct(
    episodes: Sequence[Episode], *, workers: Workers = 2, progress: Callable[[int, int], None] | None = None
) -> list[Episode]:
    """The same episodes with `expert_actions` from the expert: what it would have done in the states a policy visited.

    In order; rows where the expert has no answer are zero, which learners leave out. An episode for which it has none
    at all is left out. No physics is simulated. RecordError when an episode cannot be relabeled for another reason.
    """
    corrected: dict[int, Episode] = {}
    outcomes = run_in_forks(
        episodes,
        make_state=_build,
        work=_relabel,
        workers=workers,
        key=lambda episode: task_of(episode.scene),
    )
    for done, outcome in enumerate(outcomes, 1):
        episode = outcome.job
        if outcome.error is not None or outcome.result is None:
            raise RecordError(f"cannot relabel the episode in scene {episode.scene.hash}: {outcome.error}")
        labels = outcome.result
        if np.isfinite(labels).all(axis=1).any():
            corrected[outcome.index] = replace(episode, expert_actions=np.nan_to_num(labels, nan=0.0))
        if progress is not None:
            progress(done, len(episodes))
    return [corrected[index] for index in sorted(corrected)]


def _relabel(sim: Any, episode: Episode, ask: Ask) -> np.ndarray:
    from libero_pro.expert import relabel

    return relabel(sim, episode)


def _build(task: Task) -> Any:
    from libero_pro.simulator import Simulator

    return Simulator(task)


def _solve(sim: Any, scene: SceneSpec, ask: Ask, *, noise: float, seed: int, max_steps: int | None) -> Episode:
    from libero_pro.expert import solve
    from libero_pro.simulator import SimulationError

    rng = np.random.default_rng([seed, int(scene.hash, 16)])
    try:
        return solve(sim, scene, noise=noise, rng=rng, max_steps=max_steps)
    except SimulationError:
        raise
    except RecordError as error:
        return Episode.unrun(scene, "expert", str(error)).tagged(expert=str(error), outcome=REFUSED)


def _stored(out: Path, scene: SceneSpec, conditions: dict[str, str]) -> Episode | None:
    """A saved episode, unless it is missing, damaged, invalid or of other conditions: then the scene is run again."""
    try:
        episode = Episode.load(out / f"{scene.hash}.npz")
    except RecordError:
        return None
    same = all(episode.tags.get(name) == value for name, value in conditions.items())
    return episode if same and episode.invalid is None and episode.actor == "expert" else None
