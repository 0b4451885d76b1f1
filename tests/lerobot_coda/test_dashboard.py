"""What the live page tells of a run at any moment: a finished one, one that was killed, a damaged and an empty one."""

import fcntl
import json
import shutil
import socket
from pathlib import Path

import pytest
from fakeworld import FakeEngine, Killed
from liverun import evolved, plant

from lerobot_coda import dashboard
from lerobot_coda.console import Log
from lerobot_coda.dashboard.look import Look, look, summary_of
from lerobot_coda.dashboard.page import Watch
from lerobot_coda.runfolder import LOG
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
    assert "None has fallen yet" in sections[3] and "No failure is diagnosed yet" in sections[2]


def test_every_section_escapes_what_the_run_holds(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    run = tmp_path / "run"
    plant(run)
    sections, _ = Watch(run).sections()
    assert all("<script>" not in text and "<img src=x" not in text for text in sections)
    assert sum("&lt;script&gt;" in text for text in sections) == 3, "progress, failures and decisions hold such text"


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
    assert stamp != curve and again[0] != first[0] and again[1] == first[1]


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
