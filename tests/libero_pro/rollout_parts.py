"""Small stand-ins shared by the rollout, dataset, environment and benchmark tests."""

from pathlib import Path

import numpy as np

from libero_pro.episode import Episode
from libero_pro.rollout import Observation
from libero_pro.scene import SceneSpec


def made_up_episode(scene: SceneSpec, steps: int = 9, *, success: bool = True, **changes: object) -> Episode:
    """An episode whose state, actions and columns are recognizable numbers; nothing was simulated."""
    rng = np.random.default_rng(scene.seed)
    instants = steps + 1
    values: dict = {
        "scene": scene,
        "actor": "expert",
        "success": success,
        "terminated": success,
        "truncated": not success,
        "object_names": ("milk_1",),
        "actions": rng.uniform(-1, 1, (steps, 7)).astype(np.float32),
        "qpos": np.zeros((instants, 3)),
        "frame_qpos": np.zeros((instants, 3)),
        "site_rgba": np.zeros((1, 2, 4), np.float32),
        "body_pos": np.zeros((4, 3)),
        "body_quat": np.zeros((4, 4)),
        "proprio": rng.normal(size=(instants, 8)).astype(np.float32),
        "object_pos": np.zeros((instants, 1, 3)),
        "object_quat": np.zeros((instants, 1, 4)),
        "eef_pos": np.zeros((instants, 3)),
        "held": np.full(instants, -1, np.int16),
        "goal_holds": np.zeros((instants, 1), bool),
        "executed": np.array([steps], np.int16),
        "camera": np.zeros((3, 4)),
        **changes,
    }
    return Episode(**values)


class SeededPolicy:
    """Acts at random as the observation's seed says, and keeps what it saw."""

    actor = "policy:seeded"

    def __init__(self, cameras: tuple[str, ...] = (), n_action_steps: int = 8):
        self.cameras, self.n_action_steps = cameras, n_action_steps
        self.seen: list[Observation] = []
        self.resets = 0

    def reset(self) -> None:
        self.resets += 1

    def act(self, observations: list[Observation]) -> np.ndarray:
        self.seen += observations
        draws = [np.random.default_rng(o.seed).uniform(-1, 1, (self.n_action_steps, 7)) for o in observations]
        return np.array(draws, np.float32)


def save_tiny_act(path: Path, *, cameras: tuple[str, ...] = ("image", "image2")) -> Path:
    """A complete LeRobot checkpoint of an untrained ACT policy: chunks of 10, of which 5 are executed."""
    import torch
    from lerobot.configs import FeatureType, PolicyFeature
    from lerobot.policies import make_pre_post_processors
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy

    images = [f"observation.images.{name}" for name in cameras]
    config = ACTConfig(
        device="cpu",
        push_to_hub=False,
        chunk_size=10,
        n_action_steps=5,
        dim_model=32,
        n_heads=2,
        dim_feedforward=32,
        n_encoder_layers=1,
        n_vae_encoder_layers=1,
        latent_dim=4,
        pretrained_backbone_weights=None,
        input_features={
            **{name: PolicyFeature(FeatureType.VISUAL, (3, 128, 128)) for name in images},
            "observation.state": PolicyFeature(FeatureType.STATE, (8,)),
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (7,))},
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        ACTPolicy(config).save_pretrained(path)
    ones = {"mean": torch.zeros(1), "std": torch.ones(1)}
    pixels = {"mean": torch.full((3, 1, 1), 0.5), "std": torch.full((3, 1, 1), 0.25)}
    stats = {"action": {"mean": torch.full((7,), 0.1), "std": torch.full((7,), 0.5)}, "observation.state": ones}
    for part in make_pre_post_processors(config, dataset_stats={**stats, **dict.fromkeys(images, pixels)}):
        part.save_pretrained(path)
    return path
