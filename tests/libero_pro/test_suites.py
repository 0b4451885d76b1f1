"""The catalogue against LIBERO's own parser and files."""

from importlib import metadata

import numpy as np
import pytest

from libero_pro import suites
from libero_pro._libero import quiet_import
from libero_pro.bddl import parse_problem
from libero_pro.record import RecordError
from libero_pro.suites import (
    BASE,
    GRID,
    get_task,
    model_key,
    runnable_tasks,
    scene_for,
    select_suites,
    suite_names,
    tasks,
)

EVERY = [task for suite in suite_names() for task in tasks(suite)]


def test_twenty_suites_of_ten_tasks_with_their_files():
    assert len(suite_names()) == 20
    assert len(EVERY) == 200
    assert suite_names()[:5] == [*BASE, "libero_spatial_swap"]
    for task in EVERY:
        assert task.bddl_path.is_file()
        assert task.init_path.is_file()


def test_our_bddl_reader_equals_liberos_on_all_tasks():
    library = quiet_import("libero.libero.envs.bddl_utils")
    for task in EVERY:
        theirs = library.robosuite_parse_problem(str(task.bddl_path))
        ours = task.problem()
        assert ours.name == theirs["problem_name"]
        assert ours.language == library.get_problem_info(str(task.bddl_path))["language_instruction"]
        for kind in ("objects", "fixtures"):
            flat = {name: category for category, names in theirs[kind].items() for name in names}
            assert list(getattr(ours, kind).items()) == list(flat.items())
        assert ours.init == tuple(tuple(fact) for fact in theirs["initial_state"])
        assert ours.goal == tuple(tuple(predicate) for predicate in theirs["goal_state"])
        assert ours.interest == tuple(theirs["obj_of_interest"])
        assert set(ours.regions) == set(theirs["regions"])
        for name, region in ours.regions.items():
            assert region.target == theirs["regions"][name]["target"]
            assert [list(rectangle) for rectangle in region.ranges] == theirs["regions"][name]["ranges"]
            assert list(region.yaw) == theirs["regions"][name]["yaw_rotation"]


def test_prompts_of_both_sources():
    task = get_task("libero_object", 0)
    assert task.prompt() == "pick the alphabet soup and place it in the basket"
    assert task.prompt("filename") == "pick up the alphabet soup and place it in the basket"
    scene = get_task("libero_10", 2)
    assert scene.name.startswith("KITCHEN_SCENE3_")
    assert scene.prompt("filename") == "turn on the stove and put the moka pot on it"
    with pytest.raises(RecordError, match="'bddl' or 'filename'"):
        task.prompt("model")


def test_filename_prompts_equal_liberos_own_rule():
    rule = quiet_import("libero.libero.benchmark").grab_language_from_filename
    for task in EVERY:
        assert task.prompt("filename") == rule(task.name + ".bddl")


def test_the_file_name_hides_what_lan_and_task_test():
    for base in BASE:
        for axis in ("lan", "task"):
            for task in tasks(f"{base}_{axis}"):
                assert task.prompt("filename") == task.base().prompt("filename")
                assert task.prompt("bddl") != task.base().prompt("bddl")


def test_axes_change_what_they_say_and_nothing_else():
    for task in EVERY:
        problem, base = task.problem(), task.base().problem()
        if task.axis in ("lan", "task"):
            assert problem.init == base.init
            assert problem.objects == base.objects
        if task.axis in ("swap", "lan"):
            assert problem.goal == base.goal
        if task.axis == "swap":
            assert problem.language == base.language
            assert problem.init != base.init
            assert sorted(problem.init) != sorted(base.init)
        if task.axis == "task":
            assert sorted(problem.goal) != sorted(base.goal)


def test_goals_are_lower_case_and_name_what_is_there():
    for task in EVERY:
        problem = task.problem()
        there = {*problem.objects, *problem.fixtures, *problem.regions}
        assert task.goal()
        for predicate in task.goal():
            assert predicate[0] in ("in", "on", "open", "close", "turnon", "turnoff")
            assert set(predicate[1:]) <= there


def test_released_starts():
    for task in EVERY:
        states = task.init_states()
        assert states.shape[0] == 50
        assert states.dtype == np.float64
        assert len(np.unique(states, axis=0)) == 50
        with pytest.raises(ValueError, match="read-only"):
            states[0, 0] = 1.0


def test_horizons():
    assert [get_task(base, 0).horizon for base in BASE] == [280, 280, 300, 520]
    assert get_task("libero_10_lan", 3).horizon == 520


def test_model_keys_are_shared_by_axes_that_keep_the_objects():
    assert len({model_key(task) for task in EVERY}) == 51
    for base in BASE:
        for axis in ("swap", "lan", "task"):
            for task in tasks(f"{base}_{axis}"):
                assert model_key(task) == model_key(task.base())
    assert model_key(get_task("libero_object_object", 0)) != model_key(get_task("libero_object", 0))


@pytest.mark.parametrize(
    ("suite", "task_id", "hint"),
    [
        ("libero_objct", 0, "did you mean 'libero_object'"),
        ("libero_object_swp", 0, "did you mean 'libero_object_swap'"),
        ("libero_90", 0, "there are: libero_spatial"),
        ("", 0, "libero_10_task"),
        ("libero_object", 10, "0 to 9"),
        ("libero_object", -1, "0 to 9"),
    ],
)
def test_unknown_tasks_are_refused_with_a_way_out(suite, task_id, hint):
    with pytest.raises(RecordError, match=hint):
        get_task(suite, task_id)


def test_scenes_of_released_tasks():
    scene = scene_for("libero_goal_task", 0, init_state_id=49, seed=7)
    assert scene.goal == get_task("libero_goal_task", 0).goal()
    assert scene.instruction == get_task("libero_goal_task", 0).prompt()
    assert (scene.init_state_id, scene.seed, scene.prompt_source) == (49, 7, "bddl")
    assert scene_for("libero_goal", 0, prompt_source="filename").instruction == "open the middle drawer of the cabinet"
    assert scene_for("libero_goal", 0).objects == {}
    with pytest.raises(RecordError, match="0 to 49"):
        scene_for("libero_goal", 0, init_state_id=50)


def test_the_position_grid_moves_the_target_by_7_cm_per_step():
    for suite in GRID:
        axis, step = suite[-4], int(suite[-1])
        for task in tasks(suite):
            assert (task.base_suite, task.horizon, task.prompt(), task.goal()) == (
                "libero_object",
                280,
                task.base().prompt(),
                task.base().goal(),
            )
            assert len(task.init_states()) == (0 if (suite, task.task_id) == ("libero_object_temp_y0.5", 1) else 50)
            (here, there) = (t.problem().regions["floor_target_object_region"].ranges[0] for t in (task, task.base()))
            moved = np.subtract(here, there)[:2]
            assert abs(moved[0 if axis == "x" else 1]) == pytest.approx(0.07 * step)
            assert moved[1 if axis == "x" else 0] == pytest.approx(0)
    assert not set(GRID) & set(suite_names())
    assert runnable_tasks("libero_object_temp_y0.5") == [0, *range(2, 10)]
    with pytest.raises(RecordError, match="was released without start states; leave this task out"):
        scene_for("libero_object_temp_y0.5", 1, init_state_id=0)


def test_suites_are_selected_by_name_group_and_axis():
    assert select_suites(["all"]) == suite_names()
    assert select_suites(["base"]) == list(BASE)
    assert select_suites(["pro"]) == suite_names()[4:]
    assert select_suites(["grid"]) == list(GRID)
    assert select_suites(["libero_10", "base"]) == ["libero_10", "libero_spatial", "libero_object", "libero_goal"]
    assert select_suites(["libero_goal", "libero_10"], ["swap", "task"]) == [
        "libero_goal_swap",
        "libero_goal_task",
        "libero_10_swap",
        "libero_10_task",
    ]
    assert select_suites(["all"], ["lan"]) == [f"{base}_lan" for base in BASE]
    for names, axes, message in (
        ([], None, "suites names no suite; there are: libero_spatial"),
        (["libero_goal_swop"], None, "suites: .*did you mean 'libero_goal_swap'.*there are: .*libero_object_temp_x0.1"),
        (["libero_goal_swap"], ["lan"], r"suites \(with perturbations\): 'libero_goal_swap' is unknown"),
        (["libero_goal"], ["swop"], "perturbations: 'swop' is unknown; did you mean 'swap'.*swap, object, lan, task"),
    ):
        with pytest.raises(RecordError, match=message):
            select_suites(names, axes)


def test_hf_libero_beside_the_benchmark_is_refused(monkeypatch):
    monkeypatch.setattr(metadata, "distribution", lambda name: name)
    with pytest.raises(RecordError, match="uninstall hf-libero"):
        suites._libero_root.__wrapped__()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "(",
        ")",
        "(define",
        "(define (problem x)))",
        "(define (problem x))",
        "define",
        "(define (:goal) (problem x))",
    ],
)
def test_malformed_bddl_is_refused(text):
    with pytest.raises(RecordError, match="BDDL text"):
        parse_problem(text)


def test_angles_are_read_without_evaluating_code():
    text = """(define (problem p) (:language a b) (:init) (:goal (open a)) (:objects a - b)
        (:regions (r (:target t) (:ranges ((0 0 1 1))) (:yaw_rotation (({} pi/2))))))"""
    assert parse_problem(text.format("-pi")).regions["t_r"].yaw == (-np.pi, np.pi / 2)
    with pytest.raises(RecordError, match="not a LIBERO problem"):
        parse_problem(text.format("__import__"))
