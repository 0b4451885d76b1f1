"""The command line: one sentence and code 2 for bad input before any work, a light start, a full disk, `demos`."""

import errno
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from fakeworld import TRAIN, FakeEngine, Killed, write_recipes

from lerobot_coda import cli, evolve
from lerobot_coda.commands import evolve as evolve_command
from lerobot_coda.demos import build_demos
from libero_pro.episode import Episode
from libero_pro.record import RecordError


@pytest.fixture
def engine(monkeypatch):
    """The fake world in place of the real one, and no look for GL or free space."""
    made = FakeEngine()
    monkeypatch.setattr(evolve, "LiberoEngine", SimpleNamespace(of=lambda recipe: made))
    monkeypatch.setattr(evolve_command, "preflight", lambda *checks, **more: None)
    monkeypatch.setattr(evolve_command, "_show", lambda output: print("finished", output))
    return made


def fails(capsys, *arguments: str) -> str:
    """Runs a command that must fail; returns its one line."""
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert err.startswith("lerobot-coda: ") and err.count("\n") == 1 and not out.strip()
    return err


def test_help_is_light():
    """`--help` and bad input must not wait for torch, MuJoCo or LeRobot."""
    code = (
        "import sys; from lerobot_coda import cli\n"
        "try: cli.main(['--help'])\nexcept SystemExit: pass\n"
        "from lerobot_coda.evolve import evolve\n"
        "print([m for m in ('torch', 'mujoco', 'robosuite', 'lerobot') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "evolve" in out and "benchmark" in out and out.strip().endswith("[]")


def test_evolve_runs_a_recipe_in_the_named_folder(engine, tmp_path, capsys):
    recipe = write_recipes(tmp_path, rounds=1)
    assert cli.main(["evolve", str(recipe), "--output", str(tmp_path / "here")]) == 0
    out = capsys.readouterr().out
    assert "round 1: " in out and "validated" in out and "left" in out
    assert out.strip().endswith(f"finished {tmp_path / 'here'}")
    assert (tmp_path / "here" / "summary.json").is_file()


def test_bad_recipes_are_refused_before_work(engine, tmp_path, capsys):
    for changes, message in (
        ({"prob": 1}, "did you mean 'probe'?"),
        ({"suite": "libero_objects"}, "nearest is 'libero_object'"),
        ({"task_ids": [11]}, "tasks 0 to 9, not 11"),
    ):
        assert message in fails(capsys, "evolve", str(write_recipes(tmp_path, **changes)))
    assert "cannot be read" in fails(capsys, "evolve", str(tmp_path / "nowhere.yaml"))
    assert engine.log == []


def test_a_pretrained_model_that_cannot_be_had_is_told_of_before_work(engine, tmp_path, capsys):
    recipe = write_recipes(tmp_path)
    train = TRAIN | {"policy": {**TRAIN["policy"], "backbone_path": str(tmp_path / "no" / "model")}}
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(train))
    said = fails(capsys, "evolve", str(recipe), "--output", str(tmp_path / "run"))
    assert "is neither a folder nor a hub id" in said and engine.log == []


def test_another_recipe_in_the_folder_is_refused(engine, tmp_path, capsys):
    output = ["--output", str(tmp_path / "run")]
    assert cli.main(["evolve", str(write_recipes(tmp_path, rounds=0)), *output]) == 0
    capsys.readouterr()
    message = fails(capsys, "evolve", str(write_recipes(tmp_path, rounds=0, seed=5)), *output)
    assert "holds a run of another recipe" in message and "--output" in message


def test_a_folder_that_cannot_be_written_is_refused(tmp_path, capsys, monkeypatch):
    recipe = write_recipes(tmp_path)
    engine = FakeEngine()
    monkeypatch.setattr(evolve, "LiberoEngine", SimpleNamespace(of=lambda recipe: engine))
    for output in ("/proc/run", str(recipe)):
        assert "choose another with --output" in fails(capsys, "evolve", str(recipe), "--output", output)
    assert engine.log == []


def test_a_disk_that_fills_stops_with_a_sentence_and_the_run_goes_on_afterwards(engine, tmp_path, capsys, monkeypatch):
    command = ["evolve", str(write_recipes(tmp_path, rounds=1)), "--output", str(tmp_path / "run")]
    whole = engine.write_shard

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device", "shard")

    monkeypatch.setattr(engine, "write_shard", full)
    assert cli.main(command) == 2
    err = capsys.readouterr().err
    assert "No space left on device" in err and "run the same command again" in err
    monkeypatch.setattr(engine, "write_shard", whole)
    done = len(engine.log)
    assert cli.main(command) == 0
    assert engine.log[done] == "shard", "the demonstrations were made before"


def test_ctrl_c_says_how_to_go_on(engine, tmp_path, capsys, monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "train", interrupt)
    assert cli.main(["evolve", str(write_recipes(tmp_path)), "--output", str(tmp_path / "run")]) == 130
    assert "goes on from here" in capsys.readouterr().err


def test_demos_wants_a_recipe_or_suites(capsys):
    assert "name one: a train recipe, or --suite" in fails(capsys, "demos")
    assert "libero_goal" in fails(capsys, "demos", "--suite", "libero_gaol")


def test_benchmark_names_an_unknown_suite(capsys):
    message = fails(capsys, "benchmark", "x", "--suites", "libero_goal_swop", "--output", "unused")
    assert "did you mean 'libero_goal_swap'" in message
    assert not Path("unused").exists()


def demonstration_recipe(folder: Path, **sidecar) -> Path:
    (folder / "demos").mkdir(exist_ok=True)
    data = {"suite": "libero_object", "task_ids": [2, 5], "per_task": 3, **sidecar}
    (folder / "demos" / "y.yaml").write_text(yaml.safe_dump(data))
    path = folder / "train.yaml"
    policy = {"type": "coda", "grounding_path": str(folder / "g.safetensors")} if "layouts" in sidecar else {}
    path.write_text(
        yaml.safe_dump(TRAIN | {"dataset": {"repo_id": "x/y", "root": str(folder / "y")}, "policy": policy})
    )
    return path


def test_demos_builds_what_the_train_recipe_names_once(tmp_path):
    engine = FakeEngine()
    recipe = demonstration_recipe(tmp_path, layouts=8)
    assert build_demos(recipe, engine=engine) == tmp_path / "y"
    assert len((tmp_path / "y" / "shard").read_text().split()) == 6
    assert (tmp_path / "g.safetensors").read_text() == "8 after None"
    assert not (tmp_path / "y.episodes").exists()
    done = list(engine.log)
    build_demos(recipe, engine=engine)
    assert engine.log == done


def test_demos_goes_on_after_a_kill(tmp_path):
    recipe = demonstration_recipe(tmp_path)
    with pytest.raises(Killed):
        build_demos(recipe, engine=FakeEngine(kill_at=2))
    assert len(list((tmp_path / "y.episodes").glob("*.npz"))) == 6
    build_demos(recipe, engine=FakeEngine())
    assert (tmp_path / "y").is_dir()


def test_demos_refuses_a_set_that_the_expert_cannot_solve(tmp_path):
    class Helpless(FakeEngine):
        def demonstrate(self, scenes, out, noise, tick):
            from synthetic import lost

            return [lost(s, "expert") for s in scenes]

    with pytest.raises(RecordError, match="solved 0 of 6"):
        build_demos(demonstration_recipe(tmp_path), engine=Helpless())


def test_a_simulator_that_fails_is_not_taken_for_hard_tasks(tmp_path: Path) -> None:
    class Broken(FakeEngine):
        def demonstrate(self, scenes, out, noise, tick):
            return [Episode.unrun(scene, "expert", "a lost process") for scene in scenes]

    with pytest.raises(RecordError, match=r"solved 0 of 6 scenes, and 6 broke off, the first as a lost process; run"):
        build_demos(demonstration_recipe(tmp_path), engine=Broken())
