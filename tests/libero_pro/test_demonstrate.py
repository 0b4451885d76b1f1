"""Demonstrations of many scenes: workers, resuming, what becomes of scenes that cannot be run."""

import numpy as np
import pytest

import libero_pro.demonstrate as module
from libero_pro.demonstrate import correct, demonstrate
from libero_pro.record import RecordError
from libero_pro.scene import Pose
from libero_pro.suites import scene_for

SCENES = [scene_for("libero_object", 1, seed=seed) for seed in (1, 2)]
FAR = {"cream_cheese_1": Pose(position=(0.45, -0.3, 0.01))}
IMPOSSIBLE = SCENES[0].model_copy(update={"objects": FAR})


def test_a_noise_that_is_no_probability_is_refused():
    with pytest.raises(RecordError, match="probability"):
        next(demonstrate(SCENES, noise=1.5))


def test_an_unknown_task_is_refused():
    with pytest.raises(RecordError, match="tasks 0 to 9"):
        next(demonstrate([SCENES[0].model_copy(update={"task_id": 50})]))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Two scenes by a worker process (one of them listed twice), with the folder they are in and the progress shown."""
    out, seen = tmp_path_factory.mktemp("demos"), []
    episodes = list(
        demonstrate(
            [*SCENES, SCENES[0]],
            workers=1,
            noise=0.03,
            out=out,
            progress=lambda done, total: seen.append((done, total)),
        )
    )
    return out, episodes, seen


@pytest.mark.sim
def test_each_scene_is_demonstrated_once_and_stored(recorded):
    out, episodes, seen = recorded
    assert {episode.scene.hash for episode in episodes} == {scene.hash for scene in SCENES}
    assert all(episode.success and episode.tags["noise"] == "0.03" and episode.wall_s > 0 for episode in episodes)
    assert sorted(path.stem for path in out.iterdir()) == sorted(scene.hash for scene in SCENES)
    assert seen == [(1, 2), (2, 2)]


@pytest.mark.sim
def test_workers_do_not_change_the_result(recorded):
    _, episodes, _ = recorded
    (here,) = demonstrate(SCENES[1:], workers=0, noise=0.03)
    there = next(episode for episode in episodes if episode.scene == SCENES[1])
    assert np.array_equal(here.actions, there.actions) and np.array_equal(here.qpos, there.qpos)


@pytest.mark.sim
def test_stored_episodes_are_loaded_unless_conditions_differ(recorded, monkeypatch):
    out, episodes, _ = recorded
    asked = []
    monkeypatch.setattr(module, "run_in_forks", lambda jobs, **_: asked.append(list(jobs)) or iter(()))
    loaded = list(demonstrate(SCENES, noise=0.03, out=out))
    assert asked == [[]]
    assert all(
        np.array_equal(episode.qpos, next(e for e in episodes if e.scene == episode.scene).qpos) for episode in loaded
    )
    assert list(demonstrate(SCENES, noise=0.03, seed=1, out=out)) == [] and asked[-1] == SCENES
    (out / f"{SCENES[0].hash}.npz").write_bytes(b"cut short")
    assert len(list(demonstrate(SCENES, noise=0.03, out=out))) == 1 and asked[-1] == SCENES[:1]


@pytest.mark.sim
def test_a_scene_without_a_solution_is_invalid_and_does_not_stop_the_rest(tmp_path):
    episodes = {
        episode.scene.hash: episode for episode in demonstrate([IMPOSSIBLE, SCENES[0]], workers=0, out=tmp_path)
    }
    impossible = episodes[IMPOSSIBLE.hash]
    assert impossible.invalid is not None and not impossible.success and len(impossible) == 0
    assert episodes[SCENES[0].hash].success
    from libero_pro.episode import Episode

    assert Episode.load(tmp_path / f"{IMPOSSIBLE.hash}.npz").invalid == impossible.invalid


@pytest.mark.sim
def test_corrections_of_the_experts_own_episode_are_what_it_did(recorded):
    _, episodes, _ = recorded
    (corrected,) = correct(episodes[:1], workers=0)
    labels, done = corrected.expert_actions, episodes[0].expert_actions
    assert labels.shape == done.shape and np.isfinite(labels).all()
    assert np.abs(labels[:, :3] - done[:, :3]).mean() < 0.05
    assert (np.sign(labels[:, 6]) == np.sign(done[:, 6])).mean() > 0.9
    assert np.array_equal(corrected.actions, episodes[0].actions)
