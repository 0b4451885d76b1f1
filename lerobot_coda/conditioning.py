"""Advantage conditioning: a policy is told whether a chunk is better than expected, and asked for such chunks.

The other way beside weights to learn from good and bad chunks alike (pi*0.6, Physical Intelligence 2025; Kumar et al.
2019): nothing is thrown away, and the policy's loss stays the backbone's own.
"""

import torch
from torch import Tensor, nn


class AdvantageCondition(nn.Module):
    """What is added to one layer of a backbone: a vector for "better than expected" and one for "worse".

    Both begin at zero, so that a pretrained policy acts as before it was told anything.
    """

    def __init__(self, width: int):
        super().__init__()
        self.vectors = nn.Parameter(torch.zeros(2, width))

    def forward(self, signs: Tensor) -> Tensor:
        """Signs (B,) of advantages, 0 where nothing is said -> what is added, (B, width)."""
        said = torch.stack([signs > 0, signs < 0], -1)
        return said.to(self.vectors.dtype) @ self.vectors


def told(advantage: Tensor, executed: Tensor | None, dropout: float) -> Tensor:
    """What a policy is told of chunks that it imitates, (B,): 1 for a positive advantage, -1 for others, or 0, nothing.

    advantage (B,) of the executed chunks;  executed (B,) 0 where the chunk is an expert's correction of the executed
    one: that is better than expected, whatever was executed;  dropout: the share that is told nothing, so that the
    policy learns all chunks together as well.
    """
    signs = torch.where(advantage.detach() > 0, 1.0, -1.0)
    if executed is not None:
        signs = torch.where(executed > 0, signs, torch.ones_like(signs))
    return signs * (torch.rand_like(signs) >= dropout)
