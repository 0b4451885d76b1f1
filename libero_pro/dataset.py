"""Episodes -> LeRobotDataset v3: images rendered afterwards from stored states, failures kept, one shard a call.

A shard appears under its name only when it is complete. Frames of an episode of T control steps: one a step
(observation before the action), then one terminal frame with a zero action, so that the last observation is stored too.
"""

import json
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import av
import numpy as np
from lerobot.configs.video import RGBEncoderConfig
from lerobot.datasets import dataset_writer
from lerobot.datasets.aggregate import aggregate_datasets
from lerobot.datasets.lerobot_dataset import LeRobotDataset

from libero_pro.clips import Clips, Codec
from libero_pro.episode import Episode
from libero_pro.footage import FRAME_AGE, LABELS, render_episodes, rendered_steps, shown_steps
from libero_pro.record import RecordError, write_atomically
from libero_pro.render import Profile

FPS = 20
IMAGE_KEYS = {"agentview": "observation.images.image", "wrist": "observation.images.image2"}
STATE_NAMES = ["x", "y", "z", "rx", "ry", "rz", "gripper_left", "gripper_right"]
ACTION_NAMES = ["dx", "dy", "dz", "drx", "dry", "drz", "gripper"]
SUMMARY = "libero_pro.json"
# Appending an episode rewrites the current video file and each read opens its file anew: small files keep both cheap.
_VIDEO_FILE_MB = 1

ColumnFn = Callable[[Episode], dict[str, np.ndarray]]


def write_dataset(
    episodes: Iterable[Episode],
    root: str | Path,
    *,
    repo_id: str,
    columns: ColumnFn | None = None,
    cameras: Sequence[str] = ("agentview", "wrist"),
    render_every: int = 4,
    profile: Profile = "fast",
    size: int = 128,
    workers: int = 2,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Writes a shard and returns its summary (also `read_summary(root)`).

    Frame columns: the cameras as h264 video, `observation.state` (8), `action` (7; the expert's where it acted under
    disturbance), `next.reward` (1 at the step that reaches the goal), `next.done` (terminated or truncated),
    `next.success`, `observation.coda_frame_age` (control steps since the image was rendered), and the
    caller's. Episode columns: `coda/{scene, program, actor, success, truncated, seed, steps}`.

    columns       episode -> {"observation.coda_*": (T+1, d) float32}, the same names and widths for every episode
    render_every  control steps between rendered images, held in between; 1 renders every frame
    profile       `faithful` or `fast`, as in `libero_pro.render`

    Episodes are written grouped by task (released order), so that few scenes are compiled; invalid ones are left out
    and counted. RecordError if `root` exists, if nothing is left to write, or if a column does not fit.
    """
    root = Path(root)
    if root.exists():
        raise RecordError(f"{root} exists; choose another folder or remove it")
    if render_every < 1:
        raise RecordError(f"render_every must be at least 1, not {render_every}")
    unknown = sorted(set(cameras) - set(IMAGE_KEYS))
    if unknown or not cameras:
        raise RecordError(f"cameras {list(cameras)}: choose from {', '.join(IMAGE_KEYS)}")
    given = list(episodes)
    kept = sorted((e for e in given if e.invalid is None and len(e)), key=_compiled)
    if not kept:
        raise RecordError(f"none of the {len(given)} episodes can be written: all are invalid or without a step")
    widths = {name: values.shape[1] for name, values in _columns(kept[0], columns).items()}

    partial_root = root.with_name(root.name + ".partial")
    shutil.rmtree(partial_root, ignore_errors=True)
    encoder = RGBEncoderConfig(vcodec="h264", preset="ultrafast", crf=20, g=2)
    dataset = LeRobotDataset.create(
        repo_id,
        fps=FPS,
        root=partial_root,
        robot_type="panda",
        features=_features(cameras, size, widths),
        use_videos=True,
        rgb_encoder=encoder,
        streaming_encoding=True,
        video_backend="pyav",  # else it probes torchcodec and prints its loader errors
        video_files_size_in_mb=_VIDEO_FILE_MB,
    )
    codec = Codec(encoder.vcodec, encoder.pix_fmt, encoder.get_codec_options(encoder_threads=1, as_strings=True), FPS)
    clips = dataset.writer._streaming_encoder = Clips(codec, partial_root)
    spool = partial_root / "rendered"
    spool.mkdir(parents=True)
    try:
        rendered = render_episodes(
            kept,
            spool,
            cameras=tuple(cameras),
            render_every=render_every,
            profile=profile,
            size=size,
            workers=workers,
        )
        for number, (episode, images) in enumerate(zip(kept, rendered, strict=True), start=1):
            with _lean_writer():
                _write_episode(dataset, clips, episode, images, _columns(episode, columns, widths), render_every)
            if progress is not None:
                progress(number, len(kept))
    except BaseException:
        dataset.finalize()
        shutil.rmtree(partial_root, ignore_errors=True)
        raise
    dataset.finalize()
    spool.rmdir()
    summary = {
        "repo_id": repo_id,
        "episodes": len(kept),
        "frames": int(dataset.meta.total_frames),
        "successes": sum(e.success for e in kept),
        "truncated": sum(e.truncated for e in kept),
        "invalid_left_out": len(given) - len(kept),
        "tasks": dict(Counter(f"{e.scene.suite}/{e.scene.task_id}" for e in kept)),
        "actors": dict(Counter(e.actor for e in kept)),
        "programs": dict(Counter(e.scene.program or "none" for e in kept)),
        "cameras": list(cameras),
        "columns": widths,
        "render_every": render_every,
        "profile": profile,
        "size": size,
    }
    write_atomically(partial_root / SUMMARY, json.dumps(summary, indent=2).encode())
    partial_root.replace(root)
    return summary


def read_summary(root: str | Path) -> dict[str, Any]:
    """What `write_dataset` or `merge` noted about a shard; RecordError if the folder is not one of theirs."""
    try:
        return json.loads((Path(root) / SUMMARY).read_text())
    except OSError:
        raise RecordError(f"{root} is not a complete LIBERO-Pro dataset: it has no {SUMMARY}") from None
    except ValueError as error:
        raise RecordError(f"{Path(root) / SUMMARY} is damaged: {error}") from None


def merge(shards: Sequence[str | Path], root: str | Path, *, repo_id: str) -> dict[str, Any]:
    """Joins shards of equal features into one dataset and returns its summary; RecordError says what differs."""
    root = Path(root)
    if root.exists():
        raise RecordError(f"{root} exists; choose another folder or remove it")
    if not shards:
        raise RecordError("merge: no shards are given")
    summaries = [read_summary(shard) for shard in shards]
    for name in ("cameras", "columns", "size"):
        for shard, summary in zip(shards, summaries, strict=True):
            if summary[name] != summaries[0][name]:
                raise RecordError(
                    f"merge: {shard} has {name} {summary[name]}, {shards[0]} has {summaries[0][name]}; write them alike"
                )
    partial_root = root.with_name(root.name + ".partial")
    shutil.rmtree(partial_root, ignore_errors=True)
    try:
        with _lean_writer():
            aggregate_datasets(
                [summary["repo_id"] for summary in summaries],
                repo_id,
                roots=[Path(shard) for shard in shards],
                aggr_root=partial_root,
                video_files_size_in_mb=_VIDEO_FILE_MB,
            )
    except BaseException:
        shutil.rmtree(partial_root, ignore_errors=True)
        raise
    merged: dict[str, Any] = {**summaries[0], "repo_id": repo_id}
    for name in ("episodes", "frames", "successes", "truncated", "invalid_left_out"):
        merged[name] = sum(summary[name] for summary in summaries)
    for name in ("tasks", "actors", "programs"):
        merged[name] = dict(sum((Counter(summary[name]) for summary in summaries), Counter()))
    for name in ("render_every", "profile"):
        values = sorted({summary[name] for summary in summaries})
        merged[name] = values[0] if len(values) == 1 else values
    write_atomically(partial_root / SUMMARY, json.dumps(merged, indent=2).encode())
    partial_root.replace(root)
    return merged


def _features(cameras: Sequence[str], size: int, widths: dict[str, int]) -> dict[str, dict]:
    video = {"dtype": "video", "shape": (size, size, 3), "names": ["height", "width", "channel"]}
    return {
        **{IMAGE_KEYS[camera]: dict(video) for camera in cameras},
        "observation.state": {"dtype": "float32", "shape": (8,), "names": STATE_NAMES},
        "action": {"dtype": "float32", "shape": (7,), "names": ACTION_NAMES},
        "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
        "next.done": {"dtype": "bool", "shape": (1,), "names": None},
        "next.success": {"dtype": "bool", "shape": (1,), "names": None},
        FRAME_AGE: {"dtype": "float32", "shape": (1,), "names": None},
        **{name: {"dtype": "float32", "shape": (width,), "names": None} for name, width in widths.items()},
    }


def _compiled(episode: Episode) -> tuple[str, int, list[tuple[str, str]]]:
    """Equal for episodes whose scenes share a compiled model."""
    scene = episode.scene
    return scene.suite, scene.task_id, sorted((scene.replaced or {}).items())


def _columns(episode: Episode, columns: ColumnFn | None, widths: dict[str, int] | None = None) -> dict[str, np.ndarray]:
    """The caller's columns as (T+1, d) float32, checked."""
    values = {} if columns is None else columns(episode)
    checked = {}
    for name, value in values.items():
        array = np.asarray(value, np.float32)
        if not name.startswith(LABELS):
            raise RecordError(f"column '{name}': the name must start with '{LABELS}' to reach a policy")
        if array.ndim != 2 or len(array) != len(episode) + 1 or array.shape[1] == 0:
            raise RecordError(f"column '{name}' has shape {array.shape}; an episode needs ({len(episode) + 1}, d)")
        if not np.isfinite(array).all():
            raise RecordError(f"column '{name}' has values that are not finite in scene {episode.scene.hash}")
        checked[name] = array
    if widths is not None and widths != {name: array.shape[1] for name, array in checked.items()}:
        raise RecordError(f"columns of scene {episode.scene.hash} differ from the first episode's: {widths}")
    return checked


def _write_episode(
    dataset: LeRobotDataset,
    clips: Clips,
    episode: Episode,
    images: dict[str, np.ndarray],
    columns: dict[str, np.ndarray],
    render_every: int,
) -> None:
    steps = len(episode)
    frames = np.arange(steps + 1)
    wanted = episode.actions if episode.expert_actions is None else episode.expert_actions
    shown = shown_steps(steps, render_every)
    ended = frames >= steps - 1
    videos = {IMAGE_KEYS[camera]: stack for camera, stack in images.items()}
    clips.add(videos, np.searchsorted(rendered_steps(steps, render_every), shown))
    rows = {
        "size": steps + 1,
        "task": [episode.scene.instruction] * (steps + 1),
        "episode_index": dataset.meta.total_episodes,
        "index": frames,  # this and the tasks' numbers are the writer's to fill in
        "task_index": frames,
        "frame_index": frames,
        "timestamp": frames / FPS,
        **dict.fromkeys(videos),
        "observation.state": episode.proprio.astype(np.float32),
        "action": np.concatenate([wanted, np.zeros((1, 7))]).astype(np.float32),
        "next.reward": (episode.success & (frames == steps - 1)).astype(np.float32),
        "next.done": ended,
        "next.success": ended & episode.success,
        FRAME_AGE: (frames - shown).astype(np.float32),
        **columns,
    }
    _save_with(
        dataset,
        rows,
        {
            "coda/scene": episode.scene.hash,
            "coda/program": episode.scene.program or "",
            "coda/actor": episode.actor,
            "coda/success": bool(episode.success),
            "coda/truncated": bool(episode.truncated),
            "coda/seed": int(episode.scene.seed),
            "coda/steps": steps,
        },
    )


def _save_with(dataset: LeRobotDataset, rows: dict[str, Any], episode_columns: dict[str, Any]) -> None:
    """Saves an episode with columns of its own, which LeRobot's metadata accepts but its writer does not pass."""
    meta = dataset.meta
    plain = meta.save_episode

    def save_episode(index: int, length: int, tasks: list[str], stats: dict, metadata: dict) -> None:
        plain(index, length, tasks, stats, {**metadata, **episode_columns})

    meta.save_episode = save_episode
    try:
        dataset.save_episode(rows)
    finally:
        del meta.save_episode


@contextmanager
def _lean_writer() -> Iterator[None]:
    """Spares LeRobot's writer its map over every row, and the terminal its encoder's log, inside the block.

    The map embeds images that a video dataset does not have.
    """
    with ExitStack() as restore:
        restore.callback(setattr, dataset_writer, "embed_images", dataset_writer.embed_images)
        dataset_writer.embed_images = lambda rows: rows
        restore.callback(av.logging.set_libav_level, av.logging.INFO)
        av.logging.set_libav_level(av.logging.ERROR)
        logger = logging.getLogger("lerobot.datasets")
        restore.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.WARNING)
        yield
