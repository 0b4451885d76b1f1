"""Simulator: LIBERO physics of one task, stepped 2-3 times faster than robosuite with bit-identical results."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from libero_pro._libero import draw_reset, physics_env
from libero_pro.controller import ArmController, ControllerState
from libero_pro.privileged import SceneState, StateReader
from libero_pro.record import RecordError
from libero_pro.render import Frame
from libero_pro.scene import Goal, Pose, SceneSpec
from libero_pro.suites import Task, nearest

SUBSTEPS = 25  # of 2 ms in each 20 Hz control step
# robosuite samples observations once a control step, in its 24th substep, before that substep moves the bodies: an
# image shows the positions after the 23rd, the finger joints are those after the 24th.
_SAMPLED = 23
SETTLE_ACTION = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0)
HOLD_ACTION = (0.0,) * 7  # the fingers keep what they are driven to
MAX_SPEED = 1e3  # m/s or rad/s; beyond it the physics has exploded
_MUTABLE = ("body_pos", "body_quat", "site_rgba")  # model arrays that differ between scenes or instants


class SimulationError(RecordError):
    """Physics left the valid range (or was driven there): the episode is invalid, not failed."""


@dataclass(frozen=True)
class Snapshot:
    """Everything that determines what happens next; restoring it continues bit-identically."""

    scene: SceneSpec
    physics: np.ndarray
    model: dict[str, np.ndarray]
    controller: ControllerState
    seen: "_Seen"
    kinematics_qpos: np.ndarray
    goal_holds: np.ndarray


@dataclass(frozen=True)
class _Seen:
    """The instant that robosuite's observation shows."""

    qpos: np.ndarray
    site_rgba: np.ndarray
    eef_pos: np.ndarray
    eef_quat: np.ndarray  # wxyz
    gripper_qpos: np.ndarray


class Simulator:
    """One compiled task. Build it once (about a second), then `reset` to any scene of that task in milliseconds.

    `reset` -> `settle` -> `step`/`step_chunk`; read with `proprio`, `frame`, `state`, `goal_holds`. The result depends
    only on the scene and the actions, never on what the simulator did before.
    """

    def __init__(self, task: Task) -> None:
        import mujoco

        self.task = task
        self._mujoco = mujoco
        with task.bddl_file() as path:
            self.env = physics_env(path)  # robosuite's environment, to look things up; never call its step
        self.model: Any = self.env.sim.model._model
        self.data: Any = self.env.sim.data._data
        self._reader = StateReader(self.env)
        self._controller = ArmController(self.env)
        self.object_names = self._reader.object_names
        self.eef_site = self._reader.eef_site
        self.scene: SceneSpec | None = None
        self._state_kind = mujoco.mjtState.mjSTATE_INTEGRATION
        self._state_size = mujoco.mj_stateSize(self.model, self._state_kind)
        self._goal: Goal = task.goal()
        self._holds = np.zeros(len(self._goal), bool)

    @property
    def horizon(self) -> int:
        """Control steps that the benchmark gives this task."""
        return self.task.horizon

    # --- starting

    def reset(self, scene: SceneSpec) -> None:
        """Brings the simulation to the scene's start, as `env.seed; env.reset; env.set_init_state` would.

        Raises RecordError if the scene is of another task or names an unknown object, fixture or predicate,
        SimulationError if its start is not a physical state.
        """
        self.check_task(scene)
        self._check_names(scene)
        draw_reset(self.env, scene.seed)
        self._controller.adopt(self.env.robots[0].controller)
        self._place(scene)
        self.scene, self._goal = scene, scene.goal
        self.env.parsed_problem["goal_state"] = [list(predicate) for predicate in scene.goal]
        self._mujoco.mj_forward(self.model, self.data)
        if scene.start is not None or scene.arm is not None:
            self._controller.restart(scene.start.gripper if scene.start else 0.0)
        self._holds = self._reader.goal_holds(self._goal)
        self.env._post_process()
        self._seen = self._observe(self.data.qpos.copy(), self.model.site_rgba.copy())
        self._kinematics_qpos = self.data.qpos.copy()
        self._check_physics("at the start")

    def settle(self, steps: int = 10) -> None:
        """The protocol's no-op steps with an open gripper, in which dropped objects come to rest.

        In a scene that starts at a stored instant the gripper stays as it is, so that nothing held is dropped.
        """
        resumed = self.scene is not None and self.scene.start is not None
        for _ in range(steps):
            self.step(HOLD_ACTION if resumed else SETTLE_ACTION)

    # --- stepping

    def step(self, action: Sequence[float] | np.ndarray) -> bool:
        """One control step (0.05 s) with a (7,) action in [-1, 1]; returns whether the whole goal holds afterwards.

        Raises SimulationError for a non-finite action or exploding physics.
        """
        command = np.asarray(action, np.float64)
        if command.shape != (7,) or not np.isfinite(command).all():
            raise SimulationError(f"an action must be 7 finite numbers, got {np.array2string(command, precision=3)}")
        if self.scene is None:
            raise SimulationError("step before reset: call reset(scene) first")
        model, data, controller = self.model, self.data, self._controller
        step1, step2 = self._mujoco.mj_step1, self._mujoco.mj_step2
        qpos = data.qpos
        for substep in range(SUBSTEPS):
            if substep >= _SAMPLED:
                self._kinematics_qpos = qpos.copy()
            step1(model, data)
            if substep == 0:
                controller.set_goal(command)
            controller.apply()
            step2(model, data)
            if substep == _SAMPLED:
                self._seen = self._observe(self._kinematics_qpos, model.site_rgba.copy())
        self._check_physics("in a step")
        self._holds = self._reader.goal_holds(self._goal)
        self.env._post_process()
        return bool(self._holds.all())

    def step_chunk(self, actions: np.ndarray, *, stop_at_success: bool = True) -> int:
        """Executes a chunk (k, 7); returns how many actions ran, fewer than k only if the goal was reached."""
        for count, action in enumerate(actions, 1):
            if self.step(action) and stop_at_success:
                return count
        return len(actions)

    def success(self) -> bool:
        """Whether every goal predicate holds now."""
        return bool(self._holds.all())

    def goal_holds(self) -> np.ndarray:
        """(n_goal,) bool: each goal predicate by itself."""
        return self._holds.copy()

    # --- reading

    def proprio(self) -> np.ndarray:
        """(8,) float32 eef position, eef axis-angle, finger joints: LeRobot's `observation.state` of this instant."""
        seen = self._seen
        state = np.concatenate((seen.eef_pos, _axis_angle(seen.eef_quat), seen.gripper_qpos))
        return state.astype(np.float32)

    def frame(self) -> Frame:
        """What a Renderer needs to draw robosuite's image of this instant."""
        look = None if self.scene is None else self.scene.look
        model, seen = self.model, self._seen
        return Frame(seen.qpos, model.body_pos.copy(), model.body_quat.copy(), seen.site_rgba, look)

    def frame_arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """The parts of `frame()` that change during an episode: qpos and site_rgba."""
        return self._seen.qpos, self._seen.site_rgba

    def state(self) -> SceneState:
        """The privileged state as LIBERO's predicates see it after a step."""
        return self._reader.read(self._goal, self._holds)

    def object_pose(self, name: str) -> Pose:
        """World pose of a movable object or fixture; RecordError if there is none of that name."""
        body = self._body(name)
        x, y, z = map(float, self.data.xpos[body])
        qw, qx, qy, qz = map(float, self.data.xquat[body])
        return Pose(position=(x, y, z), quaternion=(qw, qx, qy, qz))

    @property
    def reader(self) -> StateReader:
        """Single readings of the state (positions, held object, contacts), cheaper than `state()`."""
        return self._reader

    def check_task(self, scene: SceneSpec) -> None:
        """RecordError unless the scene is of the task that was compiled, with the same objects in others' places."""
        held = _called(self.task.suite, self.task.task_id, dict(self.task.replaced))
        wanted = _called(scene.suite, scene.task_id, scene.replaced or {})
        if held != wanted:
            raise RecordError(
                f"the scene is of {wanted} but the simulator holds {held}; build Simulator(task_of(scene))"
            )

    # --- snapshots

    def snapshot(self) -> Snapshot:
        """A copy of the present instant."""
        if self.scene is None:
            raise SimulationError("snapshot before reset: call reset(scene) first")
        physics = np.empty(self._state_size)
        self._mujoco.mj_getState(self.model, self.data, physics, self._state_kind)
        return Snapshot(
            scene=self.scene,
            physics=physics,
            model={name: getattr(self.model, name).copy() for name in _MUTABLE},
            controller=self._controller.save(),
            seen=self._seen,
            kinematics_qpos=self._kinematics_qpos,
            goal_holds=self._holds,
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Goes back to a snapshot of this simulator's task; what follows is bit-identical to what followed it.

        Raises RecordError for a snapshot of another task.
        """
        scene = snapshot.scene
        self.check_task(scene)
        for name, value in snapshot.model.items():
            getattr(self.model, name)[:] = value
        self.scene, self._goal, self._holds = scene, scene.goal, snapshot.goal_holds
        self.env.parsed_problem["goal_state"] = [list(predicate) for predicate in scene.goal]
        self._controller.load(snapshot.controller)
        # Body poses and contacts lag the last substep, as after a step.
        self.data.qpos[:] = snapshot.kinematics_qpos
        self._mujoco.mj_fwdPosition(self.model, self.data)
        self._mujoco.mj_setState(self.model, self.data, snapshot.physics, self._state_kind)
        self.data.warning.number[:] = 0
        self._seen, self._kinematics_qpos = snapshot.seen, snapshot.kinematics_qpos

    # --- inside

    def _observe(self, qpos: np.ndarray, site_rgba: np.ndarray) -> _Seen:
        reader = self._reader
        return _Seen(qpos, site_rgba, reader.eef_pos(), self.data.xquat[reader.eef_body].copy(), reader.gripper_qpos())

    def _place(self, scene: SceneSpec) -> None:
        """Overrides the drawn start by the released state or by what the scene gives; everything is at rest."""
        self._place_things(scene)
        if scene.arm is not None:
            self.data.qpos[:7] += scene.arm
            low, high = self.model.jnt_range[:7].T
            beyond = np.flatnonzero((self.data.qpos[:7] < low) | (self.data.qpos[:7] > high))
            if len(beyond):
                raise RecordError(f"arm.{beyond[0]}: joint {beyond[0]} of the arm would start beyond its limits")

    def _place_things(self, scene: SceneSpec) -> None:
        data, model = self.data, self.model
        if scene.init_state_id is not None:
            states = self.task.init_states()
            if scene.init_state_id >= len(states):
                raise RecordError(f"init_state_id {scene.init_state_id}: there are {len(states)} released start states")
            state = states[scene.init_state_id]
            data.time, data.qpos[:], data.qvel[:] = state[0], state[1 : 1 + model.nq], state[1 + model.nq :]
            return
        if scene.start is not None:
            if len(scene.start.qpos) != model.nq:
                raise RecordError(
                    f"start.qpos has {len(scene.start.qpos)} numbers, {self.task.suite} {self.task.task_id} needs "
                    f"{model.nq}"
                )
            data.qpos[:], data.qvel[:] = scene.start.qpos, 0.0
        for name, pose in scene.fixtures.items():
            body = self._body(name)
            model.body_pos[body], model.body_quat[body] = pose.position, _unit(pose, name)
        for name, pose in scene.objects.items():
            joint = self.env.objects_dict[name].joints[-1]
            start = model.jnt_qposadr[model.joint(joint).id]
            data.qpos[start : start + 7] = (*pose.position, *_unit(pose, name))

    def _check_names(self, scene: SceneSpec) -> None:
        """RecordError for the first object, fixture or predicate of the scene that the model does not have."""
        fixtures = tuple(self.env.fixtures_dict)
        for field, given, known in (
            ("objects", scene.objects, self.object_names),
            ("fixtures", scene.fixtures, fixtures),
        ):
            for name in given:
                if name not in known:
                    raise RecordError(
                        f"{field} names '{name}', which {self.task.suite} {self.task.task_id} does not have"
                        f"{nearest(name, list(known)) or '; there are: ' + ', '.join(known)}"
                    )
        arguments = self.env.object_states_dict
        for predicate in scene.goal:
            if len(predicate) - 1 != _ARITY.get(predicate[0]):
                raise RecordError(f"goal {predicate} is not a predicate; use in/on with two names, "
                                  f"open/close/turnon/turnoff with one")  # fmt: skip
            for name in predicate[1:]:
                if name not in arguments:
                    raise RecordError(f"goal {predicate}: '{name}' is not in the scene{nearest(name, list(arguments))}")

    def _body(self, name: str) -> int:
        if name not in self.env.obj_body_id:
            known = list(self.env.obj_body_id)
            raise RecordError(f"there is no object or fixture '{name}'{nearest(name, known)}")
        return self.env.obj_body_id[name]

    def _check_physics(self, when: str) -> None:
        """MuJoCo resets a diverged state by itself and counts a warning, so a look at the state alone would miss it."""
        warnings = self.data.warning.number
        bad = self._mujoco.mjtWarning
        if warnings[bad.mjWARN_BADQPOS] or warnings[bad.mjWARN_BADQVEL] or warnings[bad.mjWARN_BADQACC]:
            raise SimulationError(f"MuJoCo's state diverged {when}; reset to another scene")
        speed = np.abs(self.data.qvel).max()
        if not speed < MAX_SPEED:
            raise SimulationError(f"a joint moves at {speed:.3g} (limit {MAX_SPEED:g}) {when}; reset to another scene")


_ARITY = {"in": 2, "on": 2, "open": 1, "close": 1, "turnon": 1, "turnoff": 1}


def _called(suite: str, task_id: int, replaced: dict[str, str]) -> str:
    """A compiled task in words: equal words, equal objects."""
    others = ", ".join(f"a {category} for {name}" for name, category in sorted(replaced.items()))
    return f"{suite} {task_id}" + (f" with {others}" if others else "")


def _unit(pose: Pose, name: str) -> np.ndarray:
    """The pose's quaternion with length 1."""
    quaternion = np.array(pose.quaternion)
    length = np.linalg.norm(quaternion)
    if length < 1e-6:
        raise RecordError(f"the pose of '{name}' has a zero quaternion; use (1, 0, 0, 0) for no rotation")
    return quaternion if abs(length - 1.0) < 1e-12 else quaternion / length


def _axis_angle(wxyz: np.ndarray) -> np.ndarray:
    """(3,) float32 rotation vector by LeRobot's float32 formula (no wrap at pi)."""
    w, xyz = np.float32(wxyz[0]), wxyz[1:].astype(np.float32)
    w = np.clip(w, np.float32(-1), np.float32(1))
    sine = np.sqrt(np.maximum(np.float32(1) - w * w, np.float32(0)))
    if sine <= 1e-10:
        return np.zeros(3, np.float32)
    return xyz / sine * (np.float32(2) * np.arccos(w))
