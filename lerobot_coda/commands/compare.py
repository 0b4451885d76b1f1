"""`lerobot-coda compare`: two benchmark folders paired episode by episode, or one beside the published numbers."""

import argparse
import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from libero_pro.compare import Comparison, Paired
    from libero_pro.published import Line

_EXAMPLE = """examples:
  lerobot-coda compare bench/before bench/after
  lerobot-coda compare bench/before bench/after --flips flips.csv
  lerobot-coda compare bench/a bench/b --allow n_action_steps
  lerobot-coda compare bench/after --published
"""
_SHOWN = 10  # flips of each kind in the terminal


def add(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "compare",
        help="two benchmark folders, paired; or one beside the published numbers",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("first", type=Path, metavar="A", help="benchmark folder")
    parser.add_argument("second", type=Path, metavar="B", nargs="?", help="benchmark folder of the same protocol")
    parser.add_argument("--published", action="store_true", help="print A beside published success rates")
    parser.add_argument(
        "--allow", nargs="+", default=[], metavar="SETTING", help="settings of the protocol that may differ"
    )
    parser.add_argument("--flips", type=Path, metavar="FILE", help="also write every flipped episode as CSV")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    from libero_pro.record import RecordError, write_atomically

    if (arguments.second is None) != arguments.published:
        raise RecordError("name two benchmark folders, or one and --published")
    from libero_pro.benchmark import load_benchmark

    console = Console(highlight=False)
    first = load_benchmark(arguments.first)
    if arguments.published:
        from libero_pro.published import CAVEAT, beside_published

        for axis, lines in beside_published(first).items():
            console.print(_published_table(axis, lines))
        console.print(CAVEAT)
        return
    from libero_pro.compare import compare

    found = compare(first, load_benchmark(arguments.second), allowed=arguments.allow)
    console.print(_comparison_table(found, str(arguments.first), str(arguments.second)))
    for text in _notes(found, arguments.allow):
        console.print(text, markup=False)
    if arguments.flips:
        write_atomically(arguments.flips, _flips(found))


def _comparison_table(found: "Comparison", first: str, second: str) -> Table:
    table = Table(title=f"A = {escape(first)}\nB = {escape(second)}", title_justify="left")
    table.add_column("", no_wrap=True)
    for name in ("pairs", "A", "B", "only B", "only A", "exact McNemar p"):
        table.add_column(name, justify="right")

    def line(name: str, pair: "Paired", style: str | None = None) -> None:
        shown = [f"{100 * k / pair.n:.1f} %" if pair.n else "-" for k in (pair.first, pair.second)]
        flips = (f"+{pair.gained}", f"-{pair.lost}")
        table.add_row(name, str(pair.n), *shown, *flips, f"{pair.p_value:.2g}", style=style)

    for suite, pair in found.per_suite.items():
        line(suite, pair)
    table.add_section()
    line("all", found.overall, "bold")
    if found.sound.n < found.overall.n:
        line("without known defects", found.sound)
    return table


def _notes(found: "Comparison", allowed: Sequence[str]) -> list[str]:
    notes = []
    for name, keys in (("only B solves", found.gained), ("only A solves", found.lost)):
        if keys:
            shown = ", ".join(f"{suite} {task} start {start}" for suite, task, start, _ in keys[:_SHOWN])
            more = f" and {len(keys) - _SHOWN} more (--flips FILE writes all)" if len(keys) > _SHOWN else ""
            notes.append(f"{name}: {shown}{more}")
    if any(found.unpaired):
        notes.append(f"not paired, as the other run lacks them: {found.unpaired[0]} of A, {found.unpaired[1]} of B")
    if found.invalid:
        notes.append(f"left out: {found.invalid} pairs with an invalid episode")
    if allowed:
        notes.append(f"allowed to differ: {', '.join(allowed)}; the pairs compare those settings too")
    return notes


def _flips(found: "Comparison") -> bytes:
    from libero_pro.compare import KEY_NAMES

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*KEY_NAMES, "solved_by"])
    writer.writerows([[*key, "B"] for key in found.gained] + [[*key, "A"] for key in found.lost])
    return text.getvalue().encode()


def _published_table(axis: str, lines: Sequence["Line"]) -> Table:
    from libero_pro.results_table import AXIS_TITLES
    from libero_pro.suites import BASE

    table = Table(title=AXIS_TITLES[axis], title_justify="left")
    table.add_column("policy")
    for name in (*(base.removeprefix("libero_") for base in BASE), "mean of 3", "mean of 4"):
        table.add_column(name, justify="right")
    table.add_column("prompts")
    table.add_column("source", overflow="fold")
    for number, line in enumerate(lines):
        cells = [_cell(*rate) if rate else "-" for rate in line.rates]
        names = (line.prompt_source or "not stated", line.source)
        table.add_row(line.model, *map(escape, (*cells, *names)), style="bold" if number == 0 else None)
    return table


def _cell(rate: float, low: float | None, high: float | None) -> str:
    interval = "" if low is None or high is None else f" [{100 * low:.0f}, {100 * high:.0f}]"
    return f"{100 * rate:.1f}{interval}"
