"""Faults of what a policy sees and does: images, state, actions, a demonstration."""

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.faults.bench import Bench, Fault
from lerobot_coda.doctor import simulator
from lerobot_coda.doctor.check import Finding


class Driven:
    """A simulator whose actions arrive changed."""

    def __init__(self, driven: Any, change: Callable[[np.ndarray], np.ndarray]) -> None:
        self._driven, self._change = driven, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driven, name)

    def step(self, action: Any) -> bool:
        """One changed action."""
        return self._driven.step(self._change(np.asarray(action, float)))


def turned(turn: Callable[[np.ndarray], np.ndarray]) -> Callable[[Bench], Finding]:
    """Looks at images turned in a way that users get wrong."""
    return lambda bench: simulator.image_orientation({name: turn(image) for name, image in bench.images.items()})


def stated(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Bench], Finding]:
    """Looks at the state of the start, changed."""

    def look(bench: Bench) -> Finding:
        sim = bench.simulator
        truth = simulator.true_state(sim)
        return simulator.state(change(sim.proprio()), *truth)

    return look


def quaternion(state: np.ndarray) -> np.ndarray:
    """The state with robosuite's own quaternion in place of LeRobot's axis-angle."""
    from scipy.spatial.transform import Rotation

    return np.concatenate([state[:3], Rotation.from_rotvec(state[3:6]).as_quat(), state[6:]])


def driven(*signs: int) -> Callable[[Bench], Finding]:
    """Looks at actions of which some arrive with the other sign."""
    return lambda bench: simulator.actions(Driven(bench.simulator, lambda action: action * np.array(signs)))


def demonstrated(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Bench], Finding]:
    """Replays the expert's actions, changed."""

    def look(bench: Bench) -> Finding:
        from libero_pro.expert import solve

        sim = bench.simulator
        kept, scene = sim.snapshot(), sim.scene
        try:
            return simulator.demonstration(sim, change(solve(sim, scene).actions))
        finally:
            sim.restore(kept)

    return look


def same(value: Any) -> Any:
    """Unchanged."""
    return value


SIMULATOR = (
    Fault("a scene without the wrist camera", "cameras", "no camera robot0_eye_in_hand",
          lambda bench: simulator.cameras(["frontview", "agentview"]),
          lambda bench: simulator.cameras(["agentview", "robot0_eye_in_hand"]), "machine"),
    Fault("images upside down", "image orientation", "upside down", turned(lambda i: i[::-1]), turned(same), "render"),
    Fault("images mirrored", "image orientation", "mirrored", turned(lambda i: i[:, ::-1]), turned(same), "render"),
    Fault("images turned around", "image orientation", "180", turned(lambda i: i[::-1, ::-1]), turned(same), "render"),
    Fault("blue for red", "image orientation", "BGR", turned(lambda i: i[..., ::-1]), turned(same), "render"),
    Fault("black images", "image orientation", "something else", turned(np.zeros_like), turned(same), "render"),
    Fault("a state of 7 numbers", "state", "7 numbers (one finger joint is missing)",
          stated(lambda s: s[:7]), stated(same), "simulator"),
    Fault("a quaternion in the state", "state", "a quaternion", stated(quaternion), stated(same), "simulator"),
    Fault("degrees in the state", "state", "numbers 4-6", stated(lambda s: s * [1, 1, 1, 57.3, 57.3, 57.3, 1, 1]),
          stated(same), "simulator"),
    Fault("millimetres in the state", "state", "numbers 1-3", stated(lambda s: s * [1e3, 1e3, 1e3, 1, 1, 1, 1, 1]),
          stated(same), "simulator"),
    Fault("an inverted gripper", "actions", "gripper +1", driven(1, 1, 1, 1, 1, 1, -1), driven(*[1] * 7), "simulator"),
    Fault("inverted height", "actions", "number 3", driven(1, 1, -1, 1, 1, 1, 1), driven(*[1] * 7), "simulator"),
    Fault("inverted rotation", "actions", "number 6", driven(1, 1, 1, 1, 1, -1, 1), driven(*[1] * 7), "simulator"),
    Fault("a demonstration of another convention", "demonstration", "do not reach the goal",
          demonstrated(lambda actions: actions * [1, 1, 1, 1, 1, 1, -1]), demonstrated(same), "simulator"),
)  # fmt: skip
