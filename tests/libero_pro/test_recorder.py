"""EpisodeRecorder: every documented field of an Episode, from a run whose states are known."""

import numpy as np
import pytest

from libero_pro import suites
from libero_pro.episode import Episode
from libero_pro.record import RecordError
from libero_pro.recorder import EpisodeRecorder
from libero_pro.render import Frame
from libero_pro.scene import Pose
from libero_pro.simulator import SETTLE_ACTION, SimulationError, Simulator

pytestmark = pytest.mark.sim
WAIT = np.array(SETTLE_ACTION)


@pytest.fixture(scope="module")
def sim():
    return Simulator(suites.get_task("libero_object", 1))


def begin(sim, scene, actor="expert"):
    sim.reset(scene)
    recorder = EpisodeRecorder(sim, scene, actor)
    recorder.start()
    return recorder


def test_fields_are_what_the_simulator_had(sim):
    scene = suites.scene_for("libero_object", 1, init_state_id=2)
    recorder = begin(sim, scene, "policy:abc")
    rng = np.random.default_rng(1)
    actions = rng.uniform(-1, 1, (7, 7))
    rows = [(sim.data.qpos.copy(), sim.frame().qpos, sim.proprio(), sim.state())]
    assert recorder.chunk(actions[:5], limit=3) == 3
    for action in actions[3:]:
        recorder.step(action, expert_action=WAIT)
        rows.append((sim.data.qpos.copy(), sim.frame().qpos, sim.proprio(), sim.state()))
    episode = recorder.finish(truncated=True, program="p1")
    assert len(episode) == recorder.steps == 7
    assert episode.executed.tolist() == [3, 1, 1, 1, 1] and episode.executed.sum() == len(episode)
    assert (episode.success, episode.terminated, episode.truncated, episode.invalid) == (False, False, True, None)
    assert (episode.actor, episode.scene, episode.tags) == ("policy:abc", scene, {"program": "p1"})
    assert np.array_equal(episode.actions, actions.astype(np.float32))
    assert np.array_equal(episode.expert_actions[:3], episode.actions[:3])
    assert np.array_equal(episode.expert_actions[3:], np.tile(WAIT.astype(np.float32), (4, 1)))
    for instant, (qpos, frame_qpos, proprio, state) in zip((0, 4, 5, 6, 7), rows, strict=True):
        assert np.array_equal(episode.qpos[instant], qpos)
        assert np.array_equal(episode.frame_qpos[instant], frame_qpos)
        assert np.array_equal(episode.proprio[instant], proprio)
        assert np.array_equal(episode.object_pos[instant], state.object_pos)
        assert np.array_equal(episode.object_quat[instant], state.object_quat)
        assert np.array_equal(episode.eef_pos[instant], state.eef_pos)
        assert episode.held[instant] == state.held
        assert np.array_equal(episode.goal_holds[instant], state.goal_holds)
    assert episode.site_rgba.shape == (1, sim.model.nsite, 4)
    frame = Frame.of(episode, 7)
    assert np.array_equal(frame.qpos, sim.frame().qpos) and np.array_equal(frame.body_pos, sim.frame().body_pos)


def test_success_ends_the_chunk_and_survives_storage(sim, tmp_path):
    base = suites.scene_for("libero_object", 1, seed=3)
    sim.reset(base)
    above = np.add(sim.state().sites[base.goal[0][2]], (0, 0, 0.15))
    scene = base.model_copy(update={"objects": {base.goal[0][1]: Pose(position=tuple(above))}})
    recorder = begin(sim, scene)
    executed = recorder.chunk(np.tile(WAIT, (40, 1)))
    episode = recorder.finish(truncated=True)
    assert 1 < executed < 40 and episode.executed.tolist() == [executed]
    assert episode.success and episode.terminated and not episode.truncated
    assert episode.goal_holds[-1].all() and not episode.goal_holds[:-1].any()
    episode.save(tmp_path / "episode.npz")
    loaded = Episode.load(tmp_path / "episode.npz")
    assert loaded.scene == scene and np.array_equal(loaded.qpos, episode.qpos)
    # A stored episode replays from its scene and actions.
    sim.reset(scene)
    for step, action in enumerate(loaded.actions):
        sim.step(action)
        assert np.array_equal(sim.data.qpos, loaded.qpos[step + 1])


def test_an_infrastructure_error_keeps_what_there_is(sim):
    recorder = begin(sim, suites.scene_for("libero_object", 1, init_state_id=2))
    recorder.step(WAIT)
    with pytest.raises(SimulationError) as error:
        recorder.chunk(np.full((4, 7), np.nan))
    episode = recorder.finish(truncated=True, invalid=str(error.value))
    assert len(episode) == 1 and len(episode.qpos) == 2 and episode.executed.tolist() == [1]
    assert (episode.success, episode.terminated, episode.truncated) == (False, False, False)
    assert "finite" in episode.invalid
    empty = begin(sim, suites.scene_for("libero_object", 1, init_state_id=2)).finish(invalid="worker died")
    assert len(empty) == 0 and empty.actions.shape == (0, 7) and empty.qpos.shape[0] == 1


def test_the_burner_is_recorded_where_it_changes():
    sim = Simulator(suites.get_task("libero_goal", 7))
    recorder = begin(sim, suites.scene_for("libero_goal", 7, init_state_id=0))
    recorder.step(WAIT)
    sim.data.qpos[sim.model.jnt_qposadr[sim.model.joint("flat_stove_1_button").id]] = 1.0
    recorder.step(WAIT)
    recorder.step(WAIT)
    episode = recorder.finish()
    assert episode.site_rgba.shape[0] == len(episode) + 1
    assert np.array_equal(episode.site_rgba[2], episode.site_rgba[0])
    assert not np.array_equal(episode.site_rgba[3], episode.site_rgba[0])
    assert np.array_equal(Frame.of(episode, 3).site_rgba, sim.model.site_rgba)


def test_recording_needs_the_scene_in_the_simulator(sim):
    sim.reset(suites.scene_for("libero_object", 1, init_state_id=2))
    with pytest.raises(RecordError, match="reset"):
        EpisodeRecorder(sim, suites.scene_for("libero_object", 1, init_state_id=3), "expert").start()
