"""ACT (Zhao et al. 2023) as a backbone."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lerobot_coda.backbones.base import ACTION, Batch, Cloned, PolicyBackbone, mean_over_valid, outputs_of


class ActBackbone(PolicyBackbone):
    """Features: the projected image maps, averaged over the image, and the state.

    They are taken before the transformer, whose latent saw the actions: a state value must not. ACT reads no
    instruction, so its value doesn't either. Chunks are deterministic: there is no best of N.
    """

    def __init__(self, policy: Any, cache_gb: float):
        super().__init__(policy, cache_gb)
        self.cameras = list(policy.config.image_features)
        self.features_size = len(self.cameras) * policy.config.dim_model + self.state_size

    def clone(self, batch: Batch) -> Cloned:
        config = self.policy.config
        inputs = {**batch, "observation.images": [batch[key] for key in self.cameras]}
        with outputs_of(self.policy.model.encoder_img_feat_input_proj) as maps:
            predicted, (mean, log_variance) = self.policy.model(inputs)
        loss = mean_over_valid(F.l1_loss(predicted, batch[ACTION], reduction="none"), batch)
        logs = {"l1_loss": loss.mean().item()}
        if mean is not None:
            divergence = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum(-1)
            loss = loss + config.kl_weight * divergence
            logs["kld_loss"] = divergence.mean().item()
        return Cloned(loss, self._pooled(batch, maps), logs=logs)

    @torch.no_grad()
    def features(self, batch: Batch) -> Tensor:
        model = self.policy.model
        maps = [model.encoder_img_feat_input_proj(model.backbone(batch[key])["feature_map"]) for key in self.cameras]
        return self._pooled(batch, maps)

    def conditioned(self) -> tuple[nn.Module, int]:
        return self.policy.model.encoder_robot_state_input_proj, self.policy.config.dim_model

    def _pooled(self, batch: Batch, maps: list[Tensor]) -> Tensor:
        return self.with_state(batch, torch.cat([part.mean((2, 3)) for part in maps], -1))
