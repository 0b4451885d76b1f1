"""Two rounds of co-evolution of tiny VLAs, the real trainer in a world without physics; to the Hub and back."""

import io
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinyvlas
import yaml
from fakeworld import FakeEngine, write_recipes
from hubs import served
from rich.console import Console
from safetensors.torch import load_file
from test_vla_recipes import RECIPES, dataset, tiny_base, trained  # noqa: F401 (dataset is a fixture)

from lerobot_coda.console import Display
from lerobot_coda.evolve import evolve
from lerobot_coda.hub import Target, push
from lerobot_coda.recipe import read_yaml


class Learner(FakeEngine):
    """The fake world with the real trainer, on the one dataset there is."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch):
        super().__init__()
        self.root, self.monkeypatch = root, monkeypatch

    def train(self, config: dict[str, Any], path: Path, tick: Any) -> Path:
        output = Path(config["output_dir"])
        skill = (super().train(config, path, tick) / "skill").read_text()
        shutil.rmtree(output)  # LeRobot wants to make it
        real = {**config, "dataset": {**config["dataset"], "repo_id": "local/vla", "root": str(self.root)}}
        checkpoint = trained(real, path, self.monkeypatch)
        (checkpoint / "skill").write_text(skill)
        return checkpoint


def chunk(path: str | Path) -> np.ndarray:
    from libero_pro.policy_runner import LeRobotChunkPolicy
    from libero_pro.rollout import Observation

    rng, size = np.random.default_rng(1), tinyvlas.SIZE
    pixels = {camera: rng.integers(0, 255, (size, size, 3), dtype=np.uint8) for camera in ("agentview", "wrist")}
    seen = Observation(images=pixels, state=rng.random(8).astype(np.float32), prompt=tinyvlas.PROMPT, seed=5)
    return LeRobotChunkPolicy.from_pretrained(path).act([seen])


@pytest.mark.parametrize("model", ["smolvla", "pi0", "pi05"])
def test_adapters_go_on_from_round_to_round_and_come_back_from_the_hub(
    model: str,
    dataset: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = tiny_base(model, tmp_path, monkeypatch)
    own = {"backbone_path": str(base), "device": "cpu", "use_amp": False, "n_action_steps": tinyvlas.EXECUTES}
    recipe = read_yaml(RECIPES / f"coda_{model}.yaml") | {"batch_size": 2, "num_workers": 0}
    recipe["policy"] |= {**own, "optimizer_lr": 0.01}
    steps = {
        "base": {"steps": 1},
        "training": {"steps": 2, "grounding_weight": 0.0},
        "budget": {"layouts_per_round": 0},
    }
    written = write_recipes(tmp_path, **steps)
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(recipe))
    run, quiet = tmp_path / "run", Display(Console(file=io.StringIO()))
    engine = Learner(dataset, monkeypatch)
    summary = evolve(written, run, engine=engine, display=quiet)
    assert summary["finished"] and engine.calls["train"] == 3
    states = [run / "base", run / "rounds" / "001", run / "rounds" / "002"]
    last = [state / "train" / "checkpoints" / "last" / "pretrained_model" for state in states]
    adapters = [load_file(checkpoint / "adapter_model.safetensors") for checkpoint in last]
    for before, after in pairwise(adapters):
        assert before.keys() == after.keys() and any(not before[name].equal(after[name]) for name in before)
    assert (
        evolve(written, run, engine=engine, display=quiet)["finished"] and engine.calls["train"] == 3
    )  # nothing twice

    with served(monkeypatch, tmp_path) as hub:
        from huggingface_hub import HfApi

        HfApi().create_repo("ada/tiny", private=True)
        HfApi().upload_folder(repo_id="ada/tiny", folder_path=base)
        said: list[str] = []
        push(run, Target(repo="ada/milk", what=("checkpoints",), base="ada/tiny"), say=said.append)
        assert list(hub.repos["model", "ada/milk"].tags) == ["base", "round-001", "round-002"]
        if model == "smolvla":
            assert "only this machine has" in said[0]  # the tiny vision-language model is a folder here
        assert np.array_equal(chunk("ada/milk"), chunk(last[-1]))
