"""The small grounded policy as a backbone: cloning of deltas and gripper, grounding losses, cached frozen features."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lerobot_coda.backbones.base import ACTION, IS_PAD, STATE, Backbone, Batch, Cloned, FeatureCache
from lerobot_coda.backbones.grounded import GroundedBackbone, Grounding, grounding_loss
from lerobot_coda.backbones.language import embed
from lerobot_coda.backbones.vision import feature_maps
from lerobot_coda.columns import POINTS
from lerobot_coda.configuration_coda import CodaConfig
from lerobot_coda.grounding import GroundingSet
from lerobot_coda.ranks import processes, rank
from libero_pro.footage import FRAME_AGE

# Weight of the world-point loss, which counts metres, beside the heat map's: a greater one slows the heat map tenfold.
METRES = 3.0


class GroundedAdapter(GroundedBackbone, Backbone):
    """Features are what the action head sees: points on the image and in the world, proprioception, the instruction.

    Labels it learns from, where a dataset has them: `observation.coda_points` (10,): u, v, x, y, z of target and
    receptacle; and static layouts from `grounding_path`.
    """

    def __init__(self, config: CodaConfig):
        super().__init__(config.chunk_size, config.width, config.hidden)
        self.config = config
        self._cache = FeatureCache(config.feature_cache_gb)
        self._static: StaticLayouts | None = None

    def clone(self, batch: Batch) -> Cloned:
        grounding, features = self._understand(batch)
        logs: dict[str, float] = {}
        auxiliary = None
        if self.config.grounding_weight > 0:
            auxiliary = self.config.grounding_weight * self._grounding_loss(grounding, batch, logs)
        return Cloned(self._cloning_loss(features, batch), features.detach(), auxiliary, logs)

    @torch.no_grad()
    def features(self, batch: Batch) -> Tensor:
        return self._understand(batch)[1]

    @torch.no_grad()
    def sample(self, batch: Batch, **kwargs: Any) -> Tensor:
        """The gripper is -1 or 1."""
        action = self.act(self._understand(batch)[1])
        gripper = torch.where(action[..., 6:] > 0, 1.0, -1.0)
        return torch.cat([action[..., :6].clamp(-1, 1), gripper], -1)

    def conditioned(self) -> tuple[nn.Module, int]:
        return self.action[0], self.config.hidden

    def _understand(self, batch: Batch) -> tuple[Grounding, Tensor]:
        images = batch[self.config.camera]

        def compute(rows: list[int]) -> tuple[Tensor, ...]:
            return feature_maps(images[rows], self.config.image_size)

        fine, coarse = self._cache.get(_image_index(batch), len(images), compute)
        sentence = embed(batch["task"], images.device)
        grounding = self.ground(self.key_map(fine, coarse), sentence)
        return grounding, self.head_features(grounding, sentence, batch[STATE])

    def _cloning_loss(self, features: Tensor, batch: Batch) -> Tensor:
        """L1 on the deltas, cross-entropy on the gripper, padded steps masked: (B,)."""
        target = batch[ACTION]
        predicted = self.act(features)
        valid = (~batch[IS_PAD]).float() if IS_PAD in batch else torch.ones_like(target[..., 0])
        valid = valid * (target[..., 6].abs() > 0.5)  # the appended terminal frame carries no action
        arm = F.l1_loss(predicted[..., :6], target[..., :6], reduction="none").mean(-1)
        gripper = F.binary_cross_entropy_with_logits(predicted[..., 6], (target[..., 6] > 0).float(), reduction="none")
        return ((arm + 0.1 * gripper) * valid).sum(-1) / valid.sum(-1).clamp_min(1.0)

    def _grounding_loss(self, grounding: Grounding, batch: Batch, logs: dict[str, float]) -> Tensor:
        loss = torch.zeros((), device=grounding.world.device)
        if POINTS in batch:
            points = batch[POINTS].view(-1, 2, 5)
            cross, metres = grounding_loss(grounding, points[..., :2], points[..., 2:], torch.ones_like(points[..., 0]))
            logs["grounding_demo_mm"] = metres.item() * 1000
            loss = loss + cross + METRES * metres
        if self.config.grounding_path:
            if self._static is None:
                self._static = StaticLayouts(Path(self.config.grounding_path), self.config)
            fine, coarse, sentence, image, world, weight = self._static.draw(grounding.world.device)
            asked = self.ground(self.key_map(fine, coarse), sentence)
            cross, metres = grounding_loss(asked, image, world, weight)
            logs["grounding_static_mm"] = metres.item() * 1000
            loss = loss + cross + METRES * metres
        return loss


def _image_index(batch: Batch) -> Tensor | None:
    """Dataset index of the frame the image was rendered for: frames that hold an older image share its features."""
    if "index" not in batch:
        return None
    index = batch["index"].reshape(-1)
    age = batch.get(FRAME_AGE)
    return index if age is None else index - age.reshape(-1).long()


class StaticLayouts:
    """Minibatches of a grounding set whose feature maps are computed when first drawn; each process draws its own."""

    def __init__(self, path: Path, config: CodaConfig):
        self.data = GroundingSet.load(path)
        self.batch = min(config.grounding_batch_size, len(self.data))
        self.size = config.image_size
        self.cache = FeatureCache(config.feature_cache_gb)
        self.order = torch.Generator().manual_seed(0)
        self.sentences = embed(self.data.texts)

    def draw(self, device: torch.device) -> tuple[Tensor, ...]:
        """fine, coarse, sentences (B, Q, 384), image points (BQ, 2, 2), world points (BQ, 2, 3), weight (BQ, 2)."""
        everybody = torch.randint(len(self.data), (processes() * self.batch,), generator=self.order)
        rows = everybody[rank() * self.batch :][: self.batch]
        n = rows.numpy()

        def compute(new: list[int]) -> tuple[Tensor, ...]:
            images = torch.from_numpy(self.data.images[n[new]]).permute(0, 3, 1, 2).float().to(device) / 255
            return feature_maps(images, self.size)

        fine, coarse = self.cache.get(rows, len(rows), compute)
        sentence = self.sentences[torch.from_numpy(self.data.text[n]).long()].to(device)
        image, world, weight = (
            torch.from_numpy(array[n]).float().to(device).flatten(0, 1)
            for array in (self.data.image_points, self.data.world_points, self.data.weight)
        )
        return fine, coarse, sentence, image, world, weight
