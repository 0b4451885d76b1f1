"""Compilation: a rule for each failure mode, scenes that keep to it, and what decisions do to a program."""

import numpy as np
import pytest
from fakeworld import write_recipes

from lerobot_coda.critic.clusters import FailureCluster
from lerobot_coda.critic.diagnosis import Mode, Stage
from lerobot_coda.programs import RULES, CoProgram, combine, compile_cluster, exploration
from lerobot_coda.recipe import load_evolve
from libero_pro.denylist import leaks
from libero_pro.suites import BASE


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return load_evolve(write_recipes(tmp_path_factory.mktemp("recipe")))


def found(mode: Mode, suite: str = "libero_object") -> FailureCluster:
    return FailureCluster(
        mode=mode, stage=Stage.REACH, suite=suite, causes={"missed_grasp": 1}, tasks=(2,), objects=(), diagnoses=("d",)
    )


def compiled(mode: Mode, recipe) -> CoProgram:
    return compile_cluster(found(mode), recipe, 1)


def test_every_mode_has_a_rule_with_a_reason():
    assert set(RULES) == set(Mode)
    assert all(rule.why and rule.operations for rule in RULES.values())


@pytest.mark.parametrize("suite", BASE)
@pytest.mark.parametrize("mode", Mode)
def test_every_rule_compiles_for_every_base_suite(recipe, mode, suite):
    program = compile_cluster(found(mode, suite), recipe.model_copy(update={"suite": suite}), 1)
    assert program.generation.operations and program.generation.difficulty > 0
    assert CoProgram.parse(program.to_json()) == program


def test_a_localization_program_moves_objects_retargets_and_grounds(recipe):
    program = compiled(Mode.LOCALIZATION, recipe)
    scenes = [program.generation.sample(np.random.default_rng(k)) for k in range(30)]
    assert len({s.goal for s in scenes}) > 3
    assert all(s.objects and s.program == program.generation.hash for s in scenes)
    assert program.training.grounding_layouts == recipe.budget.layouts_per_round
    assert program.training.emphasis == "reach" and program.training.include_failures
    assert sum(leaks(s) is None for s in scenes) >= 20


def test_a_placement_program_moves_the_receptacle_and_no_goal(recipe):
    program = compiled(Mode.PLACEMENT, recipe)
    scenes = [program.generation.sample(np.random.default_rng(k)) for k in range(12)]
    baskets = np.array([s.objects["basket_1"].position[:2] for s in scenes])
    assert np.ptp(baskets, axis=0).min() > 0.05
    assert all("basket" in s.instruction for s in scenes)
    assert {s.goal for s in scenes} <= {compile_goal(s) for s in scenes}


def compile_goal(scene):
    from libero_pro.suites import get_task

    return get_task(scene.suite, scene.task_id).goal()


def test_grasp_is_taught_under_more_noise_than_localization(recipe):
    assert compiled(Mode.GRASP, recipe).training.noise > compiled(Mode.LOCALIZATION, recipe).training.noise
    assert compiled(Mode.GRASP, recipe).training.grounding_layouts == 0


def test_exploration_knows_of_no_diagnosis(recipe):
    programs = exploration(recipe, 1)
    assert [p.name for p in programs] == ["explore-places", "explore-offsets", "explore-targets"]
    assert {p.generation.difficulty for p in programs} == {recipe.probe.difficulty}
    assert programs[0].hash != exploration(recipe, 2)[0].hash, "rounds must not share scenes"


def test_decisions_change_the_difficulty_and_keep_the_line_of_descent(recipe):
    program = compiled(Mode.GRASP, recipe)
    harder, easier = program.after("promote", 2), program.after("refine", 2)
    assert harder.generation.difficulty == 0.75 and easier.generation.difficulty == 0.25
    assert harder.parent == easier.parent == program.hash and harder.name == program.name
    assert program.after("keep", 2) is program and program.after("retire", 2) is None
    top = harder.after("promote", 3)
    assert top.generation.difficulty == 1.0 and top.after("promote", 4) is None
    bottom = easier.after("refine", 3)
    assert bottom.generation.difficulty == 0.15 and bottom.after("refine", 4) is bottom


def test_one_training_serves_all_programs_of_a_round(recipe):
    parts = [compiled(mode, recipe).training for mode in (Mode.LOCALIZATION, Mode.GRASP)]
    both = combine(parts, recipe.training)
    assert both.grounding_layouts == 10 and both.noise == parts[1].noise and both.include_failures
    assert combine([], recipe.training).steps == recipe.training.steps


def test_the_policy_block_keeps_the_recipes_grounding_weight_unless_a_program_sets_one(recipe, tmp_path):
    grasp, localization = compiled(Mode.GRASP, recipe).training, compiled(Mode.LOCALIZATION, recipe).training
    assert grasp.policy_overrides(None) == {"grounding_path": None, "value_weight": 0.1}
    assert localization.policy_overrides(tmp_path)["grounding_weight"] == 1.0
