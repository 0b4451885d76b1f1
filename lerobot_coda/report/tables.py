"""The report's numbers as CSV files: one per figure or table, so that anyone can draw them again."""

import csv
from collections.abc import Iterable, Sequence
from io import StringIO
from pathlib import Path

from lerobot_coda.progress import Rate
from lerobot_coda.report.summary import Comparison, RunSummary
from libero_pro.record import write_atomically

_COMPARISON = ("name", "before_successes", "before_episodes", "before_rate", "before_low", "before_high",
               "after_successes", "after_episodes", "after_rate", "after_low", "after_high",
               "gained", "lost", "p_value", "invalid_pairs")  # fmt: skip


def write_tables(summary: RunSummary, folder: Path) -> list[str]:
    """Writes every table into `folder` and returns the file names, also of tables without rows."""
    tables: dict[str, tuple[Sequence[str], Iterable[Sequence[object]]]] = {
        "frontier.csv": (_COMPARISON, [_comparison(row) for row in summary.comparisons if not row.held_out]),
        "heldout.csv": (_COMPARISON, [_comparison(row) for row in summary.comparisons if row.held_out]),
        "curve.csv": (
            ("round", "name", "segment", "successes", "episodes", "rate", "low", "high"),
            [(point.round, point.name, point.segment, *_rate(point.success)) for point in summary.curve],
        ),
        "budget.csv": (
            ("meter", "amount", "unit"),
            [(row.meter, round(row.amount, 1), row.unit) for row in summary.budget],
        ),
        "diagnoses.csv": (
            ("round", "mode", "stage", "causes", "tasks", "failures", "verdict", "evidence"),
            [
                (row.round, row.mode, row.stage, row.causes, row.tasks, row.failures, row.verdict, row.evidence)
                for row in summary.diagnoses
            ],
        ),
        "programs.csv": (
            ("round", "program", "operations", "difficulty", "measured", "decision", "reason"),
            [
                (row.round, row.program, row.operations, row.difficulty, row.measured, row.decision, row.reason)
                for row in summary.programs
            ],
        ),
        "rejections.csv": (("gate", "scenes"), [(row.gate, row.scenes) for row in summary.rejections]),
        "tasks.csv": (
            ("suite", "task", *_COMPARISON[1:11]),
            [(row.suite, row.task_id, *_rate(row.before), *_rate(row.after)) for row in summary.tasks],
        ),
        "scenes.csv": (
            ("round", "program", "scene", "suite", "task", "target", "x", "y"),
            [
                (row.round, row.program, row.scene, row.suite, row.task_id, row.target, row.x, row.y)
                for row in summary.scenes
            ],
        ),
    }
    for name, (header, rows) in tables.items():
        text = StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
        write_atomically(folder / name, text.getvalue().encode())
    return list(tables)


def _rate(value: Rate) -> tuple[object, ...]:
    shown = round(value.rate, 4) if value.n else ""
    return value.successes, value.n, shown, round(value.low, 4), round(value.high, 4)


def _comparison(row: Comparison) -> tuple[object, ...]:
    return (
        row.name,
        *_rate(row.before),
        *_rate(row.after),
        "" if row.gained is None else row.gained,
        "" if row.lost is None else row.lost,
        "" if row.p_value is None else f"{row.p_value:.3g}",
        row.invalid,
    )
