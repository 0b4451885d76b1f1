"""The report's headline in the terminal, printed when a run ends."""

from collections import Counter
from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lerobot_coda.report.page import minutes
from lerobot_coda.report.summary import RunSummary, show


def print_summary(summary: RunSummary, console: Console | None = None) -> None:
    """Prints success before and after with intervals, then one line each on diagnoses, programs, scenes and budget."""
    console = console or Console()
    table = Table(title=escape(f"{summary.name} ({summary.status})"), title_justify="left")
    table.add_column("", no_wrap=True)
    for column in ("before", "after", "gained/lost", "p"):
        table.add_column(column)
    for held_out in (False, True):
        table.add_section()
        for row in (row for row in summary.comparisons if row.held_out == held_out):
            table.add_row(
                escape(row.name),
                show(row.before),
                show(row.after),
                "not paired" if row.gained is None else f"+{row.gained} / -{row.lost}",
                "" if row.p_value is None else f"{row.p_value:.2g}",
                style=None if held_out else "bold",
            )
    console.print(table if summary.comparisons else "No comparison is finished yet.")
    decisions = Counter(program.decision for program in summary.programs)
    gates = {f"rejected by {row.gate}": row.scenes for row in summary.rejections}
    used = "; ".join(
        f"{row.meter} {minutes(row.amount) if row.unit == 's' else format(row.amount, ',.0f')}"
        for row in summary.budget
    )
    lines = [
        _counts("diagnoses", summary.verdicts()),
        _counts("programs", {"compiled": len(summary.programs), **decisions}),
        _counts("generated scenes", {"accepted": summary.accepted_scenes, **gates, "leaked": summary.leakage}),
        f"used: {used or 'nothing metered'}",
        *summary.missing,
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False)


def _counts(what: str, counts: Mapping[str, int]) -> str:
    return f"{what}: " + ", ".join(f"{count} {name}" for name, count in counts.items())
