"""The report as one HTML page that asks no server for anything."""

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from lerobot_coda.report.figures import comparison_figure, curve_figure, fragment, script
from lerobot_coda.report.lineage import STYLE
from lerobot_coda.report.scenemap import scene_figure
from lerobot_coda.report.summary import BudgetRow, RunSummary, show


def render_page(summary: RunSummary, clips: list[dict[str, str]], shown: dict[str, dict[str, Any]]) -> str:
    """HTML of the report. Texts are escaped.

    clips  {"file", "caption"} of the videos beside the page that show the scene of `summary.clip`
    shown  by an exhibit's anchor: its `clips`, the file of its contact `sheet` or None, and the fragment of its `curve`
    """
    environment = Environment(
        loader=PackageLoader("lerobot_coda.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["amount"] = amount
    environment.filters["show"] = show
    page = environment.get_template("page.html").render(
        run=summary,
        frontier=[row for row in summary.comparisons if not row.held_out],
        held_out=[row for row in summary.comparisons if row.held_out],
        comparison_figure=Markup(fragment(comparison_figure(summary.comparisons), "comparison")),
        curve_figure=Markup(fragment(curve_figure(summary.curve), "curve")),
        clips=clips,
        shown=shown,
        scene_figure=Markup(fragment(scene_figure(summary.scenes), "scenes", height=520)) if summary.scenes else "",
        drawn=Markup(STYLE),
    )
    # Added last: a template engine need not read 5 MB of plotly.js.
    return page.replace("</head>", f"<script>{script()}</script>\n</head>", 1)


def amount(row: BudgetRow) -> str:
    """A metered amount with its unit, for people."""
    return minutes(row.amount) if row.unit == "s" else f"{row.amount:,.0f} {row.unit}"


def minutes(seconds: float) -> str:
    """Wall time for people: 42 s, 3 min 20 s, 1 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
