"""Videos of an episode as LeRobot's writer encodes them, at the cost of the distinct pictures only.

Rendered images are held for several frames. LeRobot's own encoder converts, copies and counts every one of them anew;
here each is converted once and its pixels are counted once. What is written is the same, byte for byte.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import av
import numpy as np

QUANTILES = (0.01, 0.10, 0.50, 0.90, 0.99)  # those of LeRobot's statistics
_LEVELS = 256  # of a uint8 channel


@dataclass(frozen=True)
class Codec:
    """An encoder as PyAV is told of it: name, pixel format, options, frames a second."""

    name: str
    pix_fmt: str
    options: dict[str, str]
    fps: int


class Clips:
    """Stands where LeRobot's `DatasetWriter` keeps its streaming encoder, and hands it episodes that are encoded whole.

    folder   where each video is put until the writer takes it
    """

    def __init__(self, codec: Codec, folder: Path) -> None:
        self._codec, self._folder = codec, folder
        self._done: dict[str, tuple[Path, dict[str, np.ndarray]]] = {}

    def add(self, images: Mapping[str, np.ndarray], shown: np.ndarray) -> None:
        """The cameras' images of the next episode, key -> (n, H, W, 3) uint8; `shown` (T+1,) is each frame's row."""
        for key, pictures in images.items():
            path = Path(mkdtemp(dir=self._folder)) / "clip.mp4"
            encode(pictures, shown, path, self._codec)
            self._done[key] = path, statistics(pictures, shown)

    def finish_episode(self) -> dict[str, tuple[Path, dict[str, np.ndarray]]]:
        """Called by the writer: video and statistics of each camera."""
        done, self._done = self._done, {}
        return done

    def cancel_episode(self) -> None:
        """Called by the writer: forgets an episode that is not saved."""
        self._done = {}

    def close(self) -> None:
        """Called by the writer at its end: nothing is open."""


def encode(images: np.ndarray, shown: np.ndarray, path: Path, codec: Codec) -> None:
    """Writes frames `images[shown]`; images (n, H, W, 3) uint8, shown (frames,) rows in the order of time."""
    base = Fraction(1, codec.fps)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec.name, codec.fps, options=codec.options)
        stream.pix_fmt = codec.pix_fmt
        stream.height, stream.width = images.shape[1:3]
        stream.time_base = base
        row = -1
        frame: Any = None
        for instant, wanted in enumerate(shown):
            if wanted != row:
                row = wanted
                picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(images[row]), format="rgb24")
                frame = picture.reformat(format=codec.pix_fmt)
            frame.pts, frame.time_base = instant, base
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def statistics(images: np.ndarray, shown: np.ndarray) -> dict[str, np.ndarray]:
    """LeRobot's statistics of the frames `images[shown]` by channel, 0 to 255: {min, max, mean, std, q01, ...} (3,).

    They follow from how often each level occurs: exact, where LeRobot reads quantiles from a histogram's bins.
    """
    times = np.bincount(shown, minlength=len(images))
    counts = np.zeros((images.shape[-1], _LEVELS))
    for picture, weight in zip(images, times, strict=True):
        for channel in range(len(counts)):
            counts[channel] += weight * np.bincount(picture[..., channel].ravel(), minlength=_LEVELS)
    levels, total = np.arange(_LEVELS), counts[0].sum()
    mean = counts @ levels / total
    below = np.cumsum(counts, axis=1)
    return {
        "min": np.array([levels[row > 0].min() for row in counts], float),
        "max": np.array([levels[row > 0].max() for row in counts], float),
        "mean": mean,
        "std": np.sqrt(np.maximum(0.0, counts @ levels**2 / total - mean**2)),
        "count": np.array([int(total)]),
        **{
            f"q{int(share * 100):02d}": np.array([np.searchsorted(row, share * total) for row in below], float)
            for share in QUANTILES
        },
    }
