"""Diagnosis: what a critic claims about one failed episode."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from libero_pro.record import Record

SCHEMA_VERSION = 1
Difficulty = Annotated[float, Field(ge=0.0, le=1.0)]
# What a diagnosis may have besides its claim: left out of its JSON, and so of its hash, where it is not given.
_OPTIONAL: Mapping[str, Any] = MappingProxyType(
    {"predicate": (), "span": (0, 0), "frames": (), "difficulty": {}, "prompt": ""}
)


class Stage(StrEnum):
    """How far the episode came with what the unsatisfied predicate is about: the stage in which it failed.

    For a part (drawer, door, knob) TRANSPORT is the way of its joint and PLACE is not used.
    """

    REACH = "reach"  # the hand was never at the instructed object or part
    GRASP = "grasp"  # it was there, and the object was never lifted clear, the part never moved
    TRANSPORT = "transport"  # lifted (moved), but lost or kept before the receptacle (the joint's threshold)
    PLACE = "place"  # it came to rest or was set down somewhere, or hung over the receptacle, and the goal did not hold
    DONE = "done"  # nothing is left that the states show to be wrong


class Cause(StrEnum):
    """What went wrong, as a class that a rule can answer; `CLASSES` says what each means, with an example."""

    WRONG_OBJECT = "wrong_object"
    IGNORED_INSTRUCTION = "ignored_instruction"
    MISSED_GRASP = "missed_grasp"
    PUSHED_AWAY = "pushed_away"
    SLIPPED = "slipped"
    DROPPED = "dropped"
    EARLY_RELEASE = "early_release"
    WRONG_PLACE = "wrong_place"
    WRONG_RECEPTACLE = "wrong_receptacle"
    NOT_RELEASED = "not_released"
    UNSATISFIED = "unsatisfied"
    OUT_OF_TIME = "out_of_time"
    UNREACHABLE = "unreachable"
    STALLED = "stalled"
    DRIFTED = "drifted"
    EARLY_STOP = "early_stop"


class FailureClass(NamedTuple):
    """A cause in words: what it means, and one episode of "put the bowl on the plate" (or as it says) that shows it."""

    means: str
    example: str


CLASSES: Mapping[Cause, FailureClass] = MappingProxyType({
    Cause.WRONG_OBJECT: FailureClass(
        "reached for, or took, another object or part than the instructed one, and did not finish with it",
        "the hand closes on the cookie box and lifts it",
    ),
    Cause.IGNORED_INSTRUCTION: FailureClass(
        "carried out a task nobody asked for: another object was delivered, or another part opened or turned",
        "the ramekin is put on the plate; the bowl is never touched",
    ),
    Cause.MISSED_GRASP: FailureClass(
        "closed the gripper on nothing: at the object (stage grasp) or where it does not stand (stage reach)",
        "the fingers close 5 cm beside the bowl, and the empty hand goes on to the plate",
    ),
    Cause.PUSHED_AWAY: FailureClass(
        "ran into the instructed object and moved it without ever grasping it",
        "the closed fingers shove the bowl 8 cm across the table",
    ),
    Cause.SLIPPED: FailureClass(
        "grasped it and lost it from closed fingers before it was lifted clear",
        "the rim slides out of the fingers 2 cm above the table",
    ),
    Cause.DROPPED: FailureClass(
        "lost it in the air while the gripper was commanded closed",
        "halfway to the plate the bowl falls from the closed fingers",
    ),
    Cause.EARLY_RELEASE: FailureClass(
        "opened the gripper on the way, in the air and away from the receptacle; a part: let go before its threshold",
        "the fingers open 20 cm before the plate and the bowl falls; a drawer is let go half open",
    ),
    Cause.WRONG_PLACE: FailureClass(
        "set it down, or let it go at the receptacle, and it came to rest beside it, on nothing else",
        "the bowl is set down on the table, 15 cm from the plate",
    ),
    Cause.WRONG_RECEPTACLE: FailureClass(
        "put it onto or into something else than the goal names",
        "the bowl is put on the stove",
    ),
    Cause.NOT_RELEASED: FailureClass(
        "still held it over the receptacle when time was up: released too late",
        "the bowl hangs over the plate until the episode ends",
    ),
    Cause.UNSATISFIED: FailureClass(
        "finished: released and at rest on or in the receptacle, and the predicate does not hold",
        "the bowl stands on the plate's rim, 5 cm off its middle, where LIBERO's On allows 3",
    ),
    Cause.OUT_OF_TIME: FailureClass(
        "nothing went wrong yet: it was making headway when the horizon cut the episode",
        "a slow policy is on its way with the bowl at the last step",
    ),
    Cause.UNREACHABLE: FailureClass(
        "kept pushing against a joint limit or an obstacle without moving",
        "the hand presses on the table beside the bowl for two seconds",
    ),
    Cause.STALLED: FailureClass(
        "stood still, and was not told to move",
        "the hand stops 10 cm above the bowl and stays there",
    ),
    Cause.DRIFTED: FailureClass(
        "left the workspace",
        "the hand rises away from the table until the arm is stretched",
    ),
    Cause.EARLY_STOP: FailureClass(
        "the episode ended neither by success nor by the horizon",
        "the actor gives up after 40 of 280 steps",
    ),
})  # fmt: skip


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
    predicate    the goal predicate that the claim is about: one that did not hold at the end
    span         first and last instant of the failure, in control steps: from the loss to where it came to rest, say
    frames       instants that show it, as evidence
    evidence     numbers behind the claim: metres, control steps, counts
    difficulty   suggestion: kind of a generation operation ("permute", "offset") -> difficulty of its scenes
    critic, version, prompt  who claims it: its name and version, and the hash of what it was asked ("" for rules)
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
    predicate: tuple[str, ...] = Field(default=(), max_length=4)
    span: tuple[int, int] = (0, 0)
    frames: tuple[int, ...] = Field(default=(), max_length=16)
    difficulty: dict[str, Difficulty] = Field(default_factory=dict, max_length=8)
    prompt: str = Field(default="", max_length=64)

    @model_validator(mode="after")
    def _ordered(self) -> "Diagnosis":
        first, last = self.span
        if not 0 <= first <= last:
            raise ValueError(f"span {self.span} is not (first, last) with 0 <= first <= last")
        return self

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {
            name: value
            for name, value in handler(self).items()
            if name not in _OPTIONAL or getattr(self, name) != _OPTIONAL[name]
        }

    @property
    def mode(self) -> Mode:
        """The ability that failed, from cause and, where the cause leaves it open, stage."""
        return _MODES.get(self.cause, _MODES_BY_STAGE[self.stage])


def episode_key(actor: str, scene_hash: str) -> str:
    """Identity of an episode within a run: a deterministic policy acts once in a scene."""
    return f"{actor}/{scene_hash}"
