"""Diagnosis: what a critic claims about one failed episode."""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from libero_pro.record import Record

SCHEMA_VERSION = 1


class Stage(StrEnum):
    """How far the episode came: the stage in which it failed."""

    REACH = "reach"  # the instructed object was never touched by both fingers
    GRASP = "grasp"  # it was reached, but never lifted clear
    TRANSPORT = "transport"  # it was lifted, but lost or kept before it was over the receptacle
    PLACE = "place"  # it came to the receptacle, and the goal still did not hold
    DONE = "done"  # nothing is left that the states show to be wrong


class Cause(StrEnum):
    """What went wrong, as a class that a rule can answer."""

    WRONG_OBJECT = "wrong_object"  # reached for, or held, another object than the instructed one
    IGNORED_INSTRUCTION = "ignored_instruction"  # carried another object to the receptacle: a task nobody asked for
    MISSED_GRASP = "missed_grasp"  # closed the gripper on nothing: near the object (grasp) or where none stands (reach)
    PUSHED_AWAY = "pushed_away"  # moved the instructed object without grasping it
    SLIPPED = "slipped"  # grasped it and lost it before it was lifted clear
    DROPPED = "dropped"  # lost it in the air with the gripper commanded closed
    EARLY_RELEASE = "early_release"  # opened the gripper far from the receptacle
    WRONG_PLACE = "wrong_place"  # released near the receptacle, and it came to rest outside
    WRONG_RECEPTACLE = "wrong_receptacle"  # released at another object than the goal's
    NOT_RELEASED = "not_released"  # still holding it at the receptacle when time was up
    UNSATISFIED = "unsatisfied"  # released at rest in the receptacle, and the predicate does not hold
    OUT_OF_TIME = "out_of_time"  # still making headway when the horizon cut the episode
    UNREACHABLE = "unreachable"  # kept pushing against a joint limit or an obstacle without moving
    STALLED = "stalled"  # stood still
    DRIFTED = "drifted"  # left the workspace
    EARLY_STOP = "early_stop"  # ended neither by success nor by the horizon


class Mode(StrEnum):
    """The ability that failed. Which cause shows is often chance: a policy that goes to a memorized place takes what
    stands there (wrong object) or closes on air (missed grasp), so diagnoses are clustered by mode."""

    LOCALIZATION = "localization"
    GRASP = "grasp"
    TRANSPORT = "transport"
    PLACEMENT = "placement"
    MOTION = "motion"


_MODES: dict[Cause, Mode] = {
    Cause.WRONG_OBJECT: Mode.LOCALIZATION,
    Cause.IGNORED_INSTRUCTION: Mode.LOCALIZATION,
    Cause.PUSHED_AWAY: Mode.GRASP,
    Cause.SLIPPED: Mode.GRASP,
    Cause.DROPPED: Mode.TRANSPORT,
    Cause.EARLY_RELEASE: Mode.TRANSPORT,
    Cause.WRONG_PLACE: Mode.PLACEMENT,
    Cause.WRONG_RECEPTACLE: Mode.PLACEMENT,
    Cause.NOT_RELEASED: Mode.PLACEMENT,
    Cause.UNSATISFIED: Mode.PLACEMENT,
    Cause.UNREACHABLE: Mode.MOTION,
    Cause.DRIFTED: Mode.MOTION,
    Cause.EARLY_STOP: Mode.MOTION,
}
_MODES_BY_STAGE: dict[Stage, Mode] = {
    Stage.REACH: Mode.LOCALIZATION,
    Stage.GRASP: Mode.GRASP,
    Stage.TRANSPORT: Mode.TRANSPORT,
    Stage.PLACE: Mode.PLACEMENT,
    Stage.DONE: Mode.MOTION,
}


class Diagnosis(Record):
    """One critic's claim about one failed episode; frozen, so a verdict on it stays a verdict on it.

    episode      identity of the episode (`episode_key`): actor and scene
    scene        hash of its SceneSpec;  `suite`, `task_id` are repeated for clustering
    objects      the instructed object first, then what else the claim is about
    evidence     numbers behind the claim: metres, control steps, counts
    """

    schema_version: Literal[1] = 1
    episode: str
    scene: str
    suite: str
    task_id: int
    stage: Stage
    cause: Cause
    objects: tuple[str, ...] = Field(max_length=6)
    evidence: dict[str, float] = Field(default_factory=dict, max_length=24)
    explanation: str = Field(max_length=600)
    confidence: float = Field(ge=0.0, le=1.0)
    critic: str = "simulator"
    version: str = "1"

    @property
    def mode(self) -> Mode:
        """The ability that failed, from cause and, where the cause leaves it open, stage."""
        return _MODES.get(self.cause, _MODES_BY_STAGE[self.stage])


def episode_key(actor: str, scene_hash: str) -> str:
    """Identity of an episode within a run: a deterministic policy acts once in a scene."""
    return f"{actor}/{scene_hash}"
