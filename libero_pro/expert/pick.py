"""Pick: over the object, turn, descend, close around it."""

from dataclasses import dataclass, field
from functools import partial

import numpy as np

from libero_pro.expert.drag import Hook, drag, plan_drag
from libero_pro.expert.grasps import OPENING, TIGHT, TIP, Grasp, plan_grasp
from libero_pro.expert.insert import Insertion
from libero_pro.expert.motion import CLOSE, OPEN, Decision, hand_turn, reachable, strain, towards
from libero_pro.expert.placements import Detour, Place, cruise_height
from libero_pro.expert.poses import Pose
from libero_pro.expert.world import World
from libero_pro.record import RecordError

_ROOMY = 0.03  # around the hand, m
_MOVING = 0.02  # m/s


@dataclass
class Plans:
    """What was planned, kept as long as the scene is as it was then: it saves time and decides nothing by itself."""

    grasps: dict[str, Grasp] = field(default_factory=dict)
    poses: dict[tuple[str, ...], Pose] = field(default_factory=dict)
    insertions: dict[str, Insertion] = field(default_factory=dict)
    hooks: dict[str, Hook] = field(default_factory=dict)  # for objects without a free grasp where they stood
    detours: dict[str, Detour] = field(default_factory=dict)


def pick(world: World, target: str, place: Place, plans: Plans) -> Decision:
    """Over the object, turn, descend, close; rise and open again after a miss."""
    position, rotation = world.position(target), world.rotation(target)
    grip, width = world.grip, world.width
    grasp = plans.grasps.get(target)
    # A plan is kept while the fingers are around the object, which they may move.
    if grasp is None or (
        grasp.stale(position, rotation) and np.linalg.norm(grip - grasp.goal(position, rotation)) > 0.03
    ):
        hook = plans.hooks.get(target)
        if hook is not None and np.linalg.norm(hook.position - position) < 0.01:
            return drag(world, target, hook.pose.shifted(position - hook.position), hook.out)
        found = plan_pick(world, target, drawn=hook is not None)
        if found is None and world.speed(target) > _MOVING:
            return towards(world, "wait", grip, np.zeros(3), OPEN)  # it is still falling
        if found is None:
            raise RecordError(f"the expert finds no free grasp of '{target}' from above")
        if isinstance(found, Hook):
            plans.grasps.pop(target, None)
            plans.hooks[target] = found
            return drag(world, target, found.pose, found.out)
        grasp = found
        plans.hooks.pop(target, None)
        if not reachable(world, grasp.goal(position, rotation)):
            raise RecordError(f"'{target}' is out of the arm's reach for a grasp from above")
        plans.grasps[target] = grasp
    point = grasp.goal(position, rotation)
    turn = hand_turn(world, grasp.yaw, point, bent=True)
    apart = float(np.linalg.norm((grip - point)[:2]))
    depth = grip[2] - point[2]
    twisted = float(np.linalg.norm(turn))
    # Narrow things leave the open fingers room, wide ones need a centered hand.
    aligned = float(np.clip(0.35 * (OPENING - grasp.width / 2), 0.004, 0.010))
    if depth < 0.006 and apart < aligned + 0.006 and twisted < 0.12:
        if width > max(0.0035, 0.5 * grasp.width):
            return towards(world, "close", point, turn, CLOSE)
        return towards(world, "rise", grip + np.array([0.0, 0.0, 0.05]), turn, OPEN)
    top = world.boxes(target).high()[2]
    hover = top + TIP + 0.012
    if width < min(grasp.width + 0.012, 0.075) and grip[2] < hover:
        return towards(world, "rise", np.array([grip[0], grip[1], max(hover + 0.01, grip[2])]), turn, OPEN)
    cruise = cruise_height(world, target, place, grip[:2], point[:2], target) + TIP
    cruise = max(cruise, hover)
    far = np.clip((apart - aligned - 0.002) / 0.02, 0.0, 1.0)
    near = max(np.clip((apart - aligned) / 0.004, 0.0, 1.0), np.clip((twisted - 0.08) / 0.1, 0.0, 1.0))
    height = point[2] + near * (hover - point[2]) + far * (cruise - hover)
    # Sideways only at a height that clears what stands around, except for the last centimeters of alignment.
    free = 1.0 if apart < 0.02 else np.clip((grip[2] - (cruise - 0.045)) / 0.03, 0.0, 1.0)
    step = np.array([*(grip[:2] + free * (point[:2] - grip[:2])), height])
    return towards(world, "approach" if far > 0 else "descend", step, turn, OPEN)


def plan_pick(world: World, target: str, drawn: bool) -> Grasp | Hook | None:
    """A free pinch, else a way to draw the object out from under something.

    `drawn`: it has been drawn out by a little, and is drawn on until the hand has room beside what was over it.
    """
    boxes, others = world.boxes(target), world.others(target)
    pinch = partial(plan_grasp, boxes, others, world.position(target), world.rotation(target), partial(strain, world))
    return pinch(margin=_ROOMY if drawn else TIGHT) or plan_drag(world, target) or (pinch() if drawn else None)
