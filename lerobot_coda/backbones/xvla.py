"""X-VLA (Zheng et al. 2025) as a backbone."""

from typing import Any

import torch
from torch import Tensor, nn

from lerobot_coda.backbones.base import IS_PAD, STATE, Batch, Cloned, PolicyBackbone, results_of


class XvlaBackbone(PolicyBackbone):
    """Features: the vision-language encoder's tokens, averaged, those of the other cameras likewise, and the state.

    The encoder sees images and instruction alone, the policy transformer reads it with noisy actions and the state. The
    family's loss is a batch's and counts padding: its action space is asked for one sample's valid steps at a time.
    """

    draws = True

    def __init__(self, policy: Any, cache_gb: float):
        super().__init__(policy, cache_gb)
        self.width = int(policy.config.get_florence_config().vision_config.projection_dim)
        self.features_size = 2 * self.width + self.state_size

    def clone(self, batch: Batch) -> Cloned:
        model = self.policy.model
        with results_of(model, "forward_vlm") as encoded, results_of(model.transformer, "forward") as predicted:
            self.policy(dict(batch))
        wanted = self.policy._prepare_action_targets(batch).to(predicted[0].dtype)
        valid = ~batch[IS_PAD] if IS_PAD in batch else torch.ones(wanted.shape[:2], dtype=torch.bool)
        losses = [
            sum(model.action_space.compute_loss(own[None, keep], actions[None, keep]).values())
            for own, actions, keep in zip(predicted[0], wanted, valid, strict=True)
        ]
        seen = _pooled(encoded[0])
        if self._frozen():
            self.cache.put(batch.get("index"), seen)
        return Cloned(torch.stack(losses).float(), self.with_state(batch, seen))

    @torch.no_grad()
    def features(self, batch: Batch) -> Tensor:
        def compute(rows: list[int]) -> tuple[Tensor, ...]:
            own = {
                key: value[rows] if isinstance(value, Tensor) and value.dim() else value for key, value in batch.items()
            }
            inputs = self.policy._build_model_inputs(own)
            images = inputs["image_input"].to(self.policy.model._get_target_dtype())
            return (_pooled(self.policy.model.forward_vlm(inputs["input_ids"], images, inputs["image_mask"])),)

        index = batch.get("index") if self._frozen() else None
        (seen,) = self.cache.get(index, len(batch[STATE]), compute)
        return self.with_state(batch, seen)

    def conditioned(self) -> tuple[nn.Module, int]:
        transformer = self.policy.model.transformer
        return transformer.action_encoder, transformer.hidden_size

    def _frozen(self) -> bool:
        return not any(p.requires_grad for p in self.policy.model.vlm.parameters())


def _pooled(encoded: dict[str, Tensor]) -> Tensor:
    """Means of vision-language and of other cameras' tokens (B, L, H): (B, 2 H), zeros where there is one camera."""
    tokens, others = encoded["vlm_features"].detach(), encoded["aux_visual_inputs"].detach()
    mean = others.mean(1) if others.shape[1] else torch.zeros_like(tokens[:, 0])
    return torch.cat([tokens.mean(1), mean], -1)
