"""Another object in the place of a named one: what fits, what the scene and its model then hold, what is denied."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libero_pro.bddl import exchanged, parse_problem, read_bddl
from libero_pro.denylist import leaks
from libero_pro.placement import arrangement
from libero_pro.programs import GenerationProgram, LayoutError, Permute, Replace, Retarget, Tint
from libero_pro.record import RecordError
from libero_pro.replacement import catalogue, replaced_task, stand_in, task_of, unfit
from libero_pro.scene import Pose, SceneSpec
from libero_pro.suites import BASE, TASKS_PER_SUITE, get_task, scene_for, tasks
from libero_pro.validity import check

POT = {"milk_1": "moka_pot"}
MILK = Replace(object="milk_1", by=("moka_pot",))
EVERY = [(task, name) for suite in BASE for task in tasks(suite) for name in task.objects()]


def program(*operations, difficulty=1.0, suite="libero_object", task_ids=(0,)) -> GenerationProgram:
    return GenerationProgram(suite=suite, task_ids=task_ids, operations=operations, difficulty=difficulty)


def test_the_catalogue_has_no_class_of_the_object_tests():
    kinds = set(catalogue())
    base = {kind for suite in BASE for task in tasks(suite) for kind in task.problem().objects.values()}
    changed = {k for suite in BASE for task in tasks(f"{suite}_object") for k in task.problem().objects.values()}
    assert len(kinds) >= 20 and kinds <= base
    assert not kinds & (changed - base)
    for kind, placed in catalogue().items():
        assert placed.top > placed.bottom, kind
        assert np.linalg.norm(placed.quaternion) == pytest.approx(1.0, abs=1e-3)


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(EVERY), st.sampled_from(sorted(catalogue())))
def test_what_fits_keeps_goal_order_and_ground_and_what_does_not_is_refused_with_a_reason(one, category):
    task, name = one
    said = [task.prompt(source) for source in ("bddl", "filename")]
    reason = unfit(task, name, category, task.goal(), said)
    data = {
        "suite": task.suite,
        "task_ids": [task.task_id],
        "operations": [{"op": "replace", "object": name, "by": [category]}],
    }
    if reason is not None:
        with pytest.raises(RecordError, match="operation 0"):
            GenerationProgram.parse(data)
        return
    GenerationProgram.parse(data)
    other = replaced_task(task, {name: category}).problem()
    ours = task.problem()
    assert list(other.objects) == [f"{category}_1" if n == name else n for n in ours.objects]
    assert other.goal == ours.goal and other.regions == ours.regions and len(other.init) == len(ours.init)
    assert name not in {word for fact in other.init for word in fact}
    plan = arrangement(task.suite, task.task_id, ((name, category),))
    row = plan.names.index(name)
    before, after = arrangement(task.suite, task.task_id).placed[row], plan.placed[row]
    assert after.position[2] + after.bottom == pytest.approx(before.position[2] + before.bottom, abs=2e-4)
    assert plan.instances[row] == f"{category}_1" and stand_in(before, category) == after


def test_the_released_text_is_untouched_without_a_replacement():
    for suite in BASE:
        for task in tasks(suite):
            assert parse_problem(read_bddl(task.bddl_path)) == replaced_task(task, {}).problem()
            with replaced_task(task, {}).bddl_file() as path:
                assert path == task.bddl_path


@given(st.integers(0, 10**6), st.floats(0, 1))
@settings(max_examples=30, deadline=None)
def test_scenes_are_pure_and_name_what_they_hold(index, difficulty):
    drawn = program(MILK, Permute(), Tint(parts=("milk_1", "basket_1")), difficulty=difficulty)
    assert GenerationProgram.parse(drawn.to_json()).hash == drawn.hash
    try:
        scene = drawn.scene(index)
    except LayoutError:
        return
    assert drawn.scene(index) == scene == SceneSpec.parse(scene.to_json())
    assert check(scene, gates=["schema"]).accepted
    assert (scene.goal, scene.instruction) == (
        get_task("libero_object", 0).goal(),
        get_task("libero_object", 0).prompt(),
    )
    present = "moka_pot_1" if scene.replaced else "milk_1"
    assert present in task_of(scene).objects()
    if difficulty > 0:
        assert present in scene.objects and present in scene.look.tints
    else:
        assert scene.replaced is None


def test_difficulty_is_the_probability():
    share = np.mean([scene.replaced is not None for scene in program(MILK, difficulty=0.5).scenes(80)])
    assert 0.3 < share < 0.7
    assert all(scene.replaced == POT for scene in program(MILK).scenes(10))


def test_what_a_retargeted_goal_is_about_stays():
    scenes = list(program(MILK, Retarget()).scenes(60))
    assert {scene.goal[0][1] for scene in scenes} >= {"milk_1", "alphabet_soup_1"}
    for scene in scenes:
        assert (scene.replaced is None) == (scene.goal[0][1] == "milk_1")


@pytest.mark.parametrize(
    ("suite", "task_id", "name", "category", "said"),
    [
        ("libero_object", 0, "alphabet_soup_1", "moka_pot", "what the goal of libero_object 0 is about"),
        ("libero_object", 0, "basket_1", "moka_pot", "carries or contains"),
        ("libero_object", 0, "mlk_1", "moka_pot", "did you mean 'milk_1'"),
        ("libero_object", 0, "milk_1", "moka_pott", "did you mean 'moka_pot'"),
        ("libero_object", 0, "milk_1", "microwave", "not in the catalogue"),
        ("libero_object", 0, "milk_1", "../../etc/passwd", "not in the catalogue"),
        ("libero_object", 0, "milk_1", "bigger_alphabet_soup", "not in the catalogue"),
        ("libero_object", 0, "milk_1", "butter", "has a 'butter' already|'butter' is too large"),
        ("libero_spatial", 0, "akita_black_bowl_2", "milk", "says 'akita'"),
        ("libero_spatial", 1, "cookies_1", "black_book", "says 'black'"),
        ("libero_spatial", 3, "cookies_1", "milk", "carries or contains"),
        ("libero_spatial", 6, "cookies_1", "milk", "says 'cookie'"),
        ("libero_goal", 0, "plate_1", "chefmate_8_frypan", "too large"),
        ("libero_spatial_swap", 0, "cookies_1", "milk", "test suite"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(suite, task_id, name, category, said):
    task = get_task(suite, task_id)
    reason = unfit(task, name, category, task.goal(), [task.prompt("bddl"), task.prompt("filename")])
    assert reason is not None
    assert re.search(said, reason), reason
    scene = scene_for(suite, task_id).model_copy(update={"replaced": {name: category}})
    assert check(scene).gate in ("schema", "leakage")


def test_released_states_and_twice_named_categories_are_refused():
    with pytest.raises(RecordError, match="init_state_id excludes replaced"):
        SceneSpec.parse({**scene_for("libero_object", 0, init_state_id=0).model_dump(), "replaced": POT})
    twice = scene_for("libero_object", 0).model_copy(
        update={"replaced": {"milk_1": "moka_pot", "butter_1": "moka_pot"}}
    )
    assert "named twice" in check(twice).reason


def test_a_replaced_object_hides_no_test():
    swap = get_task("libero_object_swap", 0)
    state = swap.init_states()[0]
    objects = {}
    for order, name in enumerate(swap.objects()):
        first = 10 + 7 * order
        objects[name] = Pose(position=tuple(state[first : first + 3]), quaternion=tuple(state[first + 3 : first + 7]))
    base = scene_for("libero_object", 0)
    assert "libero_object_swap 0" in leaks(base.model_copy(update={"objects": objects}))
    hidden = {("moka_pot_1" if name == "milk_1" else name): pose for name, pose in objects.items()}
    planted = base.model_copy(update={"objects": hidden, "replaced": POT})
    assert "libero_object_swap 0" in leaks(planted)
    asked = get_task("libero_object_task", 0).goal()
    assert "libero_object_task" in leaks(base.model_copy(update={"goal": asked, "replaced": POT}))
    assert leaks(base.model_copy(update={"replaced": POT})) is None


def test_objects_that_make_another_tasks_set_are_compared_with_its_tests():
    """A scene with one object replaced may hold just what another task holds: its test goals are denied then too."""
    found = 0
    for task_id in range(TASKS_PER_SUITE):
        task = get_task("libero_object", task_id)
        for tested in tasks("libero_object_task"):
            gone, come = set(task.objects()) - set(tested.objects()), set(tested.objects()) - set(task.objects())
            named = {word for predicate in tested.goal() for word in predicate}
            if len(gone) == len(come) == 1 and not come & named:
                (name,), (other,) = gone, come
                changes = {"goal": tested.goal(), "replaced": {name: other.removesuffix("_1")}}
                assert leaks(scene_for("libero_object", task_id).model_copy(update=changes)) is not None
                found += 1
    assert found > 0


@pytest.mark.sim
def test_the_other_object_stands_where_the_first_one_did_and_the_task_is_still_solved():
    from libero_pro.expert import solve
    from libero_pro.simulator import Simulator

    scene = program(MILK, Permute(count=2), difficulty=0.99).scene(3)
    sim = Simulator(task_of(scene))
    assert check(scene, sim).accepted
    assert "moka_pot_1" in sim.object_names and "milk_1" not in sim.object_names
    sim.reset(scene)
    asked = scene.objects["moka_pot_1"].position
    assert np.allclose(sim.object_pose("moka_pot_1").position, asked, atol=1e-3)
    sim.settle()
    assert np.linalg.norm(np.subtract(sim.object_pose("moka_pot_1").position, asked)) < 0.01
    assert solve(sim, scene).success
    with pytest.raises(RecordError, match="with a moka_pot for milk_1"):
        sim.reset(scene_for("libero_object", 0))
    plain = program(MILK).scene(1)  # nothing but the replacement: the reset places it
    sim.reset(plain)
    assert sim.goal_holds().shape == (1,)


def test_instances_of_one_category_stay_on_one_line():
    """LIBERO's own parser keeps the last line of a category: two lines would lose the first bowl."""
    task = get_task("libero_spatial", 7)
    text = exchanged(task.bddl_path.read_text(), {"cookies_1": "butter"})
    block = text[text.index("(:objects") : text.index(")", text.index("(:objects"))]
    assert "akita_black_bowl_1 akita_black_bowl_2 - akita_black_bowl" in block and "butter_1 - butter" in block
