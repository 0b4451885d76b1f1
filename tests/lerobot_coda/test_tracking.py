"""A run's numbers in trackio and wandb: the keys, the real libraries in offline mode, and nothing logged twice."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from liverun import evolved

from lerobot_coda.tracking import (
    TRACKED,
    TrackerSettings,
    heldout_numbers,
    round_numbers,
    tracking,
    training_numbers,
)
from libero_pro.record import RecordError

RATE = {"successes": 3, "n": 12, "rate": 0.25, "low": 0.09, "high": 0.53}
REPORT: dict[str, Any] = {
    "round": 1,
    "programs": [
        {"state": "active", "decision": {"action": "keep", "reason": ""}},
        {"state": "refuted", "decision": None},
    ],
    "clusters": [{}, {}],
    "diagnoses": {"made": 5, "validated": 3, "refuted": 2},
    "frontier": {"n": 12, "before": {**RATE, "rate": 0.0}, "after": RATE, "p_value": 0.125},
    "rejected": {"leakage": 7},
    "accepted": 40,
    "leaked": 0,
    "usage": {"environments": 24, "validation_environments": 8, "layouts": 10, "steps": {"probe": 900},
              "seconds": {"measure": 2.5, "train": 60.0}},
}  # fmt: skip
LINE = (
    "INFO 2026-01-01 00:00:00 ot_train.py:641 step:1K smpl:32K ep:255 epch:1.67 loss:5.187 grdn:3.052 lr:5.4e-05 "
    "updt_s:0.326 data_s:0.057 smp/s:84 value_loss:1.505"
)


def test_a_round_has_the_names_of_lerobots_evaluation() -> None:
    found = round_numbers(REPORT)
    assert (found["eval/pc_success"], found["eval/pc_success_before"], found["eval/n_episodes"]) == (25.0, 0.0, 12)
    assert found["eval/eval_s"] == 2.5
    assert found["coda/diagnoses/validated"] == 3 and found["coda/decisions/keep"] == 1
    assert found["coda/rejected/leakage"] == 7 and found["coda/steps/probe"] == 900
    assert (found["coda/programs"], found["coda/clusters"], found["coda/environments"]) == (1, 2, 24)
    assert all(isinstance(value, int | float) for value in found.values())


def test_what_was_not_measured_has_no_number() -> None:
    found = round_numbers(REPORT | {"frontier": {**REPORT["frontier"], "n": 0}})
    assert not any(name.startswith("eval/") for name in found)
    assert heldout_numbers({"a": RATE, "b": {**RATE, "n": 0}}) == {"eval/a/pc_success": 25.0}


def test_training_has_the_names_that_lerobot_tracks_it_by(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    assert training_numbers(log) == {}
    log.write_text(f"step:1 loss:9.0\rTraining: 100%|####| 10/10{LINE}\nINFO ot_train.py:687 Checkpoint policy\n")
    found = training_numbers(log)
    assert (found["train/loss"], found["train/grad_norm"], found["train/lr"]) == (5.187, 3.052, 5.4e-05)
    assert (found["train/update_s"], found["train/samples_per_s"], found["train/smpl"]) == (0.326, 84.0, 32000.0)
    assert found["train/value_loss"] == 1.505
    log.write_text("no step was logged")
    assert training_numbers(log) == {}


def test_no_tracker_writes_nothing(tmp_path: Path) -> None:
    with tracking(TrackerSettings(), tmp_path, "tiny", "0123456789abcdef", {}) as track:
        track("round 1", round_numbers(REPORT), 1)
    assert list(tmp_path.iterdir()) == []


class _Book:
    """A tracker that remembers."""

    def __init__(self) -> None:
        self.logged: list[tuple[int | None, dict[str, Any]]] = []
        self.finished = 0

    def log(self, metrics: dict[str, Any], step: int | None = None) -> None:
        self.logged.append((step, metrics))

    def finish(self) -> None:
        self.finished += 1


def test_a_rerun_logs_only_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = _Book()
    monkeypatch.setattr("lerobot_coda.tracking._begin_trackio", lambda *given: book)
    settings = TrackerSettings(kind="trackio")
    with (
        pytest.raises(KeyboardInterrupt),
        tracking(settings, tmp_path, "tiny", "0123456789abcdef", {}) as track,
    ):
        track("held-out before", {"a": 1.0}, 0)
        track("round 1", {"b": 2.0}, 1)
        raise KeyboardInterrupt
    with tracking(settings, tmp_path, "tiny", "0123456789abcdef", {}) as track:
        track("held-out before", {"a": 1.0}, 0)
        track("round 1", {"b": 2.0}, 1)
        track("round 2", {"b": 3.0}, 2)
    assert [step for step, _ in book.logged] == [0, 1, 2] and book.finished == 2
    assert json.loads((tmp_path / TRACKED).read_text()) == ["held-out before", "round 1", "round 2"]


def test_a_run_is_tracked_round_by_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tracker is no part of the run's identity: a run goes on with another one, and logs what it has not yet."""
    book = _Book()
    monkeypatch.setattr("lerobot_coda.tracking._begin_wandb", lambda *given: book)
    evolved(tmp_path, tracker={"kind": "wandb", "project": "tests"})
    assert [step for step, _ in book.logged] == [0, 1, 2, 2]
    (_, first), (_, one), *_, (_, last) = book.logged
    assert first.keys() == last.keys() == {"eval/libero_object/pc_success", "eval/libero_object_swap/pc_success"}
    assert 0 <= one["eval/pc_success_before"] <= one["eval/pc_success"] <= 100
    evolved(tmp_path)
    assert len(book.logged) == 4


def test_what_cannot_be_tracked_is_refused_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(settings: TrackerSettings) -> None:
        with tracking(settings, tmp_path, "tiny", "0123456789abcdef", {}):
            raise AssertionError("it began")

    monkeypatch.delenv("TRACKIO_SPACE_ID", raising=False)
    monkeypatch.delenv("TRACKIO_SERVER_URL", raising=False)
    with pytest.raises(RecordError, match=r"needs a Space: set 'tracker\.space'"):
        begin(TrackerSettings(kind="trackio", mode="online"))
    monkeypatch.setenv("TRACKIO_SERVER_URL", "http://127.0.0.1:1")
    with pytest.raises(RecordError, match=r"TRACKIO_SERVER_URL is set, but .* is offline"):
        begin(TrackerSettings(kind="trackio"))
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(RecordError, match="tracker 'wandb' needs wandb: pip install"):
        begin(TrackerSettings(kind="wandb"))


def _track(kind: str, folder: Path) -> None:
    """A run of two rounds, killed after the first and begun again, in processes of their own."""
    code = f"""
import sys
from pathlib import Path
from lerobot_coda.tracking import TrackerSettings, tracking
with tracking(TrackerSettings(kind={kind!r}, project="tests"), Path(sys.argv[1]), "tiny", "0123456789abcdef",
              {{"arm": "coda"}}) as track:
    for number in range(1, int(sys.argv[2]) + 1):
        track(f"round {{number}}", {{"eval/pc_success": 10.0 * number, "coda/leaked": 0}}, number)
"""
    environment = {**os.environ, "TRACKIO_DIR": str(folder / "trackio"), "WANDB_MODE": "offline"}
    for rounds in (1, 2):
        command = [sys.executable, "-c", code, str(folder), str(rounds)]
        subprocess.run(command, check=True, env=environment, timeout=300, capture_output=True)


@pytest.mark.e2e
def test_trackio_holds_each_round_once(tmp_path: Path) -> None:
    pytest.importorskip("trackio", reason="no trackio: pip install 'lerobot_policy_coda[tracking]'")
    import sqlite3
    from contextlib import closing

    _track("trackio", tmp_path)
    (database,) = (tmp_path / "trackio").glob("*.db")
    with closing(sqlite3.connect(database)) as store:
        rows = store.execute("select run_name, step, metrics from metrics order by step").fetchall()
    assert [(name, step) for name, step, _ in rows] == [("tiny-012345", 1), ("tiny-012345", 2)]
    assert [json.loads(metrics)["eval/pc_success"] for *_, metrics in rows] == [10.0, 20.0]


@pytest.mark.e2e
def test_wandb_holds_each_round_once(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    _track("wandb", tmp_path)
    found, runs = [], set()
    for path in sorted((tmp_path / "wandb").glob("offline-run-*/*.wandb")):
        store = DataStore()
        store.open_for_scan(str(path))
        while (data := store.scan_data()) is not None:
            record = wandb_internal_pb2.Record.FromString(data)
            if record.WhichOneof("record_type") == "run":
                runs.add((record.run.project, record.run.run_id, record.run.display_name))
            for item in record.history.item:
                key = item.key or "/".join(item.nested_key)
                if key == "eval/pc_success":
                    found.append((record.history.step.num, json.loads(item.value_json)))
    assert runs == {("tests", "0123456789abcdef", "tiny")}
    assert sorted(found) == [(1, 10.0), (2, 20.0)]
