"""Generation programs: reproducible, bounded, true to their prompts, and refused with a reason when malformed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libero_pro.goals import player, roles
from libero_pro.layouts import layout
from libero_pro.placement import CLEARANCE, arrangement
from libero_pro.programs import (
    GenerationProgram,
    LayoutError,
    Offset,
    Permute,
    Resample,
    Retarget,
    base_program,
)
from libero_pro.record import RecordError
from libero_pro.scene import SceneSpec
from libero_pro.suites import BASE, get_task
from libero_pro.validity import check

ALL = tuple(range(10))


def program(*operations, suite="libero_object", task_ids=ALL, difficulty=1.0, **rest) -> GenerationProgram:
    """A program of libero_object by default."""
    return GenerationProgram(suite=suite, task_ids=task_ids, operations=operations, difficulty=difficulty, **rest)


OPERATIONS = st.lists(
    st.one_of(
        st.builds(Resample, jitter_m=st.floats(0, 0.06)),
        st.builds(Permute, count=st.one_of(st.just("all"), st.integers(2, 6))),
        st.builds(Offset, target=st.sampled_from(["target", "receptacle"]), radius_m=st.floats(0.01, 0.1)),
        st.just(Retarget()),
    ),
    max_size=4,
)
PROGRAMS = st.builds(
    GenerationProgram,
    suite=st.just("libero_object"),
    task_ids=st.lists(st.integers(0, 9), min_size=1, max_size=10, unique=True).map(tuple),
    operations=OPERATIONS.map(tuple),
    difficulty=st.floats(0, 1),
    domain=st.integers(0, 2**31 - 1),
)


@settings(max_examples=60, deadline=None)
@given(PROGRAMS, st.integers(0, 10**9))
def test_programs_round_trip_and_sample_reproducible_scenes_that_name_only_what_exists(drawn, index):
    again = GenerationProgram.parse(drawn.to_json())
    assert again == drawn
    assert again.hash == drawn.hash
    try:
        scene = drawn.scene(index)
    except LayoutError:  # e.g. several offsets in a row may push the basket out of reach
        return
    assert scene == again.scene(index)
    assert SceneSpec.parse(scene.to_json()) == scene
    assert scene.program == drawn.hash
    assert check(scene, gates=["schema"]).accepted
    task = get_task(scene.suite, scene.task_id)
    assert scene.task_id in drawn.task_ids
    assert set(scene.objects) <= set(task.objects())
    if scene.objects:
        assert_free(scene)


def assert_free(scene: SceneSpec) -> None:
    """Objects that left their base place stand apart from all others and within the arm's reach."""
    nominal = layout(scene.suite, scene.task_id).objects
    boxes = {}
    for name, pose in scene.objects.items():
        assert pose.position[2] == nominal[name].position[2]
        assert pose.quaternion == nominal[name].quaternion
        x, y = pose.position[:2]
        far = np.abs(np.subtract((x, y), nominal[name].position[:2])) > np.add(nominal[name].spread, 1e-3)
        if far.any():
            assert -0.25 <= x <= 0.2
            assert -0.3 <= y <= 0.3
        boxes[name] = (np.add(nominal[name].footprint, (x, y, x, y)), far.any())
    names = sorted(boxes)
    for i, a in enumerate(names):
        for b in names[:i]:
            (p, moved_p), (q, moved_q) = boxes[a], boxes[b]
            if moved_p or moved_q:
                gap = max(p[0] - q[2], q[0] - p[2], p[1] - q[3], q[1] - p[3])
                assert gap >= CLEARANCE - 2e-4, (a, b)  # positions are rounded to 0.1 mm


def displacement(scene: SceneSpec) -> float:
    """Mean distance (m) of the groceries from their base places."""
    nominal = layout(scene.suite, scene.task_id).objects
    if not scene.objects:
        return 0.0
    moves = [
        np.subtract(p.position[:2], nominal[n].position[:2]) for n, p in scene.objects.items() if "basket" not in n
    ]
    return float(np.mean(np.linalg.norm(moves, axis=1)))


@pytest.mark.parametrize(
    "operation",
    [Resample(jitter_m=0.05), Permute(), Permute(count=3), Offset(radius_m=0.12)],
    ids=lambda o: o.to_json(),
)
def test_difficulty_scales_the_displacement(operation):
    means = []
    for difficulty in (0.0, 0.25, 0.5, 0.75, 1.0):
        scenes = program(operation, difficulty=difficulty).scenes(60)
        means.append(np.mean([displacement(scene) for scene in scenes]))
    assert means[0] == 0.0
    assert means == sorted(means)
    assert means[-1] > 1.3 * means[1] or operation == Permute(count=3)


def test_an_offset_moves_only_its_object_by_the_radius_times_the_difficulty():
    for scene in program(Offset(target="receptacle", radius_m=0.08), difficulty=0.5).scenes(50):
        nominal = layout(scene.suite, scene.task_id).objects
        for name, pose in scene.objects.items():
            distance = np.linalg.norm(np.subtract(pose.position[:2], nominal[name].position[:2]))
            base = np.linalg.norm(nominal[name].spread) + 1e-4
            if name == "basket_1":
                assert 0.02 - base <= distance <= 0.04 + base
            else:
                assert distance <= base


def test_permuted_objects_exchange_places_and_none_is_lost():
    for scene in program(Permute(), task_ids=(2,)).scenes(60):
        nominal = layout("libero_object", 2).objects
        places = {n: p.position[:2] for n, p in nominal.items()}
        taken = []
        for name, pose in scene.objects.items():
            distances = {place: np.hypot(*np.subtract(pose.position[:2], xy)) for place, xy in places.items()}
            place = min(distances, key=distances.get)
            assert distances[place] < 0.025  # the place's own draw
            taken.append((name, place))
        assert sorted(place for _, place in taken) == sorted(places)
        assert ("basket_1", "basket_1") in taken
        assert any(name != place for name, place in taken)


def test_two_of_a_named_pair_swap():
    pair = ("milk_1", "butter_1")
    scene = program(Permute(objects=pair), task_ids=(0,), difficulty=0.01).scene(0)
    nominal = layout("libero_object", 0).objects
    for name, other in (pair, pair[::-1]):
        assert np.hypot(*np.subtract(scene.objects[name].position[:2], nominal[other].position[:2])) < 0.01


def test_every_target_is_reached_by_retargeting_in_the_suites_own_words():
    seen = {}
    for scene in program(Retarget(), task_ids=(1,)).scenes(100):
        (predicate,) = scene.goal
        seen[predicate[1]] = scene
        words = predicate[1].removesuffix("_1").replace("_", " ")
        assert scene.instruction == f"pick the {words} and place it in the basket"
        assert predicate == ("in", predicate[1], "basket_1_contain_region")
        assert scene.prompt_source == ("bddl" if predicate[1] == "cream_cheese_1" else "generated")
        assert scene.objects == {}
    assert set(seen) == set(get_task("libero_object", 1).objects()) - {"basket_1"}


def test_retargeting_happens_as_often_as_the_difficulty_says():
    scenes = program(Retarget(candidates=("milk_1",)), task_ids=(0,), difficulty=0.3).scenes(300)
    kept = [scene.goal == get_task("libero_object", 0).goal() for scene in scenes]
    assert 0.6 < np.mean(kept) < 0.8


def test_retargeted_goals_of_the_goal_suite_are_its_tasks():
    goals = {scene.instruction for scene in program(Retarget(), suite="libero_goal", task_ids=(0,)).scenes(200)}
    assert goals == {get_task("libero_goal", task_id).prompt() for task_id in ALL}


def test_at_difficulty_zero_a_program_is_the_base_distribution():
    scenes = list(program(Permute(), Resample(), Retarget(), Offset(), difficulty=0.0).scenes(40))
    for scene in scenes:
        task = get_task(scene.suite, scene.task_id)
        assert (scene.objects, scene.goal, scene.instruction) == ({}, task.goal(), task.prompt())
        assert scene.prompt_source == "bddl"
    assert len({scene.seed for scene in scenes}) == 40
    assert {s.task_id for s in base_program("libero_goal", (3, 5)).scenes(30)} == {3, 5}


def test_domains_are_separate_streams():
    a, b = (list(base_program("libero_object", ALL, domain=d).scenes(20)) for d in (0, 1))
    assert not {s.seed for s in a} & {s.seed for s in b}
    assert [s.seed for s in base_program("libero_object", ALL).scenes(5, first=10)] == [s.seed for s in a[10:15]]


def test_the_filename_source_is_carried_through():
    scene = program(Permute(), task_ids=(0,), prompt_source="filename").scene(0)
    assert scene.instruction == "pick up the alphabet soup and place it in the basket"
    assert scene.prompt_source == "filename"


@pytest.mark.parametrize("task_id", ALL)
def test_spatial_prompts_stay_true(task_id):
    """The bowl that the words mean stands where they say, and the other bowl does not fit them better."""
    nominal = layout("libero_spatial", task_id).objects
    region = nominal["akita_black_bowl_1"].region
    marks = {"ramekin": "glazed_rim_porcelain_ramekin_1", "plate": "plate_1", "box": "cookies_1"}
    marks |= {name: name for name in ("cookies_1", "glazed_rim_porcelain_ramekin_1")}
    landmarks = [name for word, name in marks.items() if word == region or word in region.split("_")]
    for scene in program(Permute(), Resample(jitter_m=0.03), suite="libero_spatial", task_ids=(task_id,)).scenes(25):
        at = {name: np.array(pose.position[:2]) for name, pose in scene.objects.items()}
        base = {name: np.array(nominal[name].position[:2]) for name in nominal}
        bowl = at.get("akita_black_bowl_1")
        if not landmarks:
            assert bowl is None or np.linalg.norm(bowl - base["akita_black_bowl_1"]) < 0.05  # "table center"
            continue
        place = np.mean([at[name] for name in landmarks], axis=0)
        before = base["akita_black_bowl_1"] - np.mean([base[name] for name in landmarks], axis=0)
        assert np.linalg.norm(bowl - place - before) < 0.05
        if "akita_black_bowl_2" in at:
            assert np.linalg.norm(bowl - place) + 0.029 < np.linalg.norm(at["akita_black_bowl_2"] - place)
        assert max(np.linalg.norm(at[name] - base[name]) for name in at) > 0.04


def test_stacked_objects_stay_on_their_support():
    for scene in program(Permute(), suite="libero_spatial", task_ids=(5,)).scenes(20):
        bowl, ramekin = (
            np.array(scene.objects[name].position[:2])
            for name in ("akita_black_bowl_1", "glazed_rim_porcelain_ramekin_1")
        )
        assert np.linalg.norm(bowl - ramekin) < 0.02


def test_objects_on_fixtures_are_left_to_the_reset():
    assert "akita_black_bowl_1" not in program(Permute(), suite="libero_spatial", task_ids=(7,)).scene(0).objects


def test_every_base_task_has_an_arrangement_with_something_to_move():
    for suite in BASE:
        for task_id in ALL:
            plan = arrangement(suite, task_id)
            assert plan.movable
            assert np.isfinite(plan.nominal).all()
            assert (plan.high > plan.low).all()


def test_roles():
    objects = ("milk_1", "basket_1", "plate_1")
    inside = (("in", "milk_1", "basket_1_contain_region"),)
    found = roles(inside, objects)
    assert (found.target, found.receptacle, found.region) == ("milk_1", "basket_1", "basket_1_contain_region")
    assert [player(inside, objects, role) for role in ("target", "receptacle")] == ["milk_1", "basket_1"]
    assert player((("turnon", "flat_stove_1"), ("on", "milk_1", "plate_1")), objects, "receptacle") == "plate_1"
    on_stove = (("on", "milk_1", "flat_stove_1_cook_region"),)
    assert [player(on_stove, objects, role) for role in ("target", "receptacle")] == ["milk_1", None]
    for goal in (on_stove, (("open", "wooden_cabinet_1_top_region"),)):
        with pytest.raises(RecordError, match=r"among the objects|places no object"):
            roles(goal, objects)
    assert player((("open", "wooden_cabinet_1_top_region"),), objects, "target") is None


def test_a_program_without_room_says_so():
    crowded = GenerationProgram(suite="libero_10", task_ids=(9,), operations=(Permute(),), difficulty=1.0)
    with pytest.raises(LayoutError, match="lower the difficulty"):
        crowded.scene(0)


def bad(**changes) -> dict:
    """A mapping that would be a valid program without `changes`."""
    return {"suite": "libero_object", "task_ids": [0], "difficulty": 0.5, **changes}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (bad(suite="libero_objct"), "'suite'.*did you mean 'libero_object'"),
        (bad(suite="libero_object_swap"), "'suite'.*not a base suite"),
        (bad(task_ids=[]), "'task_ids'"),
        (bad(task_ids=[10]), r"'task_ids\.0'"),
        (bad(task_ids=[1, 1]), "'task_ids'.*twice"),
        (bad(task_ids=list(range(10**4))), r"'task_ids\.10'"),
        (bad(difficulty=1.5), "'difficulty'"),
        (bad(difficulty=float("nan")), "'difficulty'"),
        (bad(domain=-1), "'domain'"),
        (bad(operations=[{"op": "explode"}]), r"'operations\.0'.*resample"),
        (bad(operations=[{"jitter_m": 0.1}]), r"'operations\.0'"),
        (bad(operations=["permute"]), r"'operations\.0"),
        (bad(operations=[{"op": "resample", "jitter_m": 3}]), r"operations\.0\.resample\.jitter_m"),
        (bad(operations=[{"op": "resample", "jitter_m": float("inf")}]), r"operations\.0\.resample\.jitter_m"),
        (bad(operations=[{"op": "resample", "jiter_m": 0.1}]), r"operations\.0\.resample\.jiter_m"),
        (bad(operations=[{"op": "permute", "count": 10**9}]), r"operations\.0\.permute\.count"),
        (bad(operations=[{"op": "permute", "objects": ["milk_1", "mlik_1"]}]), "'operations'.*did you mean 'milk_1'"),
        (bad(operations=[{"op": "permute", "objects": ["milk_1", "milk_1"]}]), "'operations'.*twice"),
        (bad(operations=[{"op": "offset", "target": "ketchup_1"}]), "'operations'.*ketchup_1"),
        (bad(operations=[{"op": "offset", "radius_m": -1}]), r"operations\.0\.offset\.radius_m"),
        (bad(operations=[{"op": "retarget", "candidates": ["basket_1"]}]), "'operations'.*basket_1"),
        (bad(operations=[{"op": "retarget", "candidates": ["cheese"]}]), "'operations'.*cheese"),
        (bad(operations=[{"op": "resample"}] * 9), "'operations'"),
        (bad(code="import os"), "'code'"),
        (bad(suite="libero_spatial", operations=[{"op": "retarget"}]), "'operations'.*held-out"),
        (
            bad(suite="libero_spatial", task_ids=[7], operations=[{"op": "offset"}]),
            "'operations'.*cannot move by itself",
        ),
        (bad(suite="libero_goal", task_ids=[1], operations=[{"op": "offset", "target": "receptacle"}]), "receptacle"),
        (bad(suite="libero_goal", task_ids=[7], operations=[{"op": "offset"}]), "no movable target"),
    ],
)
def test_malformed_programs_are_refused_by_the_name_of_the_field(data, said):
    with pytest.raises(RecordError, match=said) as caught:
        GenerationProgram.parse(data)
    assert str(caught.value).startswith("GenerationProgram: field '")
    assert "\n" not in str(caught.value)


def test_at_keeps_everything_but_the_difficulty():
    one = program(Permute(), Retarget(), difficulty=0.2, domain=4)
    two = one.at(0.8)
    assert two.difficulty == 0.8
    assert two.model_copy(update={"difficulty": 0.2}) == one
    with pytest.raises(RecordError, match="difficulty"):
        one.at(1.1)
