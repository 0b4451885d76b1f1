"""Inverse kinematics within the joint limits: which hand poses the arm can take, asked before it tries."""

import mujoco
import numpy as np

from libero_pro.expert.geometry import rotation_vector
from libero_pro.expert.world import World

_ARM = slice(0, 7)
_DAMPING = 1e-3
_POSTURE = 0.05  # pull towards the posture that the controller's nullspace term pulls to
_LIMIT_MARGIN = 0.03  # rad
# Joint angles at the robot's start in every LIBERO scene.
HOME_JOINTS = np.array([0.0, -0.161, 0.0, -2.4459, 0.0, 2.2275, 0.7854])


def misses(world: World, point: np.ndarray, axes: np.ndarray, iterations: int = 80) -> float:
    """How far the arm stays from a grip pose: meters plus a tenth of the radians; about 0 where it can go."""
    return posture(world, point, axes, iterations)[1]


def posture(world: World, point: np.ndarray, axes: np.ndarray, iterations: int = 80) -> tuple[np.ndarray, float]:
    """Joint angles (7,) that bring the hand nearest to a grip pose, and how far it stays from it (see `misses`).

    Damped least squares from the start posture, biased towards it in the nullspace, with joints kept inside their
    limits. point (3,) of the grip site, axes (3, 3) of the hand as columns.
    """
    model, data, site = world.model, world.scratch, world.grip_site
    data.qpos[:] = world.data.qpos
    data.qpos[_ARM] = HOME_JOINTS
    away = point[:2] - world.shoulder[:2]
    data.qpos[0] = np.arctan2(away[1], away[0])
    low, high = model.jnt_range[_ARM].T
    low, high = low + _LIMIT_MARGIN, high - _LIMIT_MARGIN
    jacobian = np.zeros((6, model.nv))
    best, joints = np.inf, data.qpos[_ARM].copy()
    for _ in range(iterations):
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        offset = point - data.site_xpos[site]
        turn = rotation_vector(axes @ data.site_xmat[site].reshape(3, 3).T)
        miss = float(np.linalg.norm(offset) + 0.1 * np.linalg.norm(turn))
        if miss < best:
            best, joints = miss, data.qpos[_ARM].copy()
        if best < 0.002:
            break
        mujoco.mj_jacSite(model, data, jacobian[:3], jacobian[3:], site)
        matrix = jacobian[:, _ARM]
        wanted = np.concatenate([_short(offset, 0.1), _short(turn, 0.4)])
        inverse = matrix.T @ np.linalg.inv(matrix @ matrix.T + _DAMPING * np.eye(6))
        step = inverse @ wanted
        step += (np.eye(7) - inverse @ matrix) @ (_POSTURE * (HOME_JOINTS - data.qpos[_ARM]))
        data.qpos[_ARM] = np.clip(data.qpos[_ARM] + step, low, high)
    return joints, best


def _short(vector: np.ndarray, limit: float) -> np.ndarray:
    return vector * min(1.0, limit / max(float(np.linalg.norm(vector)), 1e-9))
