"""Published LIBERO-Pro success rates, with their sources, and a run beside them.

The leaderboard's runners fed the prompt that the file name spells, which is the unperturbed one on every axis: its
language column measures the base suite once more, and its task column asks a policy for one goal and tests another. So
its `lan` and `task` columns compare to a run with prompt source `filename` only; its environment axis has no released
files and is left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from libero_pro.benchmark import MEANS, BenchmarkResult
from libero_pro.suites import AXES, BASE, suite_of

CAVEAT = (
    "The leaderboard's prompts come from file names: its language and task columns compare to runs with prompt source "
    "`filename` only. It gives libero_spatial 220 control steps, not 280; chunk lengths and seeds are not stated."
)
_README = "LIBERO-PRO README (uynitsuj/LIBERO-PRO at 2dc54ed)"


@dataclass(frozen=True)
class Published:
    """Success rates of one model, as published: (base suite, axis) -> rate."""

    model: str
    source: str
    rates: Mapping[tuple[str, str], float]
    prompt_source: str | None = None  # None: not stated


def _readme(model: str, **columns: tuple[float, ...]) -> Published:
    """A row of the README: by axis, the rates of goal, spatial, 10 and object, as its tables order them."""
    order = ("libero_goal", "libero_spatial", "libero_10", "libero_object")
    rates = {
        (suite, axis): value for axis, values in columns.items() for suite, value in zip(order, values, strict=True)
    }
    return Published(model, _README, rates, prompt_source="filename")


PUBLISHED: tuple[Published, ...] = (
    _readme(
        "OpenVLA",
        base=(0.98, 0.95, 0.93, 0.99),
        swap=(0.00, 0.00, 0.00, 0.00),
        object=(0.96, 0.97, 0.81, 0.98),
        lan=(0.98, 0.97, 0.96, 0.98),
        task=(0.00, 0.00, 0.00, 0.00),
    ),
    _readme(
        "pi0",
        base=(0.92, 0.90, 0.82, 0.98),
        swap=(0.00, 0.00, 0.00, 0.00),
        object=(0.94, 0.95, 0.79, 0.94),
        lan=(0.93, 0.97, 0.82, 0.90),
        task=(0.00, 0.00, 0.00, 0.00),
    ),
    _readme(
        "pi0.5",
        base=(0.97, 0.96, 0.93, 0.98),
        swap=(0.38, 0.20, 0.08, 0.17),
        object=(0.97, 0.97, 0.92, 0.98),
        lan=(0.97, 0.97, 0.93, 0.96),
        task=(0.00, 0.01, 0.01, 0.01),
    ),
    _readme(  # from the README's first table only, whose perturbed columns are rounded to 0.1
        "UniVLA",
        base=(0.89, 0.85, 0.61, 0.98),
        swap=(0.1, 0.1, 0.0, 0.0),
        task=(0.0, 0.0, 0.0, 0.0),
    ),
    Published(
        "pi0.5 (openpi, a user's run)",
        "Zxy-MLlab/LIBERO-PRO issue 15",
        {
            ("libero_spatial", "object"): 0.99,
            ("libero_spatial", "swap"): 0.53,
            ("libero_spatial", "lan"): 0.97,
            ("libero_spatial", "task"): 0.55,
        },
    ),
)


@dataclass(frozen=True)
class Line:
    """One model on one axis: rates (rate, low, high) in the order of `BASE`, then the means over 3 and 4 suites.

    None where a suite was not run or not published; a published rate has no interval.
    """

    model: str
    source: str
    prompt_source: str | None
    rates: tuple[tuple[float, float | None, float | None] | None, ...]


def beside_published(result: BenchmarkResult) -> dict[str, list[Line]]:
    """For each axis of which the run has a suite: the run's line, then the published ones."""
    tables = {}
    for axis in ("base", *AXES):
        per_suite, means = result.summary["per_suite"], result.summary["means"].get(axis, {})
        found = [*(per_suite.get(suite_of(base, axis)) for base in BASE), *(means.get(name) for name in MEANS)]
        if any(found):
            mine = tuple((c["rate"], c["low"], c["high"]) if c and c["rate"] is not None else None for c in found)
            lines = [Line(result.protocol.actor, str(result.out), result.protocol.prompt_source, mine)]
            tables[axis] = lines + [line for row in PUBLISHED if (line := _line(row, axis)) is not None]
    return tables


def _line(row: Published, axis: str) -> Line | None:
    rates = [row.rates.get((base, axis)) for base in BASE]
    if not any(rate is not None for rate in rates):
        return None
    for bases in MEANS.values():
        known = [rate for base in bases if (rate := row.rates.get((base, axis))) is not None]
        rates.append(sum(known) / len(known) if len(known) == len(bases) else None)
    shown = tuple(None if rate is None else (rate, None, None) for rate in rates)
    return Line(row.model, row.source, row.prompt_source, shown)
