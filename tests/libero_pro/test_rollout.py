"""Rollouts: same episodes whatever the number of workers, resumable, errors kept apart from failures."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rollout_parts import SeededPolicy, made_up_episode

from libero_pro import rollout
from libero_pro.episode import Episode
from libero_pro.record import RecordError
from libero_pro.rollout import observation_seed, run
from libero_pro.suites import scene_for

SUITE = "libero_object_swap"


def scenes(count: int, task_id: int = 0) -> list:
    return [scene_for(SUITE, task_id, init_state_id=i, seed=1000 + i) for i in range(count)]


@pytest.fixture
def staged(monkeypatch):
    """Replaces simulator and episode by made-up ones; returns the log of what was played. Needs workers=0."""
    played = []

    class Station:
        def __init__(self, conditions, key):
            self.conditions = conditions

    def play(station, scene, ask):
        played.append(scene.seed)
        if scene.seed == 666:
            raise ValueError("a broken scene")
        observation = rollout.Observation({}, np.zeros(8, np.float32), scene.instruction, observation_seed(scene, 0))
        chunk = ask(observation)
        return replace(made_up_episode(scene, len(chunk)), actions=chunk, actor=station.conditions.actor)

    monkeypatch.setattr(rollout, "_Station", Station)
    monkeypatch.setattr(rollout, "_play", play)
    return played


def test_episodes_come_in_the_order_of_the_scenes_and_duplicates_run_once(staged):
    one, two, three = scenes(1, task_id=1) + scenes(2)
    wanted = [two, one, three, two]
    progress = []
    episodes = list(run(SeededPolicy(), wanted, workers=0, progress=lambda done, total: progress.append((done, total))))
    assert [episode.scene for episode in episodes] == wanted
    assert len(staged) == 3
    assert progress == [(1, 3), (2, 3), (3, 3)]


def test_a_rerun_loads_what_is_there_and_runs_what_is_missing_damaged_or_invalid(staged, tmp_path: Path):
    four = scenes(4)
    list(run(SeededPolicy(), four, workers=0, out=tmp_path))
    (tmp_path / f"{four[1].hash}.npz").write_bytes(b"half a file")
    (tmp_path / f"{four[2].hash}.npz").unlink()
    broken = replace(made_up_episode(four[3]), invalid="lost its worker process twice")
    broken.save(tmp_path / f"{four[3].hash}.npz")
    staged.clear()
    episodes = list(run(SeededPolicy(), four, workers=0, out=tmp_path))
    assert staged == [1001, 1002, 1003]
    assert [episode.invalid for episode in episodes] == [None] * 4


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"horizon": 50}, "horizon = None"), ({"profile": "fast"}, "profile = 'faithful'"), ({"size": 64}, "size = 128")],
)
def test_episodes_of_other_conditions_are_not_reused(staged, tmp_path: Path, changes: dict, field: str):
    list(run(SeededPolicy(), scenes(1), workers=0, out=tmp_path))
    with pytest.raises(RecordError, match=field):
        next(run(SeededPolicy(), scenes(1), workers=0, out=tmp_path, **changes))


def test_another_policy_does_not_inherit_episodes(staged, tmp_path: Path):
    list(run(SeededPolicy(), scenes(1), workers=0, out=tmp_path))
    other = SeededPolicy()
    other.actor = "policy:other"
    with pytest.raises(RecordError, match="actor = 'policy:seeded', not 'policy:other'"):
        next(run(other, scenes(1), workers=0, out=tmp_path))


def test_a_broken_scene_is_invalid_but_never_a_failure(staged, tmp_path: Path):
    mixed = [scenes(1)[0], scene_for(SUITE, 0, seed=666), scenes(2)[1]]
    good, bad, last = run(SeededPolicy(), mixed, workers=0, out=tmp_path)
    assert Episode.load(tmp_path / f"{bad.scene.hash}.npz").invalid == bad.invalid
    assert (good.invalid, last.invalid) == (None, None)
    assert bad.invalid == "ValueError: a broken scene"
    assert (bad.success, bad.terminated, bad.truncated, len(bad)) == (False, False, False, 0)


def test_a_run_in_which_nothing_works_stops_early(staged):
    hopeless = [scene_for(SUITE, task_id, seed=666) for task_id in range(8)]
    with pytest.raises(RecordError, match="the first 3 failed; the last error: ValueError: a broken scene"):
        list(run(SeededPolicy(), hopeless, workers=0))
    assert len(staged) == 3


def test_an_error_of_the_policy_ends_the_run(staged):
    policy = SeededPolicy()
    policy.act = lambda observations: (_ for _ in ()).throw(ZeroDivisionError("in the policy"))
    with pytest.raises(ZeroDivisionError, match="in the policy"):
        list(run(policy, scenes(2), workers=0))


@pytest.mark.parametrize(
    ("chunk", "message"),
    [(np.zeros((1, 7)), r"shape \(1, 7\), expected \(1, 8, 7\)"), (np.full((1, 8, 7), np.nan), "not finite")],
)
def test_bad_chunks_are_refused(staged, chunk: np.ndarray, message: str):
    policy = SeededPolicy()
    policy.act = lambda observations: chunk
    with pytest.raises(RecordError, match=message):
        list(run(policy, scenes(1), workers=0))


@pytest.mark.parametrize(
    ("policy", "options", "message"),
    [
        (SeededPolicy(("front",)), {}, "cameras: 'front' is unknown; there are: agentview, wrist"),
        (SeededPolicy(), {"profile": "quick"}, "profile 'quick' is unknown"),
        (SeededPolicy(), {"horizon": -1}, "horizon must be at least 1"),
        (SeededPolicy(n_action_steps=0), {}, "n_action_steps must be at least 1"),
    ],
)
def test_bad_settings_are_named(policy: SeededPolicy, options: dict, message: str):
    with pytest.raises(RecordError, match=message):
        next(run(policy, scenes(1), workers=0, **options))


def test_seeds_depend_on_scene_and_step_alone():
    first, second = scenes(2)
    seeds = {observation_seed(scene, step) for scene in (first, second) for step in (0, 8, 16)}
    assert len(seeds) == 6
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert observation_seed(scenes(1)[0], 8) == observation_seed(first, 8)


@pytest.fixture(scope="module")
def looked():
    """Two real episodes of 12 steps in chunks of 8, with the images that the policy saw."""
    policy = SeededPolicy(("agentview", "wrist"))
    return policy, list(run(policy, scenes(2), workers=0, horizon=12, size=64))


@pytest.mark.render
def test_the_horizon_cuts_the_last_chunk_and_truncates(looked):
    policy, episodes = looked
    assert policy.resets == 1
    assert len(policy.seen) == 4  # two chunks an episode
    for episode in episodes:
        assert len(episode) == 12
        assert episode.executed.tolist() == [8, 4]
        assert (episode.truncated, episode.terminated, episode.success) == (True, False, False)
        chunk = np.random.default_rng(observation_seed(episode.scene, 8)).uniform(-1, 1, (8, 7)).astype(np.float32)
        np.testing.assert_array_equal(episode.actions[8:], chunk[:4])


@pytest.mark.render
def test_the_policy_sees_what_the_episode_stores(looked):
    from libero_pro.render import Frame, Renderer
    from libero_pro.simulator import Simulator
    from libero_pro.suites import get_task

    policy, episodes = looked
    sim = Simulator(get_task(SUITE, 0))
    sim.reset(episodes[1].scene)
    with Renderer(sim.model, size=64) as renderer:
        for seen, step in zip(policy.seen[2:], (0, 8), strict=True):
            again = renderer.render(Frame.of(episodes[1], step))
            assert seen.images.keys() == again.keys() == {"agentview", "wrist"}
            for camera, image in again.items():
                np.testing.assert_array_equal(seen.images[camera], image)
            np.testing.assert_array_equal(seen.state, episodes[1].proprio[step])
            assert seen.prompt == "pick the alphabet soup and place it in the basket"
    assert policy.seen[0].images["agentview"].std() > 20  # a picture, not a blank


@pytest.mark.sim
def test_worker_processes_give_the_same_episodes(looked):
    _, here = looked
    elsewhere = list(run(SeededPolicy(), scenes(2), workers=1, horizon=12))
    for a, b in zip(here, elsewhere, strict=True):
        assert a.scene == b.scene
        np.testing.assert_array_equal(a.qpos, b.qpos)
        np.testing.assert_array_equal(a.proprio, b.proprio)
        assert b.wall_s > 0
