"""Configuration of `--policy.type=coda`."""

from dataclasses import dataclass, field

from lerobot.configs.policies import PreTrainedConfig
from lerobot.configs.types import FeatureType, NormalizationMode, PolicyFeature
from lerobot.optim.optimizers import AdamWConfig
from lerobot.optim.schedulers import CosineDecayWithWarmupSchedulerConfig, LRSchedulerConfig

# Columns that the data engine writes for learning; they must never become inputs of the policy.
LABEL_PREFIX = "observation.coda_"


@PreTrainedConfig.register_subclass("coda")
@dataclass
class CodaConfig(PreTrainedConfig):
    """A chunking vision-language-action policy with grounding and value heads.

    Action chunks of `chunk_size` steps are predicted, `n_action_steps` of them executed open-loop. With
    `value_weight` > 0 a batch also holds the observation `n_action_steps` later, from which the chunk's temporal
    difference target is built.
    """

    n_obs_steps: int = 1
    chunk_size: int = 16
    n_action_steps: int = 8
    normalization_mapping: dict[str, NormalizationMode] = field(
        default_factory=lambda: {
            # Inputs are scaled by fixed constants in the model: a checkpoint does not depend on a dataset's statistics.
            "VISUAL": NormalizationMode.IDENTITY,
            "STATE": NormalizationMode.IDENTITY,
            "ACTION": NormalizationMode.IDENTITY,
        }
    )

    # Vision and language
    camera: str = "observation.images.image"
    image_size: int = 192  # pixels the frozen trunk sees; rendered images are resized to it
    width: int = 64  # channels of the key map and of the queries
    hidden: int = 512  # width of the action and value heads
    feature_cache_gb: float = 4.0  # frozen features kept in memory, by dataset index, while training

    # Grounding: where are the things the instruction names
    grounding_weight: float = 0.0
    grounding_path: str | None = None  # file of static layouts, see lerobot_coda.grounding
    grounding_batch_size: int = 32

    # Action-chunk value learning (V = Phi + V_theta on the unshaped reward)
    value_weight: float = 0.0
    gamma: float = 0.99  # per control step
    value_bins: int = 51
    value_target_decay: float = 0.99
    advantage_temperature: float = 0.1
    advantage_clip: float = 3.0  # upper bound of a sample's weight

    # Optimisation
    optimizer_lr: float = 1e-3
    optimizer_weight_decay: float = 1e-4
    optimizer_grad_clip_norm: float = 5.0
    scheduler_warmup_steps: int = 50
    scheduler_decay_steps: int = 1000
    scheduler_decay_lr: float = 5e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.n_action_steps <= self.chunk_size:
            raise ValueError(
                f"n_action_steps must lie between 1 and chunk_size={self.chunk_size}, got {self.n_action_steps}"
            )
        if not 0 < self.gamma < 1:
            raise ValueError(f"gamma must lie between 0 and 1 (per control step), got {self.gamma}")
        if self.image_size % 32:
            raise ValueError(f"image_size must be a multiple of 32, got {self.image_size}")
        if self.grounding_path and self.grounding_weight <= 0:
            raise ValueError("grounding_path is set but grounding_weight is 0: give the weight or drop the path")

    def get_optimizer_preset(self) -> AdamWConfig:
        return AdamWConfig(
            lr=self.optimizer_lr,
            weight_decay=self.optimizer_weight_decay,
            grad_clip_norm=self.optimizer_grad_clip_norm,
        )

    def get_scheduler_preset(self) -> LRSchedulerConfig:
        return CosineDecayWithWarmupSchedulerConfig(
            peak_lr=self.optimizer_lr,
            decay_lr=self.scheduler_decay_lr,
            num_warmup_steps=self.scheduler_warmup_steps,
            num_decay_steps=self.scheduler_decay_steps,
        )

    def policy_inputs(self) -> dict[str, PolicyFeature]:
        """The input features without the data engine's label columns."""
        return {key: ft for key, ft in (self.input_features or {}).items() if not key.startswith(LABEL_PREFIX)}

    def validate_features(self) -> None:
        """One sentence for each input or output this policy cannot work without."""
        inputs, outputs = self.input_features or {}, self.output_features or {}
        if self.camera not in inputs or inputs[self.camera].type is not FeatureType.VISUAL:
            cameras = [key for key, ft in inputs.items() if ft.type is FeatureType.VISUAL]
            raise ValueError(f"policy.camera '{self.camera}' is not among the cameras {cameras}; set it to one of them")
        if "observation.state" not in inputs or tuple(inputs["observation.state"].shape) != (8,):
            raise ValueError("coda needs observation.state of shape (8,): eef position, axis-angle, gripper joints")
        if "action" not in outputs or tuple(outputs["action"].shape) != (7,):
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
