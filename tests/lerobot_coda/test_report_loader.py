"""A run folder as the loop writes it becomes the summary that the report shows; what it lacks is said."""

import csv
import io
import json
import shutil
from pathlib import Path

import pytest
from fakeworld import FakeEngine, Killed, write_recipes
from rich.console import Console

from lerobot_coda.console import Display
from lerobot_coda.evolve import evolve
from lerobot_coda.report import build_report, load_run
from libero_pro.record import RecordError


def _evolve(folder: Path, engine: FakeEngine) -> dict:
    return evolve(write_recipes(folder), folder / "run", engine=engine, display=Display(Console(file=io.StringIO())))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Path]:
    folder = tmp_path_factory.mktemp("finished")
    return _evolve(folder, FakeEngine()), folder / "run"


def _table(path: Path, rows: list[tuple[str, int, int, str]]) -> None:
    """A benchmark's episodes.csv: (suite, start, success, invalid)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("suite", "task_id", "init_state_id", "seed", "success", "truncated", "steps", "invalid"))
        writer.writerows((suite, 2, start, 1000 + start, won, 1 - won, 10, bad) for suite, start, won, bad in rows)


def test_frontier_is_that_of_the_run(finished: tuple[dict, Path]) -> None:
    summary, run = finished
    shown = load_run(run)
    frontier = next(row for row in shown.comparisons if row.name == "frontier")
    found = summary["frontier"]
    assert not frontier.held_out
    assert (frontier.before.successes, frontier.before.n) == (found["before"]["successes"], found["n"])
    assert (frontier.after.successes, frontier.after.low) == (found["after"]["successes"], found["after"]["low"])
    assert (frontier.gained, frontier.lost) == (found["only_after"], found["only_before"])
    assert frontier.p_value == pytest.approx(found["p_two_sided"])
    by_program = [row for row in shown.comparisons if row.name.startswith("frontier: ")]
    assert sum(row.before.n for row in by_program) == found["n"] and len(by_program) > 1
    assert shown.status == "finished after 2 rounds"


def test_counts_are_those_of_the_run(finished: tuple[dict, Path]) -> None:
    summary, run = finished
    shown = load_run(run)
    assert shown.verdicts()["made"] == summary["diagnoses"]["made"] > 0
    assert shown.verdicts()["validated"] == summary["diagnoses"]["validated"] > 0
    assert {row.gate: row.scenes for row in shown.rejections} == summary["rejected"]
    assert (shown.accepted_scenes, shown.leakage) == (summary["accepted"], 0)
    budget = {row.meter: row.amount for row in shown.budget}
    assert budget["generated environments (probe and demonstration)"] == summary["usage"]["environments"]
    assert budget["environment steps: probe"] == summary["usage"]["steps"]["probe"]
    assert budget["wall time: all"] == pytest.approx(sum(summary["usage"]["seconds"].values()))
    first = shown.diagnoses[0]
    assert (first.mode, first.verdict) == ("localization", "validated") and "8/8 program scenes" in first.evidence
    assert shown.programs[0].program.startswith("localization-1 (") and "permute" in shown.programs[0].operations
    assert {row.decision for row in shown.programs} <= {"promote", "keep", "refine", "retire", "used", "not used"}


def test_curve_joins_each_rounds_own_scenes_only(finished: tuple[dict, Path]) -> None:
    _, run = finished
    curve = load_run(run).curve
    own = [(point.round, point.segment) for point in curve if point.name == "frontier of the round"]
    assert own == [(0, 1), (1, 1), (1, 2), (2, 2)]
    swap = [(point.round, point.success.rate) for point in curve if point.name == "libero_object_swap (held out)"]
    assert swap == [(0, 0.0), (2, 1.0)]


def test_commands_can_be_run_again(finished: tuple[dict, Path]) -> None:
    _, run = finished
    commands = load_run(run).commands
    configs = [
        Path(command.split("=")[1]) for command in commands if command.startswith("lerobot-train --config_path=")
    ]
    assert len(configs) == 3 and all(path.is_file() for path in configs)


def test_video_is_of_a_scene_that_was_learned(finished: tuple[dict, Path]) -> None:
    _, run = finished
    clip = load_run(run).clip
    assert clip is not None and clip.success_after
    assert clip.before.is_file() and clip.after is not None and clip.after.is_file() and clip.before != clip.after


def test_held_out_episodes_are_paired_by_start(finished: tuple[dict, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished[1], run)
    unpaired = next(row for row in load_run(run).comparisons if row.name == "libero_object")
    assert unpaired.gained is None and unpaired.before.n == 6
    assert any("unpaired" in text for text in load_run(run).missing)
    suites = ("libero_object", "libero_object_swap")
    _table(run / "heldout/before/episodes.csv", [(s, k, int(k == 0), "") for s in suites for k in range(5)])
    after = [(s, k, int(k in (1, 2)), "lost its worker" if k == 4 else "") for s in suites for k in reversed(range(5))]
    _table(run / "heldout/after/episodes.csv", after)
    for row in (row for row in load_run(run).comparisons if row.held_out):
        assert (row.gained, row.lost, row.invalid) == (2, 1, 1)
        assert (row.before.successes, row.after.successes, row.before.n) == (1, 2, 4)
        assert row.p_value == 1.0
    assert load_run(run).missing == ()


def test_page_of_a_finished_run(finished: tuple[dict, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished[1], run)
    page = build_report(run, videos=False)
    assert page == run / "report" / "index.html"
    assert "localization-1" in page.read_text() and "finished after 2 rounds" in page.read_text()
    assert {path.suffix for path in page.parent.iterdir()} == {".html", ".csv"}


@pytest.mark.parametrize("calls", [2, 6, 14])
def test_a_run_that_was_killed_is_shown_as_far_as_it_came(tmp_path: Path, calls: int) -> None:
    with pytest.raises(Killed):
        _evolve(tmp_path, FakeEngine(kill_at=calls))
    shown = load_run(tmp_path / "run")
    assert not shown.status.startswith("finished") and shown.missing
    assert build_report(tmp_path / "run", videos=False).is_file()


def test_no_run_and_a_damaged_one(finished: tuple[dict, Path], tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"no run: there is no run\.json"):
        load_run(tmp_path)
    run = tmp_path / "run"
    shutil.copytree(finished[1], run)
    (run / "summary.json").write_text((finished[1] / "summary.json").read_text()[:500])
    with pytest.raises(RecordError, match=r"summary\.json cannot be read"):
        load_run(run)
    (run / "summary.json").write_text(json.dumps({"finished": True, "rounds": [{"round": 1}]}))
    with pytest.raises(RecordError, match=r"summary\.json is damaged or of another version"):
        load_run(run)
