"""Looks: camera, lamps, colors and materials of one scene, put on a compiled model for as long as it is drawn."""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from libero_pro.layouts import layout
from libero_pro.record import RecordError
from libero_pro.scene import Look
from libero_pro.suites import Task

CAMERA = "agentview"
# What LIBERO's arenas draw their surfaces with.
_MATERIALS = {
    "walls": ("walls_mat",),
    "floor": ("floorplane",),
    "table": ("table_texture", "living_room_table", "desk"),
}
_ARRAYS = ("cam_pos", "cam_quat", "light_diffuse", "light_specular", "light_pos", "geom_matid", "geom_rgba")
_DEFAULT_RGBA = (0.5, 0.5, 0.5, 1.0)
_NUDGE = np.array([1e-3, 0.0, 0.0, 0.0])  # else a white thing at half its brightness would be the default again


def surfaces(task: Task) -> tuple[str, ...]:
    """The surfaces that a look of the task may name."""
    on_floor = layout(task.base_suite, task.task_id).ground == "floor"
    return ("walls", "floor") if on_floor else ("walls", "floor", "table")


@contextlib.contextmanager
def worn(model: Any, look: Look | None) -> Iterator[None]:
    """The model with the look, until the block ends. RecordError if the look names what the model does not have.

    The arrays are read anew for every drawn image, so no OpenGL context needs to be told.
    """
    if look is None:
        yield
        return
    kept = {name: getattr(model, name).copy() for name in _ARRAYS}
    headlight = model.vis.headlight
    lamp = np.array(headlight.diffuse), np.array(headlight.ambient), np.array(headlight.specular)
    try:
        _move_camera(model, look)
        _light(model, look)
        materials = {name: _material(model, name) for name in {*look.textures, *look.textures.values()}}
        for name, source in look.textures.items():  # all sources are read before, so surfaces can trade materials
            model.geom_matid[kept["geom_matid"] == materials[name]] = materials[source]
        for name, factors in look.tints.items():
            _tint(model, name, np.array(factors), kept["geom_matid"])
        yield
    finally:
        for name, value in kept.items():
            getattr(model, name)[:] = value
        headlight.diffuse, headlight.ambient, headlight.specular = lamp


def _move_camera(model: Any, look: Look) -> None:
    camera = model.camera(CAMERA).id
    model.cam_pos[camera] += look.camera_shift
    angle = float(np.linalg.norm(look.camera_turn))
    if angle > 0:
        import mujoco

        turn, turned = np.zeros(4), np.zeros(4)
        mujoco.mju_axisAngle2Quat(turn, np.array(look.camera_turn) / angle, angle)
        mujoco.mju_mulQuat(turned, model.cam_quat[camera], turn)
        model.cam_quat[camera] = turned


def _light(model: Any, look: Look) -> None:
    model.light_pos[:] += look.light_shift
    model.light_diffuse[:] *= look.light
    model.light_specular[:] *= look.light
    headlight = model.vis.headlight
    for part in ("diffuse", "ambient", "specular"):
        setattr(headlight, part, np.array(getattr(headlight, part)) * look.light)


def _tint(model: Any, name: str, factors: np.ndarray, matid: np.ndarray) -> None:
    """Colors what was of the named thing before textures changed: a surface keeps its tint, whatever it shows."""
    surface = name in _MATERIALS
    for geom in np.flatnonzero(matid == _material(model, name)) if surface else _visual_geoms(model, name):
        material = model.geom_matid[geom]
        # MuJoCo takes the material's color until the geom's own differs from the default.
        own = material < 0 or not np.allclose(model.geom_rgba[geom], _DEFAULT_RGBA)
        color = (model.geom_rgba[geom] if own else model.mat_rgba[material]).copy()
        color[:3] = np.clip(color[:3] * factors, 0.0, 1.0)
        model.geom_rgba[geom] = color + _NUDGE if np.allclose(color, _DEFAULT_RGBA) else color


def _material(model: Any, name: str) -> int:
    """The number of the material that a surface, object or fixture is drawn with (the first, if it has several)."""
    known = [model.mat(index).name for index in range(model.nmat)]
    if name in _MATERIALS:
        found = [known.index(material) for material in _MATERIALS[name] if material in known]
        found = [material for material in found if material in model.geom_matid]  # arenas define more than they use
    else:
        found = [int(model.geom_matid[geom]) for geom in _visual_geoms(model, name) if model.geom_matid[geom] >= 0]
    if not found:
        raise RecordError(f"look: '{name}' has no material in this scene; name another surface, object or fixture")
    return found[0]


def _visual_geoms(model: Any, name: str) -> list[int]:
    """Drawn geoms of an instance's body and of the bodies below it."""
    bodies = {body for body in range(model.nbody) if model.body(body).name == f"{name}_main"}
    if not bodies:
        raise RecordError(f"look: there is no object or fixture '{name}' in this scene")
    for body in range(model.nbody):  # children follow their parents
        if model.body_parentid[body] in bodies:
            bodies.add(body)
    return [
        geom for geom in range(model.ngeom) if model.geom_group[geom] == 1 and int(model.geom_bodyid[geom]) in bodies
    ]
