"""`lerobot-coda critic-bench`: critics on trial over HTTP and from the states, bad requests, and the set on the Hub."""

import argparse
import json
from pathlib import Path

import numpy as np
import pytest
from criticserver import serve as answering
from hubs import served
from synthetic import beside, lost, solved

from lerobot_coda.commands import critic_bench
from lerobot_coda.critic.bench import trial
from lerobot_coda.critic.bench.build import BenchSet
from lerobot_coda.critic.bench.planted import Planted
from lerobot_coda.critic.bench.push import push_bench
from lerobot_coda.critic.diagnosis import Cause, Stage
from lerobot_coda.critic.sheet import compose
from libero_pro.record import RecordError

EPISODES = {"aa": lost(), "bb": beside(), "cc": solved()}
TRUTH = {"aa": (Cause.MISSED_GRASP, Stage.REACH), "bb": (Cause.MISSED_GRASP, Stage.GRASP), "cc": (None, None)}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A finished set of two failures and a success, made by hand."""
    items = []
    for name, episode in EPISODES.items():
        cause, stage = TRUTH[name]
        episode.save(tmp_path / "set" / "episodes" / f"{name}.npz")
        items.append(
            Planted(
                name=name,
                suite="libero_object",
                task_id=7,
                seed=0,
                cause=cause,
                stage=stage,
                predicate=("in", "milk_1", "basket_1_contain_region"),
                objects=("milk_1",) if cause else (),
                span=(30, 90) if cause else (0, 0),
                steps=len(episode),
            )
        )
    bench = BenchSet(seed=1, per_cause=2, tasks=(("libero_object", 7),), items=tuple(items))
    bench.save(tmp_path / "set" / "bench.json")
    return tmp_path / "set"


@pytest.fixture
def gray_sheets(monkeypatch: pytest.MonkeyPatch) -> list:
    """Sheets without a renderer; keeps the clips that critics were shown."""
    shown = []

    def draw(clips, folder, *, frames, size, workers):
        found = {}
        for cluster, members in clips.items():
            shown.extend(members)
            path = folder / cluster / "sheet.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(compose({"agentview": [np.full((size, size, 3), 128, np.uint8)] * 2}, (0, 90)))
            found[cluster] = [clip._replace(sheet=path) for clip in members]
        return found

    monkeypatch.setattr(trial, "with_sheets", draw)
    return shown


def bench_command(*arguments: str) -> None:
    parser = argparse.ArgumentParser()
    critic_bench.add(parser.add_subparsers())
    parsed = parser.parse_args(["critic-bench", *arguments])
    parsed.run(parsed)


def kept(path: Path) -> dict:
    return {row["figure"]: row["value"] for row in json.loads(path.read_text())}


def test_the_simulator_critic_is_scored_from_states_alone(data: Path, tmp_path: Path, capsys):
    bench_command("--data", str(data), "--json", str(tmp_path / "rows.json"))
    figures = kept(tmp_path / "rows.json")
    assert figures["cause_accuracy"] == figures["stage_accuracy"] == figures["detected"] == 1
    assert figures["false_alarms"] == 0 and figures["time_error"] == 0
    assert "missed_grasp" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("day", "figures"),
    [
        ("recorded", {"cause_accuracy": 1, "stage_accuracy": 0.5, "false_alarms": 1, "invalid_answers": 0}),
        ("sees no failure", {"detected": 0, "cause_accuracy": 0, "false_alarms": 0, "invalid_answers": 0}),
        ("garbled", {"detected": 0, "false_alarms": 0, "invalid_answers": 1}),
        ("injected", {"detected": 0, "invalid_answers": 1}),
        ("broken", {"detected": 0, "invalid_answers": 1}),
    ],
)
def test_a_critic_behind_a_server_is_scored_whatever_it_answers(data, gray_sheets, tmp_path, day, figures):
    with answering(day) as server:
        settings = tmp_path / "critic.yaml"
        settings.write_text(
            f"critic: {{kind: endpoint, model: m, url: '{server.url}', image_size: 64, retries: 0, frames: 2}}"
        )
        bench_command("--data", str(data), "--critic", str(settings), "--json", str(tmp_path / "rows.json"))
    found = kept(tmp_path / "rows.json")
    assert {name: found[name] for name in figures} == figures
    assert len(gray_sheets) == 3  # and none of them tells how it ended
    assert all(clip.diagnosis is None and not clip.episode.success and not clip.episode.tags for clip in gray_sheets)


def test_every_episode_is_asked_about_whatever_a_round_may_use_and_a_name_is_no_markup(
    data, gray_sheets, tmp_path, capsys
):
    for name in ("[red]a[/red]", "[link=file:b]b"):
        with answering("recorded") as server:
            settings = tmp_path / "critic.yaml"
            settings.write_text(
                f"{{kind: endpoint, model: '{name}', url: '{server.url}', image_size: 64, max_requests: 1}}"
            )
            bench_command("--data", str(data), "--critic", str(settings))
        assert len(server.seen) == 3 and name in capsys.readouterr().out
    assert len(list((data / "answers").iterdir())) == 2  # each critic's answers, over the same sheets
    assert len(list((data / "sheets").rglob("*.png"))) == 3


def test_the_question_does_not_tell_the_truth(data, gray_sheets, tmp_path):
    with answering("recorded") as server:
        settings = tmp_path / "critic.yaml"
        settings.write_text(f"{{kind: endpoint, model: m, url: '{server.url}', image_size: 64}}")
        bench_command("--data", str(data), "--critic", str(settings), "--limit", "1")
    text = json.dumps(server.seen[0]["body"]["messages"])
    assert "It is not known whether the episodes succeeded" in text and "All of these episodes failed" not in text


def test_what_cannot_be_scored_is_said(data: Path, tmp_path: Path):
    with pytest.raises(RecordError, match="neither 'simulator' nor a file with a critic's settings"):
        bench_command("--data", str(data), "--critic", "oracle")
    with pytest.raises(
        RecordError, match="holds no finished bench set; build it with `lerobot-coda critic-bench --build`"
    ):
        bench_command("--data", str(tmp_path / "nowhere"))
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("{kind: endpoint, modle: m}")
    with pytest.raises(RecordError, match="did you mean 'model'"):
        bench_command("--data", str(data), "--critic", str(wrong))


def test_the_set_is_pushed_once_with_a_card(data: Path, tmp_path: Path, monkeypatch):
    with served(monkeypatch, tmp_path) as hub:
        assert [push_bench(data, "ada/critic-bench").outcome for _ in range(2)] == ["pushed", "there"]
        (repo,) = hub.repos.values()
        tree = repo.commits[-1].tree
        assert set(tree) >= {"bench.json", "README.md", "coda.json", *(f"episodes/{name}.npz" for name in EPISODES)}
        card = tree["README.md"].data.decode()
        assert "| missed_grasp | 2 |" in card and "dropped" not in card and repo.private
        (data / "bench.json").write_bytes((data / "bench.json").read_bytes().replace(b'"seed":1', b'"seed":2', 1))
        with pytest.raises(RecordError, match="holds another run"):
            push_bench(data, "ada/critic-bench")
