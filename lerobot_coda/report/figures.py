"""The report's figures. Series differ by marker, dash or pattern too, so they read in black and white."""

from collections.abc import Sequence
from typing import Any

from lerobot_coda.progress import Rate
from lerobot_coda.report.summary import Comparison, CurvePoint, show

CONTROL_HZ = 20

# Okabe and Ito's palette, which stays apart under the common kinds of color blindness; light to dark when grey.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid")
_CONFIG = {"displaylogo": False, "responsive": True, "modeBarButtonsToRemove": ["toImage", "lasso2d", "select2d"]}


def script() -> str:
    """plotly.js itself (about 5 MB), to be put into the page once: the report asks no server for anything."""
    from plotly.offline import get_plotlyjs

    return get_plotlyjs()


def comparison_figure(comparisons: Sequence[Comparison]) -> Any:
    """A plotly figure: success before (hatched) and after (solid) per suite with 95 % Wilson intervals."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for label, color, pattern in (("before", "#E69F00", "/"), ("after", "#0072B2", "")):
        values = [getattr(row, label) for row in comparisons]
        figure.add_bar(
            name=label,
            x=[plain(row.name) for row in comparisons],
            y=[value.rate if value.n else None for value in values],
            error_y=_error(values),
            marker={"color": color, "pattern": {"shape": pattern, "fgcolor": "#000000"}, "line_color": "#000000"},
            customdata=[show(value) for value in values],
            hovertemplate="%{x}, " + label + ": %{customdata}<extra></extra>",
        )  # fmt: skip
    figure.update_layout(barmode="group")
    return _rates(figure)


def curve_figure(curve: Sequence[CurvePoint]) -> Any:
    """A plotly figure: success over rounds per suite with 95 % Wilson intervals."""
    import plotly.graph_objects as go

    figure = go.Figure()
    names = list(dict.fromkeys(point.name for point in curve))
    for index, name in enumerate(names):
        style, own = index % len(COLORS), [point for point in curve if point.name == name]
        for number, segment in enumerate(dict.fromkeys(point.segment for point in own)):
            points = sorted((point for point in own if point.segment == segment), key=lambda point: point.round)
            values = [point.success for point in points]
            figure.add_scatter(
                name=plain(name),
                legendgroup=str(index),
                showlegend=number == 0,
                x=[point.round for point in points],
                y=[value.rate if value.n else None for value in values],
                error_y=_error(values),
                mode="lines+markers",
                line={"color": COLORS[style], "dash": _DASHES[style], "width": 2},
                marker={"symbol": MARKERS[style], "size": 10},
                customdata=[show(value) for value in values],
                hovertemplate="%{customdata}<extra>" + plain(name) + "</extra>",
            )
    figure.update_xaxes(title="round (0: before co-evolution)", dtick=1)
    return _rates(figure)


def potential_figure(curves: Sequence[tuple[str, Sequence[float]]]) -> Any:
    """A plotly figure: the potential over time, from (label, its value at each control step)."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for index, (label, values) in enumerate(curves):
        figure.add_scatter(
            name=plain(label),
            x=[step / CONTROL_HZ for step in range(len(values))],
            y=list(values),
            mode="lines",
            line={"color": COLORS[index], "dash": _DASHES[index], "width": 2},
        )
    figure.update_xaxes(title="seconds")
    figure.update_yaxes(title="potential", rangemode="tozero")
    return figure


def plain(text: str) -> str:
    """A text as a plotly label: plotly reads a small HTML in labels, and braces in templates."""
    return text.replace("<", "‹").replace(">", "›").replace("{", "(").replace("}", ")")


def _error(values: Sequence[Rate]) -> dict[str, Any]:
    return {
        "type": "data",
        "symmetric": False,
        "array": [value.high - value.rate for value in values],
        "arrayminus": [value.rate - value.low for value in values],
        "color": "#000000",
        "thickness": 1.5,
        "width": 5,
    }


def _rates(figure: Any) -> Any:
    figure.update_yaxes(title="success rate", range=[-0.02, 1.05], tickformat=".0%")
    return figure


def fragment(figure: Any, name: str, height: int = 380) -> str:
    """The figure as an HTML fragment in the report's style, `height` pixels tall."""
    html = styled(figure, height).to_html(
        full_html=False, include_plotlyjs=False, div_id=f"figure-{name}", config=_CONFIG
    )
    return str(html)


def styled(figure: Any, height: int = 380) -> Any:
    """The figure in the report's style."""
    figure.update_xaxes(gridcolor="#e4e4e4")
    figure.update_yaxes(gridcolor="#d0d0d0")
    figure.update_layout(
        template="plotly_white",
        height=height,
        margin={"l": 60, "r": 20, "t": 20, "b": 60},
        font={"size": 14},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02},  # grows upward where it is narrow
    )
    return figure
