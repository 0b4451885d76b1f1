"""Policies that come with the package: complete, portable, and acting; how one is made from a checkpoint."""

import argparse
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import ModelCard

from lerobot_coda.commands import pretrained as command
from lerobot_coda.pretrained import folder, names
from lerobot_coda.pretrained.export import TRAINING_ONLY, export
from lerobot_coda.pretrained.export import main as export_main
from libero_pro.record import RecordError
from libero_pro.rollout import Observation

sys.path.insert(0, str(Path(__file__).parents[1] / "libero_pro"))
from rollout_parts import save_tiny_act


def seen(prompt: str) -> Observation:
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (128, 128, 3), dtype=np.uint8)
    return Observation({"agentview": image}, np.array([0, 0, 1, 3.1, 0, 0, 0.04, -0.04], np.float32), prompt, 0)


def test_a_policy_is_shipped_and_its_folder_printed(capsys):
    assert "libero_object_sft" in names()
    parser = argparse.ArgumentParser()
    command.add(parser.add_subparsers())
    for words, printed in (([], "libero_object_sft  {}"), (["libero_object_sft"], "{}")):
        arguments = parser.parse_args(["pretrained", *words])
        arguments.run(arguments)
        assert printed.format(folder("libero_object_sft")) in capsys.readouterr().out.splitlines()
    with pytest.raises(RecordError, match="no policy 'libero_object_stf' is shipped; did you mean 'libero_object_sft'"):
        folder("libero_object_stf")


@pytest.mark.parametrize("name", names())
def test_a_shipped_policy_names_no_path_and_has_a_card(name: str):
    path = folder(name)
    assert {"config.json", "model.safetensors", "README.md"} <= {file.name for file in path.iterdir()}
    assert not (path / "train_config.json").exists()
    for file in path.glob("*.json"):
        for text in json.dumps(json.loads(file.read_text())).split('"'):
            assert not text.startswith(("/", "~")), (file.name, text)
    settings = json.loads((path / "config.json").read_text())
    assert all(settings.get(field) is None for field in TRAINING_ONLY)
    card = ModelCard.load(path / "README.md")
    assert card.data.license == "apache-2.0" and "made by" in card.text
    assert sum(file.stat().st_size for file in path.iterdir()) < 8e6


@pytest.mark.parametrize("name", names())
def test_a_shipped_policy_acts_by_image_and_instruction(name: str):
    from libero_pro.policy_runner import LeRobotChunkPolicy

    policy = LeRobotChunkPolicy.from_pretrained(folder(name))
    prompts = ("pick the milk and place it in the basket", "pick the butter and place it in the basket")
    first, second = (policy.act([seen(prompt)]) for prompt in prompts)
    assert first.shape == (1, policy.n_action_steps, 7) and np.abs(first).max() <= 1
    assert set(np.unique(first[..., 6])) <= {-1.0, 1.0}
    assert not np.array_equal(first, second)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return save_tiny_act(tmp_path_factory.mktemp("checkpoint"), cameras=("image",))


def test_an_export_is_portable_and_acts_the_same(checkpoint: Path, tmp_path: Path):
    from libero_pro.policy_runner import LeRobotChunkPolicy

    source = shutil.copytree(checkpoint, tmp_path / "source")
    settings = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**settings, "pretrained_path": "/somewhere/else"}))
    (source / "train_config.json").write_text(json.dumps({"steps": 7, "seed": 3, "output_dir": "/somewhere"}))
    target = tmp_path / "mine"
    assert export_main([str(source), str(target), "--made-by", "lerobot-train --steps=7"]) == 0
    assert not any(b"somewhere" in file.read_bytes() for file in target.iterdir())
    card = (target / "README.md").read_text()
    assert "`lerobot-train --steps=7`" in card and "steps 7, seed 3" in card
    assert "| acts | chunks of 10 steps, 5 of them executed |" in card
    one, two = (LeRobotChunkPolicy.from_pretrained(path).act([seen("pick")]) for path in (source, target))
    np.testing.assert_array_equal(one, two)
    with pytest.raises(RecordError, match="exists; remove it first"):
        export(source, target, made_by="x")


def test_what_cannot_be_shipped_is_said_and_leaves_nothing(checkpoint: Path, tmp_path: Path, capsys):
    source = shutil.copytree(checkpoint, tmp_path / "source")
    settings = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**settings, "tags": ["ok", "/home/me/data"]}))
    assert export_main([str(source), str(tmp_path / "mine"), "--made-by", "x"]) == 2
    assert "config.json: tags.1 names a path of this machine, /home/me/data" in capsys.readouterr().err
    (source / "model.safetensors").unlink()
    with pytest.raises(RecordError, match=r"has no model\.safetensors"):
        export(source, tmp_path / "mine", made_by="x")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
