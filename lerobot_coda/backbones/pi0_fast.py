"""pi0-FAST (Pertsch et al. 2025) as a backbone."""

from typing import Any

import torch
import torch.nn.functional as F
from lerobot.policies.common.vla_utils import prepare_attention_masks_4d
from lerobot.utils.constants import ACTION_TOKEN_MASK, ACTION_TOKENS
from torch import Tensor

from lerobot_coda.backbones.base import IS_PAD, Batch, Cloned, PolicyBackbone
from lerobot_coda.backbones.smolvla import TOKEN_MASK, TOKENS


class Pi0FastBackbone(PolicyBackbone):
    """Actions are words: the cloning loss is the cross-entropy of a chunk's tokens, known here for each sample.

    Features: the last hidden states, averaged over the tokens of images and prompt, which see no action, and the state.
    A token says something of the whole chunk, so padded steps can't be masked one by one: a chunk counts by the share
    of its steps that are no padding.
    """

    def __init__(self, policy: Any, cache_gb: float):
        super().__init__(policy, cache_gb)
        # LeRobot decodes as many steps as are executed, whatever the number that the tokens stand for.
        policy.config.n_action_steps = policy.config.chunk_size
        self.draws = policy.config.temperature > 0
        self.features_size = int(self._paligemma().config.text_config.hidden_size) + self.state_size

    def clone(self, batch: Batch) -> Cloned:
        words, said = batch[ACTION_TOKENS], batch[ACTION_TOKEN_MASK]
        hidden, there = self._read(batch, fast_action_tokens=words, fast_action_masks=said)
        prompt = hidden.shape[1] - words.shape[1]
        logits = self._paligemma().lm_head(hidden[:, prompt:-1]).float()
        losses = F.cross_entropy(logits.transpose(1, 2), words[:, 1:], reduction="none")
        said = said[:, 1:].to(losses.dtype)
        loss = (losses * said).sum(-1) * len(said) / said.sum().clamp_min(1.0)  # its mean is the family's own loss
        if IS_PAD in batch:
            loss = loss * (~batch[IS_PAD]).to(loss.dtype).mean(-1)
        return Cloned(loss, self.with_state(batch, _pooled(hidden[:, :prompt], there[:, :prompt])))

    @torch.no_grad()
    def features(self, batch: Batch) -> Tensor:
        return self.with_state(batch, _pooled(*self._read(batch)))

    def adapted(self) -> str:
        return r"policy\.model\..*\.language_model\..*\.self_attn\.(q|v)_proj"

    def _read(self, batch: Batch, **words: Tensor) -> tuple[Tensor, Tensor]:
        """Last hidden states (B, L, H) of images, prompt and the action's words, and which of them are there (B, L)."""
        model = self.policy.model
        seen = self.policy._preprocess_images(batch)
        embeddings, there, attends, *_ = model.embed_prefix_fast(*seen, batch[TOKENS], batch[TOKEN_MASK], **words)
        dtype = self._paligemma().model.language_model.layers[0].self_attn.q_proj.weight.dtype
        (hidden, _), _ = model.paligemma_with_expert.forward(
            attention_mask=prepare_attention_masks_4d(attends, dtype=dtype),
            position_ids=torch.cumsum(there, dim=1) - 1,
            inputs_embeds=[embeddings.to(dtype), None],
            use_cache=False,
        )
        return hidden, there

    def _paligemma(self) -> Any:
        return self.policy.model.paligemma_with_expert.paligemma


def _pooled(hidden: Tensor, there: Tensor) -> Tensor:
    """Mean of hidden (B, L, H) over the tokens that are there: (B, H)."""
    kept = there.unsqueeze(-1).to(hidden.dtype)
    return (hidden * kept).sum(1) / kept.sum(1).clamp_min(1.0)
