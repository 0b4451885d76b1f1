"""Videos of stored episodes with the cameras side by side, in worker processes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lerobot_coda.report.videos import encode
from libero_pro.episode import Episode
from libero_pro.record import RecordError
from libero_pro.render import Frame, Profile
from libero_pro.suites import Task
from libero_pro.workers import Ask, run_in_workers

HZ = 20  # control steps a second


@dataclass(frozen=True)
class Film:
    """The episode at `episode`, of a task, into the mp4 at `video`; every `every`-th instant and the last."""

    episode: Path
    video: Path
    task: Task
    cameras: tuple[str, ...]
    size: int
    every: int
    profile: Profile

    @property
    def studio(self) -> tuple[Task, tuple[str, ...], int, Profile]:
        """What a worker can use again for another film."""
        return self.task, self.cameras, self.size, self.profile


def film(jobs: Sequence[Film], *, workers: int = 2) -> Iterator[Path]:
    """Yields each video's path when it is complete; RecordError names the first episode that cannot be shown."""
    for outcome in run_in_workers(jobs, make_state=_studio, work=_shoot, workers=workers, key=lambda job: job.studio):
        if outcome.error is not None:
            raise RecordError(f"{outcome.job.episode} cannot be rendered: {outcome.error}")
        yield outcome.job.video


def _studio(key: tuple[Task, tuple[str, ...], int, Profile]) -> Any:
    from libero_pro.render import Renderer
    from libero_pro.simulator import Simulator

    task, cameras, size, profile = key
    return Renderer(Simulator(task).model, cameras=cameras, size=size, profile=profile)


def _shoot(renderer: Any, job: Film, ask: Ask) -> int:
    episode = Episode.load(job.episode)
    if len(episode) == 0:
        raise RecordError(f"the episode has no step ({episode.invalid}); nothing to show")
    instants = [*range(0, len(episode), job.every), len(episode)]

    def frames() -> Iterator[np.ndarray]:
        for instant in instants:
            images = renderer.render(Frame.of(episode, instant))
            yield np.concatenate([images[camera] for camera in job.cameras], axis=1)

    return encode(frames(), job.video, fps=max(1, round(HZ / job.every)))
