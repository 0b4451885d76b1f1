"""What no picture of a series can show, left out while the series is drawn: the same pixels for fewer triangles.

A camera sees what keeps its place before it in the same way in every picture. Triangles that turn away from it, lie
outside its view or fall between the samples of the pixels are then never drawn, and a mesh finer than the picture is
mostly those. What is outside the view of a single picture is left out of that one.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

_ARRAYS = ("mesh_face", "mesh_facenormal", "mesh_facetexcoord")
_DRAWN = (1, 2)  # geom groups
_HIDDEN = 5
_MESH, _REFLECTING = 7, (0, 6)  # MuJoCo mirrors the scene in planes and boxes of a reflecting material
_AT_REST = 1e-3  # metres that a thing may move before the camera and count as still; its triangles' margins grow by it
_SNAP = 1 / 256  # pixels: rasterizers round positions to this grid

Faces = dict[int, tuple[np.ndarray, ...]]  # mesh -> corners' indices (n, 3) of vertices, normals, texture coordinates


@dataclass(frozen=True)
class Series:
    """Where a camera and the geoms are in n pictures: places in the world, metres, and rotations to the world.

    camera_pos (n, 3), camera_rot (n, 3, 3), geom_pos (n, ngeom, 3), geom_rot (n, ngeom, 3, 3)
    """

    camera_pos: np.ndarray
    camera_rot: np.ndarray
    geom_pos: np.ndarray
    geom_rot: np.ndarray

    def before_camera(self) -> tuple[np.ndarray, np.ndarray]:
        """Places (n, ngeom, 3) and rotations (n, ngeom, 3, 3) of the geoms in the camera's frame, which looks to -z."""
        away = self.geom_pos - self.camera_pos[:, None]
        return np.einsum("nij,ngi->ngj", self.camera_rot, away), np.einsum(
            "nij,ngik->ngjk", self.camera_rot, self.geom_rot
        )


@dataclass(frozen=True)
class Lens:
    """A camera's picture: pixels a side, focal length in pixels, the nearest distance drawn (m), and where in a pixel
    the samples (m, 2) lie, from its lower left corner."""

    size: int
    focal: float
    near: float
    samples: np.ndarray


def uploaded(model: Any) -> Faces:
    """Copies the faces of all drawn meshes as they are in the model now."""
    drawn = {int(model.geom_dataid[geom]) for geom in _drawn(model)}
    return {mesh: tuple(getattr(model, name)[_span(model, mesh)].copy() for name in _ARRAYS) for mesh in drawn}


def mirrors(model: Any) -> bool:
    """Whether reflections or shadows show what no camera sees."""
    shown = np.isin(model.geom_group, _DRAWN) & np.isin(model.geom_type, _REFLECTING) & (model.geom_matid >= 0)
    return bool((model.mat_reflectance[model.geom_matid[shown]] > 0).any() or model.light_castshadow.any())


@contextlib.contextmanager
def left_out(model: Any, context: Any, faces: Faces, series: Series, lens: Lens) -> Iterator[np.ndarray]:
    """OpenGL holds only what the series can show until the block ends; `faces` is what it holds outside.

    Yields the geoms' groups (n, ngeom) that hide what is outside the view of each picture. Not for scenes that have
    `mirrors`.
    """
    groups = np.repeat(model.geom_group[None], len(series.camera_pos), axis=0)
    geoms = _drawn(model)
    seen, reduced = _needed(model, faces, series, lens, geoms)
    groups[:, geoms] = np.where(seen, groups[:, geoms], _HIDDEN)
    try:
        for mesh, mask in reduced.items():
            _upload(model, context, mesh, tuple(array[mask] for array in faces[mesh]))
        yield groups
    finally:
        for mesh in reduced:
            _upload(model, context, mesh, faces[mesh])


def _needed(
    model: Any, faces: Faces, series: Series, lens: Lens, geoms: np.ndarray
) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """(n, g) bool: which geoms may be in which picture; and for meshes of still geoms only, which triangles may."""
    places, turns = (array[:, geoms] for array in series.before_camera())
    seen = _in_view(model.geom_aabb[geoms], places, turns, lens)
    drift = np.linalg.norm(places - places[:1], axis=2)
    drift += np.linalg.norm(turns - turns[:1], axis=(2, 3)) * model.geom_rbound[geoms]
    drift = drift.max(axis=0)
    meshes = model.geom_dataid[geoms]
    ever = seen.any(axis=0)
    masks: dict[int, np.ndarray] = {}
    for index in np.flatnonzero(ever & ~np.isin(meshes, meshes[ever & (drift > _AT_REST)])):
        mesh = int(meshes[index])
        start = model.mesh_vertadr[mesh]
        vertices = model.mesh_vert[start : start + model.mesh_vertnum[mesh]] @ turns[0, index].T + places[0, index]
        mask = visible(vertices, faces[mesh][0], lens, float(drift[index]))
        seen[:, index] &= mask.any()
        masks[mesh] = masks.get(mesh, False) | mask
    return seen, {mesh: mask for mesh, mask in masks.items() if mask.any() and not mask.all()}


def visible(vertices: np.ndarray, faces: np.ndarray, lens: Lens, drift: float = 0.0) -> np.ndarray:
    """(n,) bool: which triangles may color a sample. Vertices (v, 3) in the camera's frame, each off by up to `drift`.

    Errs on the side of seen: `drift` and the rasterizer's grid widen every test.
    """
    depth = -vertices[:, 2]
    ahead = depth > lens.near + drift
    with np.errstate(divide="ignore", invalid="ignore"):
        at = lens.size / 2 + lens.focal * vertices[:, :2] / np.where(ahead, depth, np.nan)[:, None]
    whole = ahead[faces].all(axis=1)
    result = (depth[faces] > lens.near - drift).any(axis=1)  # what the near plane cuts is seen
    if not whole.any():
        return result
    rows = np.flatnonzero(whole)
    points, nearest = at[faces[rows]], depth[faces[rows]].min(axis=1)  # (k, 3, 2) pixels
    slack = _SNAP + lens.focal * drift * (1 + np.abs(points - lens.size / 2).max(axis=(1, 2)) / lens.focal) / nearest
    first, second = points[:, 1] - points[:, 0], points[:, 2] - points[:, 0]
    area = first[:, 0] * second[:, 1] - first[:, 1] * second[:, 0]
    unsure = 2 * slack * (np.abs(first) + np.abs(second)).sum(axis=1) + 8 * slack**2
    facing = area > -unsure  # OpenGL is told to cull what turns away
    rows, points, slack, thin = rows[facing], points[facing], slack[facing], (area < unsure)[facing]
    low, high = points.min(axis=1) - slack[:, None], points.max(axis=1) + slack[:, None]
    seen = ((high >= 0) & (low <= lens.size)).all(axis=1)
    small = seen & ((high - low) < 1).all(axis=1)
    seen[small] = _covers_sample(points[small], low[small], high[small], slack[small], thin[small], lens.samples)
    result[whole] = False
    result[rows] = seen
    return result


def _covers_sample(
    points: np.ndarray, low: np.ndarray, high: np.ndarray, slack: np.ndarray, thin: np.ndarray, samples: np.ndarray
) -> np.ndarray:
    """Which triangles (k, 3, 2), each within less than a pixel, may contain one of the samples."""
    found = np.zeros(len(points), bool)
    for offset in samples:
        sample = np.ceil(low - offset) + offset  # the only one of its kind that the box can hold
        inside = (sample <= high).all(axis=1)
        for corner in range(3):
            start, end = points[:, corner], points[:, (corner + 1) % 3]
            edge, way = end - start, sample - start
            beside = edge[:, 0] * way[:, 1] - edge[:, 1] * way[:, 0]
            reach = 2 * slack * (np.abs(edge) + np.abs(way)).sum(axis=1) + 8 * slack**2
            inside &= thin | (beside >= -reach)
        found |= inside
    return found


def _in_view(boxes: np.ndarray, places: np.ndarray, turns: np.ndarray, lens: Lens) -> np.ndarray:
    """(n, g) bool: whose bounding box (center, half size; (g, 6) in the geom's frame) the view may hold."""
    signs = np.array(np.meshgrid([-1, 1], [-1, 1], [-1, 1])).reshape(3, -1).T
    corners = boxes[:, None, :3] + signs * boxes[:, None, 3:] * 1.01
    at = np.einsum("ngjk,gck->ngcj", turns, corners) + places[:, :, None]
    wide = (lens.size / 2 + 1) / lens.focal  # a pixel more than the view's half width, per metre of distance
    depth = -at[..., 2]
    outside = (depth < lens.near * 0.99).all(axis=2)
    for axis in (0, 1):
        for side in (-1, 1):
            outside |= (side * at[..., axis] > wide * depth).all(axis=2)
    return ~outside


def _drawn(model: Any) -> np.ndarray:
    """The mesh geoms that are drawn."""
    return np.flatnonzero((model.geom_type == _MESH) & np.isin(model.geom_group, _DRAWN))


def _span(model: Any, mesh: int) -> slice:
    return slice(model.mesh_faceadr[mesh], model.mesh_faceadr[mesh] + model.mesh_facenum[mesh])


def _upload(model: Any, context: Any, mesh: int, faces: tuple[np.ndarray, ...]) -> None:
    """Gives OpenGL the mesh with these faces; the model is left as it was."""
    import mujoco

    span = _span(model, mesh)
    kept = tuple(getattr(model, name)[span].copy() for name in _ARRAYS), int(model.mesh_facenum[mesh])
    try:
        for name, rows in zip(_ARRAYS, faces, strict=True):
            getattr(model, name)[span.start : span.start + len(rows)] = rows
        model.mesh_facenum[mesh] = len(faces[0])
        mujoco.mjr_uploadMesh(model, context, mesh)
    finally:
        model.mesh_facenum[mesh] = kept[1]
        for name, rows in zip(_ARRAYS, kept[0], strict=True):
            getattr(model, name)[span] = rows
