"""Episodes built by hand: three objects and a basket on a plane, an arm that moves between waypoints."""

from collections.abc import Sequence

import numpy as np

from libero_pro.episode import Episode
from libero_pro.scene import SceneSpec

NAMES = ("milk_1", "ketchup_1", "butter_1", "basket_1")
PLACES = np.array([[0.1, 0.2, 0.03], [0.1, -0.2, 0.03], [-0.2, 0.2, 0.03], [0.0, 0.0, 0.03]])
START = np.array([-0.2, 0.0, 0.3])
T = 90


def scene(seed: int = 0, task_id: int = 7, target: str = "milk_1", program: str | None = None) -> SceneSpec:
    """A libero_object scene that asks for `target`."""
    return SceneSpec(
        suite="libero_object",
        task_id=task_id,
        instruction=f"pick the {target.rsplit('_', 1)[0]} and place it in the basket",
        prompt_source="generated",
        goal=(("in", target, "basket_1_contain_region"),),
        seed=seed,
        program=program,
    )


def path(*waypoints: Sequence[float], steps: int = T) -> np.ndarray:
    """(steps + 1, 3) straight lines through the waypoints, at equal speed in index."""
    points = np.array(waypoints, float)
    at = np.linspace(0, len(points) - 1, steps + 1)
    return np.stack([np.interp(at, np.arange(len(points)), points[:, k]) for k in range(3)], axis=-1)


def episode(
    eef: np.ndarray,
    *,
    closed: Sequence[tuple[int, int]] = (),
    held: dict[str, tuple[int, int]] | None = None,
    move: dict[str, np.ndarray] | None = None,
    success: bool = False,
    truncated: bool | None = None,
    where: SceneSpec | None = None,
    actor: str = "policy:test",
    push: float = 0.0,
) -> Episode:
    """An episode of len(eef) - 1 steps.

    closed  [start, stop) steps with the gripper commanded closed
    held    object -> [start, stop) instants at which both fingers touch it; it follows the arm meanwhile and then stays
            where it was let go, on the ground
    move    object -> (T+1, 3) its whole path instead;  push  commanded translation of every step
    """
    steps = len(eef) - 1
    where = where or scene()
    actions = np.zeros((steps, 7), np.float32)
    actions[:, 0] = push
    actions[:, 6] = -1
    for start, stop in closed:
        actions[start:stop, 6] = 1
    positions = np.repeat(PLACES[None], steps + 1, axis=0)
    touch = np.full(steps + 1, -1, np.int16)
    for name, (start, stop) in (held or {}).items():
        i = NAMES.index(name)
        touch[start:stop] = i
        positions[start:stop, i] = eef[start:stop]
        positions[start:stop, i, 2] = PLACES[i, 2] + np.maximum(0, eef[start:stop, 2] - eef[start, 2])
        positions[stop:, i] = [*positions[stop - 1, i, :2], PLACES[i, 2]]
    for name, whole in (move or {}).items():
        positions[:, NAMES.index(name)] = whole
    holds = np.zeros((steps + 1, len(where.goal)), bool)
    holds[-1] = success
    zeros = np.zeros
    return Episode(
        scene=where,
        actor=actor,
        success=success,
        terminated=success,
        truncated=(not success) if truncated is None else truncated,
        object_names=NAMES,
        actions=actions,
        qpos=zeros((steps + 1, 3)),
        frame_qpos=zeros((steps + 1, 3)),
        site_rgba=zeros((1, 1, 4), np.float32),
        body_pos=zeros((2, 3)),
        body_quat=zeros((2, 4)),
        proprio=zeros((steps + 1, 8), np.float32),
        object_pos=positions,
        object_quat=np.tile([1.0, 0, 0, 0], (steps + 1, len(NAMES), 1)),
        eef_pos=eef,
        held=touch,
        goal_holds=holds,
        executed=np.full(steps // 8 or 1, 8, np.int16),
        camera=np.array([[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1]]),
    )


def above(name: str, height: float = 0.04) -> np.ndarray:
    """A point over an object's place."""
    return PLACES[NAMES.index(name)] + [0, 0, height]


def solved(where: SceneSpec | None = None, actor: str = "policy:test") -> Episode:
    """A success: grasp, lift, carry, release in the basket."""
    eef = path(START, above("milk_1"), above("milk_1", 0.2), above("basket_1", 0.2), steps=T)
    return episode(eef, closed=[(30, 88)], held={"milk_1": (32, 89)}, success=True, where=where, actor=actor)


def lost(where: SceneSpec | None = None, actor: str = "policy:test") -> Episode:
    """A failure of localization: the gripper closes where nothing stands."""
    eef = path(START, [-0.2, -0.25, 0.07], [-0.2, -0.25, 0.2], START)
    return episode(eef, closed=[(30, T)], where=where, actor=actor)


def beside(where: SceneSpec | None = None, actor: str = "policy:test") -> Episode:
    """A failure of grasping: the gripper closes 1 cm beside the target."""
    eef = path(START, above("milk_1") + np.array([0.01, 0, 0]), above("milk_1", 0.2), START)
    return episode(eef, closed=[(30, T)], where=where, actor=actor)
