"""Turn: pinch a knob and turn the hand about its hinge."""

from functools import partial

import numpy as np

from libero_pro.expert.articulation import Articulation
from libero_pro.expert.grasps import TIP, Grasp, plan_grasp
from libero_pro.expert.motion import CLOSE, OPEN, Decision, hand_turn, strain, towards
from libero_pro.expert.place import let_go_of
from libero_pro.expert.poses import Pose
from libero_pro.expert.travel import travel
from libero_pro.expert.world import World
from libero_pro.record import RecordError

_LEAD = 0.35  # rad that the turning hand runs ahead of the knob
_FITS = 0.012  # what is between the pads is the knob if their distance differs by less, m
_TIGHT = 0.05  # rad; in so short a range a knob must be let go at rest, for it goes on turning
_STILL = 0.02  # rad/s
_ALIGNED = 0.014  # m
_SPEED = 0.5
_ABOVE = 0.05  # m


def plan_turn(world: World, knob: Articulation) -> Grasp:
    """The pinch of a knob from above, in the knob's frame; RecordError if it has none that is free."""
    body = knob.body
    position, rotation = world.data.xpos[body].copy(), world.data.xmat[body].reshape(3, 3).copy()
    grasp = plan_grasp(world.part(body), world.rest(body), position, rotation, partial(strain, world))
    if grasp is None:
        raise RecordError(f"the expert finds no free grasp of the knob of '{knob.name}'")
    return grasp


def turn(world: World, knob: Articulation, predicate: str, grasp: Grasp) -> Decision:
    """Over the knob, down, close, turn; let go and up once it is where it should be."""
    body = knob.body
    position, rotation = world.data.xpos[body], world.data.xmat[body].reshape(3, 3)
    point = grasp.goal(position, rotation)
    grip = world.grip
    offset = grip - point
    apart = float(np.linalg.norm(offset[:2]))
    left = knob.left(world, predicate)
    tight = abs(knob.target(predicate) - knob.threshold(predicate)) < _TIGHT
    if left <= 0 or (tight and knob.holds(world, predicate)):
        moving = abs(knob.speed(world)) > _STILL
        if tight and moving and world.width < grasp.width + 0.002 and apart < 0.03:
            return towards(world, "hold", grip, np.zeros(3), CLOSE)
        return let_go_of(world, world.part(body), any(world.touches_part(body)), rise=0.04)
    # A pinched knob bounces between the pads, so the width tells more than the contacts.
    if abs(world.width - grasp.width) < _FITS and apart < 0.03 and abs(offset[2]) < 0.02:
        angle = knob.sign(predicate) * float(np.clip(8.0 * left, 0.06, _LEAD))
        axis = world.data.xaxis[knob.joint] * angle
        return towards(world, "turn", knob.moved(world, point, 0.3 * angle), axis, CLOSE)
    turned = np.arctan2(rotation[1, 0], rotation[0, 0]) - np.arctan2(grasp.rotation[1, 0], grasp.rotation[0, 0])
    way = hand_turn(world, _half_turn(grasp.yaw + turned), point)
    if apart < _ALIGNED and np.linalg.norm(way) < 0.2:
        if abs(offset[2]) < 0.008:
            if world.width > 0.008:
                return towards(world, "close", point, way, CLOSE)
            return towards(world, "rise", grip + np.array([0.0, 0.0, _ABOVE]), way, OPEN)
        if world.width > 0.06:
            return towards(world, "descend", point, way, OPEN, _SPEED)
    if apart < 0.03 and offset[2] < 0.6 * _ABOVE:
        return towards(world, "rise", grip + np.array([0.0, 0.0, _ABOVE]), way, OPEN)
    top = float(world.part(body).high()[2])
    above = np.array([point[0], point[1], max(top + TIP + 0.012, point[2] + _ABOVE)])
    decision = travel(world, "approach", Pose(above, world.hand), OPEN)
    return towards(world, "approach", decision.point, way, OPEN)


def _half_turn(yaw: float) -> float:
    """The same pinch with a hand that is turned by at most 90 degrees."""
    return float(yaw - np.pi * np.ceil(yaw / np.pi - 0.5))
