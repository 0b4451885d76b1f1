"""SceneSpec: one LIBERO-Pro environment as a frozen record."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from libero_pro.record import Record

PromptSource = Literal["bddl", "filename", "generated"]
Coordinate = Annotated[float, Field(ge=-20.0, le=20.0)]
Goal = tuple[tuple[str, ...], ...]


class Pose(Record):
    """World pose of a body origin: position in metres, quaternion (w, x, y, z)."""

    position: tuple[Coordinate, Coordinate, Coordinate]
    quaternion: tuple[Coordinate, Coordinate, Coordinate, Coordinate] = (1.0, 0.0, 0.0, 0.0)


class SceneSpec(Record):
    """Everything that determines an episode's start and success test.

    `suite` and `task_id` name the BDDL file whose objects and fixtures are compiled; `seed` draws what the record
    does not fix (fixture jitter, object placement), exactly as `env.seed(seed); env.reset()` would. On top of that
    draw either the released init state `init_state_id` is set, or the poses in `objects` are (never both).
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

    @model_validator(mode="after")
    def _one_start(self) -> "SceneSpec":
        if self.init_state_id is not None and (self.objects or self.fixtures):
            raise ValueError("init_state_id and objects/fixtures exclude each other: a released state fixes every pose")
        return self
