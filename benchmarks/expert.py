"""The scripted expert on every suite: how many starts it solves, and what stops it where it does not.

Prints a line a task and writes the fractions of the base suites, of the changed ones and of libero_10. Episodes are
kept in --out: an interrupted run goes on from there.

    python benchmarks/expert.py --suites all --states 10 --out runs/expert --json results/expert.json
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lerobot_coda.commands.demos import tabulate
from lerobot_coda.console import Display
from libero_pro.expert.table import TaskRow, figures, print_table
from libero_pro.figures import figure, keep
from libero_pro.record import RecordError


def rows(table: Sequence[TaskRow], command: str) -> list[dict[str, Any]]:
    """One row a figure: the fraction solved, how many starts it is of, and its 95 % Wilson interval."""
    return [
        figure(
            one.figure,
            round(one.value, 4),
            "fraction of starts solved",
            command,
            n=one.n,
            low=round(one.low, 4),
            high=round(one.high, 4),
        )
        for one in figures(table)
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the table; 2 with one sentence on bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", nargs="+", default=["all"], help="suite names, or all (default)")
    parser.add_argument("--states", type=int, default=10, help="start states of each task (default 10)")
    parser.add_argument("--task-ids", nargs="+", type=int, help="default: all ten")
    parser.add_argument("--fresh", action="store_true", help="fresh resets instead of released start states")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, help="folder that keeps the episodes")
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args(argv)
    try:
        table = tabulate(
            arguments.suites,
            arguments.states,
            arguments.workers,
            arguments.out,
            arguments.fresh,
            Display(),
            arguments.task_ids,
        )
    except RecordError as error:
        print(f"expert: {error}", file=sys.stderr)
        return 2
    print_table(table)
    command = shlex.join(["python", "benchmarks/expert.py", *(sys.argv[1:] if argv is None else argv)])
    found = rows(table, command)
    for row in found:
        print(f"{row['figure']:18} {row['value']:.3f} of {row['n']} (95 % {row['low']:.3f} to {row['high']:.3f})")
    if arguments.json:
        keep(arguments.json, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
