"""What was pushed is loaded by stock LeRobot: the dataset at its revision, the policy by its repository's name."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hubs import served
from tinyrun import write_run

SIZE = 32


def real_dataset(root: Path, salt: bytes = b"") -> None:
    """One more episode for each state of the run."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    rng = np.random.default_rng(0)
    image = {"dtype": "image", "shape": (SIZE, SIZE, 3), "names": ["height", "width", "channel"]}
    widths = {"observation.state": 8, "action": 7}
    numbers = {name: {"dtype": "float32", "shape": (width,), "names": None} for name, width in widths.items()}
    features = {"observation.images.image": image, **numbers}
    made = LeRobotDataset.create("local/tiny", 20, features, root, use_videos=False)
    for _ in range(1 + int(salt)):
        for _ in range(3):
            frame = {name: rng.random(width).astype(np.float32) for name, width in widths.items()}
            frame["observation.images.image"] = rng.integers(0, 255, (SIZE, SIZE, 3), dtype=np.uint8)
            made.add_frame({**frame, "task": "pick the milk"})
        made.save_episode()
    made.finalize()


def real_checkpoint(folder: Path, salt: bytes = b"") -> None:
    """A small grounded policy with its processors."""
    from lerobot.configs.types import FeatureType, PolicyFeature

    from lerobot_coda.configuration_coda import CodaConfig
    from lerobot_coda.modeling_coda import CodaPolicy
    from lerobot_coda.processor_coda import make_coda_pre_post_processors

    torch.manual_seed(int(salt))
    config = CodaConfig(device="cpu", push_to_hub=False, image_size=SIZE, width=8, hidden=16, grounding_weight=1.0)
    config.grounding_path = "/here/grounding.safetensors"
    config.input_features = {
        "observation.images.image": PolicyFeature(FeatureType.VISUAL, (3, SIZE, SIZE)),
        "observation.state": PolicyFeature(FeatureType.STATE, (8,)),
    }
    config.output_features = {"action": PolicyFeature(FeatureType.ACTION, (7,))}
    CodaPolicy(config).save_pretrained(folder)
    for pipeline in make_coda_pre_post_processors(config):
        pipeline.save_pretrained(folder)
    (folder / "train_config.json").write_text('{"dataset": {"root": "/here"}, "policy": {"type": "coda"}}')


def chunk(path: str | Path) -> np.ndarray:
    from libero_pro.policy_runner import LeRobotChunkPolicy
    from libero_pro.rollout import Observation

    rng = np.random.default_rng(1)
    pixels = {"agentview": rng.integers(0, 255, (SIZE, SIZE, 3), dtype=np.uint8)}
    seen = Observation(images=pixels, state=rng.random(8).astype(np.float32), prompt="pick the milk", seed=5)
    return LeRobotChunkPolicy.from_pretrained(path).act([seen])


def test_dataset_and_policy_come_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from lerobot.datasets import dataset_metadata, lerobot_dataset
    from lerobot.datasets.lerobot_dataset import LeRobotDataset
    from lerobot.policies.pretrained import PreTrainedConfig

    from lerobot_coda.hub import Target, push
    from lerobot_coda.modeling_coda import CodaPolicy

    for module in (dataset_metadata, lerobot_dataset):
        monkeypatch.setattr(module, "HF_LEROBOT_HUB_CACHE", tmp_path / "datasets")
    monkeypatch.setattr(dataset_metadata, "HF_LEROBOT_HOME", tmp_path / "home")
    run = write_run(tmp_path / "run", 2, real_dataset, real_checkpoint)
    with served(monkeypatch, tmp_path):
        push(run, Target(repo="ada/milk", what=("datasets", "checkpoints")))

        first, newest = LeRobotDataset("ada/milk", revision="base"), LeRobotDataset("ada/milk")
        assert (first.num_episodes, newest.num_episodes) == (1, 2)
        kept = LeRobotDataset("local/tiny", run / "rounds" / "001" / "dataset")
        for mine, theirs in zip(kept, newest, strict=True):
            assert all(torch.equal(mine[key], theirs[key]) for key in mine if isinstance(mine[key], torch.Tensor))

        weights = run / "rounds" / "001" / "train" / "checkpoints" / "last" / "pretrained_model"
        assert np.array_equal(chunk("ada/milk"), chunk(weights))
        config = PreTrainedConfig.from_pretrained("ada/milk", revision="base")
        assert config.grounding_path is None and config.type == "coda"
        base = CodaPolicy.from_pretrained("ada/milk", revision="base")
        mine = CodaPolicy.from_pretrained(run / "base" / "train" / "checkpoints" / "last" / "pretrained_model")
        assert all(torch.equal(a, b) for a, b in zip(base.parameters(), mine.parameters(), strict=True))
