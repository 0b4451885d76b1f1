"""The path of a LeRobot user: `lerobot-coda demos`, then stock `lerobot-train` and `lerobot-eval`, no flag names us."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lerobot_coda.recipe import read_yaml

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
pytestmark = [pytest.mark.e2e, pytest.mark.render]


def run(*arguments: str, cwd: Path) -> str:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(cwd / "hf")}
    done = subprocess.run([str(BIN / arguments[0]), *arguments[1:]], cwd=cwd, env=environment, capture_output=True,
                          text=True, timeout=600)  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def test_demos_train_eval(tmp_path: Path) -> None:
    """The released train recipe, cut to one task and two steps."""
    train = read_yaml(ROOT / "recipes" / "sft_libero_object.yaml")
    demos = read_yaml(ROOT / "recipes" / "demos" / "libero_object_sft.yaml")
    demos.update(task_ids=[7], per_task=2)
    train["policy"].update(image_size=64, width=16, hidden=32)
    train.update(batch_size=4, num_workers=0)
    (tmp_path / "recipes" / "demos").mkdir(parents=True)
    (tmp_path / "recipes" / "sft.yaml").write_text(yaml.safe_dump(train))
    (tmp_path / "recipes" / "demos" / "libero_object_sft.yaml").write_text(yaml.safe_dump(demos))

    said = run("lerobot-coda", "demos", "recipes/sft.yaml", cwd=tmp_path)
    assert "2 of 2 demonstrations" in said
    assert "is there already" in run("lerobot-coda", "demos", "recipes/sft.yaml", cwd=tmp_path)

    run("lerobot-train", "--config_path=recipes/sft.yaml", "--steps=2", cwd=tmp_path)
    checkpoint = tmp_path / "outputs" / "sft_libero_object" / "checkpoints" / "last" / "pretrained_model"
    config = json.loads((checkpoint / "config.json").read_text())
    assert config["type"] == "coda"
    assert set(config["input_features"]) == {"observation.images.image", "observation.state"}

    run(
        "lerobot-eval", f"--policy.path={checkpoint}", "--env.type=libero_pro", "--env.task=libero_object_swap",
        "--env.task_ids=[7]", "--env.episode_length=12", "--eval.n_episodes=1", "--eval.batch_size=1",
        "--policy.device=cpu", f"--output_dir={tmp_path / 'eval'}", cwd=tmp_path,
    )  # fmt: skip
    info = json.loads((tmp_path / "eval" / "eval_info.json").read_text())
    assert info["per_group"]["libero_object_swap"]["n_episodes"] == 1
