"""Bring your own backbone: any LeRobot policy under the action-chunk critic, here one that is defined in this file.

    python examples/own_backbone.py

`coda` clones any registered LeRobot policy and adds the critic: that much needs no adapter. An adapter says where
features come from that are better than the generic ones, and gives the loss of each sample.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from lerobot.configs.policies import PreTrainedConfig
from lerobot.configs.types import FeatureType, NormalizationMode, PolicyFeature
from lerobot.optim.optimizers import AdamWConfig
from lerobot.policies.pretrained import PreTrainedPolicy
from torch import Tensor, nn

from lerobot_coda.backbones.base import ACTION, IS_PAD, STATE, Batch, Cloned, PolicyBackbone, mean_over_valid
from lerobot_coda.columns import POTENTIAL
from lerobot_coda.configuration_coda import CodaConfig
from lerobot_coda.modeling_coda import CodaPolicy

CAMERA = "observation.images.image"


@PreTrainedConfig.register_subclass("linear")
@dataclass
class LinearConfig(PreTrainedConfig):
    """A LeRobot policy of one's own: a linear map from image means and state to a chunk."""

    chunk_size: int = 8
    n_action_steps: int = 4
    normalization_mapping: dict[str, NormalizationMode] = field(
        default_factory=lambda: dict.fromkeys(("VISUAL", "STATE", "ACTION"), NormalizationMode.IDENTITY)
    )
    observation_delta_indices = reward_delta_indices = None

    @property
    def action_delta_indices(self) -> list[int]:
        return list(range(self.chunk_size))

    def get_optimizer_preset(self) -> AdamWConfig:
        return AdamWConfig(lr=1e-3)

    def get_scheduler_preset(self) -> None:
        return None

    def validate_features(self) -> None:
        """Any camera, state and action will do."""


class LinearPolicy(PreTrainedPolicy):
    """LeRobot finds it by its name, beside `LinearConfig`."""

    config_class, name = LinearConfig, "linear"

    def __init__(self, config: LinearConfig, **kwargs: Any):
        super().__init__(config)
        self.width = 3 + int(config.input_features[STATE].shape[0])
        self.size = int(config.output_features[ACTION].shape[0])
        self.head = nn.Linear(self.width, config.chunk_size * self.size)

    def see(self, batch: Batch) -> Tensor:
        return torch.cat([batch[CAMERA].mean((2, 3)), batch[STATE]], -1)

    def predict_action_chunk(self, batch: Batch, **kwargs: Any) -> Tensor:
        return self.head(self.see(batch)).unflatten(-1, (self.config.chunk_size, self.size))

    def forward(self, batch: Batch, reduction: str = "mean") -> tuple[Tensor, dict[str, float]]:
        losses = mean_over_valid((self.predict_action_chunk(batch) - batch[ACTION]).abs(), batch)
        return (losses if reduction == "none" else losses.mean()), {}

    def select_action(self, batch: Batch, **kwargs: Any) -> Tensor:
        return self.predict_action_chunk(batch)[:, 0]

    def get_optim_params(self) -> Any:
        return self.parameters()

    def reset(self) -> None:
        """It remembers nothing."""


class LinearBackbone(PolicyBackbone):
    """The adapter: features and losses of one forward pass.

    To have it chosen by `--policy.backbone=linear`, put it into lerobot_coda/backbones/ and name it in `FAMILIES`.
    """

    def __init__(self, policy: Any, cache_gb: float = 0.0):
        super().__init__(policy, cache_gb)
        self.features_size = policy.width

    def clone(self, batch: Batch) -> Cloned:
        loss, _ = self.policy(batch, reduction="none")
        return Cloned(loss, self.features(batch))

    @torch.no_grad()
    def features(self, batch: Batch) -> Tensor:
        return self.policy.see(batch).detach()


def check(backbone: PolicyBackbone, batch: Batch) -> None:
    """What the critic relies on; AssertionError where an adapter breaks it."""
    cloned = backbone.clone(batch)
    assert cloned.loss.shape == (len(batch[ACTION]),), "a loss for each sample"
    assert cloned.features.shape[1] == backbone.features_size and not cloned.features.requires_grad
    assert torch.equal(cloned.features, backbone.features(batch)), "the same features with and without actions"
    padded = {**batch, ACTION: batch[ACTION].clone()}
    padded[ACTION][batch[IS_PAD]] = 9.0
    assert torch.equal(backbone.clone(padded).loss, cloned.loss), "what is padding does not count"


def batch_of(rows: int, config: CodaConfig, later: bool = False) -> Batch:
    """Random rows as the data loader gives them; with `later` also the observation `n_action_steps` on."""
    draw, twice = torch.Generator().manual_seed(0), 2 * rows if later else rows
    pad = torch.zeros(rows, config.chunk_size, dtype=torch.bool)
    pad[0, -2:] = True
    return {
        CAMERA: torch.rand(twice, 3, 32, 32, generator=draw),
        STATE: torch.rand(twice, 8, generator=draw),
        POTENTIAL: torch.rand(rows, 2 if later else 1, generator=draw),
        ACTION: torch.rand(rows, config.chunk_size, 7, generator=draw),
        IS_PAD: pad,
        "next.reward": torch.zeros(rows, config.n_action_steps),
        "next.reward_is_pad": torch.zeros(rows, config.n_action_steps, dtype=torch.bool),
        "task": ["pick the milk"] * twice,
    }


def main() -> float:
    """Checks the adapter, then trains the policy under `coda` for some steps; returns the last cloning loss."""
    torch.manual_seed(0)
    config = CodaConfig(
        backbone="linear", device="cpu", push_to_hub=False, chunk_size=8, n_action_steps=4, value_weight=0.1
    )
    config.input_features = {
        CAMERA: PolicyFeature(FeatureType.VISUAL, (3, 32, 32)),
        STATE: PolicyFeature(FeatureType.STATE, (8,)),
        POTENTIAL: PolicyFeature(FeatureType.STATE, (1,)),
    }
    config.output_features = {ACTION: PolicyFeature(FeatureType.ACTION, (7,))}
    policy = CodaPolicy(config)
    check(LinearBackbone(policy.backbone.policy), batch_of(3, config))

    optimizer = torch.optim.AdamW(policy.get_optim_params(), lr=0.05)
    batch, found = batch_of(3, config, later=True), []
    for _ in range(30):
        loss, logs = policy.train()(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        policy.update()
        found.append(logs["cloning_loss"])
    print(f"cloning loss {found[0]:.3f} -> {found[-1]:.3f}, chunk {tuple(policy.predict_action_chunk(batch).shape)}")
    return found[-1] / found[0]


if __name__ == "__main__":
    main()
