"""The expert: looks at the state, decides what is to be done next and what phase of it it is in, and says what to do.

It remembers nothing that a state does not show, so it recovers from disturbances, can label any state that a policy
visited, and its demonstrations can be imitated by a policy without memory: hand pose, finger width, object positions
and joints determine the action up to what stands in the way.
"""

from dataclasses import replace

import numpy as np

from libero_pro.expert.articulation import Articulation, articulation, articulations
from libero_pro.expert.aside import make_room, waiting_place
from libero_pro.expert.insert import Niche, find_niche, insert, leave, plan_insertion, sheltered, take
from libero_pro.expert.motion import OPEN, Decision
from libero_pro.expert.pick import Plans, pick
from libero_pro.expert.place import carry, falling, let_go
from libero_pro.expert.placements import find_place
from libero_pro.expert.poses import Pose
from libero_pro.expert.pull import plan_pull, pull
from libero_pro.expert.push import plan_push, push
from libero_pro.expert.slide import FIRM, slide, slides
from libero_pro.expert.subtasks import ORDER, Subtask, closed_container, share, subtasks
from libero_pro.expert.travel import leaning, straighten
from libero_pro.expert.turn import plan_turn, turn
from libero_pro.expert.world import World
from libero_pro.record import RecordError
from libero_pro.scene import Goal
from libero_pro.simulator import Simulator

_AT_REST = 0.02  # m/s


class Expert:
    """Solves goals of the six predicate forms in a simulator: `act()` gives the (7,) action for its present state.

    Raises RecordError for a goal that it has no skill for, and for what it cannot grasp or reach.
    """

    def __init__(self, sim: Simulator):
        self._sim = sim
        self._world = World(sim.model, sim.data)
        self._joints = articulations(sim.env)
        self._plans = Plans()

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
        return decide(self._world, self._joints, self._sim.scene.goal, self._sim.goal_holds(), self._plans)


def decide(world: World, joints: dict[str, Articulation], goal: Goal, holds: np.ndarray, plans: Plans) -> Decision:
    """The expert's decision; `plans` caches grasps and poses and is refreshed when things have moved."""
    todo = subtasks(goal, holds, world, joints, world.names())
    for task in todo:  # what is in the hand comes first
        if ORDER[task.predicate[0]] == 2 and _in_hand(world, task.predicate[1]):
            niche = find_niche(world, task.predicate)
            if niche is not None:
                return replace(insert(world, task.predicate[1], niche), task=task.predicate)
            drawer = _shut_drawer(world, joints, task)
            wait = None if drawer is None else waiting_place(world, drawer, task.predicate, plans)
            place = wait or find_place(world, task.predicate, share(goal, task.predicate))
            return replace(carry(world, task.predicate[1], place), task=task.predicate)
    for task in todo:  # then a hand that has let something go under a roof
        if task.held and find_niche(world, task.predicate) is not None and leaning(world) and sheltered(world):
            return replace(leave(world), task=task.predicate)
    task = next((task for task in todo if not task.held), todo[-1])
    for other in todo:  # what a drawer is opened for must not be walled in by it
        drawer = _shut_drawer(world, joints, other)
        if drawer is not None and task.predicate == ("open", drawer.name):
            room = make_room(world, drawer, other.predicate, plans)
            if room is not None:
                return replace(room, task=other.predicate)
    return replace(_work(world, joints, goal, task, plans), task=task.predicate)


def _shut_drawer(world: World, joints: dict[str, Articulation], task: Subtask) -> Articulation | None:
    """The drawer that must still be opened to put an object in."""
    found = None if task.held else closed_container(world, task.predicate, joints, world.names())
    return None if found is None or found.hinge else found


def _in_hand(world: World, target: str) -> bool:
    """The object can be lifted: it is held, and a broad one firmly."""
    return world.holds(target) and (world.width < FIRM or not slides(world, target))


def _work(world: World, joints: dict[str, Articulation], goal: Goal, task: Subtask, plans: Plans) -> Decision:
    """One step of the skill that brings a predicate about, or, where it holds, of withdrawing from it."""
    predicate = task.predicate
    if ORDER[predicate[0]] == 2:
        niche = None if task.held else find_niche(world, predicate)
        if niche is not None:
            return _take(world, predicate[1], niche, plans)
        if leaning(world):
            return straighten(world, OPEN)
        place = find_place(world, predicate, share(goal, predicate))
        if task.held or falling(world, predicate[1], place):
            return let_go(world, predicate[1], place)
        if slides(world, predicate[1]):
            return slide(world, predicate[1], place)
        return pick(world, predicate[1], place, plans)
    joint, verb = articulation(joints, predicate), predicate[0]
    if verb in ("turnon", "turnoff"):
        if leaning(world):
            return straighten(world, OPEN)
        if joint.name not in plans.grasps:
            plans.grasps[joint.name] = plan_turn(world, joint)
        return turn(world, joint, verb, plans.grasps[joint.name])
    if verb == "close":
        return push(world, joint, verb, _pose(world, joint, verb, plans))
    if not joint.hinge:
        return pull(world, joint, verb, _pose(world, joint, verb, plans))
    raise RecordError(f"the expert cannot solve goal {predicate} yet: it has no skill that opens a door")


def _take(world: World, target: str, niche: Niche, plans: Plans) -> Decision:
    """One step of taking an object that goes into a niche, by a plan that is kept while the object stands."""
    plan = plans.insertions.get(target)
    if plan is None or plan.stale(world, target):
        plan = plans.insertions[target] = plan_insertion(world, target, niche)
    return take(world, target, plan)


def _pose(world: World, joint: Articulation, verb: str, plans: Plans) -> Pose:
    """The planned hand pose at a moving part, where that part is now."""
    key = (verb, joint.name)
    origin, axes = world.data.xpos[joint.body], world.data.xmat[joint.body].reshape(3, 3)
    if key not in plans.poses:
        pose = (plan_push if verb == "close" else plan_pull)(world, joint, verb)
        plans.poses[key] = Pose(axes.T @ (pose.point - origin), pose.axes)
    planned = plans.poses[key]
    return Pose(origin + axes @ planned.point, planned.axes)
