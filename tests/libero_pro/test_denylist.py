"""Held out means held out: LIBERO-Pro tasks planted as generated scenes are refused, the base distribution is not."""

import gzip
import json
from collections import Counter

import numpy as np
import pytest

from libero_pro import denylist
from libero_pro.denylist import leaks, object_set, plain
from libero_pro.layouts import layout
from libero_pro.programs import GenerationProgram, Permute, Resample, Retarget, base_program
from libero_pro.record import RecordError
from libero_pro.scene import Pose, SceneSpec, Start
from libero_pro.suites import AXES, BASE, GRID, Task, get_task, runnable_tasks, scene_for, tasks
from libero_pro.validity import check

DISGUISED = [task for base in BASE for axis in ("swap", "lan", "task") for task in tasks(f"{base}_{axis}")]


def fixture_places(task: Task) -> dict[str, Pose]:
    """Where the task's BDDL file puts fixtures that its base task has elsewhere; regions are relative to the table."""
    places = {}
    for name, placed in layout(task.base_suite, task.task_id).fixtures.items():
        here, base = (
            np.mean(np.reshape(problem.regions[fact[2]].ranges[0], (2, 2)), axis=0)
            for problem in (task.problem(), task.base().problem())
            for fact in problem.init
            if fact[0] == "on" and fact[1] == name
        )
        if not np.allclose(here, base):
            x, y = np.add(placed.position[:2], here - base)
            places[name] = Pose(position=(x, y, placed.position[2]), quaternion=placed.quaternion)
    return places


def disguise(task: Task, state: int, jitter: np.ndarray | float = 0.0) -> SceneSpec:
    """A test start as a generated scene of the base task, each object moved by `jitter` (n, 2) metres."""
    names = task.objects()
    poses = task.init_states()[state][10 : 10 + 7 * len(names)].reshape(-1, 7).copy()
    poses[:, :2] += jitter
    return SceneSpec(
        suite=task.base_suite,
        task_id=task.task_id,
        instruction=task.prompt(),
        prompt_source="generated",
        goal=task.goal(),
        seed=1,
        objects={n: Pose(position=tuple(p[:3]), quaternion=tuple(p[3:])) for n, p in zip(names, poses, strict=True)},
        fixtures={} if task.axis == "object" else fixture_places(task),
    )


@pytest.mark.parametrize("axis", AXES)
def test_every_scene_of_every_test_task_is_refused(axis):
    for base in BASE:
        for task in tasks(f"{base}_{axis}"):
            for scene in (
                scene_for(task.suite, task.task_id),
                scene_for(task.suite, task.task_id, seed=8, prompt_source="filename"),
                scene_for(task.suite, task.task_id, init_state_id=3),
            ):
                assert leaks(scene), (task.suite, task.task_id)


def test_every_test_start_and_near_copies_of_it_are_refused_under_the_base_suites_name():
    rng = np.random.default_rng(0)
    for task in DISGUISED:
        for state in range(0, 50, 7):
            for jitter in (0.0, rng.uniform(-0.01, 0.01, (len(task.objects()), 2))):
                reason = leaks(disguise(task, state, jitter))
                assert reason, (task.suite, task.task_id, state)
                if task.axis == "swap":
                    assert "every object lies where" in reason


def test_near_copies_of_all_160_test_tasks_are_refused():
    """Every object up to 3 cm away, as poses or as a stored instant; the words and goals of a test anywhere."""
    rng = np.random.default_rng(1)
    refused = Counter()
    for base in BASE:
        for axis in AXES:
            for task in tasks(f"{base}_{axis}"):
                near = rng.uniform(-0.0299, 0.0299, (len(task.objects()), 2))
                copies = [disguise(task, int(rng.integers(50)), near)]
                if axis in ("swap", "task"):
                    copies.append(resumed(copies[0]))
                if axis in ("lan", "task"):
                    elsewhere = rng.uniform(-0.2, 0.2, near.shape)
                    copies.append(disguise(task, 0, elsewhere))
                verdicts = [check(copy) for copy in copies]
                assert all(not verdict.accepted for verdict in verdicts), (task.suite, task.task_id)
                # `_object` names instances that no base task has; everything else is refused as a copy of a test.
                assert {verdict.gate for verdict in verdicts} == {"schema" if axis == "object" else "leakage"}, (
                    task.suite
                )
                refused[axis] += 1
    assert refused == dict.fromkeys(AXES, 40)


def test_starts_of_the_position_grid_and_near_copies_of_them_are_refused():
    rng = np.random.default_rng(2)
    for suite in GRID:
        for task_id in runnable_tasks(suite):
            task = get_task(suite, task_id)
            near = rng.uniform(-0.0299, 0.0299, (len(task.objects()), 2))
            for jitter in (0.0, near):
                copy = disguise(task, int(rng.integers(len(task.init_states()))), jitter)
                assert "every object lies where" in leaks(copy), (suite, task_id)


def resumed(scene: SceneSpec) -> SceneSpec:
    """The same layout as a stored instant; fixtures stay explicit."""
    order = get_task(scene.suite, scene.task_id).objects()
    poses = [(*scene.objects[name].position, *scene.objects[name].quaternion) for name in order]
    qpos = (0.0,) * 9 + tuple(value for pose in poses for value in pose)
    return scene.model_copy(update={"objects": {}, "start": Start(qpos=qpos)})


def test_a_stored_instant_of_a_base_layout_passes():
    for task_id in range(10):
        nominal = layout("libero_object", task_id).objects
        poses = {n: Pose(position=p.position, quaternion=p.quaternion) for n, p in nominal.items()}
        scene = scene_for("libero_object", task_id).model_copy(update={"objects": poses})
        assert leaks(resumed(scene)) is None


def test_every_released_start_is_reserved_for_evaluation():
    for base in BASE:
        for task in tasks(base):
            assert "evaluation only" in leaks(scene_for(base, task.task_id, init_state_id=49))


@pytest.mark.parametrize("source", ["bddl", "filename"])
def test_fresh_resets_of_the_base_tasks_pass(source):
    for base in BASE:
        for task in tasks(base):
            for seed in range(3):
                assert leaks(scene_for(base, task.task_id, seed=seed, prompt_source=source)) is None


def test_base_layouts_written_out_pass_unless_a_test_task_equals_them():
    """Two `libero_spatial_task` tests are base tasks with the identical bowls exchanged; all else passes."""
    refused = Counter()
    for base in BASE:
        for task in tasks(base):
            for state in range(0, 50, 10):
                if reason := leaks(disguise(task, state)):
                    assert "identical objects exchanged" in reason
                    refused[base, task.task_id] += 1
    assert refused == {("libero_spatial", 7): 5, ("libero_spatial", 9): 5}


def test_a_test_goal_is_denied_among_its_objects_only():
    """`libero_object_task 0` asks for cream cheese among the objects of task 0; task 2 holds cream cheese as well."""
    goal = (("in", "cream_cheese_1", "basket_1_contain_region"),)
    assert get_task("libero_object_task", 0).goal() == goal

    def asked(task_id: int) -> str | None:
        return leaks(scene_for("libero_object", task_id).model_copy(update={"goal": goal}))

    assert "libero_object_task 0" in asked(0)
    assert "cream_cheese_1" in get_task("libero_object", 2).objects()
    assert asked(2) is None
    assert asked(1) is None


def test_a_test_goal_is_denied_whatever_the_layout_and_the_order_of_its_parts():
    task = get_task("libero_10_task", 2)
    scene = scene_for("libero_10", 2).model_copy(update={"goal": tuple(reversed(task.goal()))})
    assert "libero_10_task 2" in leaks(scene)


def test_paraphrases_are_denied_however_they_are_written():
    lan = get_task("libero_goal_lan", 0)
    base = scene_for("libero_goal", 0)
    for text in (lan.prompt(), lan.prompt().upper() + ".", "  " + lan.prompt().replace(" ", "  ")):
        assert "_lan" in leaks(base.model_copy(update={"instruction": text}))
    assert leaks(base.model_copy(update={"instruction": "open the middle drawer please"})) is None
    assert plain("open the cabinet\u2019s middle-drawer") == plain("Open the cabinet's middle drawer!")


def swap_centers(task: Task) -> dict[str, Pose]:
    """Mean place of every object over the released starts of a test task."""
    names = task.objects()
    starts = task.init_states()[:, 10 : 10 + 7 * len(names)].reshape(50, -1, 7)
    return {
        name: Pose(position=tuple(starts[:, row, :3].mean(axis=0)), quaternion=tuple(starts[0, row, 3:]))
        for row, name in enumerate(names)
    }


def test_new_draws_from_a_tests_own_regions_are_refused_even_far_from_its_released_starts():
    rng = np.random.default_rng(0)
    for task in tasks("libero_object_swap"):
        problem, nominal = task.problem(), layout("libero_object", task.task_id).objects
        for _ in range(30):
            poses = {}
            for _, name, region in problem.init:
                x0, y0, x1, y1 = problem.regions[region].ranges[0]
                xy = rng.uniform(x0, x1), rng.uniform(y0, y1)
                poses[name] = Pose(position=(*xy, nominal[name].position[2]), quaternion=nominal[name].quaternion)
            assert leaks(scene_for("libero_object", task.task_id).model_copy(update={"objects": poses}))


def test_the_margin_is_three_centimetres():
    task = get_task("libero_object_swap", 0)
    places = swap_centers(task)
    scene = scene_for("libero_object", 0)
    starts = task.init_states()[:, 10 : 10 + 49].reshape(50, -1, 7)[:, task.objects().index("milk_1"), 0]
    for distance, refused in ((0.029, True), (0.033, False)):
        x = starts.max() + distance
        moved = {**places, "milk_1": Pose(position=(x, *places["milk_1"].position[1:]))}
        assert (leaks(scene.model_copy(update={"objects": moved})) is not None) == refused


def test_a_partly_written_test_layout_is_refused():
    """Only the two objects that trade places are given; the others are drawn where the test has them too."""
    task = get_task("libero_object_swap", 0)
    places = swap_centers(task)
    nominal = layout("libero_object", 0).objects
    traded = {n: p for n, p in places.items() if np.hypot(*np.subtract(p.position[:2], nominal[n].position[:2])) > 0.05}
    assert len(traded) == 2
    assert "libero_object_swap 0" in leaks(scene_for("libero_object", 0).model_copy(update={"objects": traded}))


def test_exchanging_identical_bowls_does_not_hide_a_test():
    swap = disguise(get_task("libero_spatial_swap", 0), 0)
    bowls = {
        "akita_black_bowl_1": swap.objects["akita_black_bowl_2"],
        "akita_black_bowl_2": swap.objects["akita_black_bowl_1"],
    }
    assert "libero_spatial_swap 0" in leaks(swap.model_copy(update={"objects": {**swap.objects, **bowls}}))
    task = disguise(get_task("libero_spatial_task", 3), 0)
    bowls = {
        "akita_black_bowl_1": task.objects["akita_black_bowl_2"],
        "akita_black_bowl_2": task.objects["akita_black_bowl_1"],
    }
    twin = task.model_copy(
        update={"objects": {**task.objects, **bowls}, "goal": (("on", "akita_black_bowl_1", "plate_1"),)}
    )
    assert "identical objects exchanged" in leaks(twin)


def test_a_program_that_swaps_pairs_meets_the_tests_and_one_that_permutes_all_hardly_does():
    pair = GenerationProgram(suite="libero_object", task_ids=(0,), operations=(Permute(count=2),), difficulty=1.0)
    refused = [s for s in pair.scenes(150) if leaks(s)]
    assert 2 <= len(refused) <= 30  # one of the fifteen pairs
    assert all("libero_object_swap 0" in leaks(s) for s in refused)
    every = GenerationProgram(
        suite="libero_object", task_ids=tuple(range(10)), operations=(Permute(), Resample()), difficulty=1.0
    )
    assert sum(leaks(s) is not None for s in every.scenes(150)) <= 5


def test_retargeting_is_refused_for_the_one_goal_that_is_a_test():
    program = GenerationProgram(suite="libero_object", task_ids=(0,), operations=(Retarget(),), difficulty=1.0)
    for scene in program.scenes(100):
        assert (leaks(scene) is not None) == (scene.goal[0][1] == "cream_cheese_1")


def test_base_programs_never_leak():
    for base in BASE:
        assert not any(leaks(scene) for scene in base_program(base, tuple(range(10))).scenes(30))


def test_object_sets_tell_scenes_apart():
    assert len({object_set(task.problem()) for task in tasks("libero_object")}) == 10
    assert len({object_set(task.problem()) for task in tasks("libero_goal")}) == 1


def test_the_data_file_is_what_the_installed_benchmark_gives(tmp_path):
    denylist.build(tmp_path / "denylist.json.gz")
    shipped = gzip.decompress(denylist.DATA.read_bytes())
    built = gzip.decompress((tmp_path / "denylist.json.gz").read_bytes())
    assert json.loads(built) == json.loads(shipped)
    assert {row["name"] for row in json.loads(built)["swap"]} == {
        f"{suite} {task_id}"
        for suite in (*(f"{base}_swap" for base in BASE), *GRID)
        for task_id in runnable_tasks(suite)
    }


def test_a_damaged_data_file_is_refused_not_ignored(monkeypatch, tmp_path):
    (tmp_path / "denylist.json.gz").write_bytes(b"\x1f\x8b broken")
    monkeypatch.setattr(denylist, "DATA", tmp_path / "denylist.json.gz")
    with pytest.raises(RecordError, match="rebuild it"):
        denylist._denylist.__wrapped__()
