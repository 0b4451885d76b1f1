"""The scripted expert: box geometry and grasps without a simulator, then what it does in one."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from libero_pro.expert.geometry import Boxes, overlaps, rotation_vector, turn_z
from libero_pro.expert.grasps import plan_grasp
from libero_pro.expert.motion import MAX_TRANSLATION
from libero_pro.record import RecordError
from libero_pro.scene import Pose
from libero_pro.suites import get_task, scene_for

EYE = np.eye(3)


def box(center, half, axes=EYE):
    return Boxes(np.array([center], float), axes[None], np.array([half], float))


def test_overlap_of_turned_boxes():
    others = Boxes.joined(
        [
            box([1.9, 0, 0], [1, 1, 1]),  # reaches into the unit box
            box([2.1, 0, 0], [1, 1, 1]),  # 10 cm beside it
            box([2.1, 0, 0], [1, 1, 1], turn_z(np.pi / 4)),  # the same, turned: its corner reaches in
            box([1.9, 1.9, 0], [1, 0.1, 1], turn_z(-np.pi / 4)),  # a thin plate across the corner, outside
        ]
    )
    assert overlaps(box([0, 0, 0], [1, 1, 1]), others).tolist() == [True, False, True, False]


@pytest.mark.parametrize("vector", [[0, 0, 0], [0.3, 0, 0], [0.1, -2.0, 0.7], [0, 0, 3.1]])
def test_rotation_vector_inverts_the_exponential(vector):
    assert rotation_vector(Rotation.from_rotvec(vector).as_matrix()) == pytest.approx(vector, abs=1e-9)


def plan(target, obstacles=None, rotation=EYE):
    center = target.centers.mean(axis=0)
    return plan_grasp(target, obstacles or Boxes.none(), center, rotation)


def test_a_box_is_grasped_in_its_middle_across_the_start_axis():
    target = box([0.1, 0.2, 0.03], [0.04, 0.02, 0.03])
    grasp = plan(target)
    assert grasp.yaw == 0.0 and grasp.width == pytest.approx(0.04)
    assert grasp.goal(target.centers[0], EYE) == pytest.approx([0.1, 0.2, 0.06 - 0.022])


def test_a_flat_box_is_grasped_above_the_table():
    target = box([0, 0, 0.009], [0.04, 0.02, 0.009])
    assert plan(target).goal(target.centers[0], EYE)[2] == pytest.approx(0.0105)


def test_a_turned_box_is_grasped_across_its_faces():
    axes = turn_z(np.deg2rad(20))
    assert np.rad2deg(plan(box([0, 0, 0.03], [0.04, 0.02, 0.03], axes), rotation=axes).yaw) == pytest.approx(
        20, abs=0.1
    )


def test_neighbors_turn_the_hand():
    target = box([0, 0, 0.03], [0.02, 0.02, 0.03])
    walls = Boxes.joined([box([0, side * 0.07, 0.1], [0.1, 0.01, 0.1]) for side in (1, -1)])
    grasp = plan(target, walls)
    assert abs(grasp.yaw) == pytest.approx(np.pi / 2, abs=1e-3)


def test_what_is_too_wide_or_walled_in_is_not_grasped():
    assert plan(box([0, 0, 0.05], [0.04, 0.04, 0.05])) is None
    target = box([0, 0, 0.03], [0.02, 0.02, 0.03])
    walls = [
        box([x, y, 0.1], [0.01 + abs(y), 0.01 + abs(x), 0.1]) for x, y in ((0.05, 0), (-0.05, 0), (0, 0.05), (0, -0.05))
    ]
    assert plan(target, Boxes.joined(walls)) is None


def test_a_ring_is_grasped_at_the_same_side_whatever_its_turn():
    for turn in (0.0, 0.3, 1.0):
        angles = turn + np.arange(24) * 2 * np.pi / 24
        wall = [box([0.05 * np.cos(a), 0.05 * np.sin(a), 0.025], [0.003, 0.007, 0.025], turn_z(a)) for a in angles]
        grasp = plan(Boxes.joined(wall), rotation=turn_z(turn))
        world_point = turn_z(turn) @ grasp.point
        assert abs(grasp.yaw) < 0.3 and world_point[1] > 0.045 and abs(world_point[0]) < 0.015


@pytest.fixture(scope="module")
def grocery():
    from libero_pro.simulator import Simulator

    return Simulator(get_task("libero_object", 0))


def fresh(seed=5, **changes):
    scene = scene_for("libero_object", 0, seed=seed)
    return scene.model_copy(update=changes)


@pytest.fixture(scope="module")
def demonstration(grocery):
    from libero_pro.expert import solve

    return solve(grocery, fresh())


@pytest.mark.sim
def test_a_demonstration_is_short_smooth_and_ends_at_rest(demonstration):
    episode = demonstration
    assert episode.success and not episode.truncated and episode.tags["expert"] == "solved"
    assert 80 <= len(episode) <= 125
    assert episode.goal_holds[-3:].all() and episode.held[-1] == -1
    target = episode.object_names.index("alphabet_soup_1")
    assert np.linalg.norm(episode.object_pos[-1, target] - episode.object_pos[-2, target]) < 1e-3
    assert np.abs(episode.actions[:, :3]).max() <= MAX_TRANSLATION + 1e-6
    assert np.abs(episode.actions[:, 3:6]).max() < 0.1  # nothing to turn here
    assert (np.diff(np.sign(episode.actions[:, 6])) != 0).sum() == 2  # closes once, opens once
    assert (episode.actions == episode.expert_actions).all()


@pytest.mark.sim
def test_any_object_can_be_the_target(grocery):
    from libero_pro.expert import solve

    scene = fresh(seed=6, goal=(("in", "cream_cheese_1", "basket_1_contain_region"),))
    episode = solve(grocery, scene)
    assert episode.success
    moved = np.linalg.norm(episode.object_pos[-1] - episode.object_pos[0], axis=1)
    assert moved.argmax() == episode.object_names.index("cream_cheese_1")


@pytest.mark.sim
def test_disturbances_are_executed_but_not_taught(grocery, demonstration):
    from libero_pro.expert import solve

    first, again = (solve(grocery, fresh(), noise=0.05, rng=np.random.default_rng(1)) for _ in range(2))
    assert first.success
    assert (first.actions == again.actions).all() and (first.qpos == again.qpos).all()
    disturbed = (first.actions != first.expert_actions).any(axis=1)
    assert 3 <= disturbed.sum() < 0.6 * len(first)
    assert (first.actions[:, 3:] == first.expert_actions[:, 3:]).all()
    assert np.abs(first.expert_actions[:, :3]).max() <= MAX_TRANSLATION + 1e-6
    assert not np.array_equal(first.qpos[-1], demonstration.qpos[-1])


@pytest.mark.sim
def test_it_goes_on_from_any_state_and_picks_up_what_it_dropped(grocery):
    from libero_pro.expert import Expert

    grocery.reset(fresh())
    grocery.settle()
    phases = []
    for _ in range(280):
        expert = Expert(grocery)  # nothing is remembered between steps
        decision = expert.decide()
        if decision.phase == "done":
            break
        action = decision.action
        if decision.phase == "transport" and phases.count("transport") < 9:
            action = np.array([0, 0, 0, 0, 0, 0, -1.0])  # somebody opens the hand
        phases.append(decision.phase)
        grocery.step(action)
    assert grocery.success()
    assert phases.count("approach") > 20 and len(phases) < 250
    assert "close" in phases[phases.index("transport") :]


@pytest.mark.sim
def test_relabelling_gives_the_experts_own_actions(grocery, demonstration):
    from libero_pro.expert import relabel

    before = grocery.model.body_pos.copy()
    labels = relabel(grocery, demonstration)
    assert labels.shape == demonstration.actions.shape and not np.isnan(labels).any()
    difference = np.abs(labels - demonstration.actions)
    assert difference.mean() < 0.01 and (difference[:, 6] > 0).sum() <= 3
    assert (grocery.model.body_pos == before).all()


@pytest.mark.sim
def test_what_it_cannot_do_it_refuses(grocery):
    from libero_pro.expert import relabel, solve
    from libero_pro.simulator import Simulator

    far = fresh(objects={"alphabet_soup_1": Pose(position=(0.45, -0.3, 0.04), quaternion=(0.707, 0.707, 0.0, 0.0))})
    with pytest.raises(RecordError, match=r"alphabet_soup_1.*reach"):
        solve(grocery, far)
    kitchen = Simulator(get_task("libero_goal", 0))
    with pytest.raises(RecordError, match="simulator holds"):
        relabel(kitchen, solve(grocery, fresh(), max_steps=2))


@pytest.mark.sim
def test_out_of_time_is_a_truncated_failure(grocery):
    from libero_pro.expert import solve

    episode = solve(grocery, fresh(), max_steps=10)
    assert len(episode) == 10 and episode.truncated and not episode.success and episode.invalid is None


@pytest.mark.sim
@pytest.mark.parametrize("task_id", [4, 5])  # out of an open drawer; tilted on a ramekin
def test_a_bowl_is_pinched_at_its_rim_and_put_on_the_plate(task_id):
    from libero_pro.expert import solve
    from libero_pro.simulator import Simulator

    episode = solve(Simulator(get_task("libero_spatial", task_id)), scene_for("libero_spatial", task_id, seed=2))
    assert episode.success, episode.tags
    bowl, plate = (
        episode.object_pos[-1, episode.object_names.index(name)] for name in ("akita_black_bowl_1", "plate_1")
    )
    assert np.linalg.norm((bowl - plate)[:2]) < 0.03 and episode.held[-1] == -1
