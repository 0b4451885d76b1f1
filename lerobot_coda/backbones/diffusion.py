"""Diffusion Policy (Chi et al. 2023) as a backbone."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lerobot_coda.backbones.base import ACTION, STATE, Batch, Cloned, PolicyBackbone, mean_over_valid


class DiffusionBackbone(PolicyBackbone):
    """Features: the vector that conditions the denoising network, of image keypoints and the state.

    It is computed once a step; the denoising loss is known for each sample and masks padding.
    """

    draws = True

    def __init__(self, policy: Any, cache_gb: float):
        super().__init__(policy, cache_gb)
        encoder: Any = policy.diffusion.rgb_encoder
        encoder = encoder[0] if policy.config.use_separate_rgb_encoder_per_camera else encoder
        self.cameras = list(policy.config.image_features)
        self.features_size = self.state_size + len(self.cameras) * encoder.feature_dim

    def clone(self, batch: Batch) -> Cloned:
        model, actions = self.policy.diffusion, batch[ACTION]
        seen = model._prepare_global_conditioning(self._stacked(batch))
        noise = torch.randn_like(actions)
        scheduler = model.noise_scheduler
        steps = torch.randint(0, scheduler.config.num_train_timesteps, (len(actions),), device=actions.device)
        predicted = model.unet(scheduler.add_noise(actions, noise, steps), steps, global_cond=seen)
        target = noise if self.policy.config.prediction_type == "epsilon" else actions
        losses = F.mse_loss(predicted, target, reduction="none")
        return Cloned(mean_over_valid(losses, batch), seen.detach().float())

    @torch.no_grad()
    def features(self, batch: Batch) -> Tensor:
        return self.policy.diffusion._prepare_global_conditioning(self._stacked(batch)).float()

    @torch.no_grad()
    def sample(self, batch: Batch, **kwargs: Any) -> Tensor:
        return self.policy.diffusion.generate_actions(self._stacked(batch), **kwargs)

    def conditioned(self) -> tuple[nn.Module, int]:
        return self.policy.diffusion.unet.diffusion_step_encoder, self.policy.config.diffusion_step_embed_dim

    def _stacked(self, batch: Batch) -> Batch:
        """The inputs as the family wants them: state (B, 1, D), images (B, 1, cameras, C, H, W)."""
        images = torch.stack([batch[key] for key in self.cameras], 1)
        return {STATE: batch[STATE][:, None], "observation.images": images[:, None]}
