"""Vision-language-action models whose action expert reads a vision-language prefix: SmolVLA, pi0, pi0.5."""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from lerobot_coda.backbones.base import STATE, Batch, Cloned, PolicyBackbone, outputs_of, results_of


class PrefixBackbone(PolicyBackbone):
    """Features: the vision-language model's last hidden states, averaged over image and language tokens, and the state.

    These tokens see neither the state nor the noisy actions, so the features depend on images and instruction only.
    While nothing of the vision-language model is trained they are computed once a frame, and remembered.
    """

    draws = True

    def __init__(self, policy: Any, cache_gb: float):
        super().__init__(policy, cache_gb)
        self.features_size = self.hidden_size + self.state_size

    @property
    @abstractmethod
    def hidden_size(self) -> int:
        """Width of the vision-language model."""

    @abstractmethod
    def vision_language(self) -> nn.Module:
        """The vision-language model, without the action expert."""

    @abstractmethod
    def last_norm(self) -> nn.Module:
        """The layer that gives its last hidden states (B, L, hidden_size)."""

    @abstractmethod
    def losses(self, batch: Batch) -> Tensor:
        """The family's own loss (B,), padding masked; one forward pass."""

    @abstractmethod
    def prefix(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Embeddings (B, L, hidden_size), padding mask (B, L) and attention-block mask (B, L) of the prefix."""

    @abstractmethod
    def read(self, prefix: tuple[Tensor, Tensor, Tensor]) -> None:
        """Runs the vision-language model over a prefix, without the expert."""

    def clone(self, batch: Batch) -> Cloned:
        with results_of(self.policy.model, "embed_prefix") as prefixes, outputs_of(self.last_norm()) as hidden:
            loss = self.losses(batch)
        seen = _pooled(hidden[0], prefixes[0])
        if self._frozen():
            self.cache.put(batch.get("index"), seen)
        return Cloned(loss, self.with_state(batch, seen))

    @torch.no_grad()
    def features(self, batch: Batch) -> Tensor:
        def compute(rows: list[int]) -> tuple[Tensor, ...]:
            prefix = self.prefix({key: _rows(value, rows) for key, value in batch.items()})
            with outputs_of(self.last_norm()) as hidden:
                self.read(prefix)
            return (_pooled(hidden[0], prefix),)

        index = batch.get("index") if self._frozen() else None
        (seen,) = self.cache.get(index, len(batch[STATE]), compute)
        return self.with_state(batch, seen)

    def _frozen(self) -> bool:
        return not any(p.requires_grad for p in self.vision_language().parameters())


def _rows(value: Any, rows: list[int]) -> Any:
    return value[rows] if isinstance(value, Tensor) and value.dim() else value


def _pooled(hidden: Tensor, prefix: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Mean of hidden (B, L, H) over the tokens that are there and belong to the first attention block: (B, H)."""
    _, there, later_block = prefix
    kept = (there.bool() & ~later_block.bool()).unsqueeze(-1).to(hidden.dtype)
    return (hidden * kept).sum(1) / kept.sum(1).clamp_min(1.0)
