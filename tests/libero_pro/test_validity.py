"""The gates: what is physically wrong, unreachable, already solved or held out is refused by the gate that names it."""

import numpy as np
import pytest

from libero_pro.layouts import collision_corners, layout, measure
from libero_pro.programs import GenerationProgram, Permute, Resample, base_program
from libero_pro.record import RecordError
from libero_pro.scene import Pose, SceneSpec
from libero_pro.simulator import Simulator
from libero_pro.suites import get_task, scene_for
from libero_pro.validity import GATES, Verdict, check, reach_error

sim_test = pytest.mark.sim
PERMUTED = GenerationProgram(
    suite="libero_object", task_ids=(0,), operations=(Permute(), Resample(jitter_m=0.04)), difficulty=1.0
)


@pytest.fixture(scope="module")
def floor():
    """libero_object 0: groceries and a basket on the floor."""
    return Simulator(get_task("libero_object", 0))


@pytest.fixture(scope="module")
def table():
    """libero_spatial 5: bowls on a ramekin and a cookie box, a cabinet and a stove."""
    return Simulator(get_task("libero_spatial", 5))


def layout_scene(suite: str = "libero_object", task_id: int = 0, **changes: Pose) -> SceneSpec:
    """The nominal base layout written out, with some poses changed."""
    nominal = layout(suite, task_id)
    free = [n for n, p in nominal.objects.items() if p.support not in nominal.fixtures]
    poses = {
        n: Pose(position=nominal.objects[n].position, quaternion=nominal.objects[n].quaternion) for n in free
    } | changes
    return scene_for(suite, task_id).model_copy(update={"objects": poses})


def moved(name: str, suite: str = "libero_object", task_id: int = 0, **to) -> dict[str, Pose]:
    """A changed pose of one object: x, y, z in metres and quaternion."""
    placed = layout(suite, task_id).objects[name]
    x, y, z = placed.position
    position = (to.get("x", x), to.get("y", y), to.get("z", z))
    return {name: Pose(position=position, quaternion=to.get("quaternion", placed.quaternion))}


def test_static_gates_need_no_simulator():
    assert check(layout_scene()).accepted
    assert check(scene_for("libero_object_swap", 0)).gate == "leakage"
    assert check(scene_for("libero_object_swap", 0), gates=["schema"]).accepted


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"suite": "libero_objct"}, "did you mean 'libero_object'"),
        ({"task_id": 10}, "0 to 9"),
        ({"objects": {"mlk_1": {"position": [0, 0, 0]}}}, "did you mean 'milk_1'"),
        ({"fixtures": {"stove_1": {"position": [0, 0, 0]}}}, "fixtures: 'stove_1'"),
        ({"objects": {"milk_1": {"position": [0, 0, 0], "quaternion": [0, 0, 0, 0]}}}, "quaternion"),
        ({"goal": [["in", "milk_1", "basket_1_contain"]]}, "basket_1_contain_region"),
        ({"goal": [["in", "milk_1"]]}, "goal"),
        ({"goal": [[]]}, "goal"),
        ({"goal": [["explode", "milk_1"]]}, "explode"),
        ({"seed": -1}, "'seed'"),
        ({"surprise": 1}, "'surprise'"),
    ],
)
def test_schema_gate(change, said):
    verdict = check({**scene_for("libero_object", 0).model_dump(mode="json"), **change})
    assert (verdict.accepted, verdict.gate) == (False, "schema")
    assert said in verdict.reason


def test_an_unknown_gate_is_refused():
    with pytest.raises(RecordError, match="did you mean 'settles'"):
        check(layout_scene(), gates=["setles"])


@sim_test
def test_base_resets_and_permuted_layouts_pass_with_a_reproducible_verdict(floor):
    for scene in [*base_program("libero_object", (0,)).scenes(3), *PERMUTED.scenes(5), layout_scene()]:
        verdict = check(scene, floor)
        assert verdict == Verdict(scene=scene.hash, accepted=True), verdict.reason
        assert check(scene, floor) == verdict


@sim_test
def test_overlapping_objects(floor):
    milk = layout("libero_object", 0).objects["milk_1"].position
    verdict = check(layout_scene(**moved("salad_dressing_1", x=milk[0] + 0.01, y=milk[1])), floor)
    assert verdict.gate == "penetration"
    assert "milk_1" in verdict.reason
    assert "salad_dressing_1" in verdict.reason


@sim_test
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"z": 0.3}, "drifts"),
        ({"z": 0.12, "quaternion": (0.27059805, 0.65328148, 0.27059805, 0.65328148)}, "tips|drifts"),
    ],
)
def test_falling_and_tipping_objects(floor, change, said):
    verdict = check(layout_scene(**moved("milk_1", **change)), floor)
    assert verdict.gate == "settles"
    assert "milk_1" in verdict.reason
    assert any(word in verdict.reason for word in said.split("|"))


@sim_test
def test_a_goal_that_already_holds(floor):
    basket = layout("libero_object", 0).objects["basket_1"].position
    change = moved("alphabet_soup_1", x=basket[0], y=basket[1], z=0.06)
    verdict = check(layout_scene(**change), floor)
    assert (verdict.gate, verdict.reason) == ("goal_not_true", "the goal already holds")


@sim_test
def test_targets_and_receptacles_out_of_reach(floor):
    far = check(layout_scene(**moved("alphabet_soup_1", x=0.35, y=-0.3)), floor)
    assert far.gate == "reach"
    assert "alphabet_soup_1" in far.reason
    basket = check(layout_scene(**moved("basket_1", x=0.35, y=0.45)), floor)
    assert basket.gate == "reach"
    other = check(layout_scene(**moved("milk_1", x=0.35, y=-0.3)), floor)
    assert other.accepted  # nobody asks for the milk


@sim_test
def test_scenes_of_another_task_do_not_build(floor):
    verdict = check(scene_for("libero_object", 1), floor)
    assert verdict.gate == "build"
    assert "libero_object 1" in verdict.reason


@sim_test
def test_gates_run_in_cost_order_and_only_those_asked_for(floor):
    bad = layout_scene(**moved("alphabet_soup_1", x=0.35, y=-0.3), **moved("milk_1", z=0.3))
    assert check(bad, floor).gate == "settles"
    assert check(bad, floor, gates=["reach", "schema"]).gate == "reach"
    assert check(bad, floor, gates=["schema", "leakage", "build"]).accepted
    assert check(bad).accepted


@sim_test
def test_the_expert_is_asked_last(floor):
    asked = []

    def solve(sim, scene):
        asked.append(scene)
        return False

    verdict = check(layout_scene(), floor, solve=solve)
    assert (verdict.gate, len(asked)) == ("solved", 1)
    assert check(layout_scene(**moved("milk_1", z=0.3)), floor, solve=solve).gate == "settles"
    assert len(asked) == 1
    assert check(layout_scene(), floor, solve=lambda *_: True).accepted
    assert GATES[-1] == "solved"


@sim_test
def test_settling_with_a_still_arm_ends_where_the_protocols_no_ops_end(floor):
    for scene in (scene_for("libero_object", 0, seed=4), PERMUTED.scene(3)):
        check(scene, floor)
        quick = floor.reader.object_pos().copy()
        floor.reset(scene)
        floor.settle(20)
        np.testing.assert_allclose(quick, floor.reader.object_pos(), atol=1e-3)


@sim_test
def test_reach_error_leaves_the_simulation_alone(floor):
    floor.reset(layout_scene())
    before = floor.data.qpos.copy()
    near = reach_error(floor.model, floor.data, floor.eef_site, np.array([0.0, 0.1, 0.2]))
    far = reach_error(floor.model, floor.data, floor.eef_site, np.array([1.0, 0.0, 0.2]))
    assert near < 0.01 < 0.1 < far
    np.testing.assert_array_equal(floor.data.qpos, before)


@sim_test
def test_stacked_bowls_pass_and_a_plate_in_the_cabinet_does_not(table):
    program = GenerationProgram(
        suite="libero_spatial", task_ids=(5,), operations=(Permute(), Resample(jitter_m=0.02)), difficulty=1.0
    )
    verdicts = [check(scene, table) for scene in program.scenes(4)]
    assert sum(verdict.accepted for verdict in verdicts) >= 3, verdicts
    cabinet = layout("libero_spatial", 5).fixtures["wooden_cabinet_1"].position
    inside = layout_scene("libero_spatial", 5, **moved("plate_1", "libero_spatial", 5, x=cabinet[0], y=cabinet[1]))
    verdict = check(inside, table)
    assert verdict.gate == "penetration"
    assert "wooden_cabinet_1" in verdict.reason


@sim_test
def test_measured_layouts_are_what_the_simulator_gives(table):
    """The shipped file again, from the same resets."""
    shipped, fresh = layout("libero_spatial", 5), measure(get_task("libero_spatial", 5), table)
    for name, placed in fresh.objects.items() | fresh.fixtures.items():
        old = (shipped.objects | shipped.fixtures)[name]
        np.testing.assert_allclose(placed.position, old.position, atol=2e-3)
        np.testing.assert_allclose(placed.footprint, old.footprint, atol=2e-3)
        assert (placed.support, placed.region) == (old.support, old.region)
    assert shipped.objects["akita_black_bowl_1"].support == "glazed_rim_porcelain_ramekin_1"
    assert shipped.free() == ("cookies_1", "glazed_rim_porcelain_ramekin_1", "plate_1")
    corners = collision_corners(table.model, table.data, "plate_1")
    assert corners.shape[1] == 3
    assert 0.12 < np.ptp(corners[:, 0]) < 0.16  # a plate is 14 cm wide


def test_layouts_exist_for_base_tasks_only():
    assert layout("libero_10", 9).ground == "kitchen_table"
    with pytest.raises(RecordError, match="base suites"):
        layout("libero_object_swap", 0)
