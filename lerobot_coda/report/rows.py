"""A run's numbers as rows `{figure, value, unit, peer, ratio, n, low, high, command}`: what `results/` keeps."""

from typing import Any

from lerobot_coda.progress import Rate
from lerobot_coda.report.summary import RunSummary


def figure_rows(summary: RunSummary) -> list[dict[str, Any]]:
    """One row a number: success before and after with its interval, gain and p-value, verdicts, scenes, budget.

    The peer of "after" is "before" on the same scenes and seeds; `ratio` is their quotient where "before" is not 0.
    """
    command = "; ".join(summary.commands)

    def row(figure: str, value: float, unit: str, **more: Any) -> dict[str, Any]:
        empty = {"peer": None, "ratio": None, "n": None, "low": None, "high": None}
        return {"figure": figure, "value": value, "unit": unit, **empty, **more, "command": command}

    def success(figure: str, rate: Rate, **more: Any) -> dict[str, Any]:
        low, high = round(rate.low, 4), round(rate.high, 4)
        return row(figure, round(rate.rate, 4), "success rate", n=rate.n, low=low, high=high, **more)

    rows = []
    for pair in summary.comparisons:
        ratio = round(pair.after.rate / pair.before.rate, 3) if pair.before.rate else None
        rows.append(success(f"{pair.name} before", pair.before))
        rows.append(success(f"{pair.name} after", pair.after, peer=f"{pair.name} before", ratio=ratio))
        if pair.p_value is not None:
            rows.append(row(f"{pair.name} p_value", pair.p_value, "exact two-sided McNemar", n=pair.before.n))
    rows += [row(f"diagnoses {kind}", count, "failed episodes") for kind, count in summary.verdicts().items()]
    rows += [row(f"rejected by {gate.gate}", gate.scenes, "scenes") for gate in summary.rejections]
    rows.append(row("accepted", summary.accepted_scenes, "scenes"))
    rows.append(row("leaked", summary.leakage, "scenes"))
    rows += [row(meter.meter, round(meter.amount, 1), meter.unit) for meter in summary.budget]
    return rows
