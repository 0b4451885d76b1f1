"""The recipes for pretrained vision-language-action models: the stock trainer on the same configuration, tiny."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinyvlas
import yaml
from safetensors.torch import load_file

from lerobot_coda.recipe import load_demos, load_evolve, read_yaml
from lerobot_coda.training import train_config

RECIPES = Path(__file__).parents[2] / "recipes"
MODELS = ("smolvla", "pi0", "pi05", "xvla")
TINY = {"chunk_size": tinyvlas.CHUNK, "n_action_steps": tinyvlas.EXECUTES}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two short episodes with the cameras, state and labels that the data engine writes."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    from lerobot_coda.columns import EXECUTED, POTENTIAL

    root, size, rng = tmp_path_factory.mktemp("vla") / "set", tinyvlas.SIZE, np.random.default_rng(0)
    image = {"dtype": "image", "shape": (size, size, 3), "names": ["height", "width", "channel"]}
    widths = {"observation.state": 8, "action": 7, "next.reward": 1, POTENTIAL: 1, EXECUTED: 1}
    numbers = {key: {"dtype": "float32", "shape": (width,), "names": None} for key, width in widths.items()}
    features = {**dict.fromkeys(tinyvlas.CAMERAS, image), **numbers}
    made = LeRobotDataset.create("local/vla", 20, features, root, use_videos=False)
    for _ in range(2):
        for t in range(7):
            frame: dict[str, Any] = {c: rng.integers(0, 255, (size, size, 3), dtype=np.uint8) for c in tinyvlas.CAMERAS}
            frame |= {key: rng.random(width).astype(np.float32) for key, width in widths.items()}
            frame |= {"next.reward": np.array([t == 5], np.float32), EXECUTED: np.ones(1, np.float32)}
            made.add_frame({**frame, "action": frame["action"] * (t < 6), "task": tinyvlas.PROMPT})
        made.save_episode()
    made.finalize()
    return root


def tiny_base(model: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint of the family of a few thousand parameters."""
    from lerobot.policies.factory import get_policy_class

    if model == "smolvla":
        pytest.importorskip("num2words", reason="SmolVLM's processor needs it: pip install 'lerobot[smolvla]'")
        settings = tinyvlas.smolvla(tinyvlas.save_smolvlm(folder / "vlm"))
    else:
        settings = tinyvlas.xvla(monkeypatch) if model == "xvla" else tinyvlas.shrink_pi(monkeypatch)
    made = tinyvlas.config(model, settings).family()
    get_policy_class(model)(made).save_pretrained(folder / "base")
    return folder / "base"


def trained(config: dict[str, Any], path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The checkpoint that `lerobot-train --config_path` leaves."""
    from accelerate.state import AcceleratorState
    from lerobot.configs import parser
    from lerobot.scripts.lerobot_train import train

    path.write_text(yaml.safe_dump(config))
    monkeypatch.setattr(sys, "argv", ["lerobot-train", f"--config_path={path}"])
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    try:
        train()
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
        parser._config_path_args.clear(), parser._config_yaml_overrides.clear()  # it expects one command a process
    return Path(config["output_dir"]) / "checkpoints" / "last" / "pretrained_model"


@pytest.mark.parametrize("model", MODELS)
def test_a_base_policy_and_a_round_train_as_the_recipe_says(
    model: str, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = read_yaml(RECIPES / f"coda_{model}.yaml")
    smaller = {"backbone_path": str(tiny_base(model, tmp_path, monkeypatch)), "device": "cpu", "use_amp": False}
    recipe["policy"] |= {**smaller, "n_action_steps": tinyvlas.EXECUTES, "optimizer_lr": 0.01}
    recipe |= {"batch_size": 2, "num_workers": 0}
    common = {"dataset": dataset, "repo_id": "local/vla", "steps": 2}
    config = train_config(recipe, output=tmp_path / "first", seed=0, **common)
    first = trained(config, tmp_path / "first.yaml", monkeypatch)
    adapter = json.loads((first / "adapter_config.json").read_text())
    assert (adapter["r"], adapter["lora_alpha"]) == (16, 32) and "critic" in adapter["modules_to_save"]
    written = json.loads((first / "config.json").read_text())
    assert written["backbone"] == model and adapter["base_model_name_or_path"] == str(tmp_path / "base")
    assert set(written["input_features"]) == {*tinyvlas.CAMERAS, "observation.state"}
    before = load_file(first / "adapter_model.safetensors")
    assert any("lora_A" in name for name in before) and any("critic" in name for name in before)

    on = train_config(
        recipe, output=tmp_path / "second", seed=1, start=first, policy={"grounding_path": None, "value_weight": 0.1},
        **common,
    )  # fmt: skip
    second = trained(on, tmp_path / "second.yaml", monkeypatch)
    after = load_file(second / "adapter_model.safetensors")
    assert before.keys() == after.keys()
    for part in ("lora_B", "critic.online"):
        moved = [name for name in before if part in name and not before[name].equal(after[name])]
        assert moved, f"no {part} was trained on in the round"


@pytest.mark.parametrize("model", MODELS)
def test_the_loop_knows_the_recipe_and_every_key_of_it(model: str) -> None:
    evolve = load_evolve(RECIPES / f"{model}_libero_pro.yaml")
    assert evolve.base.train == evolve.training.train == f"coda_{model}.yaml"
    demos, train = load_demos(RECIPES / evolve.training.train)
    assert demos.render == evolve.render and demos.render.size == 256 and demos.render.every == 1
    assert train["policy"]["value_weight"] == evolve.training.value_weight > 0
    assert train["peft"]["lora_alpha"] == 2 * train["peft"]["r"]
    assert evolve.training.grounding_weight == 0 == evolve.budget.layouts_per_round
