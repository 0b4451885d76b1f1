"""Camera projection as a matrix: world points to image coordinates without a simulator at hand."""

from typing import Any

import numpy as np


def projection(model: Any, source: Any, camera: str = "agentview") -> np.ndarray:
    """(3, 4) matrix P with (u w, v w, w) = P (x, y, z, 1): u, v in 0..1 of LeRobot's image (mirrored), v downwards.

    `source` is a Frame, whose look may have moved the camera, or a MjData with up-to-date kinematics. A fixed camera
    has one matrix for all episodes of its arena.
    """
    from libero_pro.render import Frame, camera_id, posed

    data = posed(model, source) if isinstance(source, Frame) else source
    index = camera_id(model, camera)
    x, y, z = data.cam_xmat[index].reshape(3, 3).T
    span = 2 * np.tan(np.radians(model.cam_fovy[index]) / 2)
    rows = np.stack([x / span + 0.5 * z, y / span + 0.5 * z, z])
    return np.concatenate([rows, -rows @ data.cam_xpos[index][:, None]], axis=1)


def project(camera: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Image coordinates (..., 2) of world points (..., 3) under a (3, 4) projection."""
    homogeneous = points @ camera[:, :3].T + camera[:, 3]
    return homogeneous[..., :2] / homogeneous[..., 2:]
