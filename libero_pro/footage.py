"""Images of stored episodes, rendered afterwards in worker processes. Imported by workers, so without LeRobot."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from libero_pro.episode import Episode
from libero_pro.record import RecordError
from libero_pro.render import Frame, Profile, Renderer
from libero_pro.replacement import task_of
from libero_pro.scene import SceneSpec
from libero_pro.suites import Task
from libero_pro.workers import Ask, run_in_workers

LABELS = "observation.coda_"  # columns for training; `observation.*` is what LeRobot lets through to a policy
FRAME_AGE = LABELS + "frame_age"  # column: control steps since the frame's image was rendered


def rendered_steps(steps: int, render_every: int) -> np.ndarray:
    """Instants of an episode of `steps` control steps that get an image of their own: 0, r, 2r, ... and the last."""
    return np.unique([*range(0, steps, render_every), steps])


def shown_steps(steps: int, every: int) -> np.ndarray:
    """For each of the T+1 instants the rendered one whose image it carries: the latest at or before it, (T+1,)."""
    times = rendered_steps(steps, every)
    return times[np.searchsorted(times, np.arange(steps + 1), side="right") - 1]


def render_episodes(
    episodes: Sequence[Episode],
    spool: Path,
    *,
    cameras: tuple[str, ...] = ("agentview", "wrist"),
    render_every: int = 1,
    profile: Profile = "fast",
    size: int = 128,
    workers: int = 2,
) -> Iterator[dict[str, np.ndarray]]:
    """Yields the images of each episode in order, camera -> (n, H, W, 3) uint8 of its n `rendered_steps`.

    Episodes of one task should stand together: each task is compiled once by a worker. Workers pass images through
    files in the folder `spool`, because some finish early. RecordError names the scene that cannot be rendered.
    """
    jobs = []
    for number, episode in enumerate(episodes):
        times = rendered_steps(len(episode), render_every)
        site_rgba = episode.site_rgba if len(episode.site_rgba) == 1 else episode.site_rgba[times]
        jobs.append(
            _RenderJob(
                episode.scene,
                str(spool / f"{number}.npy"),
                episode.frame_qpos[times],
                episode.body_pos,
                episode.body_quat,
                site_rgba,
            )
        )
    ready: set[int] = set()
    position = 0
    outcomes = run_in_workers(
        jobs,
        make_state=partial(_studio, cameras, profile, size),
        work=_draw,
        workers=workers,
        key=lambda job: task_of(job.scene),
    )
    for outcome in outcomes:
        if outcome.error is not None:
            scene = episodes[outcome.index].scene
            raise RecordError(f"could not render scene {scene.hash} ({scene.suite} {scene.task_id}): {outcome.error}")
        ready.add(outcome.index)
        while position in ready:
            path = Path(jobs[position].path)
            stacks = np.load(path, allow_pickle=False)
            path.unlink()
            yield dict(zip(cameras, stacks, strict=True))
            position += 1


@dataclass(frozen=True)
class _RenderJob:
    """Instants of one episode to draw: `qpos` (n, nq), `site_rgba` (n or 1, nsite, 4); `path` receives the images."""

    scene: SceneSpec
    path: str
    qpos: np.ndarray
    body_pos: np.ndarray
    body_quat: np.ndarray
    site_rgba: np.ndarray


def _studio(cameras: tuple[str, ...], profile: Profile, size: int, task: Task) -> Renderer:
    """A task's renderer inside a worker."""
    from libero_pro.simulator import Simulator

    return Renderer(Simulator(task).model, cameras=cameras, size=size, profile=profile)


def _draw(renderer: Renderer, job: _RenderJob, ask: Ask) -> None:
    """Writes (cameras, n, H, W, 3) uint8 to the job's path."""
    rgba = np.broadcast_to(job.site_rgba, (len(job.qpos), *job.site_rgba.shape[1:]))
    frames = [
        Frame(qpos, job.body_pos, job.body_quat, colors, job.scene.look)
        for qpos, colors in zip(job.qpos, rgba, strict=True)
    ]
    images = renderer.film(frames)
    np.save(job.path, np.array([images[camera] for camera in renderer.cameras]), allow_pickle=False)
