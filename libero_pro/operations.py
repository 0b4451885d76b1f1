"""What a generation program can do to a scene: typed operations, as data. `difficulty` in [0, 1] scales each of them.

Places     Resample, Permute, Offset, Place, Crowd      where things stand
Things     Replace                                      which objects there are
Task       Retarget, Rephrase                           what is asked, and in which words
Start      Arm, Resume                                  how the robot begins, or from which earlier instant
Look       Camera, Light, Tint, Texture                 what the images show
"""

from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from libero_pro.record import Record, RecordError
from libero_pro.scene import Goal, Start

if TYPE_CHECKING:
    from libero_pro.episode import Episode

Name = Annotated[str, Field(min_length=1, max_length=60)]
Names = Annotated[tuple[Name, ...], Field(min_length=1, max_length=40)]
Metres = Annotated[float, Field(ge=-1.0, le=1.0)]
_GRIPPER_STEP = 0.25  # of the fingers' ramp in one control step


class Resample(Record):
    """Jitter: every movable object moves up to `jitter_m` x difficulty metres in x and in y."""

    op: Literal["resample"] = "resample"
    jitter_m: float = Field(default=0.06, ge=0.0, le=0.15)


class Permute(Record):
    """Objects trade places. `count` of them do at difficulty 1, two near difficulty 0; never all where they were."""

    op: Literal["permute"] = "permute"
    objects: Literal["all"] | Annotated[tuple[Name, ...], Field(min_length=2, max_length=20)] = "all"
    count: Literal["all"] | Annotated[int, Field(ge=2, le=20)] = "all"


class Offset(Record):
    """One object is moved in a random direction by half to all of `radius_m` x difficulty metres.

    `target` is "target" (what the goal moves), "receptacle" (where it goes) or an instance name. An object that the
    prompt names by its neighbor ("next to the ramekin") moves with that neighbor.
    """

    op: Literal["offset"] = "offset"
    target: Name = "target"
    radius_m: float = Field(default=0.1, gt=0.0, le=0.4)


class Box(Record):
    """A rectangle in world metres."""

    shape: Literal["box"] = "box"
    low: tuple[Metres, Metres]
    high: tuple[Metres, Metres]

    @model_validator(mode="after")
    def _ordered(self) -> "Box":
        if not (self.low[0] <= self.high[0] and self.low[1] <= self.high[1]):
            raise ValueError(f"'low' {self.low} must not lie beyond 'high' {self.high}")
        return self


class Region(Record):
    """A region of the task's BDDL file on its table or floor, such as "floor_target_object_region"."""

    shape: Literal["region"] = "region"
    name: Name


class Polar(Record):
    """A sector of a ring around the robot's base or an object; angle 0 (rad) points away from the robot (+x)."""

    shape: Literal["polar"] = "polar"
    around: Name = "robot"
    radius: tuple[Annotated[float, Field(ge=0.0, le=1.5)], Annotated[float, Field(ge=0.0, le=1.5)]]
    angle: tuple[Annotated[float, Field(ge=-6.3, le=6.3)], Annotated[float, Field(ge=-6.3, le=6.3)]] = (-3.15, 3.15)

    @model_validator(mode="after")
    def _ordered(self) -> "Polar":
        if not (self.radius[0] <= self.radius[1] and self.angle[0] <= self.angle[1]):
            raise ValueError("'radius' and 'angle' are (from, to) and must not run backwards")
        return self


class Ray(Record):
    """Along the line from the robot's base: half to all of `distance_m` further away; toward it if negative."""

    shape: Literal["ray"] = "ray"
    distance_m: float = Field(ge=-0.4, le=0.4)


class Place(Record):
    """An object goes the share `difficulty` of the way to a place drawn from `area` (at 1 it stands there).

    `target` is "target", "receptacle", an instance name, or "all" movable objects.
    """

    op: Literal["place"] = "place"
    target: Name = "target"
    area: Annotated[Box | Region | Polar | Ray, Field(discriminator="shape")]


class Crowd(Record):
    """Distractors: `count` x difficulty (at least one) of the scene's other objects gather around one.

    They end within `radius_m` of `near` at difficulty 1, and on the way there below. `alike` takes those that resemble
    it most (another of its class, else the most similar in size) instead of random ones.
    """

    op: Literal["crowd"] = "crowd"
    near: Name = "target"
    count: int = Field(default=2, ge=1, le=6)
    radius_m: float = Field(default=0.14, gt=0.02, le=0.4)
    alike: bool = False


class Replace(Record):
    """With probability `difficulty` an object of one of the categories takes the place of the named one.

    Categories are those of the base tasks' own objects (`libero_pro.replacement.catalogue`). Goal and instruction stay
    true: where a retargeted goal is about the named object, or a category's words are in the instruction, it stays.
    """

    op: Literal["replace"] = "replace"
    object: Name
    by: Annotated[tuple[Name, ...], Field(min_length=1, max_length=8)]


class Retarget(Record):
    """With probability `difficulty` the goal and instruction of another task of the suite that fits the same objects.

    `candidates` restricts which object the goal may move; "graspable" allows every one, the task's own included.
    """

    op: Literal["retarget"] = "retarget"
    candidates: Literal["graspable"] | Annotated[tuple[Name, ...], Field(min_length=1, max_length=20)] = "graspable"


class Rephrase(Record):
    """With probability `difficulty` the instruction in other words; the harder, the further from the original ones."""

    op: Literal["rephrase"] = "rephrase"


class Arm(Record):
    """The robot starts with every arm joint up to `joint_rad` x difficulty away from its usual angle."""

    op: Literal["arm"] = "arm"
    joint_rad: float = Field(default=0.08, gt=0.0, le=0.3)


class Resumption(Record):
    """An instant of an episode in a generated scene, with all that is needed to go on from there."""

    task_id: int = Field(ge=0, lt=100)
    seed: int = Field(ge=0, lt=2**32)
    instruction: str = Field(min_length=3, max_length=400)
    goal: Goal = Field(min_length=1, max_length=6)
    start: Start

    @classmethod
    def of(cls, episode: "Episode", step: int) -> "Resumption":
        """Instant `step` (0 = start) of a stored episode.

        RecordError for an episode from a released start, which is for evaluation only, with moved fixtures or with
        replaced objects.
        """
        scene = episode.scene
        if scene.init_state_id is not None:
            raise RecordError(f"scene {scene.hash} is a released start, for evaluation only; use a generated scene")
        if scene.replaced is not None:
            raise RecordError(f"scene {scene.hash} replaces objects; only the task's own can be resumed from")
        if scene.fixtures:
            raise RecordError(f"scene {scene.hash} places its own fixtures; only drawn ones can be resumed from")
        if not 0 <= step <= len(episode):
            raise RecordError(f"the episode in scene {scene.hash} has instants 0 to {len(episode)}, not {step}")
        gripper = scene.start.gripper if scene.start else -1.0  # the settling no-ops open the fingers
        for action in episode.actions[:step]:
            gripper = min(max(gripper + _GRIPPER_STEP * float(np.sign(action[6])), -1.0), 1.0)
        qpos = tuple(float(value) for value in episode.qpos[step])
        return cls(
            task_id=scene.task_id,
            seed=scene.seed,
            instruction=scene.instruction,
            goal=scene.goal,
            start=Start(qpos=qpos, gripper=gripper),
        )


class Resume(Record):
    """With probability `difficulty` the scene begins at one of these stored instants, e.g. just before a failure.

    Objects, goal and instruction are the instant's; operations on places and the task do not apply to such a scene.
    """

    op: Literal["resume"] = "resume"
    instants: Annotated[tuple[Resumption, ...], Field(min_length=1, max_length=64)]


class Camera(Record):
    """The agentview camera moves up to `shift_m` and turns up to `turn_rad` about each axis, x difficulty."""

    op: Literal["camera"] = "camera"
    shift_m: float = Field(default=0.05, ge=0.0, le=0.3)
    turn_rad: float = Field(default=0.05, ge=0.0, le=0.3)


class Light(Record):
    """All lamps get brighter or darker by up to `gain` (a share) and move by up to `shift_m`, x difficulty."""

    op: Literal["light"] = "light"
    gain: float = Field(default=0.5, ge=0.0, le=0.9)
    shift_m: float = Field(default=1.0, ge=0.0, le=5.0)


class Tint(Record):
    """Red, green and blue of things change by up to `strength` (a share) x difficulty, each thing by itself.

    `parts` are objects, fixtures and surfaces ("walls", "floor", "table"), or "all" of them.
    """

    op: Literal["tint"] = "tint"
    parts: Literal["all"] | Names = "all"
    strength: float = Field(default=0.3, gt=0.0, le=1.0)


class Texture(Record):
    """With probability `difficulty` each of the `surfaces` shows the material of another surface or fixture."""

    op: Literal["texture"] = "texture"
    surfaces: Literal["all"] | Annotated[tuple[Name, ...], Field(min_length=1, max_length=3)] = "all"


Move = Resample | Permute | Offset | Place | Crowd
Dress = Camera | Light | Tint | Texture
Operation = Annotated[Move | Replace | Retarget | Rephrase | Arm | Resume | Dress, Field(discriminator="op")]
MOVES = (Resample, Permute, Offset, Place, Crowd)
DRESSES = (Camera, Light, Tint, Texture)
