"""A benchmark run as a table: base suites by axes, means over suites, a footnote per known defect."""

from collections.abc import Mapping, Sequence
from typing import Any

from libero_pro.defects import Defect
from libero_pro.protocol import Protocol
from libero_pro.suites import BASE, GRID, suite_of

AXIS_TITLES = {
    "base": "unperturbed",
    "swap": "position (swap)",
    "object": "object",
    "lan": "language (lan)",
    "task": "task",
}

WITHOUT = "Without the episodes that a known defect distorts (footnotes marked *):"


def results_table(summary: Mapping[str, Any], protocol: Protocol, defects: Sequence[Defect]) -> str:
    """Markdown: the plain numbers, the same without what a known defect distorts, the position grid, footnotes.

    `summary` as `benchmark.summarize` gives it; `defects` those of the episodes run.
    """
    lines = [
        "# LIBERO-Pro results",
        "",
        f"Success in % with its 95 % interval, policy `{protocol.actor}`, {protocol.episodes_per_task} episodes a "
        f"task, prompts by `{protocol.prompt_source}`. Numbers in parentheses are footnotes.",
        "",
    ]
    if any(suite not in GRID for suite in protocol.suites):
        lines += [*_by_axis(summary, protocol, defects), ""]
        if any(defect.distorts and defect.suite not in GRID for defect in defects):
            lines += [WITHOUT, "", *_by_axis(summary["sound"], protocol, ()), ""]
    if any(suite in GRID for suite in protocol.suites):
        lines += ["Position grid of libero_object: the target moved by 7 cm per 0.1.", ""]
        lines += [*_grid(summary["per_suite"], defects), ""]
        if any(defect.distorts and defect.suite in GRID for defect in defects):
            lines += [WITHOUT, "", *_grid(summary["sound"]["per_suite"], ()), ""]
    lines += [
        f"({number}{'*' if defect.distorts else ''}) {defect.where()}: {defect.kind}; {defect.note}  "
        for number, defect in enumerate(defects, 1)
    ]
    invalid = summary["overall"]["invalid"]
    if invalid:
        lines += ["", f"{invalid} episodes are invalid (infrastructure or physics errors) and belong to no rate."]
    return "\n".join(lines).rstrip() + "\n"


def percent(rate: Mapping[str, Any] | None) -> str:
    """`44.0 [31, 58]`, or `-` where nothing was run."""
    if not rate or rate["rate"] is None:
        return "-"
    return f"{100 * rate['rate']:.1f} [{100 * rate['low']:.0f}, {100 * rate['high']:.0f}]"


def _by_axis(counts: Mapping[str, Any], protocol: Protocol, defects: Sequence[Defect]) -> list[str]:
    """Rows are base suites and means over them, columns the axes of which a suite was run."""
    axes = [axis for axis in AXIS_TITLES if any(suite_of(base, axis) in protocol.suites for base in BASE)]
    lines = ["| |" + "".join(f" {AXIS_TITLES[axis]} |" for axis in axes), "|---|" + "---|" * len(axes)]
    for base in BASE:
        suites = [suite_of(base, axis) for axis in axes]
        if not any(suite in protocol.suites for suite in suites):
            continue
        cells = [_cell(counts["per_suite"], suite, defects) for suite in suites]
        lines.append(f"| {base} | {' | '.join(cells)} |")
    for name, shown in (("3 suites", "mean of 3 (without libero_10)"), ("4 suites", "mean of 4")):
        means = [counts["means"].get(axis, {}).get(name) for axis in axes]
        if any(means):
            lines.append(f"| {shown} | {' | '.join(percent(mean) for mean in means)} |")
    return lines


def _grid(per_suite: Mapping[str, Any], defects: Sequence[Defect]) -> list[str]:
    """Rows are axes, columns distances."""
    steps = range(1, 6)
    lines = ["| |" + "".join(f" 0.{step} |" for step in steps), "|---|" + "---|" * len(steps)]
    for axis in "xy":
        cells = [_cell(per_suite, f"libero_object_temp_{axis}0.{step}", defects) for step in steps]
        lines.append(f"| along {axis} | {' | '.join(cells)} |")
    return lines


def _cell(per_suite: Mapping[str, Any], suite: str, defects: Sequence[Defect]) -> str:
    """A suite's rate with the numbers of its footnotes."""
    numbers = [str(n) for n, defect in enumerate(defects, 1) if defect.suite == suite]
    return percent(per_suite.get(suite)) + (f" ({', '.join(numbers)})" if numbers else "")
