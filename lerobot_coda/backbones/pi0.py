"""pi0 (Black et al. 2024) as a backbone."""

from typing import Any

import torch
from lerobot.policies.common.vla_utils import make_att_2d_masks, prepare_attention_masks_4d
from torch import Tensor, nn

from lerobot_coda.backbones.base import ACTION, Batch, mean_over_valid
from lerobot_coda.backbones.prefix import PrefixBackbone
from lerobot_coda.backbones.smolvla import TOKEN_MASK, TOKENS


class Pi0Backbone(PrefixBackbone):
    """The flow-matching loss is masked here: LeRobot's pi0 trains on the repeated last action of an episode."""

    @property
    def hidden_size(self) -> int:
        return int(self._both().paligemma.config.text_config.hidden_size)

    def vision_language(self) -> nn.Module:
        return self._both().paligemma

    def last_norm(self) -> nn.Module:
        return self._both().paligemma.model.language_model.norm

    def conditioned(self) -> tuple[nn.Module, int]:
        return self.policy.model.state_proj, self.policy.model.state_proj.out_features

    def losses(self, batch: Batch) -> Tensor:
        images, masks = self.policy._preprocess_images(batch)
        actions = self.policy.prepare_action(batch)
        noise = self.policy.model.sample_noise(actions.shape, actions.device)
        time = self.policy.model.sample_time(len(actions), actions.device)
        known = (images, masks, batch[TOKENS], batch[TOKEN_MASK], *self.proprioception(batch))
        losses = self.policy.model.forward(*known, actions, noise, time)
        return mean_over_valid(losses[..., : batch[ACTION].shape[-1]], batch)  # not the dimensions that pad an action

    def proprioception(self, batch: Batch) -> tuple[Tensor, ...]:
        """The state as the action expert's input."""
        return (self.policy.prepare_state(batch),)

    def prefix(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        images, masks = self.policy._preprocess_images(batch)
        return self.policy.model.embed_prefix(images, masks, batch[TOKENS], batch[TOKEN_MASK])

    def read(self, prefix: tuple[Tensor, Tensor, Tensor]) -> None:
        embeddings, there, blocks = prefix
        dtype = self._both().paligemma.model.language_model.layers[0].self_attn.q_proj.weight.dtype
        self._both().paligemma.model.language_model.config._attn_implementation = "eager"  # as in the joint pass
        self._both().forward(
            attention_mask=prepare_attention_masks_4d(make_att_2d_masks(there, blocks)),
            position_ids=torch.cumsum(there, dim=1) - 1,
            inputs_embeds=[embeddings.to(dtype), None],
            use_cache=False,
        )

    def _both(self) -> Any:
        return self.policy.model.paligemma_with_expert
