"""Articulated parts of live scenes, and what episodes keep of them."""

import numpy as np
import pytest

from libero_pro import suites
from libero_pro.episode import Episode
from libero_pro.recorder import EpisodeRecorder
from libero_pro.simulator import SETTLE_ACTION, Simulator

pytestmark = pytest.mark.sim
WAIT = np.array(SETTLE_ACTION)


@pytest.fixture(scope="module")
def kitchen() -> Simulator:
    return Simulator(suites.get_task("libero_goal", 7))  # turn on the stove


def begin(sim: Simulator) -> EpisodeRecorder:
    scene = suites.scene_for("libero_goal", 7, init_state_id=0)
    sim.reset(scene)
    recorder = EpisodeRecorder(sim, scene, "expert")
    recorder.start()
    return recorder


def test_parts_have_libero_s_own_thresholds(kitchen):
    begin(kitchen)
    ranges = dict(zip(kitchen.reader.part_names, kitchen.reader.part_range.tolist(), strict=True))
    drawers = [f"wooden_cabinet_1_{level}_region" for level in ("top", "middle", "bottom")]
    assert ranges == {"flat_stove_1": [0.0, 0.5], **{drawer: [0.0, -0.14] for drawer in drawers}}
    env, goal = kitchen.env, (("open", drawers[1]), ("close", drawers[1]), ("turnon", "flat_stove_1"))
    middle, knob = "wooden_cabinet_1_middle_level", "flat_stove_1_button"
    for position, expected in ((-0.139, [False, False]), (-0.141, [True, False]), (0.001, [False, True])):
        env.sim.data.set_joint_qpos(middle, position)
        assert kitchen.reader.goal_holds(goal)[:2].tolist() == expected
    for position, expected in ((0.49, False), (0.5, True)):
        env.sim.data.set_joint_qpos(knob, position)
        assert kitchen.reader.goal_holds(goal)[2] == expected


def test_handles_move_with_their_parts(kitchen):
    recorder = begin(kitchen)
    names, before = kitchen.reader.part_names, kitchen.reader.part_point()
    top, stove = names.index("wooden_cabinet_1_top_region"), names.index("flat_stove_1")
    cabinet = kitchen.reader.region_pos()[kitchen.reader.region_names.index("wooden_cabinet_1")]
    assert before[top][2] > before[names.index("wooden_cabinet_1_bottom_region")][2] + 0.1
    assert 0.05 < np.linalg.norm((before[top] - cabinet)[:2]) < 0.15  # in front of the cabinet
    for joint, value in (("wooden_cabinet_1_top_level", -0.1), ("flat_stove_1_button", 1.0)):
        kitchen.env.sim.data.set_joint_qpos(joint, value)
    recorder.step(WAIT)
    moved = np.linalg.norm(kitchen.reader.part_point() - before, axis=1)
    assert moved[top] == pytest.approx(0.1, abs=0.02) and moved[stove] < 0.01  # a knob turns in place
    assert moved[names.index("wooden_cabinet_1_middle_region")] < 0.01


def test_an_episode_keeps_parts_regions_and_touch(kitchen, tmp_path):
    recorder = begin(kitchen)
    kitchen.env.sim.data.set_joint_qpos("flat_stove_1_button", 0.2)
    recorder.step(WAIT)
    episode = recorder.finish(truncated=True)
    episode.save(tmp_path / "e.npz")
    loaded = Episode.load(tmp_path / "e.npz")
    reader = kitchen.reader
    assert loaded.part_names == reader.part_names and loaded.region_names == reader.region_names
    assert np.array_equal(loaded.part_pos[-1], reader.part_pos()) and loaded.part_pos[0, 0] == 0.0
    assert np.array_equal(loaded.part_point[-1], reader.part_point())
    assert np.array_equal(loaded.region_pos[-1], reader.region_pos())
    assert np.array_equal(loaded.part_range, reader.part_range) and loaded.inconsistency() is None
    site = kitchen.state().sites["flat_stove_1_cook_region"]
    cook = loaded.region_names.index("flat_stove_1_cook_region")
    assert np.array_equal(loaded.region_pos[-1, cook], site)
    assert loaded.region_half[cook] == pytest.approx([0.075, 0.075, 0.0025], abs=1e-3)
    assert loaded.touched.shape == (2, len(loaded.object_names) + len(loaded.part_names)) and not loaded.touched.any()


def test_touch_is_what_the_contacts_say():
    sim = Simulator(suites.get_task("libero_object", 1))
    from libero_pro.scene import Pose

    base = suites.scene_for("libero_object", 1)
    sim.reset(base)
    sim.reset(base.model_copy(update={"objects": {"butter_1": Pose(position=tuple(sim.reader.eef_pos()))}}))
    for _ in range(8):
        sim.step([0, 0, 0, 0, 0, 0, 1])
    state = sim.state()
    touched = dict(zip(sim.object_names, sim.reader.touched(), strict=True))
    assert touched == {name: state.touching(name, "gripper") for name in sim.object_names} and touched["butter_1"]


def test_a_microwave_s_door_is_held_at_its_edge():
    sim = Simulator(suites.get_task("libero_10", 9))
    sim.reset(suites.scene_for("libero_10", 9, seed=0))
    assert sim.reader.part_names == ("microwave_1",)
    assert sim.reader.part_range.tolist() == [[-0.005, -1.3]] and sim.reader.part_pos()[0] < -1.3
    hinge = sim.env.sim.data._data.xanchor[sim.reader.parts[0].joint]
    assert 0.2 < np.linalg.norm(sim.reader.part_point()[0] - hinge) < 0.3
