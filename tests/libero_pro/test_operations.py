"""The operations beyond jitter, permutation and retargeting: what they promise, and what they refuse."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_parts import made_up_episode

from libero_pro.denylist import is_test_instruction
from libero_pro.layouts import layout
from libero_pro.operations import MOVES
from libero_pro.phrases import paraphrases
from libero_pro.placement import arrangement
from libero_pro.programs import (
    Arm,
    Box,
    Camera,
    Crowd,
    GenerationProgram,
    LayoutError,
    Light,
    Permute,
    Place,
    Polar,
    Ray,
    Region,
    Rephrase,
    Resample,
    Resume,
    Resumption,
    Texture,
    Tint,
)
from libero_pro.record import RecordError
from libero_pro.scene import SceneSpec, Start
from libero_pro.suites import BASE, get_task, scene_for, tasks
from libero_pro.validity import check

UNIT = st.floats(0.05, 0.3)
OPERATIONS = st.one_of(
    st.builds(Resample, jitter_m=st.floats(0, 0.05)),
    st.builds(
        Place,
        target=st.sampled_from(["target", "all", "milk_1"]),
        area=st.one_of(
            st.just(Box(low=(-0.2, -0.25), high=(0.15, 0.25))),
            st.just(Region(name="floor_target_object_region")),
            st.just(Polar(radius=(0.4, 0.7), angle=(-0.4, 0.4))),
            st.builds(Ray, distance_m=st.floats(-0.1, 0.1)),
        ),
    ),
    st.builds(Crowd, count=st.integers(1, 3), alike=st.booleans()),
    st.just(Rephrase()),
    st.builds(Arm, joint_rad=UNIT),
    st.builds(Camera, shift_m=UNIT, turn_rad=UNIT),
    st.builds(Light, gain=st.floats(0.1, 0.9)),
    st.builds(Tint, strength=UNIT),
    st.just(Texture()),
)


def program(*operations, suite="libero_object", task_ids=(0,), difficulty=1.0, **rest) -> GenerationProgram:
    return GenerationProgram(suite=suite, task_ids=task_ids, operations=operations, difficulty=difficulty, **rest)


def xy(scene: SceneSpec, name: str) -> np.ndarray:
    return np.array(scene.objects[name].position[:2])


@settings(max_examples=60, deadline=None)
@given(st.lists(OPERATIONS, max_size=5), st.floats(0, 1), st.integers(0, 10**6))
def test_any_composition_is_pure_reproducible_and_names_only_what_exists(operations, difficulty, index):
    drawn = program(*operations, difficulty=difficulty)
    again = GenerationProgram.parse(drawn.to_json())
    assert again == drawn and again.hash == drawn.hash
    try:
        scene = drawn.scene(index)
    except LayoutError:
        return
    assert again.scene(index) == scene
    assert SceneSpec.parse(scene.to_json()) == scene
    assert check(scene, gates=["schema"]).accepted
    if difficulty == 0.0:
        plain = program(*(o for o in operations if isinstance(o, MOVES)), difficulty=0.0).scene(index)
        assert scene.model_copy(update={"program": None}) == plain.model_copy(update={"program": None})


def test_difficulty_scales_how_far_an_object_goes_to_its_place():
    corner = Place(target="milk_1", area=Box(low=(0.14, -0.29), high=(0.14, -0.29)))
    home = np.array(layout("libero_object", 0).objects["milk_1"].position[:2])
    for difficulty in (0.4, 1.0):
        for scene in program(corner, difficulty=difficulty).scenes(5):
            wanted = home + ([0.14, -0.29] - home) * difficulty
            assert np.abs(xy(scene, "milk_1") - wanted).max() < 0.02


def test_polar_regions_and_rays():
    plan = arrangement("libero_object", 0)
    ring = Place(area=Polar(around="basket_1", radius=(0.15, 0.2)))
    region = Place(area=Region(name="floor_target_object_region"), target="milk_1")
    for scene in program(ring).scenes(10):
        assert 0.149 <= np.linalg.norm(xy(scene, "alphabet_soup_1") - xy(scene, "basket_1")) <= 0.201
    for scene in program(Permute(objects=("milk_1", "alphabet_soup_1")), region, difficulty=1.0).scenes(5):
        low, high = np.reshape(plan.regions["floor_target_object_region"], (2, 2))
        assert np.all(xy(scene, "milk_1") >= low - 1e-3) and np.all(xy(scene, "milk_1") <= high + 1e-3)
    distances = {}
    for metres in (-0.1, 0.0, 0.1):
        scenes = program(Place(area=Ray(distance_m=metres), target="milk_1")).scenes(10)
        distances[metres] = np.mean([np.linalg.norm(xy(scene, "milk_1") - plan.robot) for scene in scenes])
    assert distances[-0.1] + 0.04 < distances[0.0] < distances[0.1] - 0.04


def test_distractors_gather_around_the_target_and_look_like_it_if_asked():
    def near(operation: Crowd) -> list[set[str]]:
        found = []
        for scene in program(operation).scenes(12):
            at = xy(scene, "alphabet_soup_1")
            close = {n for n in scene.objects if np.linalg.norm(xy(scene, n) - at) <= operation.radius_m + 1e-3}
            found.append(close - {"alphabet_soup_1", "basket_1"})
        return found

    assert all(len(close) >= 2 for close in near(Crowd(count=2)))
    assert len(set().union(*near(Crowd(count=1)))) > 2
    assert all("tomato_sauce_1" in close for close in near(Crowd(count=1, alike=True)))  # the other can
    bowls = program(Crowd(count=1, alike=True, near="plate_1", radius_m=0.2), suite="libero_spatial", task_ids=(7,))
    assert bowls.scene(0).objects


def test_paraphrases_keep_the_nouns_and_are_never_a_tests_words():
    for base in BASE:
        for task in tasks(base):
            for source in ("bddl", "filename"):
                others = paraphrases(task.prompt(source))
                assert others, task.prompt(source)
                for text in others:
                    assert text != task.prompt(source) and not is_test_instruction(text)
                nouns = {word for word in task.prompt(source).split() if len(word) > 5} - {"inside"}
                assert all(nouns <= set(text.replace(",", "").split()) for text in others), others
    words = [scene.instruction for scene in program(Rephrase()).scenes(60)]
    assert len(set(words)) >= 4
    gentle = {scene.instruction for scene in program(Rephrase(), difficulty=0.3).scenes(60)}
    assert get_task("libero_object", 0).prompt() in gentle and len(gentle) <= 3
    assert {s.prompt_source for s in program(Rephrase()).scenes(5)} == {"generated"}


def test_arm_and_looks_scale_with_the_difficulty():
    for difficulty in (0.2, 1.0):
        scenes = list(program(Arm(joint_rad=0.1), Camera(shift_m=0.2), difficulty=difficulty).scenes(20))
        angles = np.array([scene.arm for scene in scenes])
        shifts = np.array([scene.look.camera_shift for scene in scenes])
        assert 0.7 * 0.1 * difficulty < np.abs(angles).max() <= 0.1 * difficulty + 1e-4
        assert 0.7 * 0.2 * difficulty < np.abs(shifts).max() <= 0.2 * difficulty + 1e-4
    scene = program(Tint(parts=("basket_1",)), Texture(surfaces=("floor",)), Light()).scene(0)
    assert set(scene.look.tints) == {"basket_1"} and scene.look.textures == {"floor": "walls"}


def stored(steps: int = 9) -> Resumption:
    scene = scene_for("libero_object", 0, seed=5)
    episode = made_up_episode(scene, steps, qpos=np.full((steps + 1, 58), 0.5))
    return Resumption.of(episode, steps)


def test_a_stored_instant_brings_its_own_scene_along():
    instant = stored()
    resumed = program(Resume(instants=(instant,)), Permute(), Arm())
    scene = resumed.scene(3)
    assert (scene.start, scene.seed, scene.objects) == (instant.start, 5, {})
    assert scene.arm is not None and scene.program == resumed.hash
    assert GenerationProgram.parse(resumed.to_json()).scene(3) == scene
    kept = [s.start is None for s in resumed.at(0.5).scenes(60)]
    assert 0.3 < np.mean(kept) < 0.7


def test_the_gripper_of_a_stored_instant_is_where_its_actions_drove_it():
    scene = scene_for("libero_object", 0, seed=5)
    actions = np.zeros((9, 7), np.float32)
    actions[:6, 6] = 1.0
    episode = made_up_episode(scene, 9, actions=actions, qpos=np.zeros((10, 58)))
    driven = [Resumption.of(episode, step).start.gripper for step in (0, 2, 6, 9)]
    assert driven == [-1.0, -0.5, 0.5, 0.5]
    with pytest.raises(RecordError, match="instants 0 to 9"):
        Resumption.of(episode, 10)
    released = made_up_episode(scene_for("libero_object", 0, init_state_id=1))
    with pytest.raises(RecordError, match="evaluation only"):
        Resumption.of(released, 0)


def bad(*operations: dict, suite: str = "libero_object", task_ids: tuple = (0,)) -> dict:
    return {"suite": suite, "task_ids": list(task_ids), "difficulty": 0.5, "operations": list(operations)}


BOX = {"shape": "box", "low": [-0.1, 0.0], "high": [0.1, 0.2]}
INSTANT = {**stored().model_dump(mode="json")}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (bad({"op": "place", "area": {"shape": "region", "name": "floor_bin"}}), "did you mean 'floor_bin_region'"),
        (bad({"op": "place", "area": {**BOX, "low": [0.3, 0.0]}}), "must not lie beyond"),
        (bad({"op": "place", "area": {**BOX, "low": [float("nan"), 0.0]}}), r"place\.area\.box\.low"),
        (bad({"op": "place", "area": {"shape": "blob"}}), r"place\.area"),
        (bad({"op": "place", "target": "ketchup_1", "area": BOX}), "ketchup_1"),
        (bad({"op": "place", "area": {"shape": "polar", "around": "sun_1", "radius": [0, 1]}}), "sun_1"),
        (bad({"op": "place", "area": {"shape": "polar", "radius": [1, 0]}}), "backwards"),
        (bad({"op": "crowd", "near": "sun_1"}), "sun_1"),
        (bad({"op": "crowd", "count": 10**9}), r"crowd\.count"),
        (bad({"op": "arm", "joint_rad": 3.0}), r"arm\.joint_rad"),
        (bad({"op": "tint", "parts": ["basket"]}), "did you mean 'basket_1'"),
        (bad({"op": "texture", "surfaces": ["table"]}), "'table' is not in libero_object 0"),
        (bad({"op": "texture", "surfaces": ["../../etc/passwd"]}), "passwd"),
        (bad({"op": "camera", "shift_m": float("inf")}), r"camera\.shift_m"),
        (bad({"op": "resume", "instants": []}), r"resume\.instants"),
        (bad({"op": "resume", "instants": [INSTANT]}, task_ids=(0, 1)), "'instants' holds none of libero_object 1"),
        (bad({"op": "resume", "instants": [{**INSTANT, "goal": [["on", "milk_1", "sun_1"]]}]}), "sun_1"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(data, said):
    with pytest.raises(RecordError, match=said) as caught:
        GenerationProgram.parse(data)
    assert "\n" not in str(caught.value)


def test_scenes_with_a_start_are_refused_where_it_does_not_fit():
    scene = scene_for("libero_object", 0)
    short = scene.model_copy(update={"start": Start(qpos=(0.0,) * 20)})
    assert "start.qpos" in check(short).reason
    zeros = scene.model_copy(update={"start": Start(qpos=(0.0,) * 58)})
    assert "quaternion" in check(zeros).reason
    both = {**scene.model_dump(), "init_state_id": 0, "start": {"qpos": [0.0] * 58}}
    with pytest.raises(RecordError, match="start excludes"):
        SceneSpec.parse(both)
    for look, said in (
        ({"tints": {"sun_1": [1, 1, 1]}}, "look.tints: 'sun_1'"),
        ({"textures": {"milk_1": "walls"}}, "look.textures: 'milk_1'"),
        ({"textures": {"walls": "sky"}}, "look.textures: 'sky'"),
    ):
        assert said in check({**scene.model_dump(mode="json"), "look": look}).reason


def test_what_a_scene_does_not_have_leaves_its_hash_alone():
    scene = scene_for("libero_object", 0, seed=3)
    assert not {"start", "arm", "look"} & set(scene.model_dump(mode="json"))
    assert scene.hash == "ed35c59daaff5b3b"
