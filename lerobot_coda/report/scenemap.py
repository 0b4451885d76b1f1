"""The map of generated scenes: where each round put the instructed object, seen from above."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lerobot_coda.report.gallery import rows_of


@dataclass(frozen=True)
class ScenePoint:
    """A scene that a program generated and the gates let through.

    x, y  of the instructed object in metres, world axes: x away from the robot's base, y to its left
    """

    round: int
    program: str
    scene: str
    suite: str
    task_id: int
    target: str
    x: float
    y: float


def scene_points(run: Path, rounds: Iterable[int], missing: list[str]) -> tuple[ScenePoint, ...]:
    """Every generated scene to learn from whose goal is about a movable object; a damaged file is said in `missing`."""
    points = []
    for number in rounds:
        file = run / "rounds" / f"{number:03d}" / "scenes.json"
        if not file.is_file():
            continue  # a round in which nothing was validated generates nothing
        for row in rows_of(file, missing, "its scenes are not on the map"):
            scene = row["scene"]
            target = scene["goal"][0][1]
            if target in scene["objects"]:
                x, y, _ = scene["objects"][target]["position"]
                points.append(
                    ScenePoint(number, row["program"], row["hash"], scene["suite"], scene["task_id"], target, x, y)
                )
    return tuple(points)


def scene_figure(points: Sequence[ScenePoint]) -> Any:
    """A plotly figure: one marker shape a program, one legend entry a round and program."""
    import plotly.graph_objects as go

    from lerobot_coda.report.figures import COLORS, MARKERS, plain

    figure = go.Figure()
    programs = list(dict.fromkeys(point.program for point in points))
    for number, program in dict.fromkeys((point.round, point.program) for point in points):
        own = [point for point in points if (point.round, point.program) == (number, program)]
        figure.add_scatter(
            name=plain(f"round {number}: {program}"),
            x=[-point.y for point in own],
            y=[point.x for point in own],
            mode="markers",
            marker={
                "symbol": MARKERS[programs.index(program) % len(MARKERS)],
                "color": COLORS[number % len(COLORS)],
                "size": 9,
                "line": {"color": "#000000", "width": 0.5},
            },
            customdata=[[plain(point.target), point.task_id, point.scene] for point in own],
            hovertemplate="%{customdata[0]}, task %{customdata[1]}<br>scene %{customdata[2]}<extra></extra>",
        )
    figure.update_xaxes(title="to the right of the robot, m", zeroline=False)
    figure.update_yaxes(title="away from the robot, m", zeroline=False, scaleanchor="x")
    figure.update_layout(showlegend=True)
    return figure
