"""How `lerobot-train` is configured, run, followed, resumed and stopped; a small script stands in for it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from lerobot_coda import training
from lerobot_coda.threads import usable_cores
from lerobot_coda.training import TrainingError, run_lerobot_train, train_config

TRAINER = """
import json, os, sys, time
from pathlib import Path
import yaml
path = Path(sys.argv[1].removeprefix("--config_path="))
config = yaml.safe_load(path.read_text())
output, steps = Path(config["output_dir"]), config["steps"]
mode = config["job_name"]
if mode == "fails":
    print("Traceback (most recent call last):"); print("ValueError: dataset.root is not there"); sys.exit(1)
if mode == "hangs":
    (path.parent / "pid").write_text(str(os.getpid())); time.sleep(600)
if not sys.argv[2:] and output.exists():
    sys.exit("output_dir exists")
first = 4 if sys.argv[2:] == ["--resume=true"] else 0
for step in range(first, steps + 1):
    sys.stderr.write(f"\\rTraining:  10%|#         | {step - first}/{steps - first} [00:01<00:02,  8.9step/s]")
last = output / "checkpoints" / f"{steps:06d}" / "pretrained_model"
last.mkdir(parents=True)
(last / "config.json").write_text(json.dumps({"resumed_at": first, "threads": os.environ["OMP_NUM_THREADS"]}))
link = output / "checkpoints" / "last"
link.unlink(missing_ok=True)
link.symlink_to(last.parent.name)
"""
RECIPE = {
    "dataset": {"repo_id": "a/b", "root": "datasets/b", "video_backend": "pyav"},
    "policy": {"type": "coda", "scheduler_decay_steps": 900, "grounding_path": "x", "grounding_weight": 1.0},
    "steps": 900,
    "batch_size": 32,
    "output_dir": "outputs/x",
}


@pytest.fixture
def config(tmp_path, monkeypatch):
    trainer = tmp_path / "trainer.py"
    trainer.write_text(TRAINER)
    monkeypatch.setattr(training, "COMMAND", (sys.executable, str(trainer)))
    return {"output_dir": str(tmp_path / "out"), "steps": 9, "job_name": "works"}


def test_a_round_goes_on_from_a_checkpoint_on_its_own_data():
    made = train_config(
        RECIPE, dataset=Path("/d"), output=Path("/o"), steps=200, seed=3, start=Path("/c"), repo_id="coda/r",
        policy={"grounding_path": "/g", "value_weight": 0.1},
    )  # fmt: skip
    assert made["policy"]["path"] == "/c" and "type" not in made["policy"]
    assert made["policy"]["grounding_path"] == "/g" and made["policy"]["grounding_weight"] == 1.0
    assert (made["policy"]["scheduler_decay_steps"], made["policy"]["scheduler_warmup_steps"]) == (200, 20)
    assert made["dataset"] == {"repo_id": "coda/r", "root": "/d", "video_backend": "pyav"}
    assert (made["steps"], made["seed"], made["output_dir"], made["batch_size"]) == (200, 3, "/o", 32)
    assert made["policy"]["push_to_hub"] is False
    assert RECIPE["policy"]["grounding_path"] == "x"


def test_an_override_of_none_takes_the_key_away():
    made = train_config(RECIPE, dataset=Path("d"), output=Path("o"), steps=9, seed=0, policy={"grounding_path": None})
    assert "grounding_path" not in made["policy"] and made["policy"]["type"] == "coda"


def test_steps_are_followed_and_the_exact_recipe_is_left_behind(config, tmp_path):
    seen = []
    checkpoint = run_lerobot_train(config, tmp_path / "train.yaml", tick=seen.append)
    assert (checkpoint / "config.json").is_file() and checkpoint.parts[-2:] == ("last", "pretrained_model")
    assert seen == sorted(seen) and seen[-1] == 9 and len(seen) > 5
    assert yaml.safe_load((tmp_path / "train.yaml").read_text()) == config
    assert f'"threads": "{max(1, usable_cores() - 4)}"' in (checkpoint / "config.json").read_text()
    assert "Training" in (tmp_path / "train.log").read_text()


def test_a_finished_training_is_not_run_again(config, tmp_path, monkeypatch):
    run_lerobot_train(config, tmp_path / "train.yaml", tick=lambda n: None)
    monkeypatch.setattr(training, "COMMAND", ("false",))
    run_lerobot_train(config, tmp_path / "train.yaml", tick=lambda n: None)


def test_an_interrupted_training_goes_on_from_its_last_checkpoint(config, tmp_path):
    half = Path(config["output_dir"]) / "checkpoints" / "000004" / "pretrained_model"
    half.mkdir(parents=True)
    (half.parent.parent / "last").symlink_to("000004")
    (half / "config.json").write_text("{}")
    (half / "train_config.json").write_text(yaml.safe_dump(config))
    seen = []
    checkpoint = run_lerobot_train(config, tmp_path / "train.yaml", tick=seen.append)
    assert '"resumed_at": 4' in (checkpoint / "config.json").read_text()
    assert seen == [4, 5, 6, 7, 8, 9]  # LeRobot's bar counts from where it went on


def test_one_that_left_no_checkpoint_is_begun_again(config, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "half-written").write_text("x")
    checkpoint = run_lerobot_train(config, tmp_path / "train.yaml", tick=lambda n: None)
    assert '"resumed_at": 0' in (checkpoint / "config.json").read_text()


def test_a_failure_is_one_sentence_with_the_cause_and_the_log(config, tmp_path):
    with pytest.raises(TrainingError, match=r"code 1: ValueError: dataset.root is not there; its log is .*train.log"):
        run_lerobot_train(config | {"job_name": "fails"}, tmp_path / "train.yaml", tick=lambda n: None)


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
def test_the_trainer_dies_with_a_killed_parent(config, tmp_path):
    """kill -9 of the loop must not leave a trainer that works against the rerun."""
    code = (
        f"import pathlib; from lerobot_coda import training; training.COMMAND = {training.COMMAND!r}\n"
        f"training.run_lerobot_train({config | {'job_name': 'hangs'}!r}, pathlib.Path({str(tmp_path / 't.yaml')!r}),"
        " tick=print)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    pid = tmp_path / "pid"
    deadline = time.monotonic() + 60
    while not (pid.exists() and pid.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    trainer = int(pid.read_text())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    while time.monotonic() < deadline:
        try:
            os.kill(trainer, 0)
            state = Path(f"/proc/{trainer}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (ProcessLookupError, FileNotFoundError):
            return
        if state == "Z":  # dead, waiting for a parent that may never reap it in a container
            return
        time.sleep(0.05)
    pytest.fail("the trainer outlived its parent")
