"""Action-chunk value learning: categorical values, SMDP targets, shaping, advantages. Pure functions.

A decision is a chunk of h actions run open loop. Notation: gamma discounts one control step; the chunk really ran
tau <= h steps (`valid` marks them: an early terminal, a cut episode and a re-plan all end it); R = sum_{i<tau} gamma^i
r_{t+i}; s' is the state after those tau steps; `terminated` is 1 where s' is a true terminal, success or failure.
A truncation (a time limit that is no part of the task) is not a terminal: it bootstraps and keeps its potential.
Masks are floats 0 or 1, tensors have one row a chunk, (B,), unless said otherwise.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from lerobot_coda.ranks import processes, summed

Projection = Literal["hl_gauss", "two_hot"]
Mode = Literal["baseline", "reward"]
HL_GAUSS_WIDTH = 0.75  # standard deviation in bins (Farebrother et al. 2024)


# --- the categorical value ----------------------------------------------------------------------------------------


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


def hl_gauss(value: Tensor, centres: Tensor, width: float = HL_GAUSS_WIDTH) -> Tensor:
    """Histogram of N(value, (width * step)^2) on the support: (B, bins), rows sum to 1 (Farebrother et al. 2024).

    p_i = [cdf(c_i + step/2) - cdf(c_i - step/2)] / [cdf(c_n + step/2) - cdf(c_1 - step/2)]; the mean is `value`
    (clipped to the support) where the support reaches some 3 widths further on both sides.
    """
    step = centres[1] - centres[0]
    edges = torch.cat([centres - step / 2, centres[-1:] + step / 2])
    value = value.clamp(centres[0], centres[-1]).unsqueeze(-1)
    below = torch.special.ndtr((edges - value) / (width * step))
    return below.diff(dim=-1) / (below[..., -1:] - below[..., :1])


def project(value: Tensor, centres: Tensor, projection: Projection) -> Tensor:
    """Scalars (B,) as target distributions (B, bins)."""
    return two_hot(value, centres) if projection == "two_hot" else hl_gauss(value, centres)


def expectation(logits: Tensor, centres: Tensor) -> Tensor:
    """Mean of the categorical value: logits (..., bins) -> (...)."""
    return logits.softmax(-1) @ centres


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """-sum_i p_i log q_i of target rows p against softmax(logits): (..., bins) -> (...)."""
    return -(target * logits.log_softmax(-1)).sum(-1)


# --- chunks as decisions of an SMDP -------------------------------------------------------------------------------


def ran(valid: Tensor) -> Tensor:
    """1 for each step before the first that is not valid: what follows a gap belongs to another chunk. (B, h)"""
    return (valid > 0).to(valid.dtype if valid.is_floating_point() else torch.float32).cumprod(-1)


def chunk_return(rewards: Tensor, valid: Tensor, gamma: float) -> Tensor:
    """R = sum_{i<tau} gamma^i r_i over the steps that ran; padding may hold anything. (B, h), (B, h) -> (B,)"""
    discount = gamma ** torch.arange(rewards.shape[1], device=rewards.device, dtype=rewards.dtype)
    return (torch.where(ran(valid) > 0, rewards, torch.zeros_like(rewards)) * discount).sum(-1)


def executed_steps(valid: Tensor) -> Tensor:
    """tau, how many control steps the chunk really ran. (B, h) -> (B,)"""
    return ran(valid).sum(-1)


def chunk_target(reward: Tensor, later_value: Tensor, tau: Tensor, terminated: Tensor, gamma: float) -> Tensor:
    """y = R + gamma^tau V(s') (1 - terminated): a truncation bootstraps, a termination does not. All (B,)."""
    return reward + gamma**tau * later_value * (1 - terminated)


def shaping(phi: Tensor, later_phi: Tensor, tau: Tensor, terminated: Tensor, gamma: float) -> Tensor:
    """F = gamma^tau Phi(s') - Phi(s) with Phi(terminal) = 0 (Ng, Harada and Russell 1999, on the SMDP of chunks).

    Both potentials must be of one version. A time limit that is part of the task is a terminal: Phi is 0 there, too.
    """
    return gamma**tau * later_phi * (1 - terminated) - phi


def head_target(
    reward: Tensor,
    phi: Tensor,
    later_phi: Tensor,
    later_head: Tensor,
    tau: Tensor,
    terminated: Tensor,
    gamma: float,
    mode: Mode,
) -> Tensor:
    """What the head V_theta(s) or Q_theta(s, c) is regressed on, (B,); `later_head` is V_theta(s').

    baseline  V = Phi + V_theta on the unshaped reward:  R + gamma^tau (Phi(s') + V_theta(s')) (1-terminated) - Phi(s)
    reward    V = V_theta on the shaped reward:          R + F + gamma^tau V_theta(s') (1-terminated)
    The two are the same number (Wiewiora 2003): they differ in which value is reported, see `whole_value`.
    """
    if mode == "baseline":
        return chunk_target(reward, later_phi + later_head, tau, terminated, gamma) - phi
    shaped = reward + shaping(phi, later_phi, tau, terminated, gamma)
    return chunk_target(shaped, later_head, tau, terminated, gamma)


def whole_value(head: Tensor, phi: Tensor, mode: Mode) -> Tensor:
    """V of the reward that the mode learns on: Phi + V_theta in baseline mode, V_theta in reward mode. (B,)"""
    return phi + head if mode == "baseline" else head


def chunk_gae(
    reward: Tensor,
    value: Tensor,
    later_value: Tensor,
    tau: Tensor,
    terminated: Tensor,
    done: Tensor,
    gamma: float,
    decay: float,
) -> Tensor:
    """Generalised advantages over consecutive chunks, all (..., n), time last: A_j for each chunk j.

    delta_j = R_j + gamma^tau_j (1 - terminated_j) V(s_{j+1}) - V(s_j)
    A_j = delta_j + gamma^tau_j decay (1 - done_j) A_{j+1}          (Schulman et al. 2016, one decision a chunk)
    `done` is 1 at the last chunk of an episode, terminated or truncated, so episodes may follow each other; chunks that
    did not run (tau = 0, padding) get 0. The value's regression target is A_j + V(s_j).
    """
    delta = (chunk_target(reward, later_value, tau, terminated, gamma) - value) * (tau > 0)
    carried = gamma**tau * decay * (1 - done) * (tau > 0)
    advantage, after = [], torch.zeros_like(delta[..., 0])
    for j in reversed(range(delta.shape[-1])):
        after = delta[..., j] + carried[..., j] * after
        advantage.append(after)
    return torch.stack(advantage[::-1], -1)


# --- what the policy learns from ----------------------------------------------------------------------------------


def advantage_weights(advantage: Tensor, temperature: float, clip: float) -> Tensor:
    """Clipped exponential weights min(exp(A / temperature), clip) with mean 1 over the batch, detached. (B,)

    The batch is that of all processes which train together.

    Advantage-weighted regression (Peng et al. 2019). The clip and the mean are not invariant to shaping: the theorem
    speaks of optimal policies, not of the weights on the way to them.
    """
    weights = (advantage.detach() / temperature).clamp(max=20.0).exp().clamp(max=clip)
    return weights / (summed(weights.mean()) / processes()).clamp_min(1e-6)


def expectile_weights(error: Tensor, expectile: float) -> Tensor:
    """|expectile - 1(error < 0)| of error = target - value: above 0.5 the value leans to the best chunks. (B,)

    Implicit Q-learning (Kostrikov et al. 2022), here as the weight of a categorical loss; scaled to 1 at 0.5.
    """
    return 2 * torch.where(error.detach() < 0, 1 - expectile, expectile)


@dataclass(frozen=True)
class Calibration:
    """Value against what came of it: `bias` = mean(value - realised), `error` = root mean square, over n chunks."""

    n: int
    bias: float
    error: float


def calibration(value: Tensor, realised: Tensor, stage: Tensor | None = None) -> dict[int | None, Calibration]:
    """Calibration of all chunks (key None) and of each stage that occurs (key: the stage).

    value (B,) of the unshaped reward; realised (B,) discounted return from the chunk's state to the end of its episode;
    stage (B,) integers. Raises ValueError when there is nothing to compare.
    """
    if not len(value):
        raise ValueError("calibration needs at least one chunk")
    difference = (value - realised).detach()
    groups: dict[int | None, Tensor] = {None: difference}
    if stage is not None:
        groups |= {int(k): difference[stage == k] for k in stage.unique().tolist()}
    return {
        key: Calibration(len(rows), rows.mean().item(), rows.square().mean().sqrt().item())
        for key, rows in groups.items()
    }
