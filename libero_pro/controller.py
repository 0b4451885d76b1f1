"""robosuite's OSC_POSE controller and Panda gripper without their overhead: the same numbers, bit for bit.

The formulas, their order and the memory layout of every matrix are robosuite's; what is gone is the second and third
forward pass of each substep, name look-ups and buffers that nobody reads.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from libero_pro._libero import quiet_import

# What a controller remembers between substeps; set from robosuite's controller after a reset, stored in snapshots.
_STATE = ("ee_pos", "ee_ori_mat", "ee_pos_vel", "ee_ori_vel", "joint_pos", "joint_vel", "J_pos", "J_ori", "J_full",
          "mass_matrix", "goal_pos", "goal_ori", "initial_joint")  # fmt: skip


@dataclass(frozen=True)
class ControllerState:
    """Copies of the arrays that a controller carries from one substep to the next."""

    arrays: dict[str, np.ndarray]
    due: bool  # False right after a reset: robosuite's first substep still uses the arm pose of the reset
    gripper: np.ndarray


class ArmController:
    """Turns a (7,) action into `data.ctrl`, substep by substep."""

    ee_pos: np.ndarray
    ee_ori_mat: np.ndarray
    ee_pos_vel: np.ndarray
    ee_ori_vel: np.ndarray
    joint_pos: np.ndarray
    joint_vel: np.ndarray
    J_pos: np.ndarray
    J_ori: np.ndarray
    J_full: np.ndarray
    mass_matrix: np.ndarray
    goal_pos: np.ndarray
    goal_ori: np.ndarray
    initial_joint: np.ndarray

    def __init__(self, env: Any) -> None:
        import mujoco

        self._mujoco, self._math = mujoco, quiet_import("robosuite.utils.control_utils")
        robot = env.robots[0]
        controller, gripper = robot.controller, robot.gripper
        self._model, self._data = env.sim.model._model, env.sim.data._data
        self._site = robot.eef_site_id
        # The Panda's joints, dofs and motors come first in the model, so slices stand for robosuite's index lists.
        for indexes in (controller.qpos_index, controller.qvel_index, robot._ref_joint_actuator_indexes):
            if list(indexes) != list(range(7)):
                raise RuntimeError("the arm's joints are not the first seven of the model")
        self._scale_action = controller.scale_action
        self._kp_pos, self._kp_ori = controller.kp[:3].copy(), controller.kp[3:].copy()
        self._kd_pos, self._kd_ori = controller.kd[:3].copy(), controller.kd[3:].copy()
        self._torque_low, self._torque_high = (np.array(limit) for limit in robot.torque_limits)
        self._grip_motors = np.array(robot._ref_joint_gripper_actuator_indexes)
        grip_range = self._model.actuator_ctrlrange[self._grip_motors]
        self._grip_bias = 0.5 * (grip_range[:, 1] + grip_range[:, 0])
        self._grip_weight = 0.5 * (grip_range[:, 1] - grip_range[:, 0])
        self._grip_speed = np.array([-1.0, 1.0]) * gripper.speed
        self._jacobian = np.zeros((6, self._model.nv))
        self._full_mass = np.zeros((self._model.nv, self._model.nv))
        self._gripper: np.ndarray = np.zeros(2)
        self._grip_step = np.zeros(2)
        self._due = False

    def adopt(self, controller: Any) -> None:
        """Takes over the state of robosuite's controller right after a reset, and opens the gripper's ramp."""
        for name in _STATE:
            setattr(self, name, getattr(controller, name).copy(order="K"))
        self._due = controller.new_update
        self._gripper = np.zeros(2)

    def restart(self, gripper: float = 0.0) -> None:
        """Takes the arm's present pose for the one that a reset left, as robosuite does where it disturbs the start.

        Call after `mj_forward`. gripper: how far the fingers are driven, -1 open to 1 closed.
        """
        self._due = True
        self._update()
        self.goal_pos, self.goal_ori = self.ee_pos.copy(), self.ee_ori_mat.copy()
        self.initial_joint = self.joint_pos.copy()
        self._gripper = np.array([-gripper, gripper])

    def save(self) -> ControllerState:
        """A copy of everything that influences the next torque."""
        arrays = {name: getattr(self, name).copy(order="K") for name in _STATE}
        return ControllerState(arrays, self._due, self._gripper.copy())

    def load(self, state: ControllerState) -> None:
        """Undoes everything since `save`."""
        for name, array in state.arrays.items():
            setattr(self, name, array.copy(order="K"))
        self._due, self._gripper = state.due, state.gripper.copy()

    def set_goal(self, action: np.ndarray) -> None:
        """Starts a control step; call after `mj_step1` of its first substep. action: (7,) float64."""
        self._update()
        delta = self._scale_action(action[:6])
        if delta[3:].any():  # robosuite keeps the old orientation goal only for an exact zero
            self.goal_ori = self._math.set_goal_orientation(delta[3:], self.ee_ori_mat)
        self.goal_pos = self.ee_pos + delta[:3]
        self._grip_step = self._grip_speed * np.sign(action[6:])

    def apply(self) -> None:
        """Writes this substep's torques and finger targets into `data.ctrl`; call between mj_step1 and mj_step2."""
        self._update()
        ori_error = self._math.orientation_error(self.goal_ori, self.ee_ori_mat)
        force = np.multiply(self.goal_pos - self.ee_pos, self._kp_pos) + np.multiply(-self.ee_pos_vel, self._kd_pos)
        torque = np.multiply(ori_error, self._kp_ori) + np.multiply(-self.ee_ori_vel, self._kd_ori)
        _, lambda_pos, lambda_ori, nullspace = self._math.opspace_matrices(
            self.mass_matrix, self.J_full, self.J_pos, self.J_ori
        )
        wrench = np.concatenate([np.dot(lambda_pos, force), np.dot(lambda_ori, torque)])
        torques = np.dot(self.J_full.T, wrench) + self._data.qfrc_bias[:7]
        torques += self._math.nullspace_torques(
            self.mass_matrix, nullspace, self.initial_joint, self.joint_pos, self.joint_vel
        )
        self._gripper = np.minimum(np.maximum(self._gripper + self._grip_step, -1.0), 1.0)
        control = self._data.ctrl
        control[:7] = np.minimum(np.maximum(torques, self._torque_low), self._torque_high)
        control[self._grip_motors] = self._grip_bias + self._grip_weight * self._gripper
        self._due = True

    def _update(self) -> None:
        """Reads the arm's kinematics and dynamics of this substep, once."""
        if not self._due:
            return
        model, data, jacobian = self._model, self._data, self._jacobian
        self._mujoco.mj_jacSite(model, data, jacobian[:3], jacobian[3:], self._site)
        self._mujoco.mj_fullM(model, self._full_mass, data.qM)
        self.ee_pos = data.site_xpos[self._site].copy()
        self.ee_ori_mat = data.site_xmat[self._site].reshape(3, 3).copy()
        self.ee_pos_vel = np.dot(jacobian[:3], data.qvel)
        self.ee_ori_vel = np.dot(jacobian[3:], data.qvel)
        self.joint_pos = data.qpos[:7].copy()
        self.joint_vel = data.qvel[:7].copy()
        # Column-major like robosuite's: another layout takes another BLAS path and rounds differently.
        self.J_pos = np.array(jacobian[:3, :7], order="F")
        self.J_ori = np.array(jacobian[3:, :7], order="F")
        self.J_full = np.array(jacobian[:, :7], order="F")
        self.mass_matrix = np.array(self._full_mass[:7, :7], order="F")
        self._due = False
