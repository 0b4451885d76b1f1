"""`--policy.type=coda`: a grounded chunking policy with action-chunk value heads, as a LeRobot policy."""

from collections import deque
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from lerobot.policies.pretrained import PreTrainedPolicy
from torch import Tensor, nn

from lerobot_coda.backbones.grounded import GroundedBackbone, Grounding, grounding_loss, mlp
from lerobot_coda.backbones.language import embed
from lerobot_coda.backbones.vision import COARSE_CHANNELS, FINE_CHANNELS, feature_maps
from lerobot_coda.columns import EXECUTED, POINTS, POTENTIAL
from lerobot_coda.configuration_coda import CodaConfig
from lerobot_coda.grounding import GroundingSet
from lerobot_coda.value import advantage_weights, chunk_return, chunk_target, expectation, support, two_hot
from libero_pro.footage import FRAME_AGE

METRES = 30.0  # weight of the world-point loss, which counts metres, beside the heat map's


class CodaPolicy(PreTrainedPolicy):
    """Grounds the instruction, acts in chunks, and values them.

    Labels it learns from, where a dataset has them: `observation.coda_points` (10,): u, v, x, y, z of target and
    receptacle; `observation.coda_potential` (1,): Phi; see `lerobot_coda.columns`.
    """

    config_class = CodaConfig
    name = "coda"

    def __init__(self, config: CodaConfig, **kwargs: Any):
        super().__init__(config)
        config.input_features = config.policy_inputs()
        config.validate_features()
        self.config: CodaConfig = config
        self.backbone = GroundedBackbone(config.chunk_size, config.width, config.hidden)
        self.value_head = mlp(self.backbone.features_size, 256, config.value_bins)
        self.value_target = deepcopy(self.value_head).requires_grad_(False)
        self._cache = FeatureCache(config)
        self._static: StaticLayouts | None = None
        self.reset()

    def get_optim_params(self) -> list[nn.Parameter]:
        return [p for p in self.parameters() if p.requires_grad]

    def reset(self) -> None:
        self._queue: deque[Tensor] = deque()

    @torch.no_grad()
    def update(self) -> None:
        """Called by LeRobot after each optimizer step: the target head follows the value head."""
        if self.config.value_weight > 0:
            for target, online in zip(self.value_target.parameters(), self.value_head.parameters(), strict=True):
                target.lerp_(online, 1 - self.config.value_target_decay)

    # --- acting ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def predict_action_chunk(self, batch: dict[str, Any], **kwargs: Any) -> Tensor:
        """Action chunk (B, chunk_size, 7) for one observation a row; the gripper is -1 or 1."""
        self.eval()
        fine, coarse = feature_maps(batch[self.config.camera], self.config.image_size)
        _, features = self._understand(fine, coarse, batch["observation.state"], batch["task"])
        action = self.backbone.act(features)
        gripper = torch.where(action[..., 6:] > 0, 1.0, -1.0)
        return torch.cat([action[..., :6].clamp(-1, 1), gripper], -1)

    @torch.no_grad()
    def select_action(self, batch: dict[str, Any], **kwargs: Any) -> Tensor:
        """Next action (B, 7); a new chunk is predicted when the last one's `n_action_steps` are used up."""
        if not self._queue:
            chunk = self.predict_action_chunk(batch)
            self._queue.extend(chunk[:, : self.config.n_action_steps].unbind(1))
        return self._queue.popleft()

    def _understand(self, fine: Tensor, coarse: Tensor, state: Tensor, task: list[str]) -> tuple[Grounding, Tensor]:
        sentence = embed(task, state.device)
        grounding = self.backbone.ground(self.backbone.key_map(fine, coarse), sentence)
        return grounding, self.backbone.features(grounding, sentence, state)

    # --- learning -------------------------------------------------------------------------------------------------

    def forward(self, batch: dict[str, Any], reduction: str = "mean") -> tuple[Tensor, dict[str, float]]:
        """Weighted cloning + grounding + value losses; `reduction="none"` gives the (B,) cloning loss alone."""
        config = self.config
        learn_value = config.value_weight > 0
        images, state, task = batch[config.camera], batch["observation.state"], batch["task"]
        later = None
        if learn_value:
            images, later = images[:, 0], (images[:, 1], state[:, 1])
            state = state[:, 0]
        fine, coarse = self._cache.maps(images, _image_index(batch))
        grounding, features = self._understand(fine, coarse, state, task)
        cloning = self._cloning_loss(features, batch)
        if reduction == "none":
            return cloning, {"cloning_loss": cloning.mean().item()}

        logs: dict[str, float] = {}
        weights = torch.ones_like(cloning)
        loss = cloning.new_zeros(())
        if learn_value and later is not None:
            value_loss, advantage = self._value_loss(features.detach(), later, task, batch, logs)
            loss = loss + config.value_weight * value_loss
            weights = advantage_weights(advantage, config.advantage_temperature, config.advantage_clip)
            if EXECUTED in batch:  # an advantage judges what was executed, not what an expert says instead
                executed = batch[EXECUTED].reshape(len(weights), -1)[:, 0]
                weights = executed * weights + (1 - executed)
        loss = loss + (weights * cloning).mean()
        logs["cloning_loss"] = cloning.mean().item()
        if config.grounding_weight > 0:
            loss = loss + config.grounding_weight * self._grounding_loss(grounding, batch, logs)
        return loss, logs

    def _cloning_loss(self, features: Tensor, batch: dict[str, Any]) -> Tensor:
        """L1 on the deltas, cross-entropy on the gripper, padded steps masked: (B,)."""
        target = batch["action"]
        predicted = self.backbone.act(features)
        valid = (~batch["action_is_pad"]).float() if "action_is_pad" in batch else torch.ones_like(target[..., 0])
        valid = valid * (target[..., 6].abs() > 0.5)  # the appended terminal frame carries no action
        arm = F.l1_loss(predicted[..., :6], target[..., :6], reduction="none").mean(-1)
        gripper = F.binary_cross_entropy_with_logits(predicted[..., 6], (target[..., 6] > 0).float(), reduction="none")
        return ((arm + 0.1 * gripper) * valid).sum(-1) / valid.sum(-1).clamp_min(1.0)

    def _grounding_loss(self, grounding: Grounding, batch: dict[str, Any], logs: dict[str, float]) -> Tensor:
        loss = torch.zeros((), device=grounding.world.device)
        if POINTS in batch:
            points = batch[POINTS]
            points = (points[:, 0] if points.dim() == 3 else points).view(-1, 2, 5)
            cross, metres = grounding_loss(grounding, points[..., :2], points[..., 2:], torch.ones_like(points[..., 0]))
            logs["grounding_demo_mm"] = metres.item() * 1000
            loss = loss + 0.1 * cross + METRES * metres
        if self.config.grounding_path:
            if self._static is None:
                self._static = StaticLayouts(Path(self.config.grounding_path), self.config)
            fine, coarse, sentence, image, world, weight = self._static.draw(grounding.world.device)
            asked = self.backbone.ground(self.backbone.key_map(fine, coarse), sentence)
            cross, metres = grounding_loss(asked, image, world, weight)
            logs["grounding_static_mm"] = metres.item() * 1000
            loss = loss + 0.1 * cross + METRES * metres
        return loss

    def _value_loss(
        self,
        features: Tensor,
        later: tuple[Tensor, Tensor],
        task: list[str],
        batch: dict[str, Any],
        logs: dict[str, float],
    ) -> tuple[Tensor, Tensor]:
        """V = Phi + V_theta on the unshaped reward: categorical loss of V_theta, and the chunk's advantage (B,)."""
        config = self.config
        if POTENTIAL not in batch:
            raise ValueError(
                f"value_weight > 0 needs the column {POTENTIAL}; `lerobot-coda demos` builds datasets with it"
            )
        phi, later_phi = batch[POTENTIAL].reshape(len(features), 2).unbind(-1)
        valid = (~batch["next.reward_is_pad"]).float()
        rewards = batch["next.reward"].reshape(valid.shape)
        tau = valid.sum(-1)
        reward = chunk_return(rewards, valid, config.gamma)
        terminated = ((rewards * valid).sum(-1) > 0).float()
        centres = support(config.value_bins, -1.0, 1.0, features.device)
        with torch.no_grad():
            ahead = (~batch["action_is_pad"][:, : config.n_action_steps + 1]).sum(-1) - 1
            fine, coarse = self._cache.maps(later[0], _image_index(batch, ahead))
            _, later_features = self._understand(fine, coarse, later[1], task)
            value = phi + expectation(self.value_target(features), centres)
            later_value = later_phi + expectation(self.value_target(later_features), centres)
            target = chunk_target(reward, later_value, tau, terminated, config.gamma)
        logits = self.value_head(features)
        loss = -(two_hot(target - phi, centres) * logits.log_softmax(-1)).sum(-1).mean()
        advantage = target - value
        logs["value_loss"], logs["value"] = loss.item(), value.mean().item()
        logs["advantage_std"] = advantage.std().item() if len(advantage) > 1 else 0.0
        return loss, advantage


def _image_index(batch: dict[str, Any], ahead: Tensor | int = 0) -> Tensor | None:
    """Dataset index of the frame for which the image was rendered: frames that hold an older image share its features.

    `ahead` (B,): how many frames after the row's own; then the age is the second of the two that the batch holds.
    """
    if "index" not in batch:
        return None
    index = batch["index"].reshape(-1)
    age = batch.get(FRAME_AGE)
    if age is None:
        return index + ahead
    age = age.reshape(len(index), -1)
    return index + ahead - (age[:, 0] if isinstance(ahead, int) else age[:, -1]).long()


class FeatureCache:
    """Frozen feature maps by dataset index, computed once; a full cache simply stops growing."""

    def __init__(self, config: CodaConfig):
        self.size = config.image_size
        cells = (self.size // 8) ** 2 * FINE_CHANNELS + (self.size // 16) ** 2 * COARSE_CHANNELS
        self.capacity = int(config.feature_cache_gb * 2**30 / (2 * cells))
        self.rows: dict[int, tuple[Tensor, Tensor]] = {}

    def maps(self, images: Tensor, index: Tensor | None) -> tuple[Tensor, Tensor]:
        """Maps of images (B, 3, H, W); rows with a known index are not computed again."""
        if index is None:
            return feature_maps(images, self.size)
        keys = index.reshape(-1).tolist()
        new = [i for i, key in enumerate(keys) if key not in self.rows and key not in keys[:i]]
        fresh: dict[int, tuple[Tensor, Tensor]] = {}
        if new:
            fine, coarse = feature_maps(images[new], self.size)
            for row, i in enumerate(new):
                fresh[keys[i]] = (fine[row].clone(), coarse[row].clone())
                if len(self.rows) < self.capacity:
                    self.rows[keys[i]] = fresh[keys[i]]
        rows = [fresh[key] if key in fresh else self.rows[key] for key in keys]
        return torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])


class StaticLayouts:
    """Minibatches of a grounding set whose feature maps are computed when first drawn."""

    def __init__(self, path: Path, config: CodaConfig):
        self.data = GroundingSet.load(path)
        self.batch = min(config.grounding_batch_size, len(self.data))
        self.cache = FeatureCache(config)
        self.order = torch.Generator().manual_seed(0)
        self.sentences = embed(self.data.texts)

    def draw(self, device: torch.device) -> tuple[Tensor, ...]:
        """fine, coarse, sentences (B, Q, 384), image points (BQ, 2, 2), world points (BQ, 2, 3), weight (BQ, 2)."""
        rows = torch.randint(len(self.data), (self.batch,), generator=self.order)
        n = rows.numpy()
        images = torch.from_numpy(self.data.images[n]).permute(0, 3, 1, 2).float().to(device) / 255
        fine, coarse = self.cache.maps(images, rows)
        sentence = self.sentences[torch.from_numpy(self.data.text[n]).long()].to(device)
        image, world, weight = (
            torch.from_numpy(array[n]).float().to(device).flatten(0, 1)
            for array in (self.data.image_points, self.data.world_points, self.data.weight)
        )
        return fine, coarse, sentence, image, world, weight
