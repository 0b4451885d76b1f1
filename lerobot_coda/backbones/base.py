"""What a backbone gives: per-sample cloning losses, action chunks, and features for the critic."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Batch = dict[str, Any]
STATE, ACTION, IS_PAD = "observation.state", "action", "action_is_pad"


@dataclass(frozen=True)
class Cloned:
    """Of one forward pass: cloning `loss` (B,), masked where the action is padding; `features` (B, F) for the critic;
    `auxiliary` a scalar of the backbone's own losses; `logs` plain floats."""

    loss: Tensor
    features: Tensor
    auxiliary: Tensor | None = None
    logs: dict[str, float] = field(default_factory=dict)


class Backbone(nn.Module, ABC):
    """A policy seen from the critic. Batches hold one observation a row, as the backbone's own preprocessor leaves it.

    features_size   F
    weighs          the cloning loss is known for each sample; otherwise it can't be weighted by advantages
    draws           chunks are drawn from a distribution, so that the best of several can be chosen
    """

    features_size: int
    weighs: bool = True
    draws: bool = False

    @abstractmethod
    def clone(self, batch: Batch) -> Cloned:
        """One training forward pass; the features come from it, not from a second one."""

    @abstractmethod
    def features(self, batch: Batch) -> Tensor:
        """Features (B, F) of the observations alone, no gradient into the policy; those that `clone` gives."""

    @abstractmethod
    def sample(self, batch: Batch, **kwargs: Any) -> Tensor:
        """Action chunks (B, T, A) in the normalized units of the backbone's training actions."""

    def conditioned(self) -> tuple[nn.Module, int] | None:
        """A layer on the way to the chunk but not to the features, whose output (B, ..., width) advantages are told
        to, and that width; None where there is no such layer."""
        return None

    def groups(self) -> list[dict[str, Any]]:
        """Parameter groups for the optimizer."""
        return [{"params": [p for p in self.parameters() if p.requires_grad]}]

    def adapted(self) -> str | None:
        """Regular expression over module names below the backbone that LoRA adapts by default."""
        return None


class PolicyBackbone(Backbone):
    """A LeRobot policy as a backbone; subclasses say where its features come from."""

    policy: Any

    def __init__(self, policy: Any, cache_gb: float):
        super().__init__()
        self.policy = policy
        self.cache = FeatureCache(cache_gb)

    def sample(self, batch: Batch, **kwargs: Any) -> Tensor:
        return self.policy.predict_action_chunk(dict(batch), **kwargs)

    def groups(self) -> list[dict[str, Any]]:
        params = self.policy.get_optim_params()
        params = list(params.values()) if isinstance(params, dict) else list(params)
        groups = params if isinstance(params[0], dict) else [{"params": params}]
        return [{**group, "params": [p for p in group["params"] if p.requires_grad]} for group in groups]

    def adapted(self) -> str | None:
        targets = (self.policy._get_default_peft_targets() or {}).get("target_modules")
        return rf"policy\.({targets})" if isinstance(targets, str) else None

    def with_state(self, batch: Batch, seen: Tensor) -> Tensor:
        """What was seen (B, S), and proprioception beside it: (B, F)."""
        return torch.cat([seen.detach().float(), batch[STATE].flatten(1).float()], -1)

    @property
    def state_size(self) -> int:
        """Length of the observation's state vector."""
        return int(self.policy.config.input_features[STATE].shape[0])


class FeatureCache:
    """Rows of frozen features by dataset index, computed once; a full cache simply stops growing."""

    def __init__(self, gigabytes: float):
        self.room = gigabytes * 2**30  # bytes left
        self.rows: dict[int, tuple[Tensor, ...]] = {}

    def get(self, index: Tensor | None, rows: int, compute: Callable[[list[int]], tuple[Tensor, ...]]) -> list[Tensor]:
        """Feature tensors (rows, ...); `compute(numbers of rows)` is asked for those that are not known yet.

        index (rows,) says which frame of the dataset each row shows; None: nothing is remembered.
        """
        if index is None:
            return list(compute(list(range(rows))))
        keys = index.reshape(-1).tolist()
        new = [i for i, key in enumerate(keys) if key not in self.rows and key not in keys[:i]]
        fresh: dict[int, tuple[Tensor, ...]] = {}
        if new:
            parts = compute(new)
            fresh = {keys[i]: tuple(part[row].clone() for part in parts) for row, i in enumerate(new)}
            for key, row in fresh.items():
                self._keep(key, row)
        found = [fresh[key] if key in fresh else self.rows[key] for key in keys]
        return [torch.stack(parts) for parts in zip(*found, strict=True)]

    def put(self, index: Tensor | None, values: Tensor) -> None:
        """Remembers rows that a forward pass has computed anyway."""
        if index is not None:
            for key, row in zip(index.reshape(-1).tolist(), values, strict=True):
                if key not in self.rows:
                    self._keep(key, (row.clone(),))

    def _keep(self, key: int, row: tuple[Tensor, ...]) -> None:
        size = sum(part.element_size() * part.numel() for part in row)
        if size <= self.room:
            self.rows[key], self.room = row, self.room - size


def mean_over_valid(losses: Tensor, batch: Batch) -> Tensor:
    """Mean of losses (B, T) or (B, T, A) over the steps that are no padding: (B,)."""
    losses = losses if losses.dim() == 2 else losses.mean(-1)
    valid = (~batch[IS_PAD]).to(losses.dtype) if IS_PAD in batch else torch.ones_like(losses)
    return (losses * valid).sum(-1) / valid.sum(-1).clamp_min(1.0)


@contextmanager
def outputs_of(module: nn.Module) -> Iterator[list[Tensor]]:
    """Collects what `module` returns while the block runs, detached."""
    seen: list[Tensor] = []

    def keep(_: nn.Module, __: Any, output: Any) -> None:
        seen.append((output[0] if isinstance(output, tuple) else output).detach())

    handle = module.register_forward_hook(keep)
    try:
        yield seen
    finally:
        handle.remove()


@contextmanager
def results_of(owner: Any, method: str) -> Iterator[list[Any]]:
    """Collects what a method returns while the block runs (LeRobot calls many `forward`s past their hooks)."""
    seen: list[Any] = []
    original = getattr(owner, method)

    def record(*args: Any, **kwargs: Any) -> Any:
        seen.append(original(*args, **kwargs))
        return seen[-1]

    setattr(owner, method, record)
    try:
        yield seen
    finally:
        delattr(owner, method)
