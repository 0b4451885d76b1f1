"""`--policy.type=coda` around ACT and SmolVLA by the stock `lerobot-train`: fresh, resumed, from a path, adapters."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
sys.path.insert(0, str(ROOT / "tests" / "lerobot_coda"))
pytestmark = pytest.mark.e2e


def train(*arguments: str, cwd: Path) -> str:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(cwd / "hf"), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([str(BIN / "lerobot-train"), *arguments], cwd=cwd, env=environment, capture_output=True,
                          text=True, timeout=900)  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two short episodes with the columns that the data engine writes."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset
    from tinyvlas import CAMERAS, PROMPT, SIZE

    from lerobot_coda.columns import EXECUTED, POTENTIAL

    root = tmp_path_factory.mktemp("data") / "set"
    image = {"dtype": "image", "shape": (SIZE, SIZE, 3), "names": ["height", "width", "channel"]}
    widths = {"observation.state": 8, "action": 7, "next.reward": 1, POTENTIAL: 1, EXECUTED: 1}
    numbers = {key: {"dtype": "float32", "shape": (width,), "names": None} for key, width in widths.items()}
    made = LeRobotDataset.create("local/tiny", 20, {**dict.fromkeys(CAMERAS, image), **numbers}, root, use_videos=False)
    rng = np.random.default_rng(0)
    for _ in range(2):
        for t in range(9):
            frame: dict[str, Any] = {key: rng.integers(0, 255, (SIZE, SIZE, 3), dtype=np.uint8) for key in CAMERAS}
            frame |= {key: rng.random(width).astype(np.float32) for key, width in widths.items()}
            frame |= {"next.reward": np.array([t == 7], np.float32), EXECUTED: np.ones(1, np.float32)}
            made.add_frame({**frame, "action": frame["action"] * (t < 8), "task": PROMPT})
        made.save_episode()
    made.finalize()
    return root


def recipe(dataset: Path, output: Path, steps: int, policy: dict[str, Any]) -> list[str]:
    common = {"dataset.repo_id": "local/tiny", "dataset.root": dataset, "dataset.use_imagenet_stats": "false",
              "output_dir": output, "steps": steps, "save_freq": steps, "batch_size": 4, "num_workers": 0,
              "eval_steps": 0, "env_eval_freq": 0, "log_freq": 1,
              "policy.device": "cpu", "policy.push_to_hub": "false"}  # fmt: skip
    return [f"--{key}={value}" for key, value in {**common, **policy}.items()]


def last(output: Path) -> Path:
    return output / "checkpoints" / "last" / "pretrained_model"


def chunk(checkpoint: Path) -> torch.Tensor:
    """An action chunk as an evaluation of the checkpoint executes it, its own processors included."""
    from libero_pro.policy_runner import LeRobotChunkPolicy
    from libero_pro.rollout import Observation

    rng = np.random.default_rng(1)
    images = {camera: rng.integers(0, 255, (64, 64, 3), dtype=np.uint8) for camera in ("agentview", "wrist")}
    prompt = "pick the milk and place it in the basket"
    seen = Observation(images=images, state=rng.random(8).astype(np.float32), prompt=prompt, seed=5)
    return torch.from_numpy(LeRobotChunkPolicy.from_pretrained(checkpoint).act([seen]))


def test_act_trains_resumes_and_goes_on_from_a_path(dataset: Path, tmp_path: Path) -> None:
    from tinyvlas import ACT, CAMERAS

    settings = {"policy.type": "coda", "policy.backbone": "act", "policy.backbone_config": json.dumps(ACT),
                "policy.chunk_size": 8, "policy.n_action_steps": 4, "policy.value_weight": 0.1}  # fmt: skip
    first = tmp_path / "first"
    said = train(*recipe(dataset, first, 2, settings), cwd=tmp_path)
    assert "value_loss" in said and "cloning_loss" in said
    written = json.loads((last(first) / "config.json").read_text())
    assert written["type"] == "coda" and written["backbone_config"]["type"] == "act"
    assert set(written["input_features"]) == {*CAMERAS, "observation.state"}
    before = chunk(last(first))
    assert before.shape == (1, 4, 7)

    train(f"--config_path={last(first) / 'train_config.json'}", "--resume=true", "--steps=3", cwd=tmp_path)
    assert last(first).resolve().parent.name == "000003"
    assert not torch.equal(chunk(last(first)), before)

    start = first / "checkpoints" / "000002" / "pretrained_model"
    frozen = {"policy.path": start, "policy.optimizer_lr": 0.0, "policy.value_weight": 0.0}
    train(*recipe(dataset, tmp_path / "on", 1, frozen), cwd=tmp_path)
    head = "backbone.policy.model.action_head.weight"
    from safetensors.torch import load_file

    assert torch.equal(*(load_file(path / "model.safetensors")[head] for path in (start, last(tmp_path / "on"))))


def test_adapters_around_a_pretrained_smolvla(dataset: Path, tmp_path: Path) -> None:
    pytest.importorskip("num2words", reason="SmolVLM's processor needs it: pip install 'lerobot[smolvla]'")
    import tinyvlas
    from lerobot.policies.factory import get_policy_class

    folder = tinyvlas.save_smolvlm(tmp_path / "smolvlm")
    made = tinyvlas.config("smolvla", tinyvlas.smolvla(folder)).family()
    get_policy_class("smolvla")(made).save_pretrained(tmp_path / "base")

    output = tmp_path / "out"
    settings = {"policy.type": "coda", "policy.backbone_path": tmp_path / "base", "policy.n_action_steps": 4,
                "policy.value_weight": 0.1, "policy.optimizer_lr": 0.01, "policy.scheduler_warmup_steps": 0,
                "peft.method_type": "LORA", "peft.r": 4}  # fmt: skip
    train(*recipe(dataset, output, 2, settings), cwd=tmp_path)
    adapter = json.loads((last(output) / "adapter_config.json").read_text())
    assert (adapter["r"], adapter["lora_alpha"], adapter["modules_to_save"]) == (4, 8, ["critic"])
    assert adapter["base_model_name_or_path"] == str(tmp_path / "base")
    assert not (last(output) / "model.safetensors").exists()
    first = chunk(last(output))
    assert torch.equal(first, chunk(last(output)))

    train(f"--config_path={last(output) / 'train_config.json'}", "--resume=true", "--steps=3", cwd=tmp_path)
    assert not torch.equal(chunk(last(output)), first)
    assert torch.equal(chunk(output / "checkpoints" / "000002" / "pretrained_model"), first)
