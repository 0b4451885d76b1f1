"""Rerun recordings: what a viewer reads back is what the episode holds; and LeRobot's own viewer reads our datasets."""

import argparse
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from synthetic import lost, solved

from lerobot_coda import rerun_export
from lerobot_coda.commands import rerun as command
from lerobot_coda.potential import from_text
from lerobot_coda.potential.plans import plan_of
from lerobot_coda.rerun_export import export
from libero_pro.episode import Episode
from libero_pro.footage import rendered_steps
from libero_pro.record import RecordError

BIN = Path(sys.executable).parent


@pytest.fixture
def drawn(monkeypatch):
    """Replaces the renderer by plain images."""

    def render(episodes, spool, *, cameras, size, profile, render_every, workers):
        for episode in episodes:
            count = len(rendered_steps(len(episode), render_every))
            yield {camera: np.full((count, size, size, 3), 90, np.uint8) for camera in cameras}

    monkeypatch.setattr(rerun_export, "render_episodes", render)


def run(*arguments: object) -> None:
    parser = argparse.ArgumentParser()
    command.add(parser.add_subparsers(required=True))
    parsed = parser.parse_args(["rerun", *map(str, arguments)])
    parsed.run(parsed)


def recorded(path: Path) -> dict[str, list]:
    """Entity -> its record batches."""
    pytest.importorskip("rerun", reason="needs the extra rerun")
    from rerun.experimental import RrdReader

    found: dict[str, list] = {}
    for chunk in RrdReader(path).stream().to_chunks():
        found.setdefault(str(chunk.entity_path), []).append(chunk.to_record_batch())
    return found


def column(batches: list, name: str) -> np.ndarray:
    """(rows, d) of the batches that have it, in order of their steps."""
    rows = [
        (step, value)
        for batch in batches
        if name in batch.schema.names and "step" in batch.schema.names
        for step, value in zip(batch["step"].to_pylist(), batch[name].to_pylist(), strict=True)
    ]
    return np.array([value for _, value in sorted(rows, key=lambda row: row[0])])


def test_a_recording_holds_the_episode(drawn, tmp_path: Path) -> None:
    pytest.importorskip("rerun", reason="needs the extra rerun")
    episode = solved()
    potential = plan_of(episode)
    export(episode, tmp_path / "out" / "e.rrd", potential=potential, size=32, every=10)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["e.rrd"]
    found = recorded(tmp_path / "out" / "e.rrd")
    scalars = "Scalars:scalars"
    assert np.allclose(column(found["/state"], scalars), episode.proprio)
    assert np.allclose(column(found["/action"], scalars), episode.actions)
    assert np.array_equal(column(found["/goal"], scalars), episode.goal_holds)
    assert np.allclose(column(found["/potential"], scalars)[:, 0], potential.evaluate(episode))
    assert np.array_equal(column(found["/stages"], scalars).T, list(potential.done(episode).values()))
    for camera in ("agentview", "wrist"):
        images = found[f"/camera/{camera}"]
        assert sum(batch.num_rows for batch in images) == len(rendered_steps(len(episode), 10))
    said = [text for [text] in column(found["/events"], "TextLog:text").tolist()]
    assert said[0] == "holds milk_1" and "in milk_1 basket_1_contain_region holds" in said
    [[about]] = [batch["TextDocument:text"].to_pylist() for batch in found["/episode"]]
    assert f"scene: {episode.scene.hash}" in about[0] and f"success after {len(episode)} steps" in about[0]


def test_the_command_takes_another_potential_and_a_default_place(drawn, tmp_path: Path, capsys) -> None:
    pytest.importorskip("rerun", reason="needs the extra rerun")
    lost().save(tmp_path / "e.npz")
    from_text("reach 1: near(gripper, target, 0.3) until near(gripper, target, 0.04)\n").save(tmp_path / "p.json")
    run(tmp_path / "e.npz", "--potential", tmp_path / "p.json", "--size", 16, "--cameras", "agentview")
    assert f"recording: {tmp_path / 'e.rrd'}" in capsys.readouterr().out
    found = recorded(tmp_path / "e.rrd")
    assert "/camera/wrist" not in found
    assert column(found["/stages"], "Scalars:scalars").shape == (len(lost()) + 1, 1)


def test_what_cannot_be_shown_is_one_sentence_and_leaves_nothing(drawn, tmp_path: Path) -> None:
    episode = solved()
    episode.save(tmp_path / "e.npz")
    strange = from_text("reach 1: near(gripper, cup_1, 0.3) until near(gripper, cup_1, 0.04)\n")
    out = tmp_path / "out" / "e.rrd"
    with pytest.raises(RecordError, match="must end in"):
        run(tmp_path / "e.npz", "--output", tmp_path / "e.mp4")
    with pytest.raises(RecordError, match="--every must be 1 to 1000"):
        run(tmp_path / "e.npz", "--every", 0)
    pytest.importorskip("rerun", reason="needs the extra rerun")
    with pytest.raises(RecordError, match="nothing to show: diverged"):
        export(replace(episode, invalid="diverged"), out)
    with pytest.raises(RecordError, match="cup_1"):
        export(episode, out, potential=strange)
    assert not out.parent.exists()


def test_without_rerun_it_says_how_to_get_it(drawn, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "rerun", None)
    with pytest.raises(RecordError, match=r"pip install 'lerobot_policy_coda\[rerun\]'"):
        export(solved(), tmp_path / "e.rrd")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.e2e
@pytest.mark.render
def test_lerobots_viewer_reads_a_dataset_of_ours_and_ours_a_real_episode(tmp_path: Path) -> None:
    pytest.importorskip("rerun", reason="needs the extra rerun")
    from libero_pro.dataset import write_dataset
    from libero_pro.expert import solve
    from libero_pro.simulator import Simulator
    from libero_pro.suites import get_task, scene_for

    episode = solve(Simulator(get_task("libero_object", 0)), scene_for("libero_object", 0, seed=3))
    episode.save(tmp_path / "e.npz")
    run(tmp_path / "e.npz", "--size", 64, "--every", 40)
    assert sum(batch.num_rows for batch in recorded(tmp_path / "e.rrd")["/camera/wrist"]) > 1

    write_dataset([Episode.load(tmp_path / "e.npz")], tmp_path / "set", repo_id="me/set", render_every=40, size=64)
    arguments = ["--repo-id", "me/set", "--root", tmp_path / "set", "--episode-index", 0, "--num-workers", 0,
                 "--save", 1, "--output-dir", tmp_path / "viz"]  # fmt: skip
    done = subprocess.run(
        [str(BIN / "lerobot-dataset-viz"), *map(str, arguments)],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    shown = recorded(tmp_path / "viz" / "me_set_episode_0.rrd")
    assert sum(batch.num_rows for batch in shown["/action"]) == len(episode) + 1
    assert {"/observation.images.image", "/observation.images.image2", "/action", "/state"} <= set(shown)
