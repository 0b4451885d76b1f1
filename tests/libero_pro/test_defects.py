"""The known defects, each checked in the released files where the files show it."""

import numpy as np
import pytest

from libero_pro.defects import DEFECTS, THROWN, defects_in, defects_of, is_sound
from libero_pro.suites import BASE, GRID, get_task, runnable_tasks, scene_for, suite_names, tasks


def kinds(suite: str, task_id: int, source: str = "bddl", start: int | None = None) -> list[str]:
    return [defect.kind for defect in defects_of(suite, task_id, prompt_source=source, start=start)]


def test_every_defect_names_what_was_released():
    for defect in DEFECTS:
        assert defect.suite in (*suite_names(), *GRID)
        for task_id in defect.tasks or ():
            assert 0 <= task_id < 10
            assert all(0 <= start < len(get_task(defect.suite, task_id).init_states()) for start in defect.starts)
        assert defect.prompt_source in (None, "bddl", "filename")
        assert len(defect.note) > 20 and "\n" not in defect.note


def test_prompts_by_file_name_are_wrong_on_lan_and_task_only():
    for suite in (*suite_names(), *GRID):
        wrong = {"wrong prompt" in kinds(suite, task.task_id, "filename") for task in tasks(suite)}
        assert wrong == {suite.endswith(("_lan", "_task"))}
        assert not any("wrong prompt" in kinds(suite, task.task_id) for task in tasks(suite))


def test_false_prompts_lose_the_plate_that_they_name():
    for task in tasks("libero_spatial_swap"):
        moved = {fact[1] for fact in set(task.problem().init) - set(task.base().problem().init)}
        assert "plate_1" in moved and "akita_black_bowl_1" not in moved
        names_plate = "the plate" in task.prompt().split(" and place it")[0]
        assert ("false prompt" in kinds("libero_spatial_swap", task.task_id)) == names_plate


def test_in_distribution_tasks_are_each_others_base_with_the_bowls_exchanged():
    for task_id, other in ((7, 9), (9, 7)):
        assert "in distribution" in kinds("libero_spatial_task", task_id)
        swap = {"akita_black_bowl_1": "akita_black_bowl_2", "akita_black_bowl_2": "akita_black_bowl_1"}
        exchanged = {
            tuple(swap.get(word, word) for word in fact) for fact in get_task("libero_spatial", other).problem().init
        }
        assert exchanged == set(get_task("libero_spatial_task", task_id).problem().init)


def test_the_duplicate_has_prompt_goal_and_layout_of_another_task():
    first, second = get_task("libero_goal_task", 2), get_task("libero_goal_task", 6)
    assert (first.prompt(), first.goal(), first.problem().init) == (
        second.prompt(),
        second.goal(),
        second.problem().init,
    )
    assert kinds("libero_goal_task", 6) == ["duplicate"] and kinds("libero_goal_task", 2) == []


def test_the_stove_that_is_to_be_turned_off_is_off():
    task = get_task("libero_goal_task", 7)
    assert task.goal() == (("turnoff", "flat_stove_1"),)
    assert ("turnon", "flat_stove_1") not in task.problem().init
    assert kinds("libero_goal_task", 7) == ["degenerate"]


def test_hidden_and_lenient_conditions_are_in_every_suite_of_their_scene():
    for suite in suite_names():
        for task in tasks(suite):
            goal, prompt = task.goal(), task.prompt()
            hidden = any(predicate[0] == "turnon" for predicate in goal) and "turn on" not in prompt
            if suite.startswith("libero_10") and task.task_id == 8:
                assert hidden and ("turnon", goal[-1][1]) in task.problem().init
            assert ("hidden condition" in kinds(suite, task.task_id)) == hidden or "stove" in prompt.split("put")[0]
            lenient = any(name.endswith("_plate_right_region") for predicate in goal for name in predicate)
            assert ("lenient success" in kinds(suite, task.task_id)) == lenient


def test_contradictions_lack_the_object_that_the_prompt_names():
    for task_id, lacks in ((5, "black_book"), (6, "porcelain_mug"), (9, "white_yellow_mug")):
        task = get_task("libero_10_object", task_id)
        goal_objects = {name.rsplit("_", 1)[0] for predicate in task.goal() for name in predicate[1:2]}
        assert lacks not in goal_objects
        assert "contradiction" in kinds("libero_10_object", task_id)


def test_the_basket_never_moves_in_object_swap():
    for task in tasks("libero_object_swap"):
        where = {fact[1]: fact for fact in task.problem().init}
        base = {fact[1]: fact for fact in task.base().problem().init}
        assert where["basket_1"] == base["basket_1"]
        assert sum(where[name] != base[name] for name in where) == 2
        assert kinds("libero_object_swap", task.task_id) == ["weak perturbation"]


def test_what_the_grid_parks_out_of_sight_is_known():
    from libero_pro.denylist import ARM_JOINTS

    for task in (get_task(suite, task_id) for suite in GRID for task_id in runnable_tasks(suite)):
        starts = task.init_states()[:, 1 + ARM_JOINTS :]
        places = starts[:, : 7 * len(task.objects())].reshape(len(starts), -1, 7)[..., :2]
        away = {name for row, name in enumerate(task.objects()) if np.abs(places[:, row]).max() > 5}
        assert task.goal()[0][1] not in away
        found = {"unsolvable"} if "basket_1" in away else {"missing object"} if away else set()
        assert set(kinds(task.suite, task.task_id)) - {"no starts"} == found
        assert is_sound(task.suite, task.task_id, 0, "bddl") == ("basket_1" not in away)


def test_what_distorts_is_not_sound():
    assert is_sound("libero_object_swap", 3, 0, "bddl")  # weak, yet what its name says
    assert not is_sound("libero_spatial_swap", 8, 0, "bddl")
    assert is_sound("libero_goal_lan", 0, 0, "bddl") and not is_sound("libero_goal_lan", 0, 0, "filename")
    assert all(is_sound(base, task_id, 0, "filename") for base in BASE[:3] for task_id in range(10))
    (suite, task_id), starts = next(iter(THROWN.items()))
    other = next(start for start in range(50) if start not in starts)
    assert kinds(suite, task_id, start=starts[0])[-1] == "thrown start"
    assert not is_sound(suite, task_id, starts[0], "bddl")
    assert "thrown start" not in kinds(suite, task_id, start=other)


def test_only_defects_of_what_ran_are_reported():
    ran = [("libero_goal_task", task_id, 0, "bddl") for task_id in range(7)]
    assert [(defect.suite, defect.kind) for defect in defects_in(ran)] == [("libero_goal_task", "duplicate")]
    assert defects_in(ran)[0].where() == "libero_goal_task 6"
    assert [defect.kind for defect in defects_in([("libero_goal_task", 7, 0, "filename")])] == [
        "wrong prompt",
        "degenerate",
    ]
    emptier, unrunnable = defects_in([("libero_object_temp_y0.5", 0, 0, "bddl")])
    assert emptier.kind == "missing object"
    assert unrunnable.kind == "no starts" and not len(get_task(unrunnable.suite, 1).init_states())
    assert defects_in([]) == []


def test_starts_by_history_are_those_that_open_or_turn_something():
    for suite in suite_names():
        for task in tasks(suite):
            moves = any(fact[0] in ("open", "close", "turnon", "turnoff") for fact in task.problem().init)
            assert ("history" in kinds(suite, task.task_id)) == moves


@pytest.mark.sim
@pytest.mark.parametrize(("suite", "task_id", "by_history"), [("libero_10", 8, True), ("libero_10", 2, False)])
def test_liberos_own_resets_place_fixtures_by_history(suite: str, task_id: int, by_history: bool):
    """The same seed twice in LIBERO's environment with its hard resets; ours repeats itself."""
    from libero_pro._libero import physics_env
    from libero_pro.simulator import Simulator

    task = get_task(suite, task_id)
    env = physics_env(task.bddl_path)
    env.hard_reset = True
    env.object_property_initializers = list(env.property_samplers)
    places = []
    for _ in range(2):
        env.seed(1000)
        env.reset()
        places.append(env.sim.model.body_pos.copy())
    assert np.array_equal(*places) != by_history

    sim = Simulator(task)
    for start in (0, 1, 0):
        sim.reset(scene_for(suite, task_id, init_state_id=start, seed=1000))
        np.testing.assert_array_equal(sim.model.body_pos, places[0])


@pytest.mark.sim
def test_a_thrown_start_throws():
    from libero_pro.simulator import Simulator

    (suite, task_id), starts = max(THROWN.items(), key=lambda item: len(item[1]))
    sim = Simulator(get_task(suite, task_id))

    def moved(start: int) -> float:
        sim.reset(scene_for(suite, task_id, init_state_id=start, seed=1000 + start))
        before = np.array([sim.object_pose(name).position[:2] for name in sim.object_names])
        sim.settle(10)
        after = np.array([sim.object_pose(name).position[:2] for name in sim.object_names])
        return float(np.linalg.norm(after - before, axis=1).max())

    assert moved(starts[0]) > 0.08
    assert moved(next(start for start in range(50) if start not in starts)) < 0.08
