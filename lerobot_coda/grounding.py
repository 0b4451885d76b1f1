"""Grounding sets: static layouts with, for each instruction, where its target and receptacle are.

A grounding set is one safetensors file: no demonstrations, one image a layout and one question for each object that
could be asked for. The policy draws from it beside its action batches.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save

from libero_pro.record import RecordError, write_atomically


@dataclass(frozen=True)
class GroundingSet:
    """N layouts with Q questions each.

    images (N, H, W, 3) uint8; text (N, Q) int32 index into `texts`; image_points (N, Q, 2, 2) u, v in [0, 1] of target
    and receptacle; world_points (N, Q, 2, 3) metres; weight (N, Q, 2) float32, 0 where a point is not to be learned.
    """

    images: np.ndarray
    text: np.ndarray
    image_points: np.ndarray
    world_points: np.ndarray
    weight: np.ndarray
    texts: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.images)

    def save(self, path: Path) -> None:
        """Writes the set atomically."""
        arrays = {
            "images": self.images,
            "text": self.text.astype(np.int32),
            "image_points": self.image_points.astype(np.float32),
            "world_points": self.world_points.astype(np.float32),
            "weight": self.weight.astype(np.float32),
        }
        write_atomically(path, save(arrays, metadata={"texts": json.dumps(list(self.texts))}))

    @classmethod
    def load(cls, path: Path) -> "GroundingSet":
        """Reads a set; RecordError when the file is missing or is not a grounding set."""
        try:
            with safe_open(str(path), framework="numpy") as file:
                texts = json.loads((file.metadata() or {})["texts"])
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return cls(texts=tuple(texts), **arrays)
        except Exception as error:  # safetensors raises its own and OS errors alike
            raise RecordError(f"grounding_path {path} is not a readable grounding set: {error}") from None

    @classmethod
    def concatenate(cls, sets: Sequence["GroundingSet"]) -> "GroundingSet":
        """One set from several; questions are padded to the largest number with weight 0."""
        texts = tuple(dict.fromkeys(text for part in sets for text in part.texts))
        index = {text: i for i, text in enumerate(texts)}
        width = max(part.text.shape[1] for part in sets)

        def padded(array: np.ndarray) -> np.ndarray:
            return np.pad(array, [(0, 0), (0, width - array.shape[1])] + [(0, 0)] * (array.ndim - 2))

        renamed = [np.array([index[text] for text in part.texts], np.int32)[part.text] for part in sets]
        return cls(
            images=np.concatenate([part.images for part in sets]),
            text=np.concatenate([padded(array) for array in renamed]),
            image_points=np.concatenate([padded(part.image_points) for part in sets]),
            world_points=np.concatenate([padded(part.world_points) for part in sets]),
            weight=np.concatenate([padded(part.weight) for part in sets]),
            texts=texts,
        )
