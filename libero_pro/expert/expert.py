"""The expert: looks at the state, decides what phase of pick-and-place it is in, and says what to do.

It remembers nothing that a state does not show, so it recovers from disturbances, can label any state that a policy
visited, and its demonstrations can be imitated by a policy without memory: hand pose, finger width and object positions
determine the action up to what stands in the way.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from libero_pro.expert.grasps import OPENING, TIP, Grasp, plan_grasp
from libero_pro.expert.motion import hand_turn, motion, reachable, strain
from libero_pro.expert.placements import Place, clearance, find_place, neighbors_top, release_height
from libero_pro.expert.world import World
from libero_pro.record import RecordError
from libero_pro.scene import Goal
from libero_pro.simulator import Simulator

OPEN, CLOSE = -1.0, 1.0
_AT_REST = 0.02  # m/s
_SETTLED = 0.015  # finger speed below which a grip is firm, m/s


@dataclass(frozen=True)
class Decision:
    """What the expert wants at an instant: the phase it sees, where the grip point should go, and the action."""

    phase: str
    action: np.ndarray
    point: np.ndarray


class Expert:
    """Solves In and On goals in a simulator: `act()` gives the (7,) action for its present state.

    Raises RecordError for goals that it has no skill for and objects that it cannot grasp from above.
    """

    def __init__(self, sim: Simulator):
        self._sim = sim
        self._world = World(sim.model, sim.data)
        self._grasps: dict[str, Grasp] = {}

    def act(self) -> np.ndarray:
        """Action (7,) float32 for the simulator's present state."""
        return self.decide().action

    @property
    def done(self) -> bool:
        """The goal holds, nothing is held, and the hand is out of the way."""
        return self.decide().phase == "done"

    @property
    def at_rest(self) -> bool:
        """The objects that the goal places have come to rest."""
        goal = self._sim.scene.goal if self._sim.scene is not None else ()
        return all(self._world.speed(predicate[1]) < _AT_REST for predicate in goal if predicate[0] in ("in", "on"))

    def decide(self) -> Decision:
        """The action for the simulator's present state, with the phase that it belongs to."""
        if self._sim.scene is None:
            raise RecordError("the expert needs a scene: call reset(scene) on its simulator first")
        return decide(self._world, self._sim.scene.goal, self._sim.goal_holds(), self._grasps)


def decide(world: World, goal: Goal, holds: np.ndarray, grasps: dict[str, Grasp]) -> Decision:
    """The expert's decision; `grasps` caches plans by object and is refreshed when an object has moved."""
    for predicate, held in zip(goal, holds, strict=True):
        if predicate[0] not in ("in", "on") and not held:
            raise RecordError(f"the expert cannot solve goal {predicate} yet; it picks and places (in, on)")
    tasks = [
        (predicate, bool(held)) for predicate, held in zip(goal, holds, strict=True) if predicate[0] in ("in", "on")
    ]
    if not tasks:
        raise RecordError(f"the expert cannot solve goal {goal} yet; it picks and places (in, on)")
    for predicate, _ in tasks:  # what is in the hand comes first
        if world.holds(predicate[1]):
            return _carry(world, predicate[1], find_place(world, predicate))
    for predicate, held in tasks:
        if not held:
            place = find_place(world, predicate)
            step = _let_go if _falling(world, predicate[1], place) else partial(_pick, grasps=grasps)
            return step(world, predicate[1], place)
    predicate = tasks[-1][0]
    return _let_go(world, predicate[1], find_place(world, predicate))


def _pick(world: World, target: str, place: Place, grasps: dict[str, Grasp]) -> Decision:
    """Over the object, turn, descend, close; rise and open again after a miss."""
    position, rotation = world.position(target), world.rotation(target)
    grip, width = world.grip, world.width
    grasp = grasps.get(target)
    # A plan is kept while the fingers are around the object, which they may move.
    if grasp is None or (
        grasp.stale(position, rotation) and np.linalg.norm(grip - grasp.goal(position, rotation)) > 0.03
    ):
        grasp = plan_grasp(world.boxes(target), world.others(target), position, rotation, partial(strain, world))
        if grasp is None:
            raise RecordError(f"the expert finds no free grasp of '{target}' from above")
        if not reachable(world, grasp.goal(position, rotation)):
            raise RecordError(f"'{target}' is out of the arm's reach for a grasp from above")
        grasps[target] = grasp
    point = grasp.goal(position, rotation)
    turn = hand_turn(world, grasp.yaw, point)
    apart = float(np.linalg.norm((grip - point)[:2]))
    depth = grip[2] - point[2]
    twisted = float(np.linalg.norm(turn))
    # Narrow things leave the open fingers room, wide ones need a centered hand.
    aligned = float(np.clip(0.35 * (OPENING - grasp.width / 2), 0.004, 0.010))
    if depth < 0.006 and apart < aligned + 0.006 and twisted < 0.12:
        if width > max(0.0035, 0.5 * grasp.width):
            return _towards(world, "close", point, turn, CLOSE)
        return _towards(world, "rise", grip + np.array([0.0, 0.0, 0.05]), turn, OPEN)
    top = world.boxes(target).high()[2]
    hover = top + TIP + 0.012
    if width < min(grasp.width + 0.012, 0.075) and grip[2] < hover:
        return _towards(world, "rise", np.array([grip[0], grip[1], max(hover + 0.01, grip[2])]), turn, OPEN)
    cruise = _cruise(world, target, place, grip[:2], point[:2], target) + TIP
    cruise = max(cruise, hover)
    far = np.clip((apart - aligned - 0.002) / 0.02, 0.0, 1.0)
    near = max(np.clip((apart - aligned) / 0.004, 0.0, 1.0), np.clip((twisted - 0.08) / 0.1, 0.0, 1.0))
    height = point[2] + near * (hover - point[2]) + far * (cruise - hover)
    # Sideways only at a height that clears what stands around, except for the last centimeters of alignment.
    free = 1.0 if apart < 0.02 else np.clip((grip[2] - (cruise - 0.045)) / 0.03, 0.0, 1.0)
    step = np.array([*(grip[:2] + free * (point[:2] - grip[:2])), height])
    return _towards(world, "approach" if far > 0 else "descend", step, turn, OPEN)


def _carry(world: World, target: str, place: Place) -> Decision:
    """Lift, bring over the place at a clear height, lower, let go."""
    position, grip = world.position(target), world.grip
    bottom = world.boxes(target).low()[2]
    offset = grip[:2] - position[:2]
    apart = float(np.linalg.norm(position[:2] - place.xy))
    release = release_height(world, target, place)
    turn = hand_turn(world, 0.0, np.array([*(place.xy + offset), release]))
    if apart > 0.03 and world.finger_speed > _SETTLED and not world.hangs(target):
        return _towards(world, "close", grip, np.zeros(3), CLOSE)  # lift when the fingers have come to rest
    if apart < 0.012 and grip[2] < release + 0.010:
        return _towards(world, "release", np.array([*(place.xy + offset), max(release, grip[2] - 0.005)]), turn, OPEN)
    clear = _cruise(world, target, place, position[:2], place.xy, target)
    travel = max(grip[2] - bottom + clear, release)
    far = np.clip((apart - 0.010) / 0.02, 0.0, 1.0)
    free = 1.0 if apart < 0.03 else np.clip((bottom - (clear - 0.04)) / 0.035, 0.0, 1.0)
    height = release + far * (travel - release)
    goal_xy = place.xy + offset
    point = np.array([*(grip[:2] + free * (goal_xy - grip[:2])), height])
    phase = "lower" if far < 1 else "transport" if free > 0 else "lift"
    return _towards(world, phase, point, free * turn, CLOSE)


def _let_go(world: World, target: str, place: Place) -> Decision:
    """Open, then go straight up out of the way."""
    grip = world.grip
    tops = [world.boxes(target).high()[2]]
    if place.receptacle:
        tops.append(clearance(world, grip[:2], grip[:2], 0.08, target))
    away = max(tops) + TIP + 0.02
    turn = hand_turn(world, 0.0, grip)
    if world.width < 0.03 or any(target in side for side in world.touching()):
        return _towards(world, "release", grip, turn, OPEN)
    if grip[2] > away:
        return _towards(world, "done", grip, turn, OPEN)
    return _towards(world, "retreat", np.array([grip[0], grip[1], away + 0.01]), turn, OPEN)


def _falling(world: World, target: str, place: Place) -> bool:
    """Let go above its place, not yet there."""
    apart = np.linalg.norm(world.position(target)[:2] - place.xy)
    return bool(apart < 0.03 and world.boxes(target).low()[2] > place.ground - 0.01)


def _cruise(world: World, target: str, place: Place, start: np.ndarray, end: np.ndarray, *ignored: str) -> float:
    """Height at which the lowest point of what moves clears everything on the way."""
    level = neighbors_top(world, target, place.receptacle)
    return max(level, clearance(world, start, end, 0.06, *ignored)) + 0.015


def _towards(world: World, phase: str, point: np.ndarray, turn: np.ndarray, gripper: float) -> Decision:
    return Decision(phase, np.array([*motion(world, point, turn), gripper], np.float32), np.asarray(point))
