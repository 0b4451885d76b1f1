"""The expert's skills beside pick and place: drawers, doors, knobs, fixtures; the order of subtasks; its table."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import mujoco
import numpy as np
import pytest

from libero_pro.expert.articulation import Articulation, articulation
from libero_pro.expert.geometry import Boxes
from libero_pro.expert.motion import HOME, Decision
from libero_pro.expert.outcomes import Attempts
from libero_pro.expert.poses import DOWN, Pose, both_ways, free, hand_axes
from libero_pro.expert.subtasks import subtasks
from libero_pro.record import RecordError
from libero_pro.suites import get_task, scene_for

DRAWER = Articulation("cabinet_1_top", 0, 0, 0, False, {"open": (-0.16, -0.14), "close": (0.0, 0.005)})
KNOB = Articulation("stove_1", 1, 1, 1, True, {"turnon": (0.5, 2.1), "turnoff": (-0.005, 0.0)})
JOINTS = {joint.name: joint for joint in (DRAWER, KNOB)}
NAMES = ("cabinet_1", "stove_1", "bowl_1")


def at(*positions):
    """As much of a world as joint positions need."""
    return SimpleNamespace(data=SimpleNamespace(qpos=np.array(positions)))


def attempt(suite, task_id, start):
    """The expert's episode from a released start, in the real simulator."""
    from libero_pro.expert import solve
    from libero_pro.simulator import Simulator

    scene = scene_for(suite, task_id, init_state_id=start, seed=start)
    return solve(Simulator(get_task(suite, task_id)), scene)


def test_a_joint_goes_clearly_beyond_the_threshold_but_not_to_its_limit():
    assert DRAWER.sign("open") == -1 and DRAWER.threshold("open") == -0.14
    assert -0.16 < DRAWER.target("open") < -0.145
    assert KNOB.sign("turnon") == 1 and KNOB.threshold("turnon") == 0.5 and KNOB.target("turnon") == pytest.approx(0.75)
    assert KNOB.sign("turnoff") == -1 and -0.005 < KNOB.target("turnoff") < 0
    assert DRAWER.holds(at(-0.141), "open") and not DRAWER.holds(at(-0.139), "open")
    assert DRAWER.left(at(0.0), "open") > 0.15 > 0 > DRAWER.left(at(-0.157), "open")


def test_a_predicate_without_a_joint_is_refused():
    with pytest.raises(RecordError, match="no joint"):
        articulation(JOINTS, ("open", "bowl_1"))
    with pytest.raises(RecordError, match="no joint"):
        articulation(JOINTS, ("turnon", "cabinet_1_top"))


def planned(goal, holds, q=0.0):
    return [task.predicate for task in subtasks(goal, np.array(holds), at(q, 0.0), JOINTS, NAMES)]


def test_open_comes_before_place_and_close_after():
    inside, closed = ("in", "bowl_1", "cabinet_1_top"), ("close", "cabinet_1_top")
    opened = ("open", "cabinet_1_top")
    assert planned((closed, inside), [False, False]) == [opened, inside, closed]
    assert planned((closed, inside), [False, False], q=-0.146) == [inside, closed]  # wide enough already
    assert planned((closed, inside), [False, True]) == [inside, closed]  # nothing to open it for
    assert planned((("on", "bowl_1", "stove_1"), ("turnon", "stove_1")), [False, False])[0] == ("turnon", "stove_1")
    with pytest.raises(RecordError, match="none of"):
        planned((("stack", "bowl_1", "stove_1"),), [False])


def test_the_hand_turns_as_little_as_it_can():
    axes = both_ways(hand_axes(DOWN, np.array([0.0, -1.0, 0.0])))[0]
    assert np.linalg.det(axes) == pytest.approx(1.0)
    assert np.trace(axes.T @ HOME) > 2.9


def test_a_pose_is_free_only_if_its_whole_way_is():
    pose = Pose(np.array([0.0, 0.0, 0.5]), hand_axes(DOWN, np.array([0.0, 1.0, 0.0])))
    wall = Boxes(np.array([[0.0, 0.30, 0.55]]), np.eye(3)[None], np.array([[0.1, 0.01, 0.1]]))
    here, aside = np.zeros(3), np.array([0.0, 0.2, 0.0])
    assert free(pose, 0.07, wall, [here])
    assert not free(pose, 0.07, wall, [here, aside])


def test_attempts_tell_a_slip_from_a_drop():
    attempts = Attempts()
    for phase in ("approach", "descend", "close", "rise", "descend", "close", "lift", "transport", "approach"):
        attempts.observe(Decision(phase, np.zeros(7), np.zeros(3), ("on", "bowl_1", "stove_1")))
    assert attempts.counts == {"slipped": 1, "dropped": 1}
    assert attempts.out_of_time() == "out of time in 'approach' for on bowl_1 stove_1 (dropped 1x, slipped 1x)"
    assert attempts.outcome("'bowl_1' is out of the arm's reach for a grasp from above") == "unreachable"
    assert Attempts().outcome("the expert finds no free grasp of 'bowl_1' from above") == "refused"


@pytest.fixture(scope="module")
def kitchen():
    from libero_pro.simulator import Simulator

    return Simulator(get_task("libero_goal", 0))


def shown(sim, *goal, seed=3):
    """A demonstration of another goal in the same kitchen, checked for being calm and finished."""
    from libero_pro.expert import solve

    scene = scene_for("libero_goal", 0, seed=seed).model_copy(update={"goal": goal})
    episode = solve(sim, scene)
    assert episode.success and episode.tags["expert"] == "solved" and episode.tags["outcome"] == "ok", episode.tags
    assert np.abs(episode.actions[:, :3]).max() <= 0.86
    assert (episode.actions == episode.expert_actions).all()
    assert episode.goal_holds[-3:].all() and episode.held[-1] == -1
    return episode


@pytest.mark.sim
def test_it_opens_a_drawer_by_its_handle(kitchen):
    assert len(shown(kitchen, ("open", "wooden_cabinet_1_middle_region"))) < 150


@pytest.mark.sim
def test_it_turns_a_knob(kitchen):
    assert len(shown(kitchen, ("turnon", "flat_stove_1"))) < 130


@pytest.mark.sim
def test_it_places_on_a_fixture(kitchen):
    assert len(shown(kitchen, ("on", "akita_black_bowl_1", "wooden_cabinet_1_top_side"))) < 150


@pytest.mark.sim
def test_a_demonstration_from_a_drawer_can_be_relabelled(kitchen):
    from libero_pro.expert import relabel

    episode = shown(kitchen, ("open", "wooden_cabinet_1_top_region"))
    labels = relabel(kitchen, episode)
    assert np.isfinite(labels).all() and np.abs(labels - episode.actions)[:, :6].mean() < 0.05


@pytest.mark.sim
def test_it_puts_two_objects_into_one_basket():
    from libero_pro.expert import solve
    from libero_pro.simulator import Simulator

    goal = tuple(("in", name, "basket_1_contain_region") for name in ("alphabet_soup_1", "cream_cheese_1"))
    scene = scene_for("libero_object", 0, seed=4).model_copy(update={"goal": goal})
    episode = solve(Simulator(get_task("libero_object", 0)), scene, max_steps=400)
    assert episode.success, episode.tags


@pytest.fixture(scope="module")
def oven():
    from libero_pro.simulator import Simulator

    return Simulator(get_task("libero_10", 9))


@pytest.mark.sim
def test_it_reaches_under_a_roof_and_shuts_the_door(oven):
    from libero_pro.expert import solve

    episode = solve(oven, scene_for("libero_10", 9, init_state_id=1, seed=1))
    assert episode.success and episode.tags["outcome"] == "ok", episode.tags
    assert episode.goal_holds[-3:].all() and episode.held[-1] == -1


@pytest.mark.sim
def test_a_niche_is_a_roofed_region_with_an_open_side(oven):
    from libero_pro.expert.insert import find_niche, plan_insertion
    from libero_pro.expert.world import World

    scene = scene_for("libero_10", 9, init_state_id=1, seed=1)
    oven.reset(scene)
    oven.settle()
    world = World(oven.model, oven.data)
    inside = scene.goal[0]
    niche = find_niche(world, inside)
    assert niche.inward.tolist() == [0.0, 1.0, 0.0] and niche.receptacle == "microwave_1"
    assert niche.floor == pytest.approx(0.944, abs=0.002)  # the table's height and that of the oven's floor
    pose = plan_insertion(world, inside[1], niche).now(world, inside[1])
    assert pose.approach[1] > 0.3 and abs(pose.axes[2, 0]) < 1e-6  # pointing in, closing in the plane
    assert find_niche(world, ("close", "microwave_1")) is None
    assert find_niche(world, ("on", inside[1], "microwave_1_top_side")) is None
    door = int(oven.model.joint("microwave_1_microjoint").qposadr[0])
    oven.data.qpos[door] = 0.0
    mujoco.mj_forward(oven.model, oven.data)
    assert find_niche(world, inside) is None  # shut


@pytest.mark.sim
def test_it_puts_a_thing_beside_the_one_that_stands_in_the_middle():
    episode = attempt("libero_10_task", 7, 0)
    assert episode.success, episode.tags


@pytest.mark.sim
def test_it_draws_a_bowl_out_from_under_the_drawer_that_it_opened():
    episode = attempt("libero_goal", 3, 2)
    assert episode.success, episode.tags


@pytest.fixture(scope="module")
def walled_in():
    """A kitchen in which the bowl stands where the drawer that it belongs in will be over it."""
    from libero_pro.simulator import Simulator

    sim = Simulator(get_task("libero_goal", 3))
    return sim, scene_for("libero_goal", 3, init_state_id=4, seed=4)


@pytest.mark.sim
def test_what_an_opening_drawer_would_wall_in_waits_beside_it(walled_in):
    from libero_pro.expert import solve
    from libero_pro.expert.articulation import articulations

    sim, scene = walled_in
    episode = solve(sim, scene)
    assert episode.success and episode.tags["expert"] == "solved", episode.tags
    assert (np.diff(np.sign(episode.actions[:, 6])) != 0).sum() == 6  # bowl, handle, bowl
    drawer = articulations(sim.env)[scene.goal[0][2]]
    opened = int(np.argmax(np.abs(episode.qpos[:, drawer.address]) > 0.02))
    bowl = episode.object_pos[:, episode.object_names.index("akita_black_bowl_1")]
    assert np.linalg.norm((bowl[opened] - bowl[0])[:2]) > 0.04 and abs(bowl[opened] - bowl[0])[2] < 0.002


@pytest.mark.sim
def test_a_waiting_place_is_free_and_does_not_depend_on_who_asks(walled_in):
    from libero_pro.expert.articulation import articulations
    from libero_pro.expert.aside import find_waiting_place
    from libero_pro.expert.geometry import overlaps
    from libero_pro.expert.world import World

    sim, scene = walled_in
    sim.reset(scene)
    sim.settle()
    world, predicate = World(sim.model, sim.data), scene.goal[0]
    drawer, target = articulations(sim.env)[predicate[2]], predicate[1]
    before = sim.data.qpos.copy()
    place = find_waiting_place(world, drawer, predicate)
    assert (sim.data.qpos == before).all()
    origin = world.position(target)
    there = world.imagined({drawer.address: drawer.end("open")}, {target: np.array([*place.xy, origin[2]])})
    lifted = there.boxes(target)
    lifted = Boxes(lifted.centers + np.array([0.0, 0.0, 0.003]), lifted.axes, lifted.halves)
    assert not overlaps(lifted, there.others(target)).any()
    on_its_way = world.imagined({}, {target: np.array([*(origin[:2] + place.xy) / 2, origin[2]])})
    assert find_waiting_place(on_its_way, drawer, predicate).xy == pytest.approx(place.xy)


@pytest.mark.sim
def test_it_pushes_a_plate_on_that_tilts_into_the_table():
    episode = attempt("libero_goal", 5, 7)
    assert episode.success, episode.tags


@pytest.mark.sim
def test_a_region_that_is_partly_covered_is_used_where_it_is_open():
    from libero_pro.expert.placements import find_place
    from libero_pro.expert.world import World
    from libero_pro.simulator import Simulator

    sim, scene = Simulator(get_task("libero_goal_swap", 1)), scene_for("libero_goal_swap", 1, init_state_id=1, seed=1)
    sim.reset(scene)
    sim.settle()
    world = World(sim.model, sim.data)
    center, half = world.site(scene.goal[0][2])
    place = find_place(world, scene.goal[0])
    assert np.abs(place.xy - center[:2]).max() > 0.01 and (np.abs(place.xy - center[:2]) < half[:2]).all()


@pytest.mark.sim
def test_it_reaches_what_is_close_to_its_shoulder():
    episode = attempt("libero_goal_swap", 6, 9)
    assert episode.success and len(episode) < 150, episode.tags


@dataclass
class FakeEpisode:
    scene: object
    success: bool
    invalid: str | None = None
    tags: dict = field(default_factory=dict)
    actions: np.ndarray = field(default_factory=lambda: np.zeros((80, 7)))


def test_the_table_names_each_cause_and_leaves_out_what_could_not_run(monkeypatch):
    import libero_pro.expert.table as module

    def demonstrate(scenes, **_):
        for i, scene in enumerate(scenes):
            if i == 0:
                yield FakeEpisode(scene, True, tags={"expert": "solved"})
            elif i == 1:
                yield FakeEpisode(scene, False, tags={"expert": "out of time in 'close'"})
            elif i == 2:
                yield FakeEpisode(scene, False, "no free grasp", {"expert": "no free grasp", "outcome": "refused"})
            else:
                yield FakeEpisode(scene, False, "MuJoCo's state diverged")

    monkeypatch.setattr(module, "demonstrate", demonstrate)
    (row,) = module.expert_table(["libero_spatial"], 4, task_ids=[2])
    assert (row.n, row.successes, row.invalid, row.steps) == (3, 1, 1, 80.0)
    assert row.causes == (("out of time in 'close'", 1), ("no free grasp", 1))
    assert row.invalid_causes == (("MuJoCo's state diverged", 1),)
    (figure,) = module.figures([row])
    assert figure.figure == "expert_spatial" and figure.value == pytest.approx(1 / 3) and figure.n == 3
    assert figure.low < figure.value < figure.high


def test_the_table_refuses_more_starts_than_there_are():
    from libero_pro.expert.table import starts, suites_of

    assert (
        len(starts("libero_goal", 1, 50)) == 50
        and len({s.hash for s in starts("libero_goal", 1, 60, fresh=True)}) == 60
    )
    with pytest.raises(RecordError, match="50 released"):
        starts("libero_goal", 1, 51)
    with pytest.raises(RecordError, match="at least 1"):
        starts("libero_goal", 1, 0)
    assert len(suites_of(["all"])) == 20
    with pytest.raises(RecordError, match="did you mean"):
        suites_of(["libero_gaol"])
