"""Oriented boxes: LIBERO's collision geometry is made of nothing else, so grasps and clearances are box questions."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Boxes:
    """n oriented boxes: centers (n, 3) and half sizes (n, 3) in meters, axes (n, 3, 3) with one in each column."""

    centers: np.ndarray
    axes: np.ndarray
    halves: np.ndarray

    def __len__(self) -> int:
        return len(self.centers)

    @classmethod
    def none(cls) -> "Boxes":
        return cls(np.zeros((0, 3)), np.zeros((0, 3, 3)), np.zeros((0, 3)))

    @classmethod
    def joined(cls, parts: list["Boxes"]) -> "Boxes":
        """All boxes of all parts."""
        parts = [part for part in parts if len(part)]
        if not parts:
            return cls.none()
        return cls(*(np.concatenate([getattr(p, name) for p in parts]) for name in ("centers", "axes", "halves")))

    def where(self, mask: np.ndarray) -> "Boxes":
        """The boxes chosen by a boolean mask or an index array."""
        return Boxes(self.centers[mask], self.axes[mask], self.halves[mask])

    def extents(self) -> np.ndarray:
        """Half sizes (n, 3) of the world-aligned boxes around them."""
        return (np.abs(self.axes) @ self.halves[:, :, None])[..., 0]

    def low(self) -> np.ndarray:
        """Smallest coordinates (3,) over all boxes."""
        return (self.centers - self.extents()).min(axis=0)

    def high(self) -> np.ndarray:
        """Largest coordinates (3,) over all boxes."""
        return (self.centers + self.extents()).max(axis=0)

    def filled(self, spacing: float = 0.004) -> np.ndarray:
        """Points (m, 3) throughout the boxes (a surface alone would make solids look hollow)."""
        points = []
        for center, axes, half in zip(self.centers, self.axes, self.halves, strict=True):
            steps = [np.linspace(-h, h, max(2, int(np.ceil(2 * h / spacing)) + 1)) for h in half]
            grid = np.stack(np.meshgrid(*steps, indexing="ij"), axis=-1).reshape(-1, 3)
            points.append(center + grid @ axes.T)
        return np.concatenate(points) if points else np.zeros((0, 3))


def overlaps(box: Boxes, others: Boxes) -> np.ndarray:
    """Which of n boxes touch any of the boxes `box` (k of them): (n,) bool, by the separating-axis test."""
    hit = np.zeros(len(others), dtype=bool)
    for center, axes, half in zip(box.centers, box.axes, box.halves, strict=True):
        between = (others.centers - center) @ axes  # in the frame of the single box
        turn = axes.T @ others.axes  # (n, 3, 3): columns are the other boxes' axes in that frame
        reach = np.abs(turn) + 1e-9
        apart = (np.abs(between) > half + (reach @ others.halves[:, :, None])[..., 0]).any(axis=1)
        across = np.abs(np.einsum("ni,nij->nj", between, turn))
        apart |= (across > others.halves + np.einsum("i,nij->nj", half, reach)).any(axis=1)
        for i in range(3):
            for j in range(3):
                i1, i2, j1, j2 = (i + 1) % 3, (i + 2) % 3, (j + 1) % 3, (j + 2) % 3
                distance = np.abs(between[:, i2] * turn[:, i1, j] - between[:, i1] * turn[:, i2, j])
                radius = (
                    half[i1] * reach[:, i2, j]
                    + half[i2] * reach[:, i1, j]
                    + others.halves[:, j1] * reach[:, i, j2]
                    + others.halves[:, j2] * reach[:, i, j1]
                )
                apart |= distance > radius
        hit |= ~apart
    return hit


def turn_z(angle: float) -> np.ndarray:
    """Rotation matrix (3, 3) about the vertical."""
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])


def turn_by(vector: np.ndarray) -> np.ndarray:
    """Rotation matrix (3, 3) of a rotation vector (3,), by Rodrigues' formula."""
    angle = float(np.linalg.norm(vector))
    if angle < 1e-9:
        return np.eye(3)
    x, y, z = vector / angle
    k = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    return np.eye(3) + np.sin(angle) * k + (1 - np.cos(angle)) * k @ k


def rotation_vector(rotation: np.ndarray) -> np.ndarray:
    """Axis times angle (3,) of a rotation matrix with an angle below pi."""
    skew = np.array([rotation[2, 1] - rotation[1, 2], rotation[0, 2] - rotation[2, 0], rotation[1, 0] - rotation[0, 1]])
    sine, cosine = np.linalg.norm(skew) / 2, (np.trace(rotation) - 1) / 2
    angle = np.arctan2(sine, cosine)
    return skew / 2 * (angle / sine if sine > 1e-9 else 1.0)
