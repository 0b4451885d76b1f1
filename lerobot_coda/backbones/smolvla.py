"""SmolVLA (Shukor et al. 2025) as a backbone."""

import torch
from lerobot.policies.common.vla_utils import make_att_2d_masks
from torch import Tensor, nn

from lerobot_coda.backbones.base import Batch
from lerobot_coda.backbones.prefix import PrefixBackbone

TOKENS, TOKEN_MASK = "observation.language.tokens", "observation.language.attention_mask"


class SmolVlaBackbone(PrefixBackbone):
    """The family's own loss masks padding and is known for each sample; the state is the prefix's second block."""

    @property
    def hidden_size(self) -> int:
        return int(self.policy.model.vlm_with_expert.config.text_config.hidden_size)

    def vision_language(self) -> nn.Module:
        return self.policy.model.vlm_with_expert.vlm

    def last_norm(self) -> nn.Module:
        return self.policy.model.vlm_with_expert.get_vlm_model().text_model.norm

    def conditioned(self) -> tuple[nn.Module, int]:
        return self.policy.model.state_proj, self.hidden_size

    def losses(self, batch: Batch) -> Tensor:
        loss, _ = self.policy(dict(batch), reduction="none")
        return loss

    def prefix(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        images, masks = self.policy.prepare_images(batch)
        state = self.policy.prepare_state(batch)
        return self.policy.model.embed_prefix(images, masks, batch[TOKENS], batch[TOKEN_MASK], state=state)

    def read(self, prefix: tuple[Tensor, Tensor, Tensor]) -> None:
        embeddings, there, blocks = prefix
        self.policy.model.vlm_with_expert.forward(
            attention_mask=make_att_2d_masks(there, blocks),
            position_ids=torch.cumsum(there, dim=1) - 1,
            inputs_embeds=[embeddings, None],
            use_cache=True,  # every layer then attends over the prefix alone
        )
