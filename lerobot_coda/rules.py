"""What a failure compiles to: one rule a mode, and one of its own for each cause that the mode's would not answer.

A rule holds the perturbations that re-create the difficulty (all scaled by the program's one difficulty) and how to
train against it. Starts from earlier failures belong to the training: in a generation program they would re-create the
failure whatever caused it, and so validate any diagnosis.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from lerobot_coda.critic.clusters import FailureCluster
from lerobot_coda.critic.diagnosis import Cause, Mode, Stage
from libero_pro.operations import (
    Arm,
    Camera,
    Crowd,
    Light,
    Offset,
    Operation,
    Permute,
    Place,
    Polar,
    Ray,
    Rephrase,
    Resample,
    Retarget,
    Texture,
    Tint,
)

MAJORITY = 0.5  # of a cluster's failures that must have a cause for its own rule to be taken
# How a policy that goes to a wrong place ends is chance: it takes what stands there, closes on air or runs out of time.
BY_CHANCE = frozenset({Cause.WRONG_OBJECT, Cause.MISSED_GRASP, Cause.STALLED, Cause.OUT_OF_TIME})


@dataclass(frozen=True)
class Rule:
    """What a failure compiles to, and why. Operations that do not fit a task are left out when a program is compiled.

    grounds          whether the policy learns from static layouts where things are
    noise            of the expert's disturbances, as a multiple of the recipe's
    start            stage at which some demonstrations begin, where the policy once was
    rephrase         share of demonstrations in other words
    n_action_steps, advantage_temperature   in place of the train recipe's
    """

    operations: tuple[Operation, ...]
    difficulty: float
    grounds: bool
    noise: float
    why: str
    start: Stage | None = None
    rephrase: float = 0.0
    n_action_steps: int | None = None
    advantage_temperature: float | None = None


BY_MODE: dict[Mode, Rule] = {
    Mode.LOCALIZATION: Rule(
        (Retarget(), Permute(), Resample(jitter_m=0.06)), 0.75, True, 1.0,
        "it goes where things stood, not where the named one stands: other places, other targets, and grounding",
    ),
    Mode.GRASP: Rule(
        (Retarget(), Permute(count=2), Resample(jitter_m=0.08)), 0.5, False, 1.5,
        "it arrives and misses: many small offsets, with disturbances to recover from on the way",
    ),
    Mode.TRANSPORT: Rule(
        (Offset(target="receptacle", radius_m=0.08), Resample(jitter_m=0.05)), 0.5, False, 1.5,
        "it loses the object on the way: longer and other ways to carry, disturbed",
    ),
    Mode.PLACEMENT: Rule(
        (Offset(target="receptacle", radius_m=0.15), Resample(jitter_m=0.04)), 0.5, True, 1.0,
        "it lets go in the wrong place: the receptacle elsewhere, and grounding of it",
    ),
    Mode.MOTION: Rule(
        (Offset(target="target", radius_m=0.2), Resample(jitter_m=0.06)), 0.5, False, 1.0,
        "it gets lost or stuck: targets over the whole workspace",
    ),
}  # fmt: skip

BY_CAUSE: dict[Cause, Rule] = {
    Cause.IGNORED_INSTRUCTION: Rule(
        (Retarget(), Rephrase(), Permute(), Resample(jitter_m=0.06)), 0.75, True, 1.0,
        "it does a task that nobody asked for: other tasks in the same scene, each in several wordings",
        rephrase=0.3,
    ),
    Cause.PUSHED_AWAY: Rule(
        (Crowd(near="target", count=2, radius_m=0.16), Permute(count=2), Resample(jitter_m=0.06)), 0.5, False, 1.5,
        "it knocks the object away: things close around it, and chunks short enough to correct the approach",
        n_action_steps=4,
    ),
    Cause.SLIPPED: Rule(
        (Permute(count=2), Arm(joint_rad=0.06), Resample(jitter_m=0.08)), 0.5, False, 1.5,
        "its hold does not last: approaches from other sides, and grasps shown from where it tried",
        start=Stage.GRASP,
    ),
    Cause.DROPPED: Rule(
        (Offset(target="receptacle", radius_m=0.08), Resample(jitter_m=0.05)), 0.5, False, 1.5,
        "it loses the object in the air: other ways to carry, disturbed, some of them shown from the lift on",
        start=Stage.TRANSPORT,
    ),
    Cause.EARLY_RELEASE: Rule(
        (Place(target="receptacle", area=Ray(distance_m=0.12)), Offset(target="receptacle", radius_m=0.08),
         Resample(jitter_m=0.05)), 0.5, True, 1.0,
        "it lets go where the receptacle used to be: the receptacle further off, and grounding of it",
        start=Stage.TRANSPORT,
    ),
    Cause.WRONG_PLACE: Rule(
        (Offset(target="receptacle", radius_m=0.15), Resample(jitter_m=0.04)), 0.5, True, 1.0,
        "it lets go beside the receptacle: the receptacle elsewhere, and placing shown from over it",
        start=Stage.PLACE,
    ),
    Cause.WRONG_RECEPTACLE: Rule(
        (Retarget(), Offset(target="receptacle", radius_m=0.15), Crowd(near="receptacle", count=2, alike=True),
         Resample(jitter_m=0.04)), 0.5, True, 1.0,
        "it brings the object to another place than the named one: look-alikes around it, and other words for it",
        rephrase=0.2,
    ),
    Cause.NOT_RELEASED: Rule(
        (Offset(target="receptacle", radius_m=0.1), Arm(joint_rad=0.05), Resample(jitter_m=0.04)), 0.5, False, 1.0,
        "it does not let go: the release shown from where it stood still",
        start=Stage.PLACE,
    ),
    Cause.UNSATISFIED: Rule(
        (Offset(target="receptacle", radius_m=0.12), Resample(jitter_m=0.03)), 0.5, True, 1.5,
        "it puts the object down almost right: many receptacles, and placing shown from over them",
        start=Stage.PLACE,
    ),
    Cause.UNREACHABLE: Rule(
        (Place(target="target", area=Polar(radius=(0.45, 0.85), angle=(-0.5, 0.5))), Arm(joint_rad=0.1),
         Resample(jitter_m=0.04)), 0.5, False, 1.0,
        "it pushes against a limit: targets over the whole reach, from other postures",
    ),
    Cause.STALLED: Rule(
        (Arm(joint_rad=0.08), Offset(target="target", radius_m=0.15), Resample(jitter_m=0.06)), 0.5, False, 1.5,
        "it stands still: other postures and disturbances, so that no state is new to it",
    ),
    Cause.OUT_OF_TIME: Rule(
        (Place(target="target", area=Ray(distance_m=0.12)), Offset(target="target", radius_m=0.12),
         Resample(jitter_m=0.05)), 0.5, False, 1.0,
        "it is too slow: longer ways, and weights that prefer the chunks that gain most",
        advantage_temperature=0.05,
    ),
    Cause.DRIFTED: Rule(
        (Arm(joint_rad=0.12), Camera(), Offset(target="target", radius_m=0.2), Resample(jitter_m=0.06)), 0.5, True, 1.0,
        "it leaves the workspace: other postures and views, and grounding of where things are in them",
    ),
}  # fmt: skip

# What a critic may suggest beyond a rule, by the operation's name, at its usual amount.
SUGGESTIBLE: dict[str, Operation] = {
    operation.op: operation
    for operation in (
        Resample(), Permute(), Offset(), Place(area=Ray(distance_m=0.12)), Crowd(alike=True), Retarget(), Rephrase(),
        Arm(), Camera(), Light(), Tint(), Texture(),
    )
}  # fmt: skip


def rule_of(cluster: FailureCluster) -> Rule:
    """The rule of the cause that most of the cluster's failures have, if it has one of its own, else of the mode."""
    cause, count = max(cluster.causes.items(), key=lambda item: item[1], default=("", 0))
    if cause not in set(Cause) or count < MAJORITY * cluster.size:
        return BY_MODE[cluster.mode]
    if cluster.mode is Mode.LOCALIZATION and cause in BY_CHANCE:
        return BY_MODE[cluster.mode]
    return BY_CAUSE.get(Cause(cause), BY_MODE[cluster.mode])


def operations_of(rule: Rule, suggested: Mapping[str, float], limit: int) -> tuple[Operation, ...]:
    """The rule's operations, and those that a critic suggested besides, strongest first; at most `limit`."""
    known = {operation.op for operation in rule.operations}
    beside = sorted(
        (name for name in suggested if name in SUGGESTIBLE and name not in known), key=suggested.__getitem__
    )
    return (*rule.operations, *(SUGGESTIBLE[name] for name in reversed(beside)))[:limit]


def difficulty_of(rule: Rule, suggested: Mapping[str, float], easiest: float) -> float:
    """The mean of the difficulties that a critic suggested for operations of the program, at least `easiest`."""
    values = [value for name, value in suggested.items() if name in SUGGESTIBLE]
    return min(1.0, max(easiest, sum(values) / len(values))) if values else rule.difficulty
