"""Configuration of `--policy.type=coda`."""

import json
from dataclasses import dataclass, field, replace
from typing import Any

import draccus
from lerobot.configs.policies import PreTrainedConfig
from lerobot.configs.types import FeatureType, NormalizationMode, PolicyFeature
from lerobot.optim.optimizers import AdamWConfig, OptimizerConfig
from lerobot.optim.schedulers import CosineDecayWithWarmupSchedulerConfig, LRSchedulerConfig

# Columns that the data engine writes for learning; they must never become inputs of the policy.
LABEL_PREFIX = "observation.coda_"
# What of a backbone's configuration this one decides, or the hub.
OUTSIDE = {
    "type",
    "input_features",
    "output_features",
    "device",
    "pretrained_path",
    "use_peft",
    "push_to_hub",
    "repo_id",
}
# Of the small grounded policy, where the recipe gives none.
LEARNING_RATE, WEIGHT_DECAY, CLIP = 1e-3, 1e-4, 5.0
WARMUP, DECAY, FINAL_RATE = 50, 1000, 5e-5


@PreTrainedConfig.register_subclass("coda")
@dataclass
class CodaConfig(PreTrainedConfig):
    """A chunking policy, of which there are many backbones, with an action-chunk critic.

    Action chunks of `chunk_size` steps are predicted, `n_action_steps` of them executed open-loop. With
    `value_weight` > 0 a batch also holds the observation `n_action_steps` later, from which the chunk's temporal
    difference target is built.
    """

    n_obs_steps: int = 1
    chunk_size: int = 16  # a pretrained backbone keeps its own
    n_action_steps: int = 8
    # Of the small grounded policy: its inputs are scaled by fixed constants in the model, so that a checkpoint does
    # not depend on a dataset's statistics. Every other backbone brings its family's mapping.
    normalization_mapping: dict[str, NormalizationMode] = field(
        default_factory=lambda: dict.fromkeys(("VISUAL", "STATE", "ACTION"), NormalizationMode.IDENTITY)
    )

    # What acts: `grounded`, or the type of any LeRobot policy
    backbone: str = "grounded"
    backbone_path: str | None = None  # folder or hub id of a pretrained LeRobot policy: its type, settings and weights
    backbone_config: dict[str, Any] = field(default_factory=dict)  # its settings, on top of the pretrained ones

    # The grounded backbone's vision and language
    camera: str = "observation.images.image"
    image_size: int = 192  # pixels the frozen trunk sees; rendered images are resized to it
    width: int = 64  # channels of the key map and of the queries
    hidden: int = 512  # width of the action head
    feature_cache_gb: float = 4.0  # frozen features kept in memory, by dataset index, while training

    # Grounding: where are the things the instruction names
    grounding_weight: float = 0.0
    grounding_path: str | None = None  # file of static layouts, see lerobot_coda.grounding
    grounding_batch_size: int = 32

    # Action-chunk value learning (V = Phi + V_theta on the unshaped reward)
    value_weight: float = 0.0
    gamma: float = 0.99  # per control step
    value_bins: int = 51
    value_q: bool = False  # twin Q heads over chunks beside V; advantages are then Q - V
    value_target_decay: float = 0.99
    value_lr: float | None = None  # of the critic's heads; None: like the rest of the small policy, 3e-4 beside others
    advantage_weighting: bool = True  # False: the critic learns, and cloning stays as it is
    advantage_temperature: float = 0.1
    advantage_clip: float = 3.0  # upper bound of a sample's weight
    advantage_conditioning: bool = False  # the policy is told each advantage's sign, and asked for positive ones
    advantage_dropout: float = 0.3  # share of samples of which it is told nothing
    best_of: int = 1  # chunks drawn at inference, of which the one with the largest Q is executed

    # Optimisation; None: what the backbone's family presets
    optimizer_lr: float | None = None
    optimizer_weight_decay: float | None = None
    optimizer_grad_clip_norm: float | None = None
    scheduler_warmup_steps: int | None = None
    scheduler_decay_steps: int | None = None
    scheduler_decay_lr: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.backbone != "grounded" or self.backbone_path:
            self._settle_backbone()
        elif self.backbone_config:
            raise ValueError(
                "backbone_config is set but the backbone is 'grounded': set policy.backbone to the policy it configures"
            )
        if not 1 <= self.n_action_steps <= self.chunk_size:
            raise ValueError(
                f"n_action_steps must lie between 1 and chunk_size={self.chunk_size}, got {self.n_action_steps}"
            )
        if not 0 < self.gamma < 1:
            raise ValueError(f"gamma must lie between 0 and 1 (per control step), got {self.gamma}")
        if self.image_size % 32:
            raise ValueError(f"image_size must be a multiple of 32, got {self.image_size}")
        if self.grounding_weight > 0 and self.backbone != "grounded":
            raise ValueError(f"grounding_weight needs the backbone 'grounded', not '{self.backbone}': set it to 0")
        if self.grounding_path and self.grounding_weight <= 0:
            raise ValueError("grounding_path is set but grounding_weight is 0: give the weight or drop the path")
        if self.advantage_conditioning and self.value_weight <= 0:
            raise ValueError(
                "advantage_conditioning=true needs value_weight > 0, so that a critic says which chunks are good"
            )
        if not 0 <= self.advantage_dropout < 1:
            raise ValueError(f"advantage_dropout must lie in [0, 1), got {self.advantage_dropout}")
        if self.best_of < 1 or (self.best_of > 1 and not (self.value_q and self.value_weight > 0)):
            raise ValueError(
                f"best_of={self.best_of} must be 1, or more with value_q=true and value_weight > 0: Q chooses the chunk"
            )

    # --- the backbone's own configuration -------------------------------------------------------------------------

    def _settle_backbone(self) -> None:
        """Completes `backbone_config`, so that a checkpoint can be built without the path it came from."""
        if "type" not in self.backbone_config:
            settings: dict[str, Any] = {"chunk_size": self.chunk_size, "horizon": self.chunk_size}
            if self.backbone_path:
                from lerobot_coda.backbones.weights import checkpoint_folder

                pretrained = PreTrainedConfig.from_pretrained(checkpoint_folder(self.backbone_path))
                self.backbone = pretrained.type if self.backbone == "grounded" else self.backbone
                if pretrained.type != self.backbone:
                    raise ValueError(
                        f"backbone is '{self.backbone}' but '{self.backbone_path}' holds a policy of type "
                        f"'{pretrained.type}'; leave policy.backbone out"
                    )
                settings = draccus.encode(pretrained)
            self.backbone_config = self._completed(settings)
        family = self.family()
        self.chunk_size = len(family.action_delta_indices or [0])
        self.normalization_mapping = family.normalization_mapping
        if family.n_obs_steps != 1:
            raise ValueError(
                f"the backbone looks at n_obs_steps={family.n_obs_steps} observations, coda at one; train it with "
                "n_obs_steps=1"
            )
        if getattr(family, "use_relative_actions", False) and self.value_weight > 0:
            raise ValueError(
                "value_weight > 0 needs actions that aren't relative to the state: use_relative_actions=false"
            )

    def _completed(self, settings: dict[str, Any]) -> dict[str, Any]:
        """The family's whole configuration from `settings`, `backbone_config` on top; unknown names are refused."""
        known = PreTrainedConfig.get_known_choices()
        if self.backbone not in known or self.backbone == "coda":
            choices = ", ".join(sorted(set(known) - {"coda"}))
            raise ValueError(f"backbone '{self.backbone}' is neither 'grounded' nor a LeRobot policy: {choices}")
        fields = PreTrainedConfig.get_choice_class(self.backbone).__dataclass_fields__
        unknown = sorted(set(self.backbone_config) - set(fields))
        if unknown:
            raise ValueError(f"backbone_config has no setting '{unknown[0]}' for the policy '{self.backbone}'")
        own = {"n_obs_steps": 1, "n_action_steps": self.n_action_steps, "push_to_hub": False}
        merged = {**own, **settings, "n_action_steps": self.n_action_steps, **self.backbone_config}
        known_here = {key: value for key, value in merged.items() if key in fields and key not in OUTSIDE}
        family = draccus.decode(PreTrainedConfig.get_choice_class(self.backbone), {**known_here, "device": self.device})
        whole = json.loads(json.dumps(draccus.encode(family)))  # plain values for whoever writes this one
        return {"type": self.backbone, **{key: value for key, value in whole.items() if key not in OUTSIDE}}

    def family(self) -> PreTrainedConfig:
        """The configuration of the backbone's LeRobot policy, with this policy's features and device."""
        settings = {key: value for key, value in self.backbone_config.items() if key != "type"}
        made = draccus.decode(PreTrainedConfig.get_choice_class(self.backbone), {**settings, "device": self.device})
        made.input_features, made.output_features = self.policy_inputs(), dict(self.output_features or {})
        return made

    def get_optimizer_preset(self) -> OptimizerConfig:
        if self.backbone == "grounded":
            preset: OptimizerConfig = AdamWConfig(lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, grad_clip_norm=CLIP)
        else:
            preset = self.family().get_optimizer_preset()
            if preset.type == "xvla-adamw":  # it reads names of parameters, and refuses the groups that a critic needs
                shared = ("lr", "betas", "eps", "weight_decay", "grad_clip_norm")
                preset = AdamWConfig(**{name: getattr(preset, name) for name in shared})
        given = {"lr": self.optimizer_lr, "weight_decay": self.optimizer_weight_decay}
        given["grad_clip_norm"] = self.optimizer_grad_clip_norm
        return replace(preset, **{key: value for key, value in given.items() if value is not None})

    def get_scheduler_preset(self) -> LRSchedulerConfig | None:
        peak = self.get_optimizer_preset().lr
        if self.backbone == "grounded":
            preset: LRSchedulerConfig | None = CosineDecayWithWarmupSchedulerConfig(
                peak_lr=peak, decay_lr=FINAL_RATE, num_warmup_steps=WARMUP, num_decay_steps=DECAY
            )
        else:
            preset = self.family().get_scheduler_preset()
        if self.scheduler_decay_steps is not None and not isinstance(preset, CosineDecayWithWarmupSchedulerConfig):
            preset = CosineDecayWithWarmupSchedulerConfig(
                peak_lr=peak, decay_lr=peak / 20, num_warmup_steps=0, num_decay_steps=self.scheduler_decay_steps
            )
        if not isinstance(preset, CosineDecayWithWarmupSchedulerConfig):
            return preset
        given: dict[str, Any] = {"peak_lr": peak, "decay_lr": self.scheduler_decay_lr}
        given["num_warmup_steps"], given["num_decay_steps"] = self.scheduler_warmup_steps, self.scheduler_decay_steps
        return replace(preset, **{key: value for key, value in given.items() if value is not None})

    def policy_inputs(self) -> dict[str, PolicyFeature]:
        """The input features without the data engine's label columns."""
        return {key: ft for key, ft in (self.input_features or {}).items() if not key.startswith(LABEL_PREFIX)}

    def validate_features(self) -> None:
        """One sentence for each input or output this policy cannot work without."""
        inputs, outputs = self.input_features or {}, self.output_features or {}
        if "observation.state" not in inputs or "action" not in outputs:
            raise ValueError(f"coda needs observation.state and an action, not only {sorted({**inputs, **outputs})}")
        if self.backbone != "grounded":
            return
        if self.camera not in inputs or inputs[self.camera].type is not FeatureType.VISUAL:
            cameras = [key for key, ft in inputs.items() if ft.type is FeatureType.VISUAL]
            raise ValueError(f"policy.camera '{self.camera}' is not among the cameras {cameras}; set it to one of them")
        if tuple(inputs["observation.state"].shape) != (8,):
            raise ValueError("coda needs observation.state of shape (8,): eef position, axis-angle, gripper joints")
        if tuple(outputs["action"].shape) != (7,):
            raise ValueError("coda needs a 7-D action: OSC position and rotation deltas, gripper")

    @property
    def observation_delta_indices(self) -> list[int] | None:
        return [0, self.n_action_steps] if self.value_weight > 0 else None

    @property
    def action_delta_indices(self) -> list[int]:
        return list(range(self.chunk_size))

    @property
    def reward_delta_indices(self) -> list[int] | None:
        return list(range(self.n_action_steps)) if self.value_weight > 0 else None
