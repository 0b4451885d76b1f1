"""Datasets: what stock LeRobot reads back is what the episodes hold."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rollout_parts import SeededPolicy, made_up_episode

from libero_pro import dataset
from libero_pro.dataset import merge, read_summary, rendered_steps, write_dataset
from libero_pro.record import RecordError
from libero_pro.suites import scene_for

SUITE = "libero_object"
EPISODE_COLUMNS = ("scene", "program", "actor", "success", "truncated", "seed", "steps")


def gray(step: int) -> int:
    """Brightness of the made-up image of an instant; distinct after video compression."""
    return 20 + 12 * step


@pytest.fixture
def drawn(monkeypatch):
    """Replaces the renderers by plain gray images that tell their instant (the wrist camera is 100 brighter)."""

    def render(episodes, spool, *, cameras, render_every, size, **options):
        for episode in episodes:
            shades = [gray(step) for step in rendered_steps(len(episode), render_every)]
            plain = np.stack([np.full((size, size, 3), shade, np.uint8) for shade in shades])
            yield {camera: plain + np.uint8(100 * index) for index, camera in enumerate(cameras)}

    monkeypatch.setattr(dataset, "render_episodes", render)


def columns(episode) -> dict[str, np.ndarray]:
    steps = np.arange(len(episode) + 1, dtype=np.float32)
    return {"observation.coda_potential": steps[:, None] / 10, "observation.coda_target": np.stack([steps] * 3, 1)}


def load(root: Path, repo_id: str, **options):
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    return LeRobotDataset(repo_id, root=root, video_backend="pyav", **options)


def three_episodes() -> list:
    success = made_up_episode(scene_for(SUITE, 3, seed=1), 9)
    timeout = made_up_episode(scene_for(SUITE, 0, seed=2), 6, success=False, actor="policy:x")
    corrected = replace(success, scene=scene_for(SUITE, 3, seed=4), expert_actions=-success.actions)
    broken = made_up_episode(scene_for(SUITE, 0, seed=5), success=False, truncated=False, invalid="diverged")
    return [success, timeout, broken, corrected]


def test_stock_lerobot_reads_what_was_written(drawn, tmp_path: Path):
    success, timeout, _, corrected = three_episodes()
    summary = write_dataset(three_episodes(), tmp_path / "set", repo_id="me/set", columns=columns, render_every=4)
    assert not (tmp_path / "set.partial").exists()
    assert summary == read_summary(tmp_path / "set")
    assert (summary["episodes"], summary["frames"], summary["successes"]) == (3, 7 + 10 + 10, 2)
    assert (summary["truncated"], summary["invalid_left_out"]) == (1, 1)
    assert summary["tasks"] == {"libero_object/0": 1, "libero_object/3": 2}
    assert summary["actors"] == {"expert": 2, "policy:x": 1}

    deltas = {"observation.images.image": [0, 0.25], "action": [0, 0.05, 0.1]}
    stock = load(tmp_path / "set", "me/set", delta_timestamps=deltas)
    assert (stock.fps, len(stock)) == (20, 27)
    starts = dict(zip((timeout.scene.hash, success.scene.hash, corrected.scene.hash), (0, 7, 17), strict=True))
    for number, episode in enumerate((timeout, success, corrected)):  # grouped by task
        about = stock.meta.episodes[number]
        start = starts[episode.scene.hash]
        assert about["coda/scene"] == episode.scene.hash
        assert about["coda/success"] == episode.success
        assert about["coda/truncated"] == episode.truncated
        assert (about["coda/actor"], about["coda/seed"]) == (episode.actor, episode.scene.seed)
        assert about["dataset_from_index"] == start
        expected = episode.actions if episode.expert_actions is None else episode.expert_actions
        for t in range(len(episode) + 1):
            frame = stock[start + t]
            assert frame["task"] == episode.scene.instruction
            np.testing.assert_array_equal(frame["observation.state"], episode.proprio[t])
            last = t >= len(episode) - 1
            assert bool(frame["next.done"]) == last
            assert bool(frame["next.success"]) == (last and episode.success)
            assert float(frame["next.reward"]) == float(episode.success and t == len(episode) - 1)
            assert float(frame["observation.coda_potential"]) == pytest.approx(t / 10)
            np.testing.assert_allclose(frame["observation.coda_target"], [t] * 3)
            np.testing.assert_array_equal(frame["action"][0], expected[t] if t < len(episode) else np.zeros(7))
            shown = t if t == len(episode) else t - t % 4  # held between rendered instants; the last has its own
            assert float(frame["observation.images.image"][0].mean()) * 255 == pytest.approx(gray(shown), abs=2)
            assert float(frame["observation.images.image2"].mean()) * 255 == pytest.approx(gray(shown) + 100, abs=2)
    assert stock[0]["action_is_pad"].tolist() == [False] * 3
    for name in ("observation.state", "action", "observation.coda_potential"):
        assert {"mean", "std", "q01", "q99"} <= stock.meta.stats[name].keys()
    assert stock.meta.stats["observation.images.image"]["mean"].shape == (3, 1, 1)
    rows = np.concatenate([e.proprio for e in (timeout, success, corrected)])
    np.testing.assert_allclose(stock.meta.stats["observation.state"]["mean"], rows.mean(0), rtol=1e-4, atol=1e-5)


def pictures(episode, spool=None, *, cameras=("agentview", "wrist"), size=128, render_every=3, **options):
    """Made-up images with structure and noise of their own for every rendered instant."""
    rng = np.random.default_rng(episode.scene.seed)
    ramp = np.linspace(30, 220, size)[:, None, None] * np.array([1.0, 0.6, 0.3])
    images = {}
    for camera in cameras:
        stack = np.repeat(np.repeat(ramp[None], len(rendered_steps(len(episode), render_every)), 0), size, 2)
        images[camera] = np.clip(stack + rng.normal(0, 12, stack.shape), 0, 255).astype(np.uint8)
    return images


def test_the_shard_is_the_one_that_lerobots_own_writer_makes_frame_by_frame(monkeypatch, tmp_path: Path):
    """Same bytes of video, same rows, same metadata and statistics; only quantiles of images are exact here."""
    import pyarrow.parquet as pq
    from lerobot.configs.video import RGBEncoderConfig
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    episodes = [made_up_episode(scene_for(SUITE, 0, seed=seed), steps) for seed, steps in ((1, 9), (2, 6), (3, 11))]
    monkeypatch.setattr(dataset, "render_episodes", lambda kept, spool, **how: (pictures(e, **how) for e in kept))
    write_dataset(episodes, tmp_path / "own", repo_id="me/own", columns=columns, render_every=3)

    own = load(tmp_path / "own", "me/own")
    stock = LeRobotDataset.create(
        "me/stock",
        fps=20,
        root=tmp_path / "stock",
        robot_type="panda",
        features={key: feature for key, feature in own.features.items() if key.startswith(("obs", "act", "next"))},
        rgb_encoder=RGBEncoderConfig(vcodec="h264", preset="ultrafast", crf=20, g=2),
        streaming_encoding=True,
        encoder_threads=1,
        video_backend="pyav",
        video_files_size_in_mb=1,
    )
    for episode in episodes:
        images, steps = pictures(episode), len(episode)
        rows = np.searchsorted(rendered_steps(steps, 3), dataset.shown_steps(steps, 3))
        for t in range(steps + 1):
            given = own[int(stock.meta.total_frames) + t]
            stock.add_frame(
                {dataset.IMAGE_KEYS[camera]: stack[rows[t]] for camera, stack in images.items()}
                | {
                    key: given[key].numpy().reshape(feature["shape"])
                    for key, feature in stock.features.items()
                    if key.startswith(("obs", "act", "next")) and feature["dtype"] != "video"
                }
                | {"task": episode.scene.instruction}
            )
        stock.save_episode()
    stock.finalize()

    def files(root: str, pattern: str) -> dict[str, Path]:
        return {str(path.relative_to(tmp_path / root)): path for path in (tmp_path / root).glob(pattern)}

    for pattern in ("videos/**/*.mp4", "data/**/*.parquet"):
        ours, theirs = files("own", pattern), files("stock", pattern)
        assert ours.keys() == theirs.keys() and ours
        for name, path in ours.items():
            if path.suffix == ".mp4":
                assert path.read_bytes() == theirs[name].read_bytes(), name
            else:
                assert pq.read_table(path).equals(pq.read_table(theirs[name])), name
    again = load(tmp_path / "stock", "me/stock")
    assert again.meta.stats.keys() == own.meta.stats.keys()
    for key, figures in again.meta.stats.items():
        assert figures.keys() == own.meta.stats[key].keys()
        for name, value in figures.items():  # LeRobot sums in float32 and bins quantiles
            exact = "image" not in key
            loose = {"rtol": 1e-5, "atol": 1e-6} if exact else {"rtol": 1e-3, "atol": 0.2 / 255 * name.startswith("q")}
            np.testing.assert_allclose(own.meta.stats[key][name], value, **loose, err_msg=f"{key} {name}")
    for ours, theirs in zip(own.meta.episodes, again.meta.episodes, strict=True):
        assert set(ours) - set(theirs) == {f"coda/{name}" for name in EPISODE_COLUMNS}
        same = [key for key in theirs if not key.startswith("stats/observation.images")]
        assert all(np.array_equal(ours[key], theirs[key]) for key in same if not key.startswith("stats/"))


def test_shards_merge_into_one_set(drawn, tmp_path: Path):
    success, timeout, _, corrected = three_episodes()
    write_dataset([success, timeout], tmp_path / "a", repo_id="me/a", columns=columns, cameras=("agentview",))
    write_dataset([corrected], tmp_path / "b", repo_id="me/b", columns=columns, cameras=("agentview",), render_every=1)
    summary = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all", repo_id="me/all")
    assert summary == read_summary(tmp_path / "all")
    assert (summary["episodes"], summary["frames"], summary["render_every"]) == (3, 27, [1, 4])
    assert summary["tasks"] == {"libero_object/0": 1, "libero_object/3": 2}
    stock = load(tmp_path / "all", "me/all")
    assert stock.meta.episodes[2]["coda/scene"] == corrected.scene.hash
    frame = stock[17 + 5]
    np.testing.assert_array_equal(frame["action"], corrected.expert_actions[5])
    assert float(frame["observation.images.image"].mean()) * 255 == pytest.approx(gray(5), abs=2)
    assert "observation.images.image2" not in frame

    write_dataset([corrected], tmp_path / "c", repo_id="me/c", cameras=("agentview",))
    with pytest.raises(RecordError, match=r"c has columns \{\}, .*a has \{'observation.coda_potential': 1"):
        merge([tmp_path / "a", tmp_path / "c"], tmp_path / "bad", repo_id="me/bad")
    assert not (tmp_path / "bad").exists()


def test_a_crash_leaves_no_half_dataset(drawn, tmp_path: Path):
    def failing(episode):
        if episode.scene.task_id == 3:
            raise KeyboardInterrupt
        return {}

    success, timeout, *_ = three_episodes()
    with pytest.raises(KeyboardInterrupt):
        write_dataset([timeout, success], tmp_path / "set", repo_id="me/set", columns=failing)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RecordError, match="set is not a complete LIBERO-Pro dataset"):
        read_summary(tmp_path / "set")
    write_dataset([timeout], tmp_path / "set", repo_id="me/set")  # nothing in the way of another try
    with pytest.raises(RecordError, match="set exists"):
        write_dataset([timeout], tmp_path / "set", repo_id="me/set")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (lambda e: {"potential": np.zeros((10, 1))}, "must start with 'observation.coda_'"),
        (lambda e: {"observation.coda_x": np.zeros((9, 1))}, r"shape \(9, 1\); an episode needs \(10, d\)"),
        (lambda e: {"observation.coda_x": np.zeros(10)}, r"shape \(10,\)"),
        (lambda e: {"observation.coda_x": np.full((10, 1), np.inf)}, "not finite"),
        (lambda e: {f"observation.coda_{e.scene.seed}": np.zeros((10, 1))}, "differ from the first episode's"),
    ],
)
def test_columns_that_do_not_fit_are_named(drawn, tmp_path: Path, bad, message: str):
    episodes = [made_up_episode(scene_for(SUITE, 0, seed=seed)) for seed in (1, 2)]
    with pytest.raises(RecordError, match=message):
        write_dataset(episodes, tmp_path / "set", repo_id="me/set", columns=bad)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"render_every": 0}, "render_every must be at least 1"),
        ({"cameras": ("front",)}, "choose from agentview, wrist"),
        ({"cameras": ()}, "choose from agentview, wrist"),
    ],
)
def test_bad_settings_are_named(tmp_path: Path, options: dict, message: str):
    with pytest.raises(RecordError, match=message):
        write_dataset(three_episodes(), tmp_path / "set", repo_id="me/set", **options)


def test_only_invalid_episodes_make_no_dataset(tmp_path: Path):
    with pytest.raises(RecordError, match="none of the 1 episodes can be written"):
        write_dataset([three_episodes()[2]], tmp_path / "set", repo_id="me/set")


def test_rendered_steps_include_the_start_and_the_end():
    assert rendered_steps(9, 4).tolist() == [0, 4, 8, 9]
    assert rendered_steps(8, 4).tolist() == [0, 4, 8]
    assert rendered_steps(3, 1).tolist() == [0, 1, 2, 3]
    assert rendered_steps(1, 10).tolist() == [0, 1]


@pytest.mark.render
def test_images_are_those_of_the_stored_states(tmp_path: Path):
    from libero_pro.render import Frame, Renderer
    from libero_pro.rollout import run
    from libero_pro.simulator import Simulator
    from libero_pro.suites import get_task

    scene = scene_for("libero_goal_swap", 1, init_state_id=3, seed=7)  # fixtures change places here
    (episode,) = run(SeededPolicy(), [scene], workers=0, horizon=6)
    write_dataset([episode], tmp_path / "set", repo_id="me/set", render_every=3, profile="faithful", workers=0)
    stock = load(tmp_path / "set", "me/set")
    sim = Simulator(get_task("libero_goal_swap", 1))
    sim.reset(scene)
    with Renderer(sim.model) as renderer:
        for t, shown in ((0, 0), (2, 0), (3, 3), (6, 6)):
            images = renderer.render(Frame.of(episode, shown))
            for camera, key in dataset.IMAGE_KEYS.items():
                decoded = stock[t][key].permute(1, 2, 0).numpy() * 255
                error = np.sqrt(np.mean((decoded - images[camera]) ** 2))
                assert error < 8, f"{camera} at {t}"  # of 255, h264 at crf 20
