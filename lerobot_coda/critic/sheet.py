"""Contact sheets: what a model critic sees of an episode, kept as its evidence.

Columns are instants, rows are cameras; control step and time are burned in. LeRobot's images are mirrored; here
they are turned back, so that left and right are those of a person at the camera, as instructions mean them.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from lerobot_coda.critic.review import Clip
from libero_pro.episode import Episode
from libero_pro.record import RecordError, write_atomically
from libero_pro.render import CAMERAS, Frame, Profile
from libero_pro.replacement import task_of
from libero_pro.suites import Task
from libero_pro.workers import Ask, run_in_workers

HZ = 20  # control steps a second
_MARGIN, _LINE, _GAP = 76, 18, 4  # pixels: the rows' names, the columns' heads, between images


def instants(steps: int, span: tuple[int, int] = (0, 0), count: int = 6) -> tuple[int, ...]:
    """Which of an episode's instants 0..steps to show: both ends, those of the span, then what lies widest apart.

    Up to `count` of them, in order; an empty span (0, 0) is none. The widest gap inside the span goes first.
    """
    inside = span if span != (0, 0) else (0, steps)
    first, last = min(inside[0], steps), min(inside[1], steps)
    shown = list(dict.fromkeys((0, steps, first, last)))[: max(count, 1)]
    focus = True
    while len(shown) < min(count, steps + 1):
        shown.sort()
        gaps = [(b - a, a, b) for a, b in pairwise(shown) if b - a > 1]
        within = [gap for gap in gaps if first <= gap[1] and gap[2] <= last] if focus else []
        width, a, _ = max(within or gaps, key=lambda gap: (gap[0], -gap[1]))
        shown.append(a + width // 2)
        focus = not focus  # every second one outside of the span where there is room
    return tuple(sorted(shown))


def with_sheets(
    clips: Mapping[str, Sequence[Clip]],
    folder: Path,
    *,
    frames: int = 6,
    size: int = 224,
    profile: Profile = "fast",
    workers: int = 1,
) -> dict[str, list[Clip]]:
    """The clips by cluster hash, each with its sheet at `folder/<cluster>/<scene>-<frames>.png`; drawn where missing.

    The name holds a hash of the frames, so a sheet that exists is the one. RecordError names the scene that cannot be
    drawn, and an episode without a step.
    """
    jobs = {
        cluster: [_job(clip, folder / cluster, frames, size, profile) for clip in members]
        for cluster, members in clips.items()
    }
    unique = {job.path: job for members in jobs.values() for job in members}
    missing = [job for path, job in unique.items() if not path.exists()]
    workers = min(workers, len(missing))
    for outcome in run_in_workers(missing, make_state=_studio, work=_draw, workers=workers, key=lambda job: job.studio):
        if outcome.error is not None:
            raise RecordError(f"no contact sheet of scene {outcome.job.path.stem}: {outcome.error}")
    return {
        cluster: [clip._replace(sheet=job.path) for clip, job in zip(members, jobs[cluster], strict=True)]
        for cluster, members in clips.items()
    }


def compose(rows: Mapping[str, Sequence[np.ndarray]], steps: Sequence[int]) -> bytes:
    """A sheet as PNG: camera name -> (size, size, 3) uint8 images, one for each of the steps; the same input, the same
    bytes."""
    from PIL import Image, ImageDraw, ImageFont

    size = next(iter(rows.values()))[0].shape[0]
    width, height = _MARGIN + len(steps) * (size + _GAP), _LINE + len(rows) * (size + _GAP)
    sheet = Image.new("RGB", (width, height), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(12)
    for column, step in enumerate(steps):
        left = _MARGIN + column * (size + _GAP)
        pen.text((left + 2, 2), f"step {step}  {step / HZ:.2f} s", fill="black", font=font)
        for row, images in enumerate(rows.values()):
            sheet.paste(Image.fromarray(images[column]), (left, _LINE + row * (size + _GAP)))
    for row, camera in enumerate(rows):
        pen.text((2, _LINE + row * (size + _GAP) + size // 2), camera, fill="black", font=font)
    buffer = BytesIO()
    sheet.save(buffer, "PNG")
    return buffer.getvalue()


@dataclass(frozen=True)
class _Job:
    """Frames of one episode and the sheet they become; what a worker can use again is its `studio`."""

    path: Path
    steps: tuple[int, ...]
    frames: tuple[Frame, ...]
    studio: tuple[Task, int, Profile]


def _job(clip: Clip, folder: Path, count: int, size: int, profile: Profile) -> _Job:
    episode: Episode = clip.episode
    if len(episode) == 0:
        raise RecordError(f"the episode in scene {episode.scene.hash} has no step to show ({episode.invalid})")
    shown = instants(len(episode), clip.diagnosis.span if clip.diagnosis else (0, 0), count)
    drawn = tuple(Frame.of(episode, step) for step in shown)
    digest = hashlib.sha256(f"{shown} {size} {profile}".encode())
    for frame in drawn:
        digest.update(np.ascontiguousarray(frame.qpos).tobytes())
    path = folder / f"{episode.scene.hash}-{digest.hexdigest()[:8]}.png"
    return _Job(path, shown, drawn, (task_of(episode.scene), size, profile))


def _studio(key: tuple[Task, int, Profile]) -> Any:
    from libero_pro.render import Renderer
    from libero_pro.simulator import Simulator

    task, size, profile = key
    return Renderer(Simulator(task).model, size=size, profile=profile)


def _draw(renderer: Any, job: _Job, ask: Ask) -> None:
    images = [renderer.render(frame) for frame in job.frames]
    rows = {camera: [image[camera][:, ::-1] for image in images] for camera in CAMERAS}
    write_atomically(job.path, compose(rows, job.steps))
