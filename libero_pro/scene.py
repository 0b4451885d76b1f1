"""SceneSpec: one LIBERO-Pro environment as a frozen record."""

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from libero_pro.record import Record

PromptSource = Literal["bddl", "filename", "generated"]
Coordinate = Annotated[float, Field(ge=-20.0, le=20.0)]
Goal = tuple[tuple[str, ...], ...]
Shift = Annotated[float, Field(ge=-1.0, le=1.0)]
Factor = Annotated[float, Field(ge=0.0, le=4.0)]
Vector = tuple[Shift, Shift, Shift]
# What a scene may have besides a placement: left out of its JSON, and so of its hash, where it is not given.
_OPTIONAL = ("start", "arm", "look", "replaced")


class Pose(Record):
    """World pose of a body origin: position in metres, quaternion (w, x, y, z)."""

    position: tuple[Coordinate, Coordinate, Coordinate]
    quaternion: tuple[Coordinate, Coordinate, Coordinate, Coordinate] = (1.0, 0.0, 0.0, 0.0)


class Start(Record):
    """An instant of an earlier episode to start from, with everything at rest.

    qpos     MuJoCo positions of the task's model: arm (7), fingers (2), then 7 a movable object in file order, then the
             joints of the fixtures
    gripper  how far the fingers are driven, -1 open to 1 closed; settling keeps it, so what is held stays held
    """

    qpos: tuple[Coordinate, ...] = Field(min_length=9, max_length=400)
    gripper: float = Field(default=-1.0, ge=-1.0, le=1.0)


class Look(Record):
    """What differs in the images alone. The wrist camera rides on the hand and keeps its place there.

    camera_shift  metres by which the agentview camera moves, world axes
    camera_turn   rotation vector (rad) by which it turns, in its own axes (right, up, backwards)
    light         factor on the brightness of every lamp;  light_shift: metres by which the lamps move
    tints         factors on red, green and blue of an object, a fixture or a surface ("walls", "floor", "table")
    textures      surface -> surface, object or fixture whose material it shows
    """

    camera_shift: Vector = (0.0, 0.0, 0.0)
    camera_turn: Vector = (0.0, 0.0, 0.0)
    light: Factor = 1.0
    light_shift: tuple[Coordinate, Coordinate, Coordinate] = (0.0, 0.0, 0.0)
    tints: dict[str, tuple[Factor, Factor, Factor]] = Field(default_factory=dict, max_length=60)
    textures: dict[str, str] = Field(default_factory=dict, max_length=10)


class SceneSpec(Record):
    """Everything that determines an episode's start, its success test and how its images look.

    `suite` and `task_id` name the BDDL file whose objects and fixtures are compiled; `seed` draws what the record
    does not fix (fixture jitter, object placement), exactly as `env.seed(seed); env.reset()` would. On top of that
    draw come the released init state `init_state_id`, the poses in `objects`, or the stored instant `start` (only one
    of them), then the joint angles `arm` (rad) are added to the robot's. `replaced` names objects of the file in whose
    places others stand: instance -> category; the other is called `<category>_1`.
    `goal` holds lower-case predicates such as `("in", "milk_1", "basket_1_contain_region")`.
    """

    schema_version: Literal[1] = 1
    suite: str
    task_id: int = Field(ge=0, lt=100)
    instruction: str = Field(min_length=3, max_length=400)
    prompt_source: PromptSource
    goal: Goal = Field(min_length=1, max_length=6)
    seed: int = Field(ge=0, lt=2**32)
    init_state_id: int | None = Field(default=None, ge=0, lt=1000)
    objects: dict[str, Pose] = Field(default_factory=dict, max_length=40)
    fixtures: dict[str, Pose] = Field(default_factory=dict, max_length=20)
    program: str | None = None  # hash of the GenerationProgram that emitted the scene
    start: Start | None = None
    arm: tuple[Shift, Shift, Shift, Shift, Shift, Shift, Shift] | None = None
    look: Look | None = None
    replaced: dict[str, str] | None = Field(default=None, min_length=1, max_length=10)

    @model_validator(mode="after")
    def _one_start(self) -> "SceneSpec":
        if self.init_state_id is not None and (self.objects or self.fixtures):
            raise ValueError("init_state_id and objects/fixtures exclude each other: a released state fixes every pose")
        if self.start is not None and (self.objects or self.init_state_id is not None):
            raise ValueError("start excludes init_state_id and objects: its qpos fixes every pose")
        if self.init_state_id is not None and self.replaced is not None:
            raise ValueError("init_state_id excludes replaced: a released state is of the released objects")
        return self

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data = handler(self)
        return {name: value for name, value in data.items() if value is not None or name not in _OPTIONAL}
