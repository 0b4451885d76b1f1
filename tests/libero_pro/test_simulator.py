"""The lean stepper against robosuite itself, and the promise that a result depends only on scene and actions."""

import gc
from collections.abc import Iterator

import numpy as np
import pytest

from libero_pro import simulator, suites
from libero_pro._libero import quiet_import
from libero_pro.expert import Expert
from libero_pro.record import RecordError
from libero_pro.scene import Pose, Start
from libero_pro.simulator import SETTLE_ACTION, SimulationError, Simulator

pytestmark = pytest.mark.sim
# One task of each base suite; libero_10 3 starts with a drawer that LIBERO's reset opens by chance.
TASKS = [("libero_spatial", 0), ("libero_object", 1), ("libero_goal", 7), ("libero_10", 3)]


def random_actions(count: int, seed: int = 0) -> np.ndarray:
    """Uniform arm actions, a gripper that opens and closes, and every fifth step without rotation."""
    rng = np.random.default_rng(seed)
    actions = rng.uniform(-1.2, 1.2, (count, 7))
    actions[:, 6] = rng.choice([-1.0, 0.0, 1.0], count)
    actions[::5, 3:6] = 0.0
    return actions


def run(sim: Simulator, count: int = 30) -> np.ndarray:
    """States after each of `count` random steps."""
    states = []
    for action in random_actions(count, seed=3):
        sim.step(action)
        states.append(np.concatenate((sim.data.qpos, sim.data.qvel, sim.proprio(), sim.frame().qpos)))
    return np.array(states)


@pytest.fixture(scope="module")
def sim():
    return Simulator(suites.get_task("libero_object", 1))


@pytest.fixture(scope="module")
def scene():
    return suites.scene_for("libero_object", 1, init_state_id=4, seed=5)


@pytest.mark.parametrize(("suite", "task_id"), TASKS)
def test_steps_equal_robosuite_bit_for_bit(suite, task_id):
    task = suites.get_task(suite, task_id)
    wrapper = quiet_import("libero.libero.envs.env_wrapper")
    reference = wrapper.ControlEnv(str(task.bddl_path), use_camera_obs=False, has_offscreen_renderer=False)
    reference.seed(7)
    reference.reset()
    observation = reference.set_init_state(task.init_states()[3])
    sim = Simulator(task)
    sim.reset(suites.scene_for(suite, task_id, init_state_id=9, seed=1))  # what came before must not matter
    sim.step(random_actions(1)[0])
    sim.reset(suites.scene_for(suite, task_id, init_state_id=3, seed=7))
    for name in ("body_pos", "body_quat", "site_rgba"):
        assert np.array_equal(getattr(sim.model, name), getattr(reference.sim.model, name)), name
    assert sim.proprio() == pytest.approx(state_of(observation), abs=1e-6)
    # The first step comes straight after the reset: robosuite's controller still holds the arm pose of the reset.
    for step, action in enumerate(mixed_actions(sim)):
        observation, _, done, _ = reference.step(action)
        success = sim.step(action)
        assert np.array_equal(sim.data.qpos, reference.sim.data.qpos), step
        assert np.array_equal(sim.data.qvel, reference.sim.data.qvel), step
        assert np.array_equal(sim.data.ctrl, reference.sim.data.ctrl), step
        assert np.array_equal(sim.proprio()[[0, 1, 2, 6, 7]], state_of(observation)[[0, 1, 2, 6, 7]]), step
        assert sim.proprio() == pytest.approx(state_of(observation), abs=1e-6), step
        assert success == done == reference.check_success(), step
        assert np.array_equal(sim.model.site_rgba, reference.sim.model.site_rgba), step
    reference.close()
    del reference, sim
    gc.collect()


def mixed_actions(sim: Simulator) -> Iterator[np.ndarray]:
    """Random actions, the protocol's no-ops, 100 steps of the expert, who touches and moves things, 100 random ones."""
    yield from random_actions(5, seed=9)
    yield from [np.array(SETTLE_ACTION)] * 10
    expert = Expert(sim)
    for _ in range(100):
        yield expert.act()
    yield from random_actions(100)


def state_of(observation: dict) -> np.ndarray:
    """LeRobot's state vector of a robosuite observation, by LeRobot's own code."""
    torch = pytest.importorskip("torch")
    step = pytest.importorskip("lerobot.processor.env_processor").LiberoProcessorStep()
    parts = {name: torch.from_numpy(np.array(observation[f"robot0_{name}"]))[None] for name in
             ("eef_pos", "eef_quat", "gripper_qpos")}  # fmt: skip
    nested = {"eef": {"pos": parts["eef_pos"], "quat": parts["eef_quat"]}, "gripper": {"qpos": parts["gripper_qpos"]}}
    return step.observation({"observation.robot_state": nested})["observation.state"][0].numpy()


def test_reset_does_not_depend_on_history(sim, scene):
    other = suites.scene_for("libero_object", 1, seed=12)
    sim.reset(scene)
    first = run(sim)
    sim.reset(other)
    between = run(sim)
    sim.reset(scene)
    assert np.array_equal(run(sim), first)
    sim.reset(other)
    assert np.array_equal(run(sim), between)
    assert not np.array_equal(first, between)


def test_seed_draws_the_layout_and_leaves_global_randomness_alone(sim):
    layouts = []
    for seed in (1, 2, 1):
        np.random.seed(99)
        sim.reset(suites.scene_for("libero_object", 1, seed=seed))
        layouts.append(sim.data.qpos.copy())
        drawn = np.random.random()
    assert np.array_equal(layouts[0], layouts[2])
    assert not np.array_equal(layouts[0], layouts[1])
    np.random.seed(99)
    assert drawn == np.random.random()


def test_snapshot_continues_bit_identically(sim, scene):
    sim.reset(scene)
    run(sim, 7)
    snapshot = sim.snapshot()
    before = sim.state(), sim.frame(), sim.proprio()
    states = run(sim)
    sim.reset(suites.scene_for("libero_object", 1, seed=2))
    run(sim, 3)
    sim.restore(snapshot)
    assert np.array_equal(sim.state().object_pos, before[0].object_pos)
    assert sim.state().contacts == before[0].contacts
    assert np.array_equal(sim.frame().qpos, before[1].qpos)
    assert np.array_equal(sim.proprio(), before[2])
    assert np.array_equal(run(sim), states)


def test_objects_and_goal_of_a_generated_scene(sim):
    base = suites.scene_for("libero_object", 1, seed=3)
    names = sim.object_names
    target, other = names[0], next(name for name in names[1:] if "basket" not in name)
    pose = Pose(position=(-0.1, 0.07, 0.2), quaternion=(0.0, 0.0, 0.0, 2.0))
    scene = base.model_copy(update={"objects": {target: pose}, "goal": (("on", target, other), *base.goal)})
    sim.reset(scene)
    assert sim.object_pose(target).position == pytest.approx(pose.position)
    assert sim.object_pose(target).quaternion == pytest.approx((0, 0, 0, 1))
    placed = sim.object_pose(other)
    assert sim.goal_holds().tolist() == [False, False]
    sim.settle()
    assert sim.state().goal == scene.goal
    assert sim.data.qpos[2] != 0 and sim.object_pose(target).position[2] < 0.1
    sim.reset(base)  # the rest of the draw is the seed's, whatever was placed
    assert sim.object_pose(other) == placed
    assert sim.goal_holds().shape == (1,)


def test_goal_reached_by_a_fall_stops_the_chunk(sim):
    base = suites.scene_for("libero_object", 1, seed=3)
    (predicate,) = base.goal
    sim.reset(base)
    above = np.add(sim.state().sites[predicate[2]], (0, 0, 0.15))
    scene = base.model_copy(update={"objects": {predicate[1]: Pose(position=tuple(above))}})
    sim.reset(scene)
    assert not sim.success()
    actions = np.tile(SETTLE_ACTION, (40, 1))
    executed = sim.step_chunk(actions)
    assert 1 < executed < 40
    assert sim.success() and sim.state().goal_holds.all()
    sim.reset(scene)
    assert sim.step_chunk(actions, stop_at_success=False) == 40
    assert sim.success()


def test_fixture_pose_moves_the_fixture_and_its_regions():
    task = suites.get_task("libero_goal", 7)
    sim = Simulator(task)
    base = suites.scene_for("libero_goal", 7, seed=3)
    sim.reset(base)
    start, region = sim.object_pose("flat_stove_1"), sim.state().sites["flat_stove_1_cook_region"]
    moved = Pose(position=tuple(np.add(start.position, (0.03, -0.02, 0.0))), quaternion=start.quaternion)
    scene = base.model_copy(update={"fixtures": {"flat_stove_1": moved}})
    sim.reset(scene)
    assert sim.object_pose("flat_stove_1").position == pytest.approx(moved.position)
    assert sim.state().sites["flat_stove_1_cook_region"] - region == pytest.approx([0.03, -0.02, 0.0])
    first = run(sim, 5)
    sim.reset(base)
    assert sim.object_pose("flat_stove_1") == start
    # A lit burner is a toggled site: it must not leak into the next scene.
    knob = sim.model.jnt_qposadr[sim.model.joint("flat_stove_1_button").id]
    dark = sim.model.site_rgba.copy()
    sim.data.qpos[knob] = 1.0
    assert sim.step(SETTLE_ACTION)
    assert not np.array_equal(sim.model.site_rgba, dark)
    assert np.array_equal(sim.frame().site_rgba, dark)  # the image of this instant was taken before it lit up
    sim.step(SETTLE_ACTION)
    assert np.array_equal(sim.frame().site_rgba, sim.model.site_rgba)
    lit = sim.snapshot()
    sim.reset(scene)
    assert np.array_equal(sim.model.site_rgba, dark)
    assert np.array_equal(run(sim, 5), first)
    sim.restore(lit)
    assert sim.success() and sim.object_pose("flat_stove_1") == start


def test_a_disturbed_arm_starts_there_and_stays(sim):
    """As after robosuite's own disturbed reset: the hand holds the pose that it starts in."""
    base = suites.scene_for("libero_object", 1, seed=3)
    sim.reset(base)
    usual = sim.data.qpos[:7].copy()
    arm = (0.1, -0.05, 0.1, 0.1, -0.1, 0.1, 0.2)
    scene = base.model_copy(update={"arm": arm})
    sim.reset(scene)
    assert sim.data.qpos[:7] - usual == pytest.approx(arm)
    start = sim.proprio()
    sim.settle()
    assert np.abs(sim.proprio()[:6] - start[:6]).max() < 0.02
    first = run(sim, 5)
    sim.reset(base)
    sim.reset(scene)
    sim.settle()
    assert np.array_equal(run(sim, 5), first)
    with pytest.raises(RecordError, match=r"arm\.3"):
        sim.reset(base.model_copy(update={"arm": (0.0, 0.0, 0.0, -1.0, 0.0, 0.0, 0.0)}))


def test_a_stored_instant_is_started_from_with_the_gripper_as_it_was(sim):
    base = suites.scene_for("libero_object", 1, seed=3)
    sim.reset(base)
    sim.settle()
    close = np.array([0.0, 0.3, -0.4, 0.2, 0.0, 0.0, 1.0])
    for _ in range(12):
        sim.step(close)
    there, held = sim.data.qpos.copy(), sim.proprio()
    scene = base.model_copy(update={"start": Start(qpos=tuple(there), gripper=1.0)})
    sim.reset(scene)
    assert np.array_equal(sim.data.qpos, there)
    sim.settle()
    assert np.abs(sim.proprio()[:3] - held[:3]).max() < 0.03
    assert sim.proprio()[6:] == pytest.approx(held[6:], abs=2e-3)  # still closed
    with pytest.raises(RecordError, match=r"start\.qpos has 9 numbers"):
        sim.reset(base.model_copy(update={"start": Start(qpos=(0.0,) * 9)}))


@pytest.mark.parametrize("action", [[np.nan] * 7, [0, 0, np.inf, 0, 0, 0, -1], [0.0] * 6])
def test_bad_action_is_refused(sim, scene, action):
    sim.reset(scene)
    before = sim.data.qpos.copy()
    with pytest.raises(SimulationError, match="7 finite numbers"):
        sim.step(action)
    assert np.array_equal(sim.data.qpos, before)


@pytest.mark.parametrize(("damage", "limit"), [(np.nan, 1e3), (1e12, 1e3), (0.0, 0.01)])
def test_exploding_physics_is_invalid_and_a_reset_recovers(sim, scene, damage, limit):
    sim.reset(scene)
    healthy = sim.snapshot()
    first = run(sim, 5)
    sim.data.qvel[11] = damage
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SimulationError, match=r"diverged|moves at"):
        patch.setattr(simulator, "MAX_SPEED", limit)
        sim.step_chunk(random_actions(5))
    sim.restore(healthy)
    assert np.array_equal(run(sim, 5), first)
    sim.reset(scene)
    assert np.array_equal(run(sim, 5), first)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"objects": {"ketchupp_1": Pose(position=(0, 0, 0))}}, "ketchupp_1"),
        ({"fixtures": {"oven_1": Pose(position=(0, 0, 0))}}, "oven_1"),
        ({"goal": (("in", "unicorn_1", "basket_1_contain_region"),)}, "unicorn_1"),
        ({"goal": (("under", "basket_1"),)}, "under"),
        ({"goal": (("in", "basket_1"),)}, "predicate"),
        ({"init_state_id": 50}, "50"),
        ({"task_id": 2}, "libero_object 2"),
        ({"objects": {"basket_1": Pose(position=(0, 0, 0), quaternion=(0, 0, 0, 0))}}, "basket_1"),
    ],
)
def test_scene_errors_name_what_is_wrong(sim, change, word):
    scene = suites.scene_for("libero_object", 1).model_copy(update=change)
    with pytest.raises(RecordError, match=word):
        sim.reset(scene)
    with pytest.raises(RecordError, match="unicorn"):
        sim.object_pose("unicorn")


def test_nothing_runs_before_a_reset():
    sim = Simulator(suites.get_task("libero_object", 0))
    for call in (sim.snapshot, lambda: sim.step(SETTLE_ACTION)):
        with pytest.raises(SimulationError, match="reset"):
            call()
