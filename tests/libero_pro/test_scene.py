"""SceneSpec: what determines an episode's start, in and out of JSON."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libero_pro.record import RecordError
from libero_pro.scene import Pose, SceneSpec

NUMBER = st.floats(-20, 20)
POSE = st.builds(Pose, position=st.tuples(NUMBER, NUMBER, NUMBER), quaternion=st.tuples(NUMBER, NUMBER, NUMBER, NUMBER))


def spec(**changes) -> dict:
    """A valid scene as a mapping."""
    return {
        "suite": "libero_object",
        "task_id": 0,
        "instruction": "pick the milk and place it in the basket",
        "prompt_source": "generated",
        "goal": [["in", "milk_1", "basket_1_contain_region"]],
        "seed": 3,
        **changes,
    }


@given(
    seed=st.integers(0, 2**32 - 1),
    objects=st.dictionaries(st.text(min_size=1, max_size=20), POSE, max_size=5),
    instruction=st.text(min_size=3, max_size=100),
)
def test_json_round_trip_is_exact(seed, objects, instruction):
    scene = SceneSpec(**{**spec(), "seed": seed, "objects": objects, "instruction": instruction})
    again = SceneSpec.parse(scene.to_json())
    assert again == scene
    assert again.hash == scene.hash


def test_every_part_is_identity():
    base = SceneSpec.parse(spec())
    changes = [
        {"seed": 4},
        {"task_id": 1},
        {"suite": "libero_goal"},
        {"instruction": "pick the milk"},
        {"prompt_source": "bddl"},
        {"init_state_id": 0},
        {"goal": [["in", "butter_1", "basket_1_contain_region"]]},
        {"objects": {"milk_1": {"position": [0, 0, 0]}}},
        {"fixtures": {"stove_1": {"position": [0, 0, 0]}}},
        {"program": "abc"},
    ]
    assert len({base.hash, *(SceneSpec.parse(spec(**change)).hash for change in changes)}) == len(changes) + 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"seed": -1}, "seed"),
        ({"seed": 2**32}, "seed"),
        ({"goal": []}, "goal"),
        ({"instruction": ""}, "instruction"),
        ({"prompt_source": "model"}, "prompt_source"),
        ({"schema_version": 2}, "schema_version"),
        ({"objects": {"milk_1": {"position": [0, 0, 1e9]}}}, "objects.milk_1.position.2"),
        ({"objects": {"milk_1": {"position": [0, 0]}}}, "objects.milk_1.position.2"),
        ({"weather": "rain"}, "weather"),
    ],
)
def test_malformed_scenes_are_refused(change, field):
    with pytest.raises(RecordError) as caught:
        SceneSpec.parse(spec(**change))
    assert f"'{field}'" in str(caught.value)


@pytest.mark.parametrize("field", ["objects", "fixtures"])
def test_a_released_start_and_explicit_poses_exclude_each_other(field):
    with pytest.raises(RecordError, match="init_state_id"):
        SceneSpec.parse(spec(init_state_id=0, **{field: {"milk_1": {"position": [0, 0, 0]}}}))
