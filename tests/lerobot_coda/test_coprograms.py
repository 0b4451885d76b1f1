"""Compilation: a rule for each failure class, scenes that keep to it, and what operators do to a program."""

import numpy as np
import pytest
from fakeworld import write_recipes
from hypothesis import given, settings
from hypothesis import strategies as st

from lerobot_coda.coprograms import StartCurriculum, easier, harder, joined, revived, specialize
from lerobot_coda.critic.clusters import FailureCluster
from lerobot_coda.critic.diagnosis import Cause, Mode, Stage
from lerobot_coda.programs import CoProgram, combine, compile_cluster, exploration, levels, undiagnosed
from lerobot_coda.recipe import load_evolve
from lerobot_coda.rules import BY_CAUSE, BY_MODE, SUGGESTIBLE, rule_of
from libero_pro.denylist import leaks
from libero_pro.operations import DRESSES, MOVES, Arm, Rephrase, Retarget
from libero_pro.record import RecordError
from libero_pro.suites import BASE


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return load_evolve(write_recipes(tmp_path_factory.mktemp("recipe")))


def found(mode: Mode, suite: str = "libero_object", **causes: int) -> FailureCluster:
    causes = causes or {"missed_grasp": 1}
    diagnoses = tuple(f"d{n}" for n in range(sum(causes.values())))
    return FailureCluster(
        mode=mode, stage=Stage.REACH, suite=suite, causes=causes, tasks=(2,), objects=(), diagnoses=diagnoses
    )


def compiled(mode: Mode, recipe, **causes: int) -> CoProgram:
    return compile_cluster(found(mode, **causes), recipe, 1)


def test_every_mode_has_a_rule_with_a_reason():
    assert set(BY_MODE) == set(Mode)
    assert all(rule.why and rule.operations for rule in (*BY_MODE.values(), *BY_CAUSE.values()))


@pytest.mark.parametrize("suite", BASE)
def test_every_rule_compiles_for_every_base_suite(recipe, suite):
    within = recipe.model_copy(update={"suite": suite})
    clusters = [found(mode, suite) for mode in Mode]
    clusters += [found(Mode.MOTION, suite, **{str(cause): 2}) for cause in BY_CAUSE]
    for cluster in clusters:
        program = compile_cluster(cluster, within, 1)
        assert program.generation.operations and program.generation.difficulty > 0
        assert CoProgram.parse(program.to_json()) == program


def test_a_cause_has_its_own_rule_where_most_failures_have_it():
    assert rule_of(found(Mode.TRANSPORT, dropped=3, early_release=1)) is BY_CAUSE[Cause.DROPPED]
    assert rule_of(found(Mode.TRANSPORT, dropped=2, early_release=2, slipped=1)) is BY_MODE[Mode.TRANSPORT]
    assert rule_of(found(Mode.GRASP, missed_grasp=5)) is BY_MODE[Mode.GRASP]
    assert rule_of(found(Mode.GRASP, no_such_cause=5)) is BY_MODE[Mode.GRASP]


@pytest.mark.parametrize("cause", ["wrong_object", "missed_grasp", "out_of_time", "stalled"])
def test_how_a_policy_that_goes_astray_ends_is_chance(cause):
    assert rule_of(found(Mode.LOCALIZATION, **{cause: 5})) is BY_MODE[Mode.LOCALIZATION]


def test_all_operations_can_be_asked_for():
    kinds = {kind.model_fields["op"].default for kind in (*MOVES, *DRESSES, Retarget, Rephrase, Arm)}
    assert set(SUGGESTIBLE) == kinds and len(kinds) == 12  # the thirteenth, resume, is the training's late start


def test_a_critic_s_suggestion_adds_operations_and_sets_the_difficulty(recipe):
    cluster = found(Mode.PLACEMENT)
    program = compile_cluster(cluster, recipe, 1, difficulty={"light": 0.9, "offset": 0.5, "nonsense": 0.1})
    assert [o.op for o in program.generation.operations] == ["offset", "resample", "light"]
    assert program.generation.difficulty == pytest.approx(0.7)
    mild = compile_cluster(cluster, recipe, 1, difficulty={"offset": 0.0})
    assert mild.generation.difficulty == 0.15
    assert compile_cluster(cluster, recipe, 1, difficulty={}) == compile_cluster(cluster, recipe, 1)


def test_training_differs_by_cause(recipe):
    dropped = compiled(Mode.TRANSPORT, recipe, dropped=2).training
    assert dropped.start == StartCurriculum(stage=Stage.TRANSPORT, share=0.25)
    assert compiled(Mode.LOCALIZATION, recipe, ignored_instruction=2).training.rephrase_share == 0.3
    pushed = compiled(Mode.GRASP, recipe, pushed_away=2).training
    assert pushed.n_action_steps == 4 and pushed.policy_overrides(None)["n_action_steps"] == 4
    slow = compiled(Mode.MOTION, recipe, out_of_time=2).training
    assert slow.policy_overrides(None)["advantage_temperature"] == 0.05
    none = recipe.training.model_copy(update={"late_starts": 0.0})
    assert compiled(Mode.TRANSPORT, recipe.model_copy(update={"training": none}), dropped=2).training.start is None


def test_a_localization_program_moves_objects_retargets_and_grounds(recipe):
    program = compiled(Mode.LOCALIZATION, recipe)
    scenes = [program.generation.sample(np.random.default_rng(k)) for k in range(30)]
    assert len({s.goal for s in scenes}) > 3
    assert all(s.objects and s.program == program.generation.hash for s in scenes)
    assert program.training.grounding_layouts == recipe.budget.layouts_per_round
    assert program.training.refinement.mode == Mode.LOCALIZATION and program.training.include_failures
    assert program.training.start is None and program.training.n_action_steps is None
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


def test_harder_starts_earlier_and_easier_later(recipe):
    program = compiled(Mode.PLACEMENT, recipe, wrong_place=2)
    assert program.training.start.stage == Stage.PLACE
    once = harder(program, 2)
    twice = harder(once, 3)
    assert (once.training.start.stage, twice.training.start.stage) == (Stage.TRANSPORT, Stage.GRASP)
    assert twice.generation.difficulty == 1.0
    last = harder(twice, 4)
    assert last is not None and last.training.start is None and last.generation.difficulty == 1.0
    assert harder(last, 5) is None
    assert easier(once, 3).training.start.stage == Stage.PLACE
    assert easier(program, 3).training.start.stage == Stage.PLACE


@settings(max_examples=30, deadline=None)
@given(st.floats(0.0, 1.0), st.sampled_from([None, Stage.GRASP, Stage.TRANSPORT, Stage.PLACE]))
def test_harder_never_is_easier_and_comes_to_an_end(recipe, difficulty, stage):
    start = StartCurriculum(stage=stage) if stage else None
    whole = compiled(Mode.GRASP, recipe)
    training = whole.training.model_copy(update={"start": start})
    program = whole.model_copy(update={"generation": whole.generation.at(difficulty), "training": training})
    lower = easier(program, 1)
    assert lower.generation.difficulty <= difficulty and easier(lower, 1).generation.difficulty >= min(0.15, difficulty)
    seen = 0
    while (following := harder(program, seen)) is not None:
        assert following.generation.difficulty >= program.generation.difficulty and following.parent == program.hash
        program, seen = following, seen + 1
    assert seen <= 5 and program.generation.difficulty == 1.0 and program.training.start is None


def test_specializing_keeps_the_named_tasks(recipe):
    program = compiled(Mode.GRASP, recipe)
    special = program.after("specialize", 2, tasks=(9, 5))
    assert special.generation.task_ids == (5, 9) and special.parent == program.hash
    assert {special.generation.sample(np.random.default_rng(k)).task_id for k in range(8)} == {5, 9}
    assert specialize(program, recipe.task_ids, 2) is program
    with pytest.raises(RecordError, match="none of the tasks"):
        specialize(program, [0], 2)


def test_joined_programs_change_what_both_change(recipe):
    a, b = compiled(Mode.GRASP, recipe), compiled(Mode.PLACEMENT, recipe)
    both = joined(a, specialize(b, [2, 5], 1), 3)
    assert {o.op for o in both.generation.operations} == {"retarget", "permute", "resample", "offset"}
    assert both.generation.task_ids == (2, 5) and (both.parent, both.born) == (a.hash, 3)
    assert both.other is not None and both.training == a.training
    with pytest.raises(RecordError, match="share no task"):
        joined(specialize(a, [2], 1), specialize(b, [9], 1), 3)


def test_a_revived_program_is_as_it_was(recipe):
    program = compiled(Mode.GRASP, recipe)
    again = revived(program, 7)
    assert again.generation == program.generation and again.born == 7 and again.parent == program.hash


def test_levels_are_broad_changes_task_by_task(recipe):
    found = levels(recipe, 1)
    assert len(found) == 9 and len({p.name for p in found}) == 9
    assert all(len(p.generation.task_ids) == 1 and p.mode == "exploration" for p in found)


def test_an_undiagnosed_program_changes_everything_where_it_fails(recipe):
    program = undiagnosed(recipe, 2, [5])
    assert {o.op for o in program.generation.operations} == {"permute", "resample", "offset", "retarget"}
    assert program.generation.task_ids == (5,) and program.parent is None


def test_one_training_serves_all_programs_of_a_round(recipe):
    parts = [compiled(mode, recipe).training for mode in (Mode.LOCALIZATION, Mode.GRASP)]
    both = combine(parts, recipe.training)
    assert both.grounding_layouts == 10 and both.noise == parts[1].noise and both.include_failures
    assert combine([], recipe.training).steps == recipe.training.steps


def test_the_policy_block_keeps_the_recipes_grounding_weight_unless_a_program_sets_one(recipe, tmp_path):
    grasp, localization = compiled(Mode.GRASP, recipe).training, compiled(Mode.LOCALIZATION, recipe).training
    assert grasp.policy_overrides(None) == {"grounding_path": None, "value_weight": 0.1}
    assert localization.policy_overrides(tmp_path)["grounding_weight"] == 1.0
