"""`generate`, `validate`, `replay` and `render`: last lines, resumption, and one sentence for bad input before work."""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lerobot_coda import filming
from lerobot_coda.commands import generate, render, replay, validate
from libero_pro import generate as generation
from libero_pro import judge as judging
from libero_pro import replay as replaying
from libero_pro.episode import Episode
from libero_pro.programs import GenerationProgram, Permute
from libero_pro.record import RecordError
from libero_pro.recorder import EpisodeRecorder
from libero_pro.suites import get_task, scene_for
from libero_pro.validity import Verdict

PROGRAM = GenerationProgram(suite="libero_object", task_ids=(0,), operations=(Permute(),), difficulty=0.9)


def run(*arguments: object) -> None:
    """Parses and runs one of the commands."""
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(required=True)
    for command in (generate, validate, replay, render):
        command.add(commands)
    parsed = parser.parse_args([str(argument) for argument in arguments])
    parsed.run(parsed)


@pytest.fixture
def judged(monkeypatch):
    """Rejects scenes of odd seeds without a simulator; returns what was judged."""
    asked = []

    def judge(scenes, *, workers, demonstrations=None):
        for index, scene in enumerate(scenes):
            asked.append(scene.hash)
            odd = scene.seed % 2 == 1
            verdict = Verdict(scene=scene.hash, accepted=not odd, gate="settles" if odd else None, reason="odd" * odd)
            yield index, verdict

    monkeypatch.setattr(judging, "judge", judge)
    monkeypatch.setattr(generation, "judge", judge)
    return asked


def last_line(capsys) -> str:
    return capsys.readouterr().out.strip().splitlines()[-1]


def test_generate_says_what_was_made_and_where_and_validate_agrees(judged, tmp_path: Path, capsys):
    PROGRAM.save(tmp_path / "program.json")
    run("generate", tmp_path / "program.json", "--count", 4, "--out", tmp_path / "made")
    said = last_line(capsys)
    assert said == f"4 scenes of program {PROGRAM.hash} are in {tmp_path / 'made' / 'scenes.jsonl'}"
    run("validate", tmp_path / "made")
    assert "4 of 4 scenes" in last_line(capsys)


def test_validate_keeps_verdicts_and_goes_on(judged, tmp_path: Path, capsys):
    path = tmp_path / "scenes.jsonl"
    path.write_text("".join(scene_for("libero_object", 0, seed=seed).to_json() + "\n" for seed in range(5)))
    out = tmp_path / "verdicts.jsonl"
    for known in (0, 5, 3):
        if known == 3:
            out.write_bytes(b"".join(out.read_bytes().splitlines(keepends=True)[:4]))
        judged.clear()
        with pytest.raises(SystemExit) as caught:
            run("validate", path, "--out", out)
        assert caught.value.code == 1 and len(judged) == 5 - known
        text = capsys.readouterr().out
        assert "settles: 2" in text and "scene 2 (" in text and "odd" in text
        assert text.strip().splitlines()[-1].startswith("3 of 5 scenes")
    assert len(out.read_text().splitlines()) == 6


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("generate", "{dir}/none.json", "--count", 1, "--out", "{dir}/out"), "cannot read"),
        (("generate", "{dir}/bad.json", "--count", 1, "--out", "{dir}/out"), "'difficulty'"),
        (("generate", "{dir}/good.json", "--count", -5, "--out", "{dir}/out"), "count must be 1 to"),
        (("validate", "{dir}/bad.json", "--out", "{dir}/out"), "line 1: SceneSpec: field"),
        (("replay", "{dir}/none"), "does not exist"),
        (("replay", "{dir}/empty"), "no episode"),
        (("replay", "{dir}/broken.npz", "--out", "{dir}/out"), "not a readable episode"),
        (("render", "{dir}/broken.npz", "--out", "{dir}/out/v.mp4"), "not a readable episode"),
        (("render", "{dir}/broken.npz", "--out", "{dir}/out/v.mp4", "--size", 10**9), "--size must be"),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(tmp_path: Path, arguments, said: str):
    (tmp_path / "empty").mkdir()
    PROGRAM.save(tmp_path / "good.json")
    (tmp_path / "bad.json").write_text(json.dumps({**PROGRAM.model_dump(mode="json"), "difficulty": 7}))
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 not an archive")
    with pytest.raises(RecordError, match=said) as caught:
        run(*(str(a).replace("{dir}", str(tmp_path)) for a in arguments))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out" / "scenes.jsonl").exists() and not (tmp_path / "out" / "v.mp4").exists()


@pytest.fixture(scope="module")
def episode(tmp_path_factory) -> Path:
    """A short episode of random actions after the protocol's no-ops."""
    from libero_pro.simulator import Simulator

    scene = scene_for("libero_object", 0, seed=3)
    sim = Simulator(get_task("libero_object", 0))
    sim.reset(scene)
    sim.settle()
    recorder = EpisodeRecorder(sim, scene, "policy:random")
    recorder.start()
    recorder.chunk(np.random.default_rng(0).uniform(-1, 1, (12, 7)).astype(np.float32))
    path = tmp_path_factory.mktemp("episodes") / "one.npz"
    recorder.finish(truncated=True).save(path)
    return path


@pytest.mark.sim
def test_replay_tells_an_untouched_episode_from_a_changed_one(episode: Path, tmp_path: Path, capsys, monkeypatch):
    stored = Episode.load(episode)
    actions = stored.actions.copy()
    actions[7, 0] += 1e-6
    replace(stored, actions=actions).save(tmp_path / "changed.npz")
    replace(stored, invalid="a lost worker").save(tmp_path / "invalid.npz")
    forks = replaying.run_in_forks
    monkeypatch.setattr(replaying, "run_in_forks", lambda jobs, **rest: forks(jobs, **{**rest, "workers": 0}))
    run("replay", episode)
    assert last_line(capsys) == "1 of 1 episodes replay bit for bit"
    with pytest.raises(SystemExit):
        run("replay", episode, tmp_path, "--out", tmp_path / "results.jsonl")
    text = capsys.readouterr().out
    assert "changed.npz: instant 8 of 12: qpos differs by" in text
    assert text.strip().endswith("1 of 2 episodes replay bit for bit; 1 invalid ones are left out")


@pytest.mark.sim
@pytest.mark.render
def test_render_writes_videos_and_keeps_those_there_are(episode: Path, tmp_path: Path, capsys, monkeypatch):
    import av

    pool = filming.run_in_workers
    monkeypatch.setattr(filming, "run_in_workers", lambda jobs, **rest: pool(jobs, **{**rest, "workers": 0}))
    folder = tmp_path / "videos"
    run("render", episode.parent, "--out", folder, "--size", 64, "--every", 3, "--cameras", "agentview", "wrist")
    assert last_line(capsys) == f"videos of 1 episodes are in {folder}"
    with av.open(str(folder / "one.mp4")) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(frames) == 5 and frames[0].shape == (64, 128, 3)
    assert np.std(frames[0][:, :64]) > 5 and np.std(frames[0][:, 64:]) > 5
    written = (folder / "one.mp4").stat().st_mtime_ns
    run("render", episode.parent, "--out", folder, "--size", 64)
    assert (folder / "one.mp4").stat().st_mtime_ns == written
