"""Any other LeRobot policy: the critic looks at images and instruction through frozen trunks of its own."""

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lerobot_coda.backbones.base import Batch, Cloned, PolicyBackbone
from lerobot_coda.backbones.language import EMBEDDING_SIZE, embed
from lerobot_coda.backbones.vision import COARSE_CHANNELS, feature_maps

SEEN = 96  # pixels of an image as the trunk sees it
GRID = 2  # cells a side that its map is averaged to


class GenericBackbone(PolicyBackbone):
    """The family's own `forward` is the cloning loss, its `predict_action_chunk` the chunk.

    Families whose `forward` knows `reduction="none"` can be weighted by advantages; for the rest the loss is the
    batch's, the same for each sample, and `weighs` is False. Padding is masked as far as the family itself masks it.
    """

    def __init__(self, policy: Any, cache_gb: float):
        super().__init__(policy, cache_gb)
        self.weighs = "reduction" in inspect.signature(type(policy).forward).parameters
        self.cameras = [key for key in policy.config.image_features if "empty_camera" not in key]
        self.features_size = len(self.cameras) * COARSE_CHANNELS * GRID**2 + EMBEDDING_SIZE + self.state_size

    def clone(self, batch: Batch) -> Cloned:
        if self.weighs:
            loss, _ = self.policy(dict(batch), reduction="none")
        else:
            loss = self.policy(dict(batch))[0].expand(len(batch["task"]))
        return Cloned(loss, self.features(batch))

    @torch.no_grad()
    def features(self, batch: Batch) -> Tensor:
        def compute(rows: list[int]) -> tuple[Tensor, ...]:
            return (torch.cat([_look(batch[key][rows]) for key in self.cameras], -1),)

        (seen,) = self.cache.get(batch.get("index"), len(batch["task"]), compute)
        return self.with_state(batch, torch.cat([seen.float(), embed(batch["task"], seen.device)], -1))


def _look(images: Tensor) -> Tensor:
    """Pooled trunk features (B, C) of images whose scale depends on the family's normalization: each is stretched."""
    low, high = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
    _, coarse = feature_maps((images - low) / (high - low).clamp_min(1e-6), SEEN)
    return F.adaptive_avg_pool2d(coarse.float(), GRID).flatten(1)
