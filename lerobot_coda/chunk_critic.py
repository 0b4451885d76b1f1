"""The action-chunk critic: categorical V and twin Q heads on features that some policy gives; it knows no backbone."""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor, nn

from lerobot_coda.ranks import weighted_mean
from lerobot_coda.value import (
    Mode,
    Projection,
    calibration,
    chunk_return,
    cross_entropy,
    executed_steps,
    expectation,
    expectile_weights,
    head_target,
    project,
    ran,
    support,
    whole_value,
)


@dataclass(frozen=True)
class ChunkCriticConfig:
    """Sizes and rules of a `ChunkCritic`.

    features     length F of a row of features;  `horizon` h and `actions` A: the shape of an executed chunk
    gamma        discount of one control step
    bins, low, high   support of the heads' categorical value (the heads hold V - Phi: it may be negative)
    projection   how a scalar target becomes a distribution
    mode         baseline: V = Phi + V_theta on the unshaped reward; reward: V = V_theta on the shaped reward
    use_q        twin Q heads: the advantage is min(Q1, Q2) - V instead of the temporal difference
    expectile    of V among the data's chunks; 0.5 is their mean (needs use_q)
    stages       number of stages of a latched potential, whose stage the heads then see; 0: unlatched, no stage
    """

    features: int
    horizon: int
    actions: int
    gamma: float = 0.99
    bins: int = 101
    low: float = -1.0
    high: float = 1.0
    projection: Projection = "hl_gauss"
    mode: Mode = "baseline"
    hidden: int = 256
    use_q: bool = True
    expectile: float = 0.5
    stages: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.gamma <= 1:
            raise ValueError(f"gamma must lie in (0, 1] (per control step), got {self.gamma}")
        if self.bins < 2 or not self.low <= 0 <= self.high or self.low == self.high:
            raise ValueError(
                f"the value's support needs at least 2 bins and low <= 0 <= high, got {self.bins} bins on "
                f"[{self.low}, {self.high}]"
            )
        if not 0 < self.expectile < 1:
            raise ValueError(f"expectile must lie between 0 and 1, got {self.expectile}")
        if self.expectile != 0.5 and not self.use_q:
            raise ValueError(
                f"expectile={self.expectile} needs use_q=True: without Q a lucky outcome would pass for a good chunk"
            )
        if self.mode not in get_args(Mode):
            raise ValueError(f"mode must be one of {get_args(Mode)}, got '{self.mode}'")
        if self.projection not in get_args(Projection):
            raise ValueError(f"projection must be one of {get_args(Projection)}, got '{self.projection}'")


@dataclass(frozen=True)
class ChunkTransition:
    """B chunks as a critic sees them; masks are 0 or 1, of any numeric or bool type.

    features (B, F), later_features (B, F)   of the observations at s and at s', the state after the steps that ran;
                                             the critic detaches both
    chunk (B, h, A)      the actions executed from s;  `valid` (B, h): which of them ran, tau = those before the first 0
    reward (B, h)        unshaped reward of each step; where `valid` is 0 it is ignored, like the action
    terminated (B,)      s' is a true terminal (success or failure): no bootstrap, Phi(s') counts as 0. A time limit
                         that is no part of the task is not one: it bootstraps from s'
    phi (B,), later_phi (B,)    potential at s and s', both of one version
    stage (B,), later_stage (B,)   latched stage at s and s', with a latched potential only
    open_loop (B,)       the steps that ran were chosen at s, not by a re-plan or a person on the way. Q learns from
                         these alone (None: all); V learns from every chunk
    realised (B,)        discounted unshaped return from s to the end of the episode, for calibration only
    Rows with tau = 0 (padding) change nothing and get advantage 0.
    """

    features: Tensor
    later_features: Tensor
    chunk: Tensor
    valid: Tensor
    reward: Tensor
    terminated: Tensor
    phi: Tensor
    later_phi: Tensor
    stage: Tensor | None = None
    later_stage: Tensor | None = None
    open_loop: Tensor | None = None
    realised: Tensor | None = None


@dataclass(frozen=True)
class ChunkCriticLoss:
    """`loss` scalar with gradient to the heads only; `advantage` (B,) detached; `logs` plain floats."""

    loss: Tensor
    advantage: Tensor
    logs: dict[str, float]


class ChunkCritic(nn.Module):
    """V_theta(s) and Q_theta(s, c), categorical, with slowly following target copies of both.

    With V' the target V of s', Q' the targets' minimum, and y = head target of `value.head_target`:
        Q_i(s, c) <- y                        over open-loop chunks
        V(s)      <- Q'(s, c) there, by expectile; y elsewhere (everywhere without Q)
        advantage  = Q'(s, c) - V(s) there;        y - V(s) elsewhere
    Phi cancels in both differences: they are advantages of the unshaped task in either mode.
    """

    def __init__(self, config: ChunkCriticConfig):
        super().__init__()
        self.config = config
        context = config.features + config.stages
        chunk = config.horizon * (config.actions + 1)  # a masked action is told from a zero one
        heads = {"v": _head(context, config)}
        if config.use_q:
            heads |= {name: _head(context + chunk, config) for name in ("q1", "q2")}
        self.online = nn.ModuleDict(heads)
        self.target = deepcopy(self.online).requires_grad_(False)
        self.register_buffer("centres", support(config.bins, config.low, config.high), persistent=False)
        self.register_load_state_dict_pre_hook(_rebuild_targets)

    centres: Tensor

    @torch.no_grad()
    def update_targets(self, decay: float) -> None:
        """target <- decay * target + (1 - decay) * online; call it after each optimizer step (`policy.update()`)."""
        for target, online in zip(self.target.parameters(), self.online.parameters(), strict=True):
            target.lerp_(online, 1 - decay)

    def value(self, features: Tensor, phi: Tensor, stage: Tensor | None = None) -> Tensor:
        """V(s) of the reward that the mode learns on: (B, F), (B,), (B,) | None -> (B,)."""
        head = expectation(self.online["v"](self._context(features, stage)), self.centres)
        return whole_value(head, phi.float(), self.config.mode)

    @torch.no_grad()
    def q(self, features: Tensor, chunks: Tensor, stage: Tensor | None = None) -> Tensor:
        """min(Q1, Q2) of N candidate chunks a row, all of their steps run: (B, F), (B, N, h, A) -> (B, N).

        For choosing the best of N: the potential of s is the same for all and is left out. Longer chunks are cut to h.
        Raises ValueError without Q heads or for chunks shorter than h.
        """
        if not self.config.use_q:
            raise ValueError("best-of-N needs Q heads: build the critic with use_q=True and train it")
        rows, candidates, steps = chunks.shape[:3]
        if steps < self.config.horizon:
            raise ValueError(f"candidate chunks have {steps} steps, the critic was trained on {self.config.horizon}")
        chunks = chunks[:, :, : self.config.horizon].flatten(0, 1)
        context = self._context(features, stage).repeat_interleave(candidates, 0)
        inputs = self._with_chunk(context, chunks, torch.ones_like(chunks[..., 0]))
        return self._least_q(self.online, inputs).view(rows, candidates)

    def loss(self, transition: ChunkTransition) -> ChunkCriticLoss:
        """Loss of the heads, and the advantage of each chunk under them (before this update).

        Raises ValueError when the potential's stage and the critic's `stages` do not fit together.
        """
        config, rows = self.config, _Rows(transition)
        context = self._context(transition.features, transition.stage)
        later_context = self._context(transition.later_features, transition.later_stage)
        reward = chunk_return(rows.reward, rows.valid, config.gamma)
        with torch.no_grad():
            later_head = expectation(self.target["v"](later_context), self.centres)
            target = head_target(
                reward, rows.phi, rows.later_phi, later_head, rows.tau, rows.terminated, config.gamma, config.mode
            )
        logits = self.online["v"](context)
        value = expectation(logits, self.centres).detach()
        judged, q_loss = target, None
        if config.use_q:
            inputs = self._with_chunk(context, transition.chunk.float(), rows.valid)
            wanted = project(target, self.centres, config.projection)
            losses = [cross_entropy(self.online[name](inputs), wanted) for name in ("q1", "q2")]
            q_loss = weighted_mean(sum(losses, torch.zeros_like(target)) / 2, rows.exists * rows.open_loop)
            with torch.no_grad():
                judged = torch.where(rows.open_loop > 0, self._least_q(self.target, inputs), target)
        error = judged - value
        v_loss = cross_entropy(logits, project(judged, self.centres, config.projection))
        v_loss = weighted_mean(expectile_weights(error, config.expectile) * v_loss, rows.exists)
        loss = v_loss if q_loss is None else v_loss + q_loss
        advantage = error * rows.exists
        return ChunkCriticLoss(loss, advantage, self._logs(transition, rows, value, target, advantage, v_loss, q_loss))

    def _logs(
        self,
        transition: ChunkTransition,
        rows: "_Rows",
        value: Tensor,
        target: Tensor,
        advantage: Tensor,
        v_loss: Tensor,
        q_loss: Tensor | None,
    ) -> dict[str, float]:
        logs = {
            "value_loss": v_loss,
            "value": _mean(whole_value(value, rows.phi, self.config.mode), rows.exists),
            "td_error": _mean((target - value).abs(), rows.exists),
            "clipped_targets": _mean(((target < self.config.low) | (target > self.config.high)).float(), rows.exists),
            "advantage_std": _mean((advantage - _mean(advantage, rows.exists)).square(), rows.exists).sqrt(),
        }
        if q_loss is not None:
            logs["q_loss"] = q_loss
        plain = dict(zip(logs, torch.stack(list(logs.values())).tolist(), strict=True))
        kept = rows.exists > 0
        if transition.realised is not None and kept.any():
            unshaped = value + rows.phi  # in both modes: V_theta learned on the shaped reward is V - Phi
            stage = None if transition.stage is None else transition.stage[kept]
            for key, found in calibration(unshaped[kept], transition.realised.float()[kept], stage).items():
                suffix = "" if key is None else f"_stage{key}"
                plain[f"calibration_bias{suffix}"] = found.bias
                plain[f"calibration_error{suffix}"] = found.error
        return plain

    def _context(self, features: Tensor, stage: Tensor | None) -> Tensor:
        features = features.detach().float()
        if (stage is None) != (self.config.stages == 0):
            came = "without" if stage is None else "with"
            raise ValueError(
                f"the critic has stages={self.config.stages} but the chunks come {came} a stage: a latched potential "
                "needs both, an unlatched one neither"
            )
        if stage is None:
            return features
        return torch.cat([features, nn.functional.one_hot(stage.long(), self.config.stages).float()], -1)

    def _with_chunk(self, context: Tensor, chunk: Tensor, valid: Tensor) -> Tensor:
        mask = ran(valid).unsqueeze(-1)
        masked = torch.where(mask > 0, chunk, torch.zeros_like(chunk))
        return torch.cat([context, torch.cat([masked, mask], -1).flatten(1)], -1)

    def _least_q(self, heads: nn.ModuleDict, inputs: Tensor) -> Tensor:
        return torch.minimum(*(expectation(heads[name](inputs), self.centres) for name in ("q1", "q2")))


class _Rows:
    """The transition's scalars and masks as floats, with tau and which rows exist."""

    def __init__(self, transition: ChunkTransition):
        self.valid = transition.valid.float()
        self.reward = transition.reward.float()
        self.tau = executed_steps(self.valid)
        self.exists = (self.tau > 0).float()
        self.terminated = transition.terminated.float()
        self.phi, self.later_phi = transition.phi.float(), transition.later_phi.float()
        given = transition.open_loop
        self.open_loop = torch.ones_like(self.tau) if given is None else given.float()


def _mean(values: Tensor, weights: Tensor) -> Tensor:
    return (values * weights).sum() / weights.sum().clamp_min(1.0)


def _head(inputs: int, config: ChunkCriticConfig) -> nn.Sequential:
    """Three-layer head whose first answer is a value of 0 for every input, so that V starts as Phi."""
    hidden = config.hidden
    last = nn.Linear(hidden, config.bins)
    nn.init.zeros_(last.weight)
    with torch.no_grad():
        zero = project(torch.zeros(1), support(config.bins, config.low, config.high), config.projection)[0]
        last.bias.copy_(zero.clamp_min(1e-6).log())
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.LayerNorm(hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), last
    )


def _rebuild_targets(module: nn.Module, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
    """A checkpoint without target copies (an adapter's, an exported policy's) gives them from its online heads."""
    online, target = prefix + "online.", prefix + "target."
    for key in [key for key in state_dict if key.startswith(online)]:
        state_dict.setdefault(target + key.removeprefix(online), state_dict[key])
