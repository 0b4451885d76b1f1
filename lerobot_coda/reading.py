"""`lerobot-train` with its training set in memory: the same items, without a decoder or a table asked for each.

    python -m lerobot_coda.reading --config_path=train.yaml

LeRobot's reader opens and seeks a video for every image of an item, and asks `datasets` for every column of an item,
which copies the whole schema each time: a third of a training step on a processor. Here each frame is decoded once, in
order, and each column is a tensor. The same configuration runs with stock `lerobot-train`, on the same items.
"""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from lerobot.datasets.lerobot_dataset import LeRobotDataset

from lerobot_coda.threads import set_threads

_SHARE = 0.25  # of the memory that is free: larger sets are read as LeRobot does
_ANSWERS = ("hf_dataset", "_query_videos", "_return_uint8")  # of LeRobot's reader: where the memory is put in


class Column:
    """One column; `column[rows]` are its tensors."""

    def __init__(self, values: torch.Tensor) -> None:
        self._values = values

    def __getitem__(self, rows: Sequence[int]) -> tuple[torch.Tensor, ...]:
        return self._values[list(rows)].unbind()


class Rows:
    """Stands where LeRobot's reader keeps its table, and answers as that does: a row, rows or a column."""

    def __init__(self, columns: Mapping[str, torch.Tensor]) -> None:
        self._columns = dict(columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, which: int | str | Sequence[int]) -> Any:
        if isinstance(which, str):
            return Column(self._columns[which])
        if isinstance(which, int | np.integer):
            return {name: values[which].clone() for name, values in self._columns.items()}
        return {name: Column(values)[which] for name, values in self._columns.items()}


class Frames:
    """Every camera's frames, decoded: camera -> (rows, C, H, W) uint8, and the first row of each episode."""

    def __init__(self, images: dict[str, torch.Tensor], first: dict[int, int], fps: int, as_uint8: bool) -> None:
        self._images, self._first, self._fps, self._as_uint8 = images, first, fps, as_uint8

    def __call__(self, times: Mapping[str, Sequence[float]], episode: int) -> dict[str, torch.Tensor]:
        """The frames at the given times (s) of an episode, as LeRobot's `_query_videos` returns them."""
        found = {}
        for camera, seconds in times.items():
            rows = [self._first[episode] + round(second * self._fps) for second in seconds]
            frames = self._images[camera][rows]
            found[camera] = (frames if self._as_uint8 else frames.type(torch.float32) / 255).squeeze(0)
        return found


def into_memory(dataset: LeRobotDataset) -> bool:
    """Lets the dataset's reader answer from memory; False, and nothing changed, where the set does not suit or fit.

    It suits if its columns are numbers and its images are color videos, and the reader is as this LeRobot's are.
    """
    reader: Any = getattr(dataset, "reader", None)
    meta = dataset.meta
    if not all(hasattr(reader, name) for name in _ANSWERS):
        return False
    plain = all(feature["dtype"] not in ("image", "string", "language") for feature in meta.features.values())
    size = sum(len(dataset) * int(np.prod(meta.shapes[key])) for key in meta.video_keys)
    if not plain or meta.depth_keys or size > _SHARE * _free_bytes():
        return False
    table = dataset.hf_dataset.with_format("numpy")
    columns = {name: torch.from_numpy(np.array(table[name][:])) for name in table.column_names}
    reader.hf_dataset = Rows(columns)
    if meta.video_keys:
        episodes = dataset.episodes if dataset.episodes is not None else range(meta.total_episodes)
        first: dict[int, int] = {}
        lengths: dict[int, int] = {}
        for episode in episodes:
            first[episode] = sum(lengths.values())
            lengths[episode] = meta.episodes[episode]["length"]
        images = {key: _decoded(dataset, key, first, lengths) for key in meta.video_keys}
        reader._query_videos = Frames(images, first, meta.fps, reader._return_uint8)
    return True


def _decoded(dataset: LeRobotDataset, camera: str, first: dict[int, int], lengths: dict[int, int]) -> torch.Tensor:
    """All frames of a camera, (rows, C, H, W) uint8; each file is decoded once, from its beginning."""
    meta = dataset.meta
    height, width, channels = meta.shapes[camera]
    images = torch.empty((sum(lengths.values()), channels, height, width), dtype=torch.uint8)
    files: dict[Path, list[int]] = defaultdict(list)
    for episode in first:
        files[dataset.root / meta.get_video_file_path(episode, camera)].append(episode)
    for path, episodes in files.items():
        rows: dict[int, int] = {}  # frame of the file -> row
        for episode in episodes:
            start = round(meta.episodes[episode][f"videos/{camera}/from_timestamp"] * meta.fps)
            rows |= {start + step: first[episode] + step for step in range(lengths[episode])}
        with av.open(str(path)) as container:
            for frame in container.decode(video=0):
                row = rows.pop(round(float(frame.pts * frame.time_base) * meta.fps), None)
                if row is not None:
                    images[row] = torch.from_numpy(frame.to_ndarray(format="rgb24")).permute(2, 0, 1)
        if rows:
            raise ValueError(f"{path} ends before frame {max(rows)}; write the dataset again")
    return images


def _free_bytes() -> float:
    """Memory that a process may still take; where the system does not say, there is no limit."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024.0 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return float("inf")


def main() -> None:
    """`lerobot-train`, with what it makes of the dataset put into memory; then nobody needs to load ahead of it."""
    from lerobot.scripts import lerobot_train

    stock = lerobot_train.make_train_eval_datasets

    def make(config: Any) -> Any:
        sets = stock(config)
        if isinstance(sets[0], LeRobotDataset) and into_memory(sets[0]):
            config.num_workers = 0
            set_threads()
        else:
            logging.info(
                "The dataset is read from its files: it is of another kind, or over a quarter of the free memory"
            )
        return sets

    lerobot_train.make_train_eval_datasets = make
    lerobot_train.main()


if __name__ == "__main__":
    main()
