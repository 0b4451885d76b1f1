"""`--policy.type=coda`: any backbone, cloned with weights that an action-chunk critic gives, as a LeRobot policy."""

import logging
from collections import deque
from pathlib import Path
from typing import Any

import torch
from lerobot.policies.pretrained import PreTrainedPolicy
from safetensors.torch import load_file
from torch import Tensor

import lerobot_coda.processor_coda  # noqa: F401  (its step is known wherever a checkpoint's processors are read)
from lerobot_coda.backbones.base import ACTION, IS_PAD, STATE, Batch
from lerobot_coda.backbones.families import build_backbone
from lerobot_coda.backbones.weights import checkpoint_folder, policy_type
from lerobot_coda.chunk_critic import ChunkCritic, ChunkCriticConfig, ChunkCriticLoss, ChunkTransition
from lerobot_coda.columns import EXECUTED, POTENTIAL
from lerobot_coda.conditioning import AdvantageCondition, told
from lerobot_coda.configuration_coda import LABEL_PREFIX, CodaConfig
from lerobot_coda.value import advantage_weights

VALUE_LR = 3e-4  # of the critic's heads beside a pretrained backbone, whose own rate is far smaller
LATER_IS_PAD = f"{STATE}_is_pad"
OWN = ("critic.", "condition.")  # what stands beside the backbone, and may start anew
EARLIER_HEADS = ("value_head.", "value_target.")  # of checkpoints written before the critic had a module of its own


class CodaPolicy(PreTrainedPolicy):
    """Acts in chunks by its backbone, and values them by its critic, whose advantages weigh or condition cloning.

    Labels it learns from, where a dataset has them: `observation.coda_potential` (1,): Phi;
    `observation.coda_executed` (1,); see `lerobot_coda.columns`.
    """

    config_class = CodaConfig
    name = "coda"

    def __init__(self, config: CodaConfig, *, backbone_weights: bool = True, **kwargs: Any):
        """backbone_weights: load those at `config.backbone_path`; False where a checkpoint's own follow."""
        super().__init__(config)
        config.input_features = config.policy_inputs()
        config.validate_features()
        self.config: CodaConfig = config
        self.backbone = build_backbone(config, pretrained=backbone_weights, **kwargs)
        self.critic: ChunkCritic | None = None
        if config.value_weight > 0:
            self.critic = ChunkCritic(
                ChunkCriticConfig(
                    features=self.backbone.features_size,
                    horizon=config.n_action_steps,
                    actions=int(config.output_features[ACTION].shape[0]),
                    gamma=config.gamma,
                    bins=config.value_bins,
                    use_q=config.value_q,
                )
            )
            if config.advantage_weighting and not self.backbone.weighs:
                raise ValueError(
                    f"the LeRobot policy '{config.backbone}' gives no loss for each sample, so advantages cannot weigh "
                    "it: set policy.advantage_weighting=false"
                )
        self.condition: AdvantageCondition | None = None
        self._told: Tensor | None = None  # signs of the advantages that the backbone is told next
        if config.advantage_conditioning:
            layer = self.backbone.conditioned()
            if layer is None:
                raise ValueError(
                    f"the backbone '{config.backbone}' has no layer that could be told of advantages: set "
                    "policy.advantage_conditioning=false"
                )
            self.condition = AdvantageCondition(layer[1])
            layer[0].register_forward_hook(self._tell)
        if config.best_of > 1 and not self.backbone.draws:
            raise ValueError(f"best_of={config.best_of}: the backbone '{config.backbone}' always gives the same chunk")
        self.reset()

    def get_optim_params(self) -> list[dict[str, Any]]:
        """The backbone's parameter groups; the critic's heads and the condition with a learning rate of their own."""
        groups = self.backbone.groups()
        if self.critic is not None:
            rate = self.config.value_lr or (None if self.config.backbone == "grounded" else VALUE_LR)
            learned = [*self.critic.online.parameters(), *(self.condition.parameters() if self.condition else ())]
            heads = [p for p in learned if p.requires_grad]
            groups.append({"params": heads, **({"lr": rate} if rate else {})})
        return [group for group in groups if group["params"]]

    def reset(self) -> None:
        self._queue: deque[Tensor] = deque()

    @torch.no_grad()
    def update(self) -> None:
        """Called by LeRobot after each optimizer step: the target heads follow the critic's."""
        if self.critic is not None:
            self.critic.update_targets(self.config.value_target_decay)

    # --- acting ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def predict_action_chunk(self, batch: Batch, **kwargs: Any) -> Tensor:
        """Action chunk (B, chunk_size, A) for one observation a row: of `best_of` drawn ones that of largest Q."""
        self.eval()
        self._told = torch.ones(1, device=batch[STATE].device)
        count = self.config.best_of
        if count == 1 or self.critic is None:
            return self.backbone.sample(batch, **kwargs)
        rows = len(batch[STATE])
        drawn = self.backbone.sample({key: _repeated(value, rows, count) for key, value in batch.items()}, **kwargs)
        drawn = drawn.unflatten(0, (rows, count))
        best = self.critic.q(self.backbone.features(batch), drawn).argmax(-1)
        return drawn[torch.arange(rows, device=best.device), best]

    @torch.no_grad()
    def select_action(self, batch: Batch, **kwargs: Any) -> Tensor:
        """Next action (B, A); a new chunk is predicted when the last one's `n_action_steps` are used up."""
        if not self._queue:
            chunk = self.predict_action_chunk(batch)
            self._queue.extend(chunk[:, : self.config.n_action_steps].unbind(1))
        return self._queue.popleft()

    # --- learning -------------------------------------------------------------------------------------------------

    def forward(self, batch: Batch, reduction: str = "mean") -> tuple[Tensor, dict[str, float]]:
        """Weighted cloning + critic + auxiliary losses; `reduction="none"` gives the (B,) cloning loss alone."""
        now, later = split_in_time(batch, self.config.n_action_steps)
        learned: ChunkCriticLoss | None = None
        self._told = None
        if self.condition is not None and reduction != "none":  # what the policy is told comes before its own pass
            learned = self._judge(batch, now, later, self.backbone.features(now))
            executed = now[EXECUTED].reshape(-1) if EXECUTED in now else None
            self._told = told(learned.advantage, executed, self.config.advantage_dropout if self.training else 0.0)
        cloned = self.backbone.clone(now)
        logs = {**cloned.logs, "cloning_loss": cloned.loss.mean().item()}
        if reduction == "none":
            return cloned.loss, logs
        weights, loss = torch.ones_like(cloned.loss), cloned.loss.new_zeros(())
        if self.critic is not None:
            learned = learned or self._judge(batch, now, later, cloned.features)
            logs |= learned.logs
            if self._told is not None:
                logs["told_positive"] = (self._told > 0).float().mean().item()
            loss = loss + self.config.value_weight * learned.loss
            if self.config.advantage_weighting:
                weights = self._weights(learned.advantage, now)
        loss = loss + (weights * cloned.loss).mean()
        return loss if cloned.auxiliary is None else loss + cloned.auxiliary, logs

    def _judge(self, batch: Batch, now: Batch, later: Batch | None, features: Tensor) -> ChunkCriticLoss:
        """The critic's loss, and the advantages of the batch's chunks."""
        if later is None:
            raise ValueError(f"value_weight > 0 needs the observation {self.config.n_action_steps} steps later")
        assert self.critic is not None
        return self.critic.loss(self._transition(batch, now, later, features))

    def _tell(self, layer: Any, inputs: Any, output: Tensor) -> Tensor:
        """The output of the backbone's conditioned layer, with what it is told added."""
        if self._told is None or self.condition is None:
            return output
        added = self.condition(self._told).to(output.dtype)
        return output + added.view(len(added), *[1] * (output.dim() - 2), -1)

    def _weights(self, advantage: Tensor, now: Batch) -> Tensor:
        """Of each sample's cloning loss, (B,)."""
        weights = advantage_weights(advantage, self.config.advantage_temperature, self.config.advantage_clip)
        if EXECUTED in now:  # an advantage judges what was executed, not what an expert says instead
            executed = now[EXECUTED].reshape(-1)
            weights = executed * weights + (1 - executed)
        return weights

    def _transition(self, batch: Batch, now: Batch, later: Batch, features: Tensor) -> ChunkTransition:
        if POTENTIAL not in now:
            raise ValueError(
                f"value_weight > 0 needs the column {POTENTIAL}; `lerobot-coda demos` builds datasets with it"
            )
        steps = self.config.n_action_steps
        valid = (~batch["next.reward_is_pad"] & ~batch[IS_PAD][:, :steps]).float()
        reward = batch["next.reward"].reshape(valid.shape)
        return ChunkTransition(
            features=features,
            later_features=self.backbone.features(later),
            chunk=batch[ACTION][:, :steps],
            valid=valid,
            reward=reward,
            terminated=((reward * valid).sum(-1) > 0).float(),
            phi=now[POTENTIAL].reshape(-1),
            later_phi=later[POTENTIAL].reshape(-1),
            open_loop=now[EXECUTED].reshape(-1) if EXECUTED in now else None,
        )

    # --- checkpoints ----------------------------------------------------------------------------------------------

    @classmethod
    def from_pretrained(
        cls, pretrained_name_or_path: str | Path, *, config: Any = None, strict: bool = False, **kwargs: Any
    ) -> "CodaPolicy":
        """A checkpoint of this policy; or, as the base of adapters, the policy around a pretrained backbone."""
        if config is not None and config.backbone_path:
            folder = checkpoint_folder(pretrained_name_or_path)
            if policy_type(folder) != cls.name:
                config.backbone_path = str(pretrained_name_or_path)
                kwargs.pop("revision", None)
                return cls(config, **kwargs).to(config.device).eval()
        return super().from_pretrained(
            pretrained_name_or_path, config=config, strict=strict, backbone_weights=False, **kwargs
        )

    @classmethod
    def _load_as_safetensor(cls, model: "CodaPolicy", model_file: str, map_location: str, strict: bool) -> "CodaPolicy":
        """Loads all of the backbone, or raises ValueError; a critic or condition that the file lacks starts anew."""
        weights = {k: v for k, v in load_file(model_file).items() if not k.startswith(EARLIER_HEADS)}
        absent = tuple(name for name in OWN if getattr(model, name[:-1]) is None)
        weights = {k: v for k, v in weights.items() if not k.startswith(absent)}
        try:
            missing, unexpected = model.load_state_dict(weights, strict=False)
        except RuntimeError as error:
            raise ValueError(
                f"{model_file} does not fit this policy's settings: {' '.join(str(error).split())}"
            ) from None
        tied = {p.data_ptr() for name, p in model.named_parameters(remove_duplicate=False) if name in weights}
        own = dict(model.named_parameters(remove_duplicate=False))
        lost = [n for n in missing if not n.startswith(OWN) and not (n in own and own[n].data_ptr() in tied)]
        if lost or unexpected:
            raise ValueError(f"{model_file} does not fit this policy's settings: '{[*lost, *unexpected][0]}' differs")
        for name in OWN:
            if any(key.startswith(name) for key in missing):
                logging.info(f"The checkpoint has no {name[:-1]}: it starts anew.")
        return model

    # --- adapters -------------------------------------------------------------------------------------------------

    def wrap_with_peft(self, peft_config: Any = None, peft_cli_overrides: dict[str, Any] | None = None) -> Any:
        """Adapters in the backbone; the critic and the condition are trained and saved whole beside them."""
        if not self.config.pretrained_path and self.config.backbone_path:
            self.name_or_path = str(self.config.backbone_path)
        return super().wrap_with_peft(peft_config, peft_cli_overrides)

    def _get_default_peft_targets(self) -> dict[str, Any]:
        pattern = self.backbone.adapted()
        return {"target_modules": rf"backbone\.{pattern}"} if pattern else {}

    def _build_peft_config(self, cli_overrides: dict[str, Any]) -> Any:
        """LeRobot's adapter settings, with alpha = 2 r where none is given: PEFT's default would shrink each update."""
        chosen = dict(cli_overrides)
        if (chosen.get("method_type") or "LORA").upper() == "LORA" and chosen.get("lora_alpha") is None:
            chosen["lora_alpha"] = 2 * (chosen.get("r") or 16)
        beside = [name[:-1] for name in OWN if getattr(self, name[:-1]) is not None]
        chosen["full_training_modules"] = [*(chosen.get("full_training_modules") or []), *beside]
        return super()._build_peft_config(chosen)

    def _validate_peft_config(self, peft_config: Any) -> None:
        if not (self.config.pretrained_path or self.config.backbone_path):
            raise ValueError("--peft adapts a pretrained policy: set policy.backbone_path to it, or policy.path")


def split_in_time(batch: Batch, steps: int) -> tuple[Batch, Batch | None]:
    """The B observations at t, with everything else of the batch, and those `steps` later; None where there are none.

    A backbone's preprocessor leaves 2B rows, first those at t; the grounded one's leaves two observations a row.
    The later batch's `index` is that of the frame it shows.
    """
    rows = len(batch[ACTION])
    state = batch[STATE]
    stacked = len(state) == 2 * rows
    if not stacked and state.dim() < 3:
        return batch, None
    now, later = dict(batch), {}
    for key, value in batch.items():
        label = key.startswith(LABEL_PREFIX)
        added = stacked and isinstance(value, Tensor) and value.dim() > 0 and len(value) == 2 * rows  # by a later step
        if key == "task" or added or (key.startswith("observation.") and not key.endswith("_is_pad")):
            if label or not stacked:
                paired = isinstance(value, Tensor) and (value.dim() > 1 and value.shape[1] == 2)
                now[key], later[key] = (value[:, 0], value[:, 1]) if paired else (value, value)
            else:
                now[key], later[key] = value[:rows], value[rows:]
    if "index" in batch:
        now["index"] = batch["index"].reshape(-1)
        later["index"] = now["index"] + steps
        if LATER_IS_PAD in batch:  # past the end the loader repeats the last frame
            last = (~batch["next.reward_is_pad"]).sum(-1) - 1
            later["index"] = torch.where(batch[LATER_IS_PAD][:, 1], now["index"] + last, later["index"])
    return now, later


def _repeated(value: Any, rows: int, count: int) -> Any:
    """Each row of a batch's entry `count` times in a row."""
    if isinstance(value, Tensor) and value.dim() > 0 and len(value) == rows:
        return value.repeat_interleave(count, 0)
    if isinstance(value, list) and len(value) == rows:
        return [item for item in value for _ in range(count)]
    return value
