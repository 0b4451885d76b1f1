"""pi0.5 (Physical Intelligence 2025) as a backbone."""

from torch import Tensor, nn

from lerobot_coda.backbones.base import Batch
from lerobot_coda.backbones.pi0 import Pi0Backbone


class Pi05Backbone(Pi0Backbone):
    """Like pi0, but the state is words of the prompt: observations are split before they are tokenized."""

    def proprioception(self, batch: Batch) -> tuple[Tensor, ...]:
        return ()

    def conditioned(self) -> tuple[nn.Module, int]:
        return self.policy.model.action_in_proj, self.policy.model.action_in_proj.out_features

    def adapted(self) -> str | None:
        targets = super().adapted()
        return targets and targets.replace("action_time_mlp", "(?:action_)?time_mlp")  # LeRobot's pattern names pi0's
