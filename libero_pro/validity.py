"""The gates that a generated scene passes before it costs a rollout, cheapest first. Each rejection says why.

verdict = check(scene, simulator)      # or check(scene) for the gates that need no simulator
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from libero_pro.denylist import ARM_JOINTS, leaks
from libero_pro.looks import surfaces
from libero_pro.record import Record, RecordError
from libero_pro.replacement import task_of, unfit
from libero_pro.scene import Look, SceneSpec
from libero_pro.suites import get_task, nearest

if TYPE_CHECKING:
    from libero_pro.simulator import Simulator

STATIC_GATES = ("schema", "leakage")  # need no simulator
GATES = (*STATIC_GATES, "build", "penetration", "settles", "goal_not_true", "reach", "solved")

PENETRATION_M = 0.002
SETTLE_STEPS = 20  # control steps of 25 physics steps, fewer once everything has been at rest for CALM_STEPS
CALM_STEPS = 3
AT_REST = 1e-3  # m/s and rad/s
SPEED_LIMIT = 0.05  # m/s and rad/s after settling
TILT_LIMIT = np.deg2rad(15.0)
DRIFT_LIMIT = 0.03  # metres; in x and y only for objects that the scene leaves to the reset
HOVER_M = 0.06  # the hand must get this far above a goal object's highest point
_ARM = slice(0, ARM_JOINTS)  # arm and finger joints come first in qpos and qvel
_ARITY = {"in": 2, "on": 2, "open": 1, "close": 1, "turnon": 1, "turnoff": 1}

Solver = Callable[["Simulator", SceneSpec], bool]


class Verdict(Record):
    """What the gates said of one scene: `gate` is the one that rejected it, None if none did."""

    scene: str  # hash, empty if the scene could not be read
    accepted: bool
    gate: str | None = None
    reason: str = ""


def check(
    scene: SceneSpec | str | dict,
    simulator: "Simulator | None" = None,
    *,
    gates: Sequence[str] = GATES,
    solve: Solver | None = None,
) -> Verdict:
    """Runs the gates in order until one rejects.

    Without a simulator only the static gates run; "solved" runs only if `solve` is given (it returns whether an expert
    solves the scene). The simulator is left somewhere in the settled scene: reset it before use.
    """
    unknown = [gate for gate in gates if gate not in GATES]
    if unknown:
        raise RecordError(f"gate '{unknown[0]}' is unknown{nearest(unknown[0], list(GATES))}")
    try:
        spec = scene if isinstance(scene, SceneSpec) else SceneSpec.parse(scene)
    except RecordError as error:
        return Verdict(scene="", accepted=False, gate="schema", reason=str(error))
    wanted = [gate for gate in GATES if gate in gates]
    if simulator is None:
        wanted = [gate for gate in wanted if gate in STATIC_GATES]
    started: _Started | None = None
    for gate in wanted:
        reason: str | None
        if gate == "schema":
            reason = _names(spec)
        elif gate == "leakage":
            reason = leaks(spec)
        elif gate == "solved":
            reason = None if solve is None or solve(simulator, spec) else "the expert does not solve it"  # type: ignore[arg-type]
        else:
            if started is None:
                try:
                    simulator.reset(spec)  # type: ignore[union-attr]
                    started = _Started(simulator)
                except RecordError as error:
                    return Verdict(scene=spec.hash, accepted=False, gate="build", reason=str(error))
            reason = started.judge(gate)
        if reason:
            return Verdict(scene=spec.hash, accepted=False, gate=gate, reason=reason)
    return Verdict(scene=spec.hash, accepted=True)


def _names(scene: SceneSpec) -> str | None:
    """Whether everything that the scene names exists in its task."""
    try:
        task = task_of(scene)
    except RecordError as error:
        return str(error)
    for name, category in (scene.replaced or {}).items():
        reason = unfit(get_task(scene.suite, scene.task_id), name, category, scene.goal, [scene.instruction])
        if reason:
            return f"replaced: {reason}"
    problem = task.problem()
    for field, given, known in (
        ("objects", scene.objects, problem.objects),
        ("fixtures", scene.fixtures, problem.fixtures),
    ):
        for name in given:
            if name not in known:
                return f"{field}: '{name}' is not in {scene.suite} {scene.task_id}{nearest(name, list(known))}"
    arguments = {*problem.objects, *problem.fixtures, *problem.regions}
    for predicate in scene.goal:
        if not predicate or len(predicate) - 1 != _ARITY.get(predicate[0]):
            return f"goal: {predicate} is not one of {', '.join(_ARITY)} with its one or two names"
        for name in predicate[1:]:
            if name not in arguments:
                return f"goal: '{name}' is not in {scene.suite} {scene.task_id}{nearest(name, list(arguments))}"
    if scene.start is not None and len(scene.start.qpos) < ARM_JOINTS + 7 * len(problem.objects):
        return f"start.qpos: {len(scene.start.qpos)} numbers are too few for the arm and {len(problem.objects)} objects"
    for field, quaternion in _quaternions(scene, tuple(problem.objects)):
        if abs(np.linalg.norm(quaternion) - 1.0) > 0.01:
            return f"{field}: a quaternion of length {np.linalg.norm(quaternion):.3f}, must be 1"
    return None if scene.look is None else _look_names(scene, scene.look)


def _quaternions(scene: SceneSpec, names: tuple[str, ...]) -> Iterator[tuple[str, tuple[float, ...]]]:
    """(field, wxyz) of every orientation that the scene gives."""
    for field, poses in (("objects", scene.objects), ("fixtures", scene.fixtures)):
        for name, pose in poses.items():
            yield f"{field}.{name}.quaternion", pose.quaternion
    if scene.start is not None:
        for order, name in enumerate(names):
            first = ARM_JOINTS + 7 * order
            yield f"start.qpos ({name})", scene.start.qpos[first + 3 : first + 7]


def _look_names(scene: SceneSpec, look: Look) -> str | None:
    """Whether the look names what the scene shows."""
    task = task_of(scene)
    ground = surfaces(task)
    known = [*task.objects(), *task.fixtures(), *ground]
    for field, names, valid in (
        ("look.tints", look.tints, known),
        ("look.textures", look.textures, list(ground)),
        ("look.textures", look.textures.values(), known),
    ):
        for name in names:
            if name not in valid:
                return f"{field}: '{name}' is not in {scene.suite} {scene.task_id}{nearest(name, valid)}"
    return None


class _Started:
    """One scene in a simulator, at its start and (computed when first asked for) settled."""

    def __init__(self, simulator: Any) -> None:
        self.sim = simulator
        self.problem = simulator.task.problem()
        model = simulator.model
        self.bodies = {
            name: model.body(f"{name}_main").id
            for name in (*self.problem.objects, *self.problem.fixtures)
            if _has_body(model, f"{name}_main")
        }
        self.start_pos, self.start_quat = simulator.data.xpos.copy(), simulator.data.xquat.copy()
        self.settled = False

    def judge(self, gate: str) -> str | None:
        """The reason to reject, or None."""
        if gate == "build":
            return None
        if gate == "penetration":
            return self._penetration()
        if not self.settled:
            self._settle()
        return {"settles": self._settles, "goal_not_true": self._goal_true, "reach": self._reach}[gate]()

    def _penetration(self) -> str | None:
        """Objects inside each other or a fixture; the table is not judged, since LIBERO starts objects inside it.

        The robot is judged where the scene moves its arm.
        """
        model, contact = self.sim.model, self.sim.data.contact
        names = {body: name for name, body in self.bodies.items()}
        if self.sim.scene.arm is not None:
            names[model.body_rootid[model.body("robot0_base").id]] = "the robot"
        roots = model.body_rootid[model.geom_bodyid[contact.geom]]
        for (a, b), depth in zip(roots, contact.dist, strict=True):
            if depth < -PENETRATION_M and a != b and a in names and b in names:
                return f"{names[a]} and {names[b]} overlap by {-1000 * depth:.0f} mm"
        return None

    def _settle(self) -> None:
        """Physics with the arm held still (the protocol's no-ops, without the cost of the controller)."""
        import mujoco

        model, data = self.sim.model, self.sim.data
        arm = data.qpos[_ARM].copy()
        calm = 0
        for _ in range(SETTLE_STEPS - 1):
            for _ in range(25):
                mujoco.mj_step(model, data)
                data.qpos[_ARM], data.qvel[_ARM] = arm, 0.0
            calm = calm + 1 if np.abs(data.qvel).max() < AT_REST else 0
            if calm == CALM_STEPS:
                break
        self.settled = True

    def _settles(self) -> str | None:
        data = self.sim.data
        explicit = self.sim.scene.objects
        for name in self.problem.objects:
            body = self.bodies[name]
            joint = self.sim.model.body_dofadr[body]
            speed = np.abs(data.qvel[joint : joint + 6]).max()
            if not speed < SPEED_LIMIT:
                return f"{name} still moves at {speed:.2f}"
            axes = 3 if name in explicit else 2  # a reset drops its objects from some centimetres
            drift = np.linalg.norm(data.xpos[body, :axes] - self.start_pos[body, :axes])
            if not drift < DRIFT_LIMIT:
                return f"{name} drifts {100 * drift:.1f} cm"
            if name in explicit:
                tilt = _angle_between_up(self.start_quat[body], data.xquat[body])
                if not tilt < TILT_LIMIT:
                    return f"{name} tips by {np.rad2deg(tilt):.0f} degrees"
        return None

    def _goal_true(self) -> str | None:
        from libero_pro.simulator import SETTLE_ACTION, SimulationError

        try:
            self.sim.step(SETTLE_ACTION)
        except SimulationError as error:
            return str(error)
        return "the goal already holds" if self.sim.success() else None

    def _reach(self) -> str | None:
        """The hand, pointing down, gets above every object and region of the goal."""
        data, model = self.sim.data, self.sim.model
        for predicate in self.sim.scene.goal:
            if predicate[0] not in ("in", "on"):
                continue
            for name in predicate[1:]:
                if name in self.bodies:
                    point = data.xpos[self.bodies[name]].copy()
                    point[2] = _highest(model, data, self.bodies[name])
                elif _has_site(model, name):
                    point = data.site_xpos[model.site(name).id].copy()
                else:
                    continue
                error = reach_error(model, data, self.sim.eef_site, point + np.array([0.0, 0.0, HOVER_M]))
                if error > 0.01:
                    return f"the hand stays {100 * error:.0f} cm away from above {name}"
        return None


def reach_error(model: Any, data: Any, site: int, point: np.ndarray, iterations: int = 60) -> float:
    """Distance (m) that is left after inverse kinematics brings the grip site, pointing down, to a world point.

    Damped least squares on position and approach axis within the joint limits, from the arm's present pose; `data` is
    not changed.
    """
    import mujoco

    scratch = mujoco.MjData(model)
    scratch.qpos[:] = data.qpos
    joints = slice(0, 7)
    low, high = model.jnt_range[joints].T
    jacobian = np.zeros((2, 3, model.nv))
    error = np.inf
    for _ in range(iterations):
        mujoco.mj_kinematics(model, scratch)
        mujoco.mj_comPos(model, scratch)
        offset = point - scratch.site_xpos[site]
        approach = scratch.site_xmat[site].reshape(3, 3)[:, 2]
        turn = np.cross(approach, [0.0, 0.0, -1.0])
        error = float(np.linalg.norm(offset))
        if error < 0.005 and np.linalg.norm(turn) < 0.1:
            break
        mujoco.mj_jacSite(model, scratch, jacobian[0], jacobian[1], site)
        matrix = jacobian[:, :, joints].reshape(6, 7)
        wanted = np.concatenate([np.clip(offset, -0.1, 0.1), np.clip(turn, -0.5, 0.5)])
        step = matrix.T @ np.linalg.solve(matrix @ matrix.T + 1e-3 * np.eye(6), wanted)
        scratch.qpos[joints] = np.clip(scratch.qpos[joints] + step, low, high)
    return error


def _angle_between_up(before: np.ndarray, after: np.ndarray) -> float:
    """Angle (rad) that a rotation wxyz -> wxyz turns the world's vertical, as seen from the body."""
    return float(np.arccos(np.clip(np.dot(_up(before), _up(after)), -1.0, 1.0)))


def _up(quat: np.ndarray) -> np.ndarray:
    """The world's z axis in the body's frame."""
    w, x, y, z = quat
    return np.array([2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)])


def _highest(model: Any, data: Any, root: int) -> float:
    """Highest point (m) of an instance's collision boxes."""
    geoms = np.flatnonzero((model.body_rootid[model.geom_bodyid] == root) & (model.geom_contype > 0))
    reach = np.abs(data.geom_xmat[geoms].reshape(-1, 3, 3)[:, 2] * model.geom_size[geoms]).sum(axis=1)
    return float((data.geom_xpos[geoms, 2] + reach).max())


def _has_body(model: Any, name: str) -> bool:
    import mujoco

    return mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, name) >= 0


def _has_site(model: Any, name: str) -> bool:
    import mujoco

    return mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_SITE, name) >= 0
