"""Replays a stored episode: the same scene and actions must give the same states, bit for bit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from libero_pro.episode import Episode
from libero_pro.forked import run_in_forks
from libero_pro.record import RecordError
from libero_pro.replacement import task_of
from libero_pro.rollout import SETTLE_STEPS
from libero_pro.scene import SceneSpec
from libero_pro.simulator import SimulationError, Simulator
from libero_pro.suites import Task
from libero_pro.workers import Ask


def replay(episode: Episode, simulator: Simulator) -> str | None:
    """What differs first between the episode and its re-simulation, in one sentence, or None.

    Compared are the positions of fixtures, then at every instant the joint positions, the instant that the image
    shows, the proprioception and the goal predicates. RecordError for an episode that holds nothing to replay.
    """
    if episode.invalid is not None:
        raise RecordError(
            f"the episode in scene {episode.scene.hash} is invalid ({episode.invalid}); nothing to replay"
        )
    simulator.reset(episode.scene)
    simulator.settle(SETTLE_STEPS)
    for name in ("body_pos", "body_quat"):
        if not np.array_equal(getattr(simulator.model, name), getattr(episode, name)):
            return f"the reset draws other fixtures ({name})"
    for instant in range(len(episode) + 1):
        if instant > 0:
            try:
                simulator.step(episode.actions[instant - 1])
            except SimulationError as error:
                return f"instant {instant}: {error}"
        found = {
            "qpos": simulator.data.qpos,
            "frame_qpos": simulator.frame_arrays()[0],
            "proprio": simulator.proprio(),
            "goal_holds": simulator.goal_holds(),
        }
        for name, value in found.items():
            stored = getattr(episode, name)[instant]
            if not np.array_equal(value, stored):
                gap = np.abs(value.astype(float) - stored.astype(float)).max()
                return f"instant {instant} of {len(episode)}: {name} differs by up to {gap:.3g}"
    return None


def replay_files(paths: Sequence[Path], *, workers: int = 2) -> Iterator[tuple[Path, str | None]]:
    """Yields (path, what differs) for each episode file that is valid, in the order in which they are known.

    RecordError for a file that is no episode, before any is simulated, or for one that could not be simulated.
    """
    jobs = [_Replay(path, task_of(scene)) for path in paths for scene in [_scene(path)] if scene]
    for outcome in run_in_forks(jobs, make_state=Simulator, work=_replay, workers=workers, key=lambda job: job.task):
        if outcome.error is not None:
            raise RecordError(f"{outcome.job.path} cannot be replayed: {outcome.error}")
        yield outcome.job.path, outcome.result


@dataclass(frozen=True)
class _Replay:
    path: Path
    task: Task


def _scene(path: Path) -> SceneSpec | None:
    """The scene of a valid episode, None for an invalid one."""
    episode = Episode.load(path)
    return None if episode.invalid is not None else episode.scene


def _replay(simulator: Simulator, job: _Replay, ask: Ask) -> str | None:
    return replay(Episode.load(job.path), simulator)


def episode_files(paths: list[Path]) -> list[Path]:
    """The episode files among paths and, in folders, below them, each once and sorted; RecordError if there is none."""
    found: dict[Path, None] = {}
    for path in paths:
        if not path.exists():
            raise RecordError(f"{path} does not exist; name episode files (*.npz) or folders that hold some")
        found |= dict.fromkeys(sorted(path.rglob("*.npz")) if path.is_dir() else [path])
    if not found:
        raise RecordError(f"there is no episode (*.npz) in {', '.join(map(str, paths))}")
    return list(found)
