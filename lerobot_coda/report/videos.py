"""Videos of stored episodes, rendered from their states in a process of their own, which gives the memory back."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from libero_pro.episode import Episode

SIZE = 256
EVERY = 2  # control steps per video frame: 20 Hz of control make 10 frames a second
FPS = 20 // EVERY
_HOLD = FPS  # the last frame stays for a second, so that one sees how it ended


@dataclass(frozen=True)
class VideoJob:
    """Render the episode at `episode` into the mp4 at `video`."""

    episode: Path
    video: Path


def write_videos(jobs: list[VideoJob]) -> dict[Path, str]:
    """Renders each job; returns the sentence why for each video that could not be made (none: all were)."""
    from libero_pro.workers import run_in_workers

    outcomes = run_in_workers(jobs, make_state=_make_stage, work=_render, workers=1)
    return {outcome.job.video: outcome.error for outcome in outcomes if outcome.error}


def encode(frames: Iterator[np.ndarray], path: Path, fps: int = FPS) -> int:
    """Writes (H, W, 3) uint8 frames as h264 in mp4, which every browser plays; returns how many frames."""
    import av

    partial = path.with_name(path.stem + ".partial.mp4")
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with av.open(str(partial), "w", options={"movflags": "faststart"}) as container:
        stream: Any = container.add_stream("h264", rate=fps, options={"crf": "23", "preset": "veryfast"})
        stream.pix_fmt = "yuv420p"
        for image in frames:
            stream.height, stream.width = image.shape[:2]
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")))
            count += 1
        container.mux(stream.encode())
    partial.replace(path)
    return count


class Stage:
    """Draws stored episodes; keeps the simulator and the renderer of the last task, as both take seconds to build."""

    def __init__(self, size: int = SIZE) -> None:
        self._size = size
        self._task: Any = None  # what is compiled
        self._simulator: Any = None
        self._renderer: Any = None

    def frames(self, episode: Episode, every: int = EVERY) -> Iterator[np.ndarray]:
        """The episode as the third-person camera saw it: each `every`-th instant and the last, which is then held."""
        from libero_pro.render import Frame

        renderer = self._prepare(episode)
        for instant in [*range(0, len(episode), every), *[len(episode)] * (1 + _HOLD)]:
            yield renderer.render(Frame.of(episode, instant))["agentview"]

    def close(self) -> None:
        """Frees the OpenGL context."""
        if self._renderer is not None:
            self._renderer.close()
        self._task = self._simulator = self._renderer = None

    def _prepare(self, episode: Episode) -> Any:
        from libero_pro.render import Renderer
        from libero_pro.replacement import task_of
        from libero_pro.simulator import Simulator

        task = task_of(episode.scene)
        if task != self._task:
            self.close()
            self._simulator = Simulator(task)
            self._renderer = Renderer(self._simulator.model, cameras=("agentview",), size=self._size, profile="fast")
            self._task = task
        self._simulator.reset(episode.scene)  # turned fixtures are in the model, not in the stored positions
        return self._renderer


def _make_stage(key: object) -> Stage:
    return Stage()


def _render(stage: Stage, job: VideoJob, ask: object) -> int:
    return encode(stage.frames(Episode.load(job.episode)), job.video)
