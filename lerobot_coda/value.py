"""Action-chunk value learning: categorical values, SMDP targets, shaping, advantages. Pure functions.

Notation: gamma discounts one control step; a chunk really ran tau steps; R = sum_{i<tau} gamma^i r_{t+i}.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def support(bins: int, low: float, high: float, device: torch.device | str = "cpu") -> Tensor:
    """Bin centres of the categorical value, (bins,)."""
    return torch.linspace(low, high, bins, device=device)


def two_hot(value: Tensor, centres: Tensor) -> Tensor:
    """Two-hot projection of scalars (B,) on the support: (B, bins), rows sum to 1 and have mean `value` (clipped)."""
    step = centres[1] - centres[0]
    position = ((value.clamp(centres[0], centres[-1]) - centres[0]) / step).clamp(0, len(centres) - 1)
    lower = position.floor().long().clamp_max(len(centres) - 2)
    upper_share = (position - lower).unsqueeze(-1)
    return F.one_hot(lower, len(centres)) * (1 - upper_share) + F.one_hot(lower + 1, len(centres)) * upper_share


def expectation(logits: Tensor, centres: Tensor) -> Tensor:
    """Mean of the categorical value, (B,)."""
    return logits.softmax(-1) @ centres


def chunk_return(rewards: Tensor, valid: Tensor, gamma: float) -> Tensor:
    """R = sum_i gamma^i r_i over the steps that exist. rewards, valid: (B, h) -> (B,)."""
    discount = gamma ** torch.arange(rewards.shape[1], device=rewards.device, dtype=rewards.dtype)
    return (rewards * valid * discount).sum(-1)


def shaping(phi: Tensor, next_phi: Tensor, tau: Tensor, terminated: Tensor, gamma: float) -> Tensor:
    """F = gamma^tau Phi(s') - Phi(s) with Phi(terminal) = 0 (Ng, Harada and Russell 1999, on the SMDP of chunks)."""
    return gamma**tau * next_phi * (1 - terminated) - phi


def chunk_target(reward: Tensor, next_value: Tensor, tau: Tensor, terminated: Tensor, gamma: float) -> Tensor:
    """y = R + gamma^tau V(s') (1 - terminated): a truncation bootstraps, a termination does not. All (B,)."""
    return reward + gamma**tau * next_value * (1 - terminated)


def advantage_weights(advantage: Tensor, temperature: float, clip: float) -> Tensor:
    """Clipped exponential weights with mean 1 over the batch (advantage-weighted regression), detached. (B,)"""
    weights = (advantage.detach() / temperature).clamp(max=20.0).exp().clamp(max=clip)
    return weights / weights.mean().clamp_min(1e-6)
