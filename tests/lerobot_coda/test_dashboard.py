"""What the live page tells of a run at any moment: a finished one, one that was killed, a damaged and an empty one."""

import fcntl
import json
import shutil
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from fakeworld import FakeEngine, Killed
from liverun import at_work, evolved, plant

from lerobot_coda import dashboard
from lerobot_coda.console import Log
from lerobot_coda.dashboard import workers
from lerobot_coda.dashboard.look import Look, look, summary_of
from lerobot_coda.dashboard.page import Watch
from lerobot_coda.dashboard.workers import Roster, called
from lerobot_coda.runfolder import LOG
from lerobot_coda.training import COMMAND
from libero_pro.record import RecordError


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A finished run, and the calls of its engine."""
    engine = FakeEngine()
    return evolved(tmp_path_factory.mktemp("finished"), engine), engine.log


@pytest.fixture(scope="module")
def finished(whole: tuple[Path, list[str]]) -> Path:
    return whole[0]


@pytest.fixture(scope="module")
def killed(whole: tuple[Path, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed in its second round's probe: the first one is finished."""
    log, folder = whole[1], tmp_path_factory.mktemp("killed")
    first = [index for index, name in enumerate(log) if name == "train"][1]
    measured = log.index("rollout", first)
    with pytest.raises(Killed):
        evolved(folder, FakeEngine(kill_at=log.index("rollout", measured + 1) + 1))
    return folder / "run"


def seen(run: Path) -> Look:
    return look(run, summary_of(run))


def test_a_finished_run(finished: Path) -> None:
    found = seen(finished)
    assert found.finished and not found.at_work and found.now is None
    assert found.left == 0 and found.steps > 10 and found.status == "finished after 2 rounds"
    kinds = [(row.kind, row.round) for row in found.fallen]
    assert kinds == sorted(kinds, key=lambda kind: -kind[1]), "the newest round first"
    assert {kind for kind, _ in kinds} == {"cluster", "verdict", "decision"}
    verdict = next(row for row in found.fallen if row.kind == "verdict" and row.round == 1)
    assert (verdict.what, verdict.outcome) == ("localization", "validated")
    assert "8/8 program scenes" in verdict.reason


def test_the_budget_is_that_of_the_rounds(finished: Path) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    meters = {meter.name: meter for meter in seen(finished).meters}
    assert meters["generated environments"].used == summary["usage"]["environments"]
    assert meters["generated environments"].limit == 48, "24 a round"
    assert meters["static layouts"].limit == 20
    assert meters["environment steps: probe"].used == summary["usage"]["steps"]["probe"]


def test_a_run_that_was_killed_tells_what_is_left(killed: Path) -> None:
    found = seen(killed)
    assert not found.finished and found.done > 0 and found.left > 0
    assert {row.round for row in found.fallen} == {1}
    assert found.failures and all(one.episode.is_file() for one in found.failures)
    assert any("not finished" in text for text in found.missing)


def test_the_step_at_work_is_that_of_the_log(killed: Path, tmp_path: Path) -> None:
    shutil.copytree(killed, tmp_path / "run")
    run = tmp_path / "run"
    with (run / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        now = seen(run).now
        assert now is not None and now.step.startswith("round 2 ") and now.total > 0
        Log(run / LOG).event("0:10 elapsed, about 1:00 left", "round 2 probe", 7, 12)
        with (run / LOG).open("a") as file:
            file.write('{"time": "half a li')
        now = seen(run).now
        assert now is not None and (now.step, now.done, now.total) == ("round 2 probe", 7, 12)
        (run / LOG).unlink()
        now = seen(run).now
        assert now is not None and now.step.startswith("round 2 ") and now.done == 0, "the next one planned"
    assert not seen(run).at_work and seen(run).now is None


def test_what_is_damaged_is_said_and_the_rest_is_shown(killed: Path, tmp_path: Path) -> None:
    shutil.copytree(killed, tmp_path / "run")
    run = tmp_path / "run"
    (run / "summary.json").write_text("{")
    (run / "recipe.yaml").write_text("suite: [")
    (run / "rounds" / "001" / "progress.json").write_text('{"decisions": 3}')
    (run / "rounds" / "001" / "diagnoses.json").write_text("[{}]")
    found = seen(run)
    said = " ".join(found.missing)
    assert "summary.json cannot be read" in said and "recipe.yaml is not YAML" in said
    assert "rounds/001/progress.json is damaged" in said
    assert found.steps > 0 and {row.kind for row in found.fallen} == {"cluster", "verdict"}


def test_an_empty_folder_is_waited_for(tmp_path: Path) -> None:
    found = seen(tmp_path)
    assert found.steps == 0 and any("there is no run.json" in text for text in found.missing)
    sections, _ = Watch(tmp_path).sections()
    assert "None has fallen yet" in sections["decisions"] and "No failure is diagnosed yet" in sections["failures"]
    assert "No failure cluster is remembered yet" in sections["lineage"]
    assert "no process is at work" in sections["workers"] and "Its report" not in sections["progress"]


def test_every_section_escapes_what_the_run_holds(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    run = tmp_path / "run"
    plant(run)
    sections, _ = Watch(run).sections()
    assert all("<script>" not in text and "<img src=x" not in text for text in sections.values())
    hostile = {name for name, text in sections.items() if "&lt;script&gt;" in text}
    assert hostile == {"progress", "failures", "decisions", "lineage"}


def test_a_look_changes_nothing_in_the_folder(killed: Path) -> None:
    def state() -> dict[Path, tuple[int, int]]:
        files = (path for path in killed.rglob("*") if path.is_file() and not path.name.startswith("memory.sqlite-"))
        return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in files}

    before = state()
    Watch(killed).sections()
    assert state() == before


def test_only_what_changed_is_read_again(killed: Path, tmp_path: Path) -> None:
    shutil.copytree(killed, tmp_path / "run")
    watch = Watch(tmp_path / "run")
    first, curve = watch.sections()
    assert watch.sections() == (first, curve)
    summary = tmp_path / "run" / "summary.json"
    summary.write_text(summary.read_text().replace('"finished": false', '"finished": true'))
    again, stamp = watch.sections()
    assert stamp != curve
    assert {name for name in first if again[name] != first[name]} == {"progress"}


def test_the_lineage_is_that_of_the_round_at_work_too(killed: Path, tmp_path: Path) -> None:
    shutil.copytree(killed, tmp_path / "run")
    run = tmp_path / "run"
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"rounds": []}))
    watch = Watch(run)
    drawn = watch.sections()[0]["lineage"]
    assert "failure: localization" in drawn and "validated" in drawn
    (run / "rounds" / "001" / "clusters.json").write_text("[{")
    sections, _ = watch.sections()
    assert "failure: localization" not in sections["lineage"]
    assert "its failures are not linked" in sections["progress"]


def test_the_processes_at_work_are_those_below_the_one_that_holds_the_lock(killed: Path, tmp_path: Path) -> None:
    shutil.copytree(killed, tmp_path / "run")
    run = tmp_path / "run"
    with at_work(run) as pid:
        found = Roster(run).look()
        assert found.told == () and found.workers[0].pid == pid
        assert {one.what: one.depth for one in found.workers} == {
            "the run itself": 0, "simulation worker": 1, "lerobot-train": 1,
        }  # fmt: skip
        assert all(one.memory > 1e6 and one.cpu >= 0 and one.seconds > 0 for one in found.workers)
        text = Watch(run).sections()[0]["workers"]
        assert "simulation worker" in text and str(pid) in text
    assert "no process is at work" in Watch(run).sections()[0]["workers"]


def test_the_share_of_the_cpu_is_that_since_the_last_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "APART_S", 0.0)
    roster = Roster(tmp_path)
    with (tmp_path / ".lock").open("a"):
        before = time.monotonic()
        roster.look()
        burned = time.process_time()
        while time.process_time() < burned + 0.3:
            pass
        time.sleep(0.3)
        found = roster.look().workers[0]
        # No more than was to be had, and all that was burned in no more than the time that has passed.
        assert 0.28 / (time.monotonic() - before) <= found.cpu <= 0.9


def test_who_only_looks_at_the_lock_is_not_at_work(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    with (tmp_path / ".lock").open("rb"):
        found = Roster(tmp_path).look()
    assert found.workers == () and "another machine's" in found.told[0]


def test_workers_in_a_cluster_are_said_to_be_there(killed: Path, tmp_path: Path) -> None:
    shutil.copytree(killed, tmp_path / "run")
    run = tmp_path / "run"
    recipe = run / "recipe.yaml"
    data = yaml.safe_load(recipe.read_text())
    recipe.write_text(yaml.safe_dump(data | {"rollout": {"backend": "ray"}}))
    with at_work(run):
        text = Watch(run).sections()[0]["workers"]
    assert "live in Ray&#39;s cluster" in text and "the run itself" in text


SPAWNED = ("python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(pipe_handle=7)")
TRAINER = ("python", *COMMAND[1:], "--config_path=train.yaml")


@pytest.mark.parametrize(
    ("command", "parent", "forks", "name"),
    [
        (SPAWNED, ("python", "evolve"), False, "simulation worker"),
        (SPAWNED, ("python", "evolve"), True, "simulator that workers are forked from"),
        (SPAWNED, SPAWNED, False, "simulation worker"),
        (TRAINER, ("python", "evolve"), True, "lerobot-train"),
        (TRAINER, TRAINER, False, "data loader of lerobot-train"),
        (SPAWNED, TRAINER, False, "data loader of lerobot-train"),
        (("python", "evolve"), ("python", "evolve"), False, "fork of the run"),
        (("raylet",), ("python", "evolve"), False, None),
    ],
)
def test_a_process_is_named_by_its_command(
    command: Sequence[str], parent: Sequence[str], forks: bool, name: str | None
) -> None:
    assert called(command, parent, 1, forks) == name
    assert called(command, parent, 0, forks) == "the run itself"


def test_bad_addresses_and_folders_are_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="is no folder"):
        dashboard.serve(tmp_path / "nowhere")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(RecordError, match=r"cannot be served .*choose others with --host and --port"):
            dashboard.serve(tmp_path, port=taken.getsockname()[1])
    with pytest.raises(RecordError, match="70000 cannot be served"):
        dashboard.serve(tmp_path, port=70000)
