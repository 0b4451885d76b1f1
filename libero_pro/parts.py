"""Articulated parts: drawers, doors and knobs, by the names that goals give them."""

from dataclasses import dataclass
from typing import Any

import numpy as np

_KNOB = (
    0.08  # metres; a hinged part that stays this near its axis is taken hold of on the axis, a wider one at its edge
)
_HINGE = 3  # mujoco.mjtJoint.mjJNT_HINGE


@dataclass(frozen=True)
class Part:
    """A part that one joint moves.

    joint   index of the joint;  `body` the body that it moves
    closed  joint position (m or rad) from which on LIBERO calls the part closed or off;  `open` the same for open or on
    geom    the geom to take hold of;  `on_axis` whether the hand goes to the joint's axis at the height of that geom
    """

    name: str
    joint: int
    body: int
    closed: float
    open: float
    geom: int
    on_axis: bool


def articulated_parts(env: Any) -> tuple[Part, ...]:
    """The parts of a live LIBERO environment: fixtures with one joint, and regions (drawers) that a joint moves."""
    model, data = env.sim.model._model, env.sim.data._data
    owners = {name: env.get_object(name) for name in env.fixtures_dict}
    named = {name: (thing, thing) for name, thing in owners.items() if thing is not None}
    for name, site in env.object_sites_dict.items():
        parent = owners.get(env.object_states_dict[name].parent_name) if name in env.object_states_dict else None
        if parent is not None:
            named[name] = (site, parent)
    found = []
    for name, (thing, owner) in named.items():
        joints = [joint for joint in getattr(thing, "joints", None) or () if _moves_in_place(model, joint)]
        edges = _edges(getattr(owner, "object_properties", {}).get("articulation", {}))
        if len(joints) == 1 and edges is not None:
            joint = model.joint(joints[0]).id
            body = int(model.jnt_bodyid[joint])
            geom, on_axis = _hold(model, data, joint, np.sign(edges[1] - edges[0]))
            found.append(Part(name, joint, body, edges[0], edges[1], geom, on_axis))
    return tuple(found)


def subtree(model: Any, body: int) -> np.ndarray:
    """(ngeom,) bool: the geoms of a body and of what is fixed to it."""
    inside = np.zeros(model.nbody, bool)
    inside[body] = True
    for child in range(body + 1, model.nbody):
        inside[child] |= inside[model.body_parentid[child]]
    return inside[model.geom_bodyid]


def _moves_in_place(model: Any, joint: str) -> bool:
    """A hinge or a slide; free joints move whole objects."""
    return bool(model.jnt_type[model.joint(joint).id] >= 2)


def _edges(articulation: dict[str, list[float]]) -> tuple[float, float] | None:
    """(closed or off, open or on): the ends that face each other of the two ranges LIBERO gives a kind of fixture."""
    for off, on in (
        ("default_close_ranges", "default_open_ranges"),
        ("default_turnoff_ranges", "default_turnon_ranges"),
    ):
        low, high = articulation.get(off), articulation.get(on)
        if low and high:
            return (min(low), max(high)) if min(high) < min(low) else (max(low), min(high))
    return None


def _hold(model: Any, data: Any, joint: int, sign: float) -> tuple[int, bool]:
    """The geom by which a part is moved, and whether the hand belongs on the joint's axis instead (a knob)."""
    geoms = np.flatnonzero(subtree(model, int(model.jnt_bodyid[joint])))
    away = data.geom_xpos[geoms] - data.xanchor[joint]
    axis = data.xaxis[joint]
    along = away @ axis
    if model.jnt_type[joint] != _HINGE:  # the front of a drawer: what stands out most to where it opens
        return int(geoms[np.argmax(sign * along)]), False
    radius = np.linalg.norm(away - along[:, None] * axis, axis=1)
    if radius.max() < _KNOB:
        return int(geoms[np.argmax(data.geom_xpos[geoms, 2])]), True
    return int(geoms[np.argmax(radius)]), False
