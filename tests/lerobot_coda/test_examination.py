"""Examination: diagnoses of test suites, validated on the base suite, with nothing trained and nothing mixed up."""

import argparse
import io
from types import SimpleNamespace

import pytest
from fakeworld import FakeEngine, write_recipes
from rich.console import Console
from synthetic import scene

from lerobot_coda import engine as world
from lerobot_coda import examination
from lerobot_coda import memory as m
from lerobot_coda.commands import diagnose as command
from lerobot_coda.console import Display
from lerobot_coda.examination import examine
from lerobot_coda.memory import Memory
from lerobot_coda.recipe import load_evolve
from libero_pro.record import RecordError, write_atomically

SUITES = ("libero_object_swap", "libero_object_task")


class FailsTests(FakeEngine):
    """A policy that fails on every released start."""

    def wins(self, where, skill):
        return where.init_state_id is None and super().wins(where, skill)


def starts(suites, *, task_ids, episodes, prompt_source):
    """Released starts whose objects are those of the world without physics."""
    return [
        scene(seed, task).model_copy(update={"suite": suite, "init_state_id": seed})
        for suite in suites
        for task in task_ids
        for seed in range(episodes)
    ]


@pytest.fixture
def made(tmp_path, monkeypatch):
    """(recipe's path, checkpoint, engine) of a policy that was never trained."""
    monkeypatch.setattr(examination, "benchmark_scenes", starts)
    checkpoint = tmp_path / "base" / "pretrained_model"
    write_atomically(checkpoint / "skill", b"0")
    write_atomically(checkpoint / "config.json", b"{}")
    return write_recipes(tmp_path), checkpoint, FailsTests()


def look(made, folder, suites=SUITES, pairs=8):
    path, checkpoint, engine = made
    recipe = load_evolve(path)
    recipe = recipe.model_copy(update={"validation": recipe.validation.model_copy(update={"pairs": pairs})})
    display = Display(Console(file=io.StringIO()))
    return examine(recipe, checkpoint, folder, suites, episodes=2, engine=engine, display=display)


def test_failures_on_tests_lead_to_programs_that_are_validated_on_the_base_suite(made, tmp_path):
    found = look(made, tmp_path / "out")
    assert [e.suite for e in found] == list(SUITES)
    store = Memory(tmp_path / "out" / "memory.sqlite")
    for examined in found:
        [(program, cluster)] = examined.compiled
        verdict = examined.verdicts[program.name]
        assert cluster.suite == examined.suite and cluster.size == 6 and program.generation.suite == "libero_object"
        assert (verdict.outcome, verdict.pairs, verdict.program_same, verdict.control_same) == ("validated", 8, 8, 0)
        assert verdict.contrasts >= 5  # all of them scenes that the program made
        lineage = store.lineage(examined.failed_scenes(cluster)[0])
        assert lineage["scene"]["suite"] == examined.suite and not lineage["gates"] and not lineage["made_by"]
        assert [e["purpose"] for e in lineage["episodes"]] == ["evaluation"]
        assert lineage["verdicts"][0]["outcome"] == "validated" and lineage["led_to"][0]["hash"] == program.hash
    tested = [row for row in store.rows(m.Scene) if row["suite"] != "libero_object"]
    generated = [row for row in store.rows(m.Scene) if row["program"]]
    assert len(tested) == 12 and not any(row["program"] for row in tested)
    assert generated and all(row["body"].get("init_state_id") is None for row in generated)
    store.close()
    assert not {"train", "shard", "demonstrate"} & set(made[2].calls)


def test_it_goes_on_where_it_stopped_and_takes_more_pairs(made, tmp_path):
    first = look(made, tmp_path / "out", pairs=0)
    assert {v.outcome for e in first for v in e.verdicts.values()} == {"undecided"}
    played = made[2].calls["rollout"]
    again = look(made, tmp_path / "out", pairs=0)
    assert made[2].calls["rollout"] == played and again[0].verdicts == first[0].verdicts
    assert {v.outcome for e in look(made, tmp_path / "out") for v in e.verdicts.values()} == {"validated"}


def test_what_cannot_be_examined_is_said_before_anything_is_played(made, tmp_path):
    with pytest.raises(RecordError, match="libero_goal_swap belongs to libero_goal, and the recipe's programs vary"):
        look(made, tmp_path / "out", ("libero_object_swap", "libero_goal_swap"))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    with pytest.raises(RecordError, match="holds a run that learns"):
        look(made, tmp_path / "run")
    assert not made[2].calls


def test_the_command_tells_of_every_cluster_and_where_to_look_on(made, tmp_path, monkeypatch, capsys):
    path, checkpoint, engine = made
    monkeypatch.setattr(world, "LiberoEngine", SimpleNamespace(of=lambda recipe: engine))
    monkeypatch.setattr(command, "preflight", lambda *checks, **more: None)
    parser = argparse.ArgumentParser()
    command.add(parser.add_subparsers())

    def call(*words):
        arguments = parser.parse_args(["diagnose", *map(str, words), "--output", str(tmp_path / "out")])
        arguments.run(arguments)
        return capsys.readouterr().out

    told = call(path, "--policy.path", checkpoint, "--suites", *SUITES, "--episodes", "2")
    assert "libero_object_task: 6 of 6 episodes failed" in told
    assert "localization (missed_grasp 6), most in the stage reach" in told
    assert "program localization-2" in told and told.count("validated, fails in this mode") == 2
    assert f"lerobot-coda memory lineage {tmp_path / 'out'} " in told
    with pytest.raises(RecordError, match="is not a checkpoint's folder"):
        call(path, "--policy.path", tmp_path)
    with pytest.raises(RecordError, match="--pairs must be at least 0"):
        call(path, "--policy.path", checkpoint, "--pairs", "-1")
