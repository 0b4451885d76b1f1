"""A critic's score as tables for the terminal and as rows for `results/`."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table

from lerobot_coda.critic.bench.score import INVALID, NONE, Score, Share
from libero_pro.figures import figure


def print_score(score: Score, console: Console | None = None) -> None:
    """Prints what it found, cause by cause, the confusion matrix and how far its confidences can be trusted."""
    console = console or Console()
    causes, suites = _shares("planted", score.by_cause), _shares("suite", score.by_suite)
    console.print(Group(_summary(score), causes, suites, _confusion(score), _reliability(score)))


def rows(score: Score, command: str) -> list[dict[str, Any]]:
    """One row a number, as `libero_pro.figures` keeps them."""

    def rate(name: str, share: Share, unit: str) -> dict[str, Any]:
        low, high = share.interval
        value = round(share.value, 4) if share.n else None
        return figure(name, value, unit, command, n=share.n, low=round(low, 4), high=round(high, 4))

    found = [
        rate("cause_accuracy", score.cause, "of planted failures"),
        rate("stage_accuracy", score.stage, "of planted failures"),
        rate("cause_and_stage", score.both, "of planted failures"),
        rate("detected", score.detected, "of planted failures"),
        rate("false_alarms", score.false_alarms, "of successes"),
        rate("objects_accuracy", score.objects, "of planted failures"),
        rate("predicate_accuracy", score.predicate, "of failures in tasks with several predicates"),
        rate("invalid_answers", score.invalid, "of episodes"),
        rate("found_within_1s", score.in_time, "of detected failures"),
    ]
    claims = sum(b.n for b in score.bins)
    found += [
        figure("time_error", score.time_error, "control steps, median", command, n=score.in_time.n),
        figure("ece", score.ece, "expected calibration error", command, n=claims),
        figure("brier", score.brier, "mean squared error of the confidence", command, n=claims),
    ]
    for name, share in (*score.by_cause.items(), *score.by_suite.items()):
        found.append(rate(f"cause_accuracy {name}", share, "of its failures"))
    return found


def percent(share: Share) -> str:
    """`95 % (38/40) [84, 99]`, or a dash for an empty one."""
    if not share.n:
        return "-"
    low, high = share.interval
    return f"{100 * share.value:.1f} % ({share.hits}/{share.n}) \\[{100 * low:.1f}, {100 * high:.1f}]"


def _summary(score: Score) -> Table:
    title = escape(f"Critic bench: {score.critic} {score.version}")  # a model's name is anybody's text
    table = Table(title=title, title_justify="left", show_header=False)
    for name, share in (
        ("failures detected", score.detected),
        ("cause", score.cause),
        ("stage", score.stage),
        ("cause and stage", score.both),
        ("objects", score.objects),
        ("predicate, of several", score.predicate),
        ("false alarms on successes", score.false_alarms),
        ("invalid answers", score.invalid),
        ("found within 1 s", score.in_time),
    ):
        table.add_row(name, percent(share))
    if score.time_error is not None:
        table.add_row("time error, median", f"{score.time_error:g} control steps")
    if score.ece is not None:
        table.add_row("calibration error (ECE), Brier", f"{score.ece:.3f}, {score.brier:.3f}")
    return table


def _shares(what: str, shares: Mapping[str, Share]) -> Table:
    table = Table(what, "right causes")
    for name, share in shares.items():
        table.add_row(name, percent(share))
    return table


def _confusion(score: Score) -> Table:
    """Planted by row; a column for each claim that occurs, numbered as its row is."""
    said = {name for row in score.confusion.values() for name in row}
    order = [*score.confusion, *sorted(said - set(score.confusion))]
    order = [name for name in order if name not in (NONE, INVALID)]
    order += [name for name in (NONE, INVALID) if name in said or name in score.confusion]
    number = {name: str(k) for k, name in enumerate(order, 1)}
    title = "Planted (rows) and claimed (columns, by number)"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))  # 17 columns on 80 characters
    table.add_column("", no_wrap=True)
    for name in order:
        table.add_column(number[name], justify="right")
    for name in order:
        row = score.confusion.get(name, {})
        cells = [str(row[column]) if row.get(column) else "." for column in order]
        table.add_row(f"{number[name]} {name}", *cells)
    return table


def _reliability(score: Score) -> Table:
    table = Table(title="Confidence and how often it was right", title_justify="left")
    for name in ("confidence", "mean", "right", "claims"):
        table.add_column(name, justify="right")
    for b in score.bins:
        table.add_row(f"{b.low:.1f} to {b.high:.1f}", f"{b.confidence:.2f}", f"{b.right / b.n:.2f}", str(b.n))
    return table
