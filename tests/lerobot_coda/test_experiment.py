"""Experiments: arms from one base policy, paired on held-out episodes, and what is said of them."""

import io
import json
import shutil

import pytest
import yaml
from fakeworld import FakeEngine, Killed, write_recipes
from rich.console import Console

from lerobot_coda.comparison import Arm, axis_rows, budget_rows, curve_rows
from lerobot_coda.console import Display
from lerobot_coda.experiment import load_experiment, run_arms
from libero_pro.record import RecordError

EXPERIMENT = {
    "name": "tiny-arms",
    "recipes": ["tiny.yaml"],
    "arms": ["coda", "sfl", "sft"],
    "axes": {"position": ["libero_object_swap"], "instruction": ["libero_object_task"]},
    "episodes_per_task": 4,
}


def write(folder, rounds=1, **changes):
    folder.mkdir(exist_ok=True)
    write_recipes(folder, rounds=rounds)
    path = folder / "experiment.yaml"
    path.write_text(yaml.safe_dump(EXPERIMENT | changes))
    return path


@pytest.fixture
def fake_checkpoints(monkeypatch):
    """The fake engine's checkpoints have no weights to tell them by."""
    monkeypatch.setattr("lerobot_coda.experiment.checkpoint_id", lambda path: (path / "skill").read_text())


def counted(calls):
    """Measures by the fake checkpoint's skill: of four starts a task the first `skill` are solved."""

    def measured(experiment, recipe, checkpoint, out, display):
        calls.append(out.name)
        skill = int((checkpoint / "skill").read_text())
        return {
            (suite, task, k, 1000 + k): k < skill
            for suite in experiment.suites(recipe)
            for task in recipe.task_ids
            for k in range(experiment.episodes_per_task)
        }

    return measured


def quiet() -> Display:
    return Display(Console(file=io.StringIO()))


def arms_of(folder, wanted, calls, engine=None):
    experiment, recipes = load_experiment(folder / "experiment.yaml")
    measured, engine = counted(calls), engine or FakeEngine()
    return run_arms(
        experiment, recipes, folder / "runs", wanted, records=folder / "records", display=quiet(), engine=engine,
        measured=measured,
    )  # fmt: skip


def test_arms_start_from_one_base_and_are_paired(tmp_path, fake_checkpoints):
    write(tmp_path)
    calls: list[str] = []
    arms = arms_of(tmp_path, ["coda", "sfl"], calls)
    assert [arm.name for arm in arms] == ["coda", "sfl"] and calls.count("libero_object-0") == 2
    rows = {row["figure"]: row for row in axis_rows(["libero_object_swap"], arms, "command")}
    assert (rows["before"]["value"], rows["before"]["n"]) == (0.0, 12)
    assert rows["coda"]["value"] == rows["after"]["value"] == 0.25 and rows["coda"]["peer"].startswith("before: +3 -0")
    assert (rows["over_best_closed_loop"]["value"], rows["p_value"]["value"]) == (0.0, 1.0)
    assert rows["leaked"]["value"] == 0 and rows["hours"]["n"] == 1
    used = {row["arm"]: row for row in budget_rows(arms)}
    assert used["coda"]["environments"] <= 24 and used["sfl"]["validation_environments"] == 0
    for arm in ("coda", "sfl"):  # each run has a log of its own, for its live page
        log = (tmp_path / "runs" / f"libero_object-{arm}-0" / "log.jsonl").read_text().splitlines()
        assert any(json.loads(line)["step"] == "round 1 probe" for line in log)


def test_success_over_rounds_is_of_the_episodes_that_all_rounds_have(tmp_path, fake_checkpoints):
    write(tmp_path, rounds=2, curve=2)
    calls: list[str] = []
    arms = arms_of(tmp_path, ["sfl"], calls)
    assert "experiment-r001" in calls and "experiment-r002" not in calls
    rows = curve_rows({"position": ["libero_object_swap"]}, arms)
    assert [(row["round"], row["n"], row["success_rate"]) for row in rows] == [(0, 6, 0.0), (1, 6, 0.5), (2, 6, 1.0)]


def test_an_arm_is_added_later_and_what_is_done_is_not_done_again(tmp_path, fake_checkpoints):
    write(tmp_path)
    arms_of(tmp_path, ["coda"], [])
    engine = FakeEngine()
    arms = arms_of(tmp_path, ["sft"], [], engine)
    assert [arm.name for arm in arms] == ["coda", "sft"] and engine.calls["train"] == 2 and engine.calls["ground"] == 0


def test_a_finished_run_stays_as_it_was_made(tmp_path, fake_checkpoints):
    write(tmp_path)
    arms_of(tmp_path, ["coda"], [])
    step = tmp_path / "runs" / "libero_object-coda-0" / "rounds" / "001" / "steps" / "probe.json"
    step.write_text(json.dumps({**json.loads(step.read_text()), "inputs": "of an earlier version"}))
    engine = FakeEngine()
    assert [arm.name for arm in arms_of(tmp_path, ["coda"], [], engine)] == ["coda"] and not engine.log
    write_recipes(tmp_path, rounds=1, seed=3, probe={"scenes": 5})
    with pytest.raises(RecordError, match="holds a run of another recipe"):
        arms_of(tmp_path, ["coda"], [])


def test_runs_made_elsewhere_are_compared_by_their_files(tmp_path, fake_checkpoints):
    for folder, arm in (("here", "coda"), ("there", "sfl")):
        write(tmp_path / folder)
        (made,) = arms_of(tmp_path / folder, [arm], [])
        assert made.name == arm
    shutil.copy(tmp_path / "there" / "records" / "libero_object-sfl-0.json", tmp_path / "here" / "records")
    engine, calls = FakeEngine(), []
    coda, sfl = arms_of(tmp_path / "here", ["coda", "sfl"], calls, engine)
    assert not engine.log and sfl == made and not any("sfl" in call for call in calls)
    shutil.rmtree(tmp_path / "here" / "runs")
    assert arms_of(tmp_path / "here", ["coda", "sfl"], [], engine) == [coda, sfl] and not engine.log


@pytest.mark.parametrize("other", [{"episodes_per_task": 3}, {"axes": {"position": ["libero_object_swap"]}}])
def test_a_run_measured_otherwise_is_not_compared(tmp_path, fake_checkpoints, other):
    write(tmp_path)
    arms_of(tmp_path, ["coda"], [])
    shutil.rmtree(tmp_path / "runs")
    write(tmp_path, **other)
    with pytest.raises(RecordError, match=r"libero_object-coda-0.json is of another recipe, or was measured on other"):
        arms_of(tmp_path, ["coda"], [])


def test_an_arm_that_was_killed_is_not_compared(tmp_path, fake_checkpoints):
    write(tmp_path)
    arms_of(tmp_path, ["sfl"], [])
    with pytest.raises(Killed):
        arms_of(tmp_path, ["coda"], [], FakeEngine(kill_at=9))
    assert [arm.name for arm in arms_of(tmp_path, ["sfl"], [])] == ["sfl"]


def arm(name: str, solved: int, n: int = 200, **changes) -> Arm:
    keys = [(0, "libero_object_swap", k % 10, k // 10, 1000 + k) for k in range(n)]
    before, after = dict.fromkeys(keys, False), {key: k < solved for k, key in enumerate(keys)}
    given = {"runs": 1, "environments": 320, "validation_environments": 0, "layouts": 0, "steps": {}, "leaked": 0}
    return Arm(name=name, before=before, after=after, curve={}, hours=1.0, **{**given, **changes})


def test_coda_is_compared_with_the_best_closed_loop_arm_and_with_no_other():
    arms = [arm("coda", 120), arm("sfl", 80), arm("plr", 90), arm("uniform", 110, leaked=2), arm("no-critic", 115)]
    rows = {row["figure"]: row for row in axis_rows(["libero_object_swap"], arms, "command")}
    assert rows["over_best_closed_loop"]["value"] == 15.0 and rows["over_best_closed_loop"]["peer"] == "plr: +30 -0"
    assert rows["p_value"]["value"] == pytest.approx(2 * 0.5**30)
    assert rows["no-critic"]["value"] == 0.575 and rows["leaked"]["value"] == 2
    assert rows["coda"]["low"] == pytest.approx(0.5309, abs=1e-3)


def test_without_coda_or_a_rival_nothing_is_claimed():
    alone = {row["figure"] for row in axis_rows(["libero_object_swap"], [arm("coda", 5)], "c")}
    assert "after" in alone and "over_best_closed_loop" not in alone
    assert "after" not in {row["figure"] for row in axis_rows(["libero_object_swap"], [arm("plr", 5)], "c")}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arms": ["codaa"]}, "field 'arms.0'"),
        ({"axes": {"position": ["libero_object_swop"]}}, "did you mean 'libero_object_swap'"),
        ({"axes": {"position": ["libero_goal_swap"]}}, "has libero_goal_swap, whose base suite no recipe"),
        ({"episode": 3}, "unknown key 'episode'"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(tmp_path, changes, message):
    with pytest.raises(RecordError) as error:
        load_experiment(write(tmp_path, **changes))
    assert message in str(error.value)


def test_the_shipped_experiment_is_whole():
    experiment, recipes = load_experiment("recipes/experiments/libero_object.yaml")
    (recipe,) = recipes.values()
    assert experiment.suites(recipe) == ["libero_object_swap", "libero_object_task"]
    assert not set(recipe.heldout.suites) & set(experiment.suites(recipe))
