"""An episode seen from above as a drawing that moves: made of what was stored, without a simulator or a renderer.

The robot stands below; up is away from it. The drawing animates itself (SVG), so a page needs no script for it.
"""

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup, escape

from libero_pro.episode import Episode
from libero_pro.goals import owner, player

CONTROL_HZ = 20
FRAMES = 60  # key frames; between them the browser interpolates
SCALE = 400.0  # drawing units a metre
OBJECT, MARGIN = 0.03, 0.10  # metres: radius of an object's mark, free border
STILL = 0.01  # metres: what moves less is drawn at rest
_GOAL = 'fill="none" stroke="#D55E00" stroke-width="3"'


def plan_view(episode: Episode) -> Markup:
    """The episode as an SVG fragment that repeats; empty for an episode without a single step.

    The object to move is filled, what it goes to is a square, the gripper a ring with its path, filled while it holds
    something.
    """
    if not len(episode):
        return Markup("")
    names, goal = episode.object_names, episode.scene.goal
    target = player(goal, names, "target")
    words = [word for predicate in goal for word in predicate[1:]]
    receptacle = next((owner(word, names) for predicate in goal for word in predicate[2:]), None)
    instants = np.unique(np.linspace(0, len(episode), FRAMES).round().astype(int))
    seconds = len(episode) / CONTROL_HZ
    objects, hand = _from_above(episode.object_pos), _from_above(episode.eef_pos)
    drawn = [objects.reshape(-1, 2), hand]
    size = OBJECT * SCALE
    parts = []
    for index, name in enumerate(names):
        path = objects[instants, index]
        moves = bool(np.ptp(objects[:, index], axis=0).max() > STILL * SCALE)
        if name == receptacle:
            shape = f'<rect x="{-1.5 * size:.0f}" y="{-1.5 * size:.0f}" width="{3 * size:.0f}" height="{3 * size:.0f}"'
            style = _GOAL
        else:
            shape = f'<circle r="{size:.0f}"'
            fill = "#0072B2" if name == target else "none"
            style = f'fill="{fill}" fill-opacity="0.7" stroke="currentColor"'
        label = _label(name.rsplit("_", 1)[0], size) if name in (target, receptacle) else ""
        parts.append(_moving(f"{shape} {style}/>{label}", path, seconds, moves))
    for index, name in enumerate(episode.region_names):
        # Of a fixture: a drawer, a burner, the top of a cabinet.
        if name in words and owner(name, names) is None and episode.region_pos is not None:
            path = _from_above(episode.region_pos[instants, index])
            drawn.append(path)
            moves = bool(np.ptp(path, axis=0).max() > STILL * SCALE)
            square = f'<rect x="{-size:.0f}" y="{-size:.0f}" width="{2 * size:.0f}" height="{2 * size:.0f}"'
            parts.append(_moving(f"{square} {_GOAL}/>{_label(name, size)}", path, seconds, moves))
    held = [str(int(value >= 0)) for value in episode.held[instants]]
    ring = (
        f'<circle r="{0.7 * size:.0f}" fill="currentColor" fill-opacity="0" stroke="currentColor" stroke-width="3">'
        f"{_animate('fill-opacity', held, seconds, 'discrete')}</circle>"
    )
    trace = " ".join(f"{x:.0f},{y:.0f}" for x, y in hand[instants])
    parts.append(f'<polyline points="{trace}" fill="none" stroke="currentColor" stroke-opacity="0.35"/>')
    parts.append(_moving(ring, hand[instants], seconds, True))
    points = np.concatenate(drawn)
    (left, top), (right, bottom) = points.min(0) - MARGIN * SCALE, points.max(0) + MARGIN * SCALE
    box = f"{left:.0f} {top:.0f} {right - left:.0f} {bottom - top:.0f}"
    return Markup(
        f'<svg class="plan" viewBox="{box}" role="img" aria-label="the episode seen from above" font-size="15">'
        f"{''.join(parts)}</svg>"
    )


def _label(name: str, size: float) -> str:
    text = escape(name.replace("_", " "))
    return f'<text y="{2.4 * size:.0f}" text-anchor="middle" fill="currentColor">{text}</text>'


def _from_above(positions: np.ndarray) -> np.ndarray:
    """World positions (..., 3) in metres to drawing units (..., 2): to the robot's right, and downward toward it."""
    return np.stack([-positions[..., 1], -positions[..., 0]], axis=-1) * SCALE


def _moving(shape: str, path: np.ndarray, seconds: float, moves: bool) -> str:
    """A shape around the origin, carried along `path` (k, 2), or put at its beginning where it does not move."""
    if not moves:
        return f'<g transform="translate({path[0, 0]:.0f} {path[0, 1]:.0f})">{shape}</g>'
    values = [f"{x:.0f} {y:.0f}" for x, y in path]
    along = _animate("transform", values, seconds, "linear")
    return f'<g transform="translate({values[0]})">{along}{shape}</g>'


def _animate(attribute: str, values: Sequence[str], seconds: float, mode: str) -> str:
    kind = 'animateTransform type="translate"' if attribute == "transform" else "animate"
    listed = ";".join(values)
    return (
        f'<{kind} attributeName="{attribute}" values="{listed}" dur="{seconds:.1f}s" calcMode="{mode}" '
        'repeatCount="indefinite"/>'
    )
