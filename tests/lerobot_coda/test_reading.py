"""A training set in memory gives the items that LeRobot reads from its files."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "libero_pro"))
from rollout_parts import made_up_episode

from libero_pro import dataset as writing
from libero_pro.footage import rendered_steps
from libero_pro.suites import scene_for

DELTAS = {
    "action": [0, 0.05, 0.1],
    "observation.images.image": [0, 0.1],
    "observation.state": [0, 0.1],
    "next.reward": [0, 0.05],
}


@pytest.fixture
def shard(monkeypatch, tmp_path: Path) -> Path:
    """Three episodes of two cameras with pictures of noise, in two files a camera."""

    def render(episodes, spool, *, cameras, render_every, size, **options):
        rng = np.random.default_rng(0)
        for episode in episodes:
            count = len(rendered_steps(len(episode), render_every))
            yield {camera: rng.integers(0, 256, (count, size, size, 3), np.uint8) for camera in cameras}

    monkeypatch.setattr(writing, "render_episodes", render)
    monkeypatch.setattr(writing, "_VIDEO_FILE_MB", 0.2)
    episodes = [made_up_episode(scene_for("libero_object", 0, seed=seed), 5 + seed) for seed in range(3)]
    writing.write_dataset(episodes, tmp_path / "set", repo_id="me/set", render_every=2)
    assert len(list((tmp_path / "set").glob("videos/observation.images.image/**/*.mp4"))) > 1
    return tmp_path / "set"


@pytest.mark.parametrize(
    ("uint8", "episodes", "deltas"), [(True, None, DELTAS), (False, [2, 1], DELTAS), (True, None, None)]
)
def test_items_are_those_that_lerobot_reads(shard: Path, uint8: bool, episodes, deltas):
    import torch
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    from lerobot_coda.reading import into_memory

    options = {"episodes": episodes, "delta_timestamps": deltas, "video_backend": "pyav", "return_uint8": uint8}
    stock, own = (LeRobotDataset("me/set", root=shard, **options) for _ in range(2))
    assert into_memory(own)
    assert len(own) == len(stock) > 10
    for index in range(len(stock)):
        theirs, ours = stock[index], own[index]
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            if isinstance(value, torch.Tensor):
                assert ours[key].dtype == value.dtype and torch.equal(ours[key], value), (index, key)
            else:
                assert ours[key] == value


def test_a_set_that_does_not_fit_is_left_as_it_is(shard: Path, monkeypatch):
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    from lerobot_coda import reading

    monkeypatch.setattr(reading, "_free_bytes", lambda: 1e6)
    own = LeRobotDataset("me/set", root=shard, video_backend="pyav")
    table = own.reader.hf_dataset
    assert not reading.into_memory(own)
    assert own.reader.hf_dataset is table
