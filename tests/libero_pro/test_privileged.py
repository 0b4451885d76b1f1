"""SceneState of a live scene: poses, contacts, the held object, joints, predicates."""

import numpy as np
import pytest

from libero_pro import suites
from libero_pro.scene import Pose
from libero_pro.simulator import Simulator

pytestmark = pytest.mark.sim


@pytest.fixture(scope="module")
def sim():
    return Simulator(suites.get_task("libero_object", 1))


@pytest.fixture(scope="module")
def settled(sim):
    sim.reset(suites.scene_for("libero_object", 1, init_state_id=0))
    sim.settle()
    return sim.state()


def test_state_describes_the_scene(sim, settled):
    assert settled.object_names == suites.get_task("libero_object", 1).objects()
    assert settled.object_pos.shape == (len(settled.object_names), 3)
    body = sim.env.obj_body_id["basket_1"]
    basket = settled.object_names.index("basket_1")
    assert np.array_equal(settled.object_pos[basket], sim.data.xpos[body])
    assert np.array_equal(settled.object_quat[basket], sim.data.xquat[body])
    assert settled.sites["basket_1_contain_region"] == pytest.approx(settled.object_pos[basket], abs=0.1)
    assert settled.goal == suites.get_task("libero_object", 1).goal()
    assert settled.goal_holds.tolist() == [False]
    assert settled.held == -1 and settled.held_name is None
    assert 0.07 < settled.gripper_width < 0.085
    assert np.linalg.norm(settled.eef_quat) == pytest.approx(1.0)
    assert settled.joints == {}


def test_contacts_of_a_settled_scene(settled):
    for name in settled.object_names:
        assert settled.touching(name, "table") and settled.touching("table", name)
    assert not any("gripper" in pair or "robot" in pair for pair in settled.contacts)
    assert all(a < b for a, b in settled.contacts)


def test_state_is_a_copy(sim, settled):
    before = settled.object_pos.copy(), settled.eef_pos.copy(), settled.sites["basket_1_contain_region"].copy()
    for _ in range(3):
        sim.step([1, 1, 1, 0, 0, 0, 1])
    assert np.array_equal(settled.object_pos, before[0])
    assert np.array_equal(settled.eef_pos, before[1])
    assert np.array_equal(settled.sites["basket_1_contain_region"], before[2])
    assert not np.array_equal(sim.reader.eef_pos(), before[1])


def test_object_between_closing_fingers_is_held(sim):
    base = suites.scene_for("libero_object", 1)
    sim.reset(base)
    name = "butter_1"
    # The fingers start half open, just as wide as the butter: they catch it as it begins to fall.
    scene = base.model_copy(update={"objects": {name: Pose(position=tuple(sim.reader.eef_pos()))}})
    sim.reset(scene)
    held = [sim.state().held_name]
    for _ in range(15):
        sim.step([0, 0, 0, 0, 0, 0, 1])
        held.append(sim.state().held_name)
    assert held[-1] == name
    assert sim.state().touching(name, "gripper") and not sim.state().touching(name, "table")
    for _ in range(20):
        sim.step([0, 0, 0, 0, 0, 0, -1])
    assert sim.state().held == -1


def test_joints_and_fixtures_of_a_kitchen():
    sim = Simulator(suites.get_task("libero_goal", 7))
    sim.reset(suites.scene_for("libero_goal", 7, init_state_id=0))
    state = sim.state()
    assert set(state.joints) == {
        "wooden_cabinet_1_top_level", "wooden_cabinet_1_middle_level", "wooden_cabinet_1_bottom_level",
        "flat_stove_1_button"}  # fmt: skip
    assert set(state.fixtures) == {"wooden_cabinet_1", "flat_stove_1", "wine_rack_1"}
    knob = sim.model.jnt_qposadr[sim.model.joint("flat_stove_1_button").id]
    sim.data.qpos[knob] = 1.25
    sim.step([0, 0, 0, 0, 0, 0, -1])
    assert sim.state().joints["flat_stove_1_button"] == pytest.approx(1.25, abs=0.2)
    assert sim.state().goal_holds.tolist() == [True]
