"""Drawers, doors and knobs: the joints that Open, Close, Turnon and Turnoff speak of, and how far they must go."""

from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np

from libero_pro.expert.world import World
from libero_pro.record import RecordError

_OPPOSITE = {"open": "close", "close": "open", "turnon": "turnoff", "turnoff": "turnon"}
_MARGIN = 0.25  # m or rad beyond the threshold at most, and
_SHARE = 0.7  # of the way to the end of the range, so that a small slip does not undo it


@dataclass(frozen=True)
class Articulation:
    """One joint of a fixture.

    name    region or fixture that goals call it by
    joint, body, address  numbers of the joint, of the body that it moves, and of its position in qpos
    hinge   turns (rad) instead of slides (m)
    ranges  predicate -> joint positions (low, high) for which it holds
    """

    name: str
    joint: int
    body: int
    address: int
    hinge: bool
    ranges: dict[str, tuple[float, float]]

    def sign(self, predicate: str) -> float:
        """+1 or -1: the way that the joint must go."""
        low, high = self.ranges[predicate]
        opposite = self.ranges[_OPPOSITE[predicate]]
        return 1.0 if low + high > sum(opposite) else -1.0

    def threshold(self, predicate: str) -> float:
        """Joint position beyond which the predicate holds."""
        return self.ranges[predicate][0 if self.sign(predicate) > 0 else 1]

    def end(self, predicate: str) -> float:
        """Joint position at which the predicate's range ends: what is pulled hard goes on to there."""
        return self.ranges[predicate][1 if self.sign(predicate) > 0 else 0]

    def target(self, predicate: str) -> float:
        """Joint position to go for: clearly beyond the threshold."""
        threshold, far = self.threshold(predicate), self.end(predicate)
        return threshold + float(np.clip(_SHARE * (far - threshold), -_MARGIN, _MARGIN))

    def position(self, world: World) -> float:
        """Joint position now."""
        return float(world.data.qpos[self.address])

    def speed(self, world: World) -> float:
        """Joint velocity now, m/s or rad/s."""
        return float(world.data.qvel[world.model.jnt_dofadr[self.joint]])

    def left(self, world: World, predicate: str) -> float:
        """How far (m or rad) the joint still is from the target, negative beyond it."""
        return self.sign(predicate) * (self.target(predicate) - self.position(world))

    def holds(self, world: World, predicate: str, beyond: float = 0.0) -> bool:
        """The joint is past the predicate's threshold by more than `beyond`, whether or not at its target."""
        return self.sign(predicate) * (self.position(world) - self.threshold(predicate)) > beyond

    def direction(self, world: World, predicate: str, point: np.ndarray) -> np.ndarray:
        """Unit vector (3,) along which a world point (3,) of the moving part goes as the predicate comes true."""
        axis = world.data.xaxis[self.joint] * self.sign(predicate)
        way = np.cross(axis, point - world.data.xanchor[self.joint]) if self.hinge else axis
        return way / np.linalg.norm(way)

    def moved(self, world: World, point: np.ndarray, change: float) -> np.ndarray:
        """Where a world point (3,) of the moving part is after the joint has changed by so much."""
        axis, anchor = world.data.xaxis[self.joint], world.data.xanchor[self.joint]
        if not self.hinge:
            return point + axis * change
        arm = point - anchor
        along = axis * (axis @ arm)
        return anchor + along + np.cos(change) * (arm - along) + np.sin(change) * np.cross(axis, arm)


def articulations(env: Any) -> dict[str, Articulation]:
    """Every region and fixture of a LIBERO environment that a joint of its fixture opens, closes or turns, by name."""
    model = env.sim.model._model
    named: dict[str, tuple[Any, str]] = {
        name: (site.joints or (), site.parent_name) for name, site in env.object_sites_dict.items()
    }
    named |= {name: (fixture.joints, name) for name, fixture in env.fixtures_dict.items()}
    found = {}
    for name, (joints, parent) in named.items():
        if len(joints) != 1 or parent not in env.fixtures_dict:
            continue
        joint = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_JOINT, joints[0])
        limits = env.fixtures_dict[parent].object_properties.get("articulation", {})
        ranges = {
            predicate: (float(min(limits[key])), float(max(limits[key])))
            for predicate in _OPPOSITE
            if len(limits.get(key := f"default_{predicate}_ranges", ())) == 2
        }
        if ranges:
            hinge = model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_HINGE
            body, address = int(model.jnt_bodyid[joint]), int(model.jnt_qposadr[joint])
            found[name] = Articulation(name, joint, body, address, bool(hinge), ranges)
    return found


def articulation(known: dict[str, Articulation], predicate: tuple[str, ...]) -> Articulation:
    """The joint that an Open, Close, Turnon or Turnoff predicate speaks of; RecordError if it has none."""
    found = known.get(predicate[1])
    if found is None or predicate[0] not in found.ranges:
        raise RecordError(f"goal {predicate}: '{predicate[1]}' has no joint that could do that")
    return found
