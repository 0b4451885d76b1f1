"""Rows of figures in one file that several commands fill."""

import json
from pathlib import Path

import pytest

from libero_pro.figures import figure, keep
from libero_pro.record import RecordError


def test_a_second_command_adds_its_rows_and_replaces_its_own(tmp_path: Path) -> None:
    path = tmp_path / "engine.json"
    keep(path, [figure("step", 3.0, "ratio", "a", n=5), figure("render", 2.0, "ratio", "a")])
    keep(path, [figure("expert", 0.9, "rate", "b"), figure("step", 3.5, "ratio", "c")])
    rows = json.loads(path.read_text())
    assert [(row["figure"], row["value"], row["command"]) for row in rows] == [
        ("step", 3.5, "c"), ("render", 2.0, "a"), ("expert", 0.9, "b"),
    ]  # fmt: skip
    assert list(rows[0]) == ["figure", "value", "unit", "peer", "ratio", "n", "low", "high", "command"]


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.json"
    path.write_text('{"a": 1}')
    with pytest.raises(RecordError, match="holds no rows of figures"):
        keep(path, [figure("step", 3.0, "ratio", "a")])
    assert path.read_text() == '{"a": 1}'
