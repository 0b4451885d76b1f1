"""Level of detail: fewer triangles for the visual meshes of a compiled model, as long as a renderer uploads them."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

MAX_ERROR = 1.2e-4  # metres a surface may move: 37 dB PSNR and more at 128 px, a third of the drawing time
_KEEP = ("kitchen_background",)  # coarse shells: simplifying them is visible and saves little
_MIN_FACES = 200


@dataclass(frozen=True)
class _Faces:
    """Corner indices (n, 3) of a mesh's triangles into its own vertices, normals and texture coordinates."""

    vertex: np.ndarray
    normal: np.ndarray
    texcoord: np.ndarray | None


@contextlib.contextmanager
def reduced(model: Any, max_error: float = MAX_ERROR) -> Iterator[None]:
    """Simplifies the model's visual meshes in place for the duration of the block, then puts them back.

    OpenGL keeps its own copy of what is uploaded inside the block. Meshes that collide are left alone; ids, inertia
    and every other array stay as they are, so states are shared between reduced and full renderings.
    """
    saved = {name: getattr(model, name).copy() for name in (*_ARRAYS, "mesh_facenum")}
    try:
        for mesh in _visual_meshes(model):
            faces = _read(model, mesh)
            start, room = model.mesh_vertadr[mesh], model.mesh_vertnum[mesh]
            normals = model.mesh_normal[model.mesh_normaladr[mesh] :][: model.mesh_normalnum[mesh]]
            uv = None
            if faces.texcoord is not None:
                uv = model.mesh_texcoord[model.mesh_texcoordadr[mesh] :][: model.mesh_texcoordnum[mesh]]
            _write(model, mesh, simplify(model.mesh_vert[start : start + room], normals, uv, faces, max_error))
        yield
    finally:
        for name, value in saved.items():
            getattr(model, name)[:] = value


def simplify(
    vertices: np.ndarray, normals: np.ndarray, uv: np.ndarray | None, faces: _Faces, max_error: float
) -> _Faces:
    """The mesh with edges collapsed until `max_error` (metres), each corner keeping an original normal and uv."""
    import meshoptimizer

    corners = np.ascontiguousarray(vertices[faces.vertex.ravel()], np.float32)
    keys = corners if uv is None else np.hstack([corners, uv[faces.texcoord.ravel()]])  # type: ignore[union-attr]
    # Triangle soup does not simplify: corners at the same place (and the same texel) become one vertex.
    first, welded = _weld(keys)
    points = np.ascontiguousarray(corners[first])
    kept = np.zeros(len(welded), np.uint32)
    count = meshoptimizer.simplify(
        kept,
        welded,
        points,
        target_index_count=3,
        target_error=max_error,
        options=meshoptimizer.SIMPLIFY_ERROR_ABSOLUTE,
    )
    triangles = kept[:count].reshape(-1, 3).astype(np.int64)
    if not len(triangles) or len(triangles) >= len(faces.vertex):
        return faces
    a, b, c = (points[triangles[:, i]] for i in range(3))
    facing = np.repeat(np.cross(b - a, c - a), 3, axis=0)
    corner = _best_corner(triangles.ravel(), welded, normals[faces.normal.ravel()], facing)
    return _Faces(
        faces.vertex.ravel()[corner].reshape(-1, 3),
        faces.normal.ravel()[corner].reshape(-1, 3),
        None if faces.texcoord is None else faces.texcoord.ravel()[corner].reshape(-1, 3),
    )


def _best_corner(wanted: np.ndarray, welded: np.ndarray, normals: np.ndarray, facing: np.ndarray) -> np.ndarray:
    """For each new corner, the original corner at the same welded vertex whose normal is nearest to `facing`."""
    order = np.argsort(welded, kind="stable")
    starts = np.searchsorted(welded[order], np.arange(welded.max() + 2))
    begin, number = starts[wanted], starts[wanted + 1] - starts[wanted]
    best = order[begin]
    score = np.einsum("ij,ij->i", normals[best], facing)
    for turn in range(1, int(number.max())):
        open_ = np.flatnonzero(number > turn)
        candidate = order[begin[open_] + turn]
        value = np.einsum("ij,ij->i", normals[candidate], facing[open_])
        better = value > score[open_]
        best[open_[better]], score[open_[better]] = candidate[better], value[better]
    return best


def _weld(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index of the first of each set of equal rows, and for every row the number of its set."""
    import meshoptimizer

    rows = np.ascontiguousarray(rows + np.float32(0))  # -0.0 and 0.0 are the same place
    number = np.zeros(len(rows), np.uint32)
    count = meshoptimizer.generate_vertex_remap(
        number, np.arange(len(rows), dtype=np.uint32), vertices=rows, vertex_size=rows.itemsize * rows.shape[1]
    )
    first = np.zeros(count, np.int64)
    first[number[::-1]] = np.arange(len(rows))[::-1]
    return first, number


_ARRAYS = ("mesh_face", "mesh_facenormal", "mesh_facetexcoord")


def _visual_meshes(model: Any) -> list[int]:
    """Meshes that are drawn (geom group 1) and never collide."""
    is_mesh = model.geom_type == 7
    collides = (model.geom_contype != 0) | (model.geom_conaffinity != 0)
    drawn = set(model.geom_dataid[is_mesh & (model.geom_group == 1) & ~collides].tolist())
    solid = set(model.geom_dataid[is_mesh & collides].tolist())
    return [
        mesh
        for mesh in sorted(drawn - solid)
        if model.mesh_facenum[mesh] >= _MIN_FACES and not any(word in model.mesh(mesh).name for word in _KEEP)
    ]


def _span(model: Any, mesh: int) -> slice:
    return slice(model.mesh_faceadr[mesh], model.mesh_faceadr[mesh] + model.mesh_facenum[mesh])


def _read(model: Any, mesh: int) -> _Faces:
    span = _span(model, mesh)
    texcoord = model.mesh_facetexcoord[span].copy() if model.mesh_texcoordadr[mesh] >= 0 else None
    return _Faces(model.mesh_face[span].copy(), model.mesh_facenormal[span].copy(), texcoord)


def _write(model: Any, mesh: int, faces: _Faces) -> None:
    model.mesh_facenum[mesh] = len(faces.vertex)
    span = _span(model, mesh)
    model.mesh_face[span], model.mesh_facenormal[span] = faces.vertex, faces.normal
    if faces.texcoord is not None:
        model.mesh_facetexcoord[span] = faces.texcoord
