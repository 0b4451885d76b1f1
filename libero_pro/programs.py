"""GenerationProgram: a recipe for scenes, as data. Typed operations on a base task, scaled by one difficulty."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from libero_pro.bddl import first_instance
from libero_pro.fits import alternatives, misfit
from libero_pro.looks import surfaces
from libero_pro.moves import apply
from libero_pro.operations import (
    DRESSES,
    MOVES,
    Arm,
    Box,
    Camera,
    Crowd,
    Dress,
    Light,
    Move,
    Offset,
    Operation,
    Permute,
    Place,
    Polar,
    Ray,
    Region,
    Rephrase,
    Replace,
    Resample,
    Resume,
    Resumption,
    Retarget,
    Texture,
    Tint,
)
from libero_pro.phrases import paraphrases
from libero_pro.placement import Arrangement, arrangement
from libero_pro.record import Record, RecordError
from libero_pro.replacement import replaced_task, unfit
from libero_pro.scene import Goal, Look, SceneSpec
from libero_pro.suites import BASE, TASKS_PER_SUITE, Task, get_task, nearest

__all__ = [
    "Arm", "Box", "Camera", "Crowd", "GenerationProgram", "LayoutError", "Light", "Offset", "Operation", "Permute",
    "Place", "Polar", "Ray", "Region", "Rephrase", "Replace", "Resample", "Resume", "Resumption", "Retarget", "Texture",
    "Tint", "base_program",
]  # fmt: skip

_BATCH = 32  # candidate layouts drawn at once
_BATCHES = 32  # then the program is refused as too crowded


class LayoutError(RecordError):
    """A program whose operations leave no free place for every object."""


class GenerationProgram(Record):
    """Scenes of some tasks of a base suite, changed by `operations` in order (retargeting, then replacing first).

    At difficulty 0 a program is the base distribution: plain fresh resets of its tasks. `domain` separates the random
    streams of programs that are otherwise equal. Scenes carry the program's hash. What it emits is not yet checked
    against the test set or the physics: `libero_pro.validity` does that, and counts.
    """

    schema_version: Literal[1] = 1
    suite: str
    task_ids: tuple[Annotated[int, Field(ge=0, lt=TASKS_PER_SUITE)], ...] = Field(
        min_length=1, max_length=TASKS_PER_SUITE
    )
    operations: tuple[Operation, ...] = Field(default=(), max_length=8)
    difficulty: float = Field(default=0.0, ge=0.0, le=1.0)
    domain: int = Field(default=0, ge=0, lt=2**31)
    prompt_source: Literal["bddl", "filename"] = "bddl"

    @field_validator("suite")
    @classmethod
    def _base_suite(cls, suite: str) -> str:
        if suite not in BASE:
            raise ValueError(f"'{suite}' is not a base suite{nearest(suite, list(BASE))}; use one of {', '.join(BASE)}")
        return suite

    @field_validator("task_ids")
    @classmethod
    def _distinct(cls, task_ids: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(task_ids)) != len(task_ids):
            raise ValueError("names a task twice")
        return task_ids

    @field_validator("operations")
    @classmethod
    def _fits(cls, operations: tuple[Operation, ...], info: ValidationInfo) -> tuple[Operation, ...]:
        """Every name exists, and can be moved as asked, in every task."""
        if "suite" in info.data and "task_ids" in info.data:
            for task_id in info.data["task_ids"]:
                for number, operation in enumerate(operations):
                    problem = misfit(operation, get_task(info.data["suite"], task_id))
                    if problem:
                        raise ValueError(f"operation {number} ({operation.op}): {problem}")
        return operations

    def at(self, difficulty: float) -> "GenerationProgram":
        """The same program at another difficulty."""
        return GenerationProgram.parse({**self.model_dump(), "difficulty": difficulty})

    def sample(self, rng: np.random.Generator) -> SceneSpec:
        """One scene; the same generator state gives the same scene. LayoutError if no free layout is found."""
        task = get_task(self.suite, self.task_ids[int(rng.integers(len(self.task_ids)))])
        seed = int(rng.integers(2**32))
        source = self._source(task, rng)
        resumed = self._resumed(task, rng)
        replaced: dict[str, str] = {}
        fields: dict[str, Any]
        if resumed is not None:
            fields = {
                "instruction": resumed.instruction,
                "prompt_source": "generated",
                "goal": resumed.goal,
                "seed": resumed.seed,
                "start": resumed.start,
            }
        else:
            replaced = self._replaced(task, source, rng)
            fields = {
                "instruction": source.prompt(self.prompt_source),
                "prompt_source": self.prompt_source if source == task else "generated",
                "goal": source.goal(),
                "seed": seed,
                "objects": self._poses(task, replaced, source.goal(), rng),
            }
            fields |= self._words(fields["instruction"], rng)
            if replaced:
                fields["replaced"] = replaced
        fields |= self._arm(rng)
        dresses = [operation for operation in self.operations if isinstance(operation, DRESSES)]
        if dresses and self.difficulty > 0.0:
            fields["look"] = _look(dresses, replaced_task(task, replaced), self.difficulty, rng)
        return SceneSpec(suite=task.suite, task_id=task.task_id, program=_hash(self), **fields)

    def scene(self, index: int) -> SceneSpec:
        """The scene number `index` of the program's own random stream."""
        return self.sample(np.random.default_rng((self.domain, index)))

    def scenes(self, count: int, first: int = 0) -> Iterator[SceneSpec]:
        """Scenes `first` to `first + count - 1`."""
        return (self.scene(index) for index in range(first, first + count))

    def _source(self, task: Task, rng: np.random.Generator) -> Task:
        """The task whose goal and instruction the scene takes."""
        source = task
        for operation in self.operations:
            if isinstance(operation, Retarget) and rng.random() < self.difficulty:
                choices = alternatives(task, operation)
                source = choices[int(rng.integers(len(choices)))]
        return source

    def _resumed(self, task: Task, rng: np.random.Generator) -> Resumption | None:
        """The stored instant that the scene begins at, if any."""
        for operation in self.operations:
            if isinstance(operation, Resume) and rng.random() < self.difficulty:
                choices = [instant for instant in operation.instants if instant.task_id == task.task_id]
                return choices[int(rng.integers(len(choices)))]
        return None

    def _replaced(self, task: Task, source: Task, rng: np.random.Generator) -> dict[str, str]:
        """Instance -> category of what takes its place, where that leaves the source's goal and words true."""
        found: dict[str, str] = {}
        for operation in self.operations:
            if isinstance(operation, Replace) and rng.random() < self.difficulty:
                category = operation.by[int(rng.integers(len(operation.by)))]
                taken = operation.object in found or category in found.values()
                if not taken and not unfit(
                    task, operation.object, category, source.goal(), [source.prompt(self.prompt_source)]
                ):
                    found[operation.object] = category
        return found

    def _poses(self, task: Task, replaced: dict[str, str], goal: Goal, rng: np.random.Generator) -> dict[str, Any]:
        moves = [operation for operation in self.operations if isinstance(operation, MOVES)]
        if not moves or self.difficulty == 0.0:
            return {}
        plan = arrangement(task.suite, task.task_id, tuple(sorted(replaced.items())))
        return plan.poses(self._layout(plan, goal, moves, rng))

    def _layout(self, plan: Arrangement, goal: Goal, moves: Sequence[Move], rng: np.random.Generator) -> np.ndarray:
        """xy (n, 2) of the first acceptable candidate."""
        for _ in range(_BATCHES):
            start = plan.draw(rng, _BATCH)
            moved = start.copy()
            for operation in moves:
                apply(operation, plan, goal, self.difficulty, moved, rng)
            moved = plan.follow(start, moved)
            good = np.flatnonzero(plan.acceptable(start, moved))
            if len(good):
                return moved[good[0]]
        raise LayoutError(
            f"program {self.hash}: none of {_BATCH * _BATCHES} layouts is free of overlaps, within reach and true to "
            f"its prompt; lower the difficulty or the amounts"
        )

    def _words(self, instruction: str, rng: np.random.Generator) -> dict[str, Any]:
        """The instruction, rephrased if an operation asks for it."""
        words: dict[str, Any] = {}
        for operation in self.operations:
            if isinstance(operation, Rephrase) and rng.random() < self.difficulty:
                others = paraphrases(instruction)
                if others:
                    reach = max(1, round(self.difficulty * len(others)))
                    words = {"instruction": others[int(rng.integers(reach))], "prompt_source": "generated"}
        return words

    def _arm(self, rng: np.random.Generator) -> dict[str, Any]:
        """Joint angles (7, rad) that are added to the robot's."""
        angles = np.zeros(7)
        for operation in self.operations:
            if isinstance(operation, Arm):
                angles += rng.uniform(-1.0, 1.0, 7) * operation.joint_rad * self.difficulty
        return {"arm": _rounded(angles)} if angles.any() else {}


@lru_cache(maxsize=256)
def _hash(program: GenerationProgram) -> str:
    return program.hash


def base_program(suite: str, task_ids: tuple[int, ...], domain: int = 0) -> GenerationProgram:
    """The base distribution of some tasks: fresh resets, nothing changed."""
    return GenerationProgram(suite=suite, task_ids=tuple(task_ids), operations=(Resample(),), domain=domain)


def _look(dresses: Sequence[Dress], task: Task, difficulty: float, rng: np.random.Generator) -> Look:
    """One look out of all operations on it; where two change the same thing, they add up."""
    shift, turn, lamps, light = np.zeros(3), np.zeros(3), np.zeros(3), 1.0
    tints: dict[str, np.ndarray] = {}
    textures: dict[str, str] = {}
    ground = surfaces(task)
    renamed = {name: first_instance(category) for name, category in task.replaced}
    for operation in dresses:
        match operation:
            case Camera():
                shift += rng.uniform(-1.0, 1.0, 3) * operation.shift_m * difficulty
                turn += rng.uniform(-1.0, 1.0, 3) * operation.turn_rad * difficulty
            case Light():
                light *= 1.0 + rng.uniform(-1.0, 1.0) * operation.gain * difficulty
                lamps += rng.uniform(-1.0, 1.0, 3) * operation.shift_m * difficulty
            case Tint():
                parts = (*task.objects(), *_standing(task), *ground) if operation.parts == "all" else operation.parts
                for part in (renamed.get(part, part) for part in parts):
                    factors = 1.0 + rng.uniform(-1.0, 1.0, 3) * operation.strength * difficulty
                    tints[part] = tints.get(part, np.ones(3)) * factors
            case Texture():
                for surface in ground if operation.surfaces == "all" else operation.surfaces:
                    sources = [name for name in (*ground, *_standing(task)) if name != surface]
                    changed, choice = rng.random() < difficulty, int(rng.integers(len(sources)))
                    if changed:
                        textures[surface] = sources[choice]
    return Look(
        camera_shift=_rounded(np.clip(shift, -1.0, 1.0)),
        camera_turn=_rounded(np.clip(turn, -1.0, 1.0)),
        light=round(float(np.clip(light, 0.0, 4.0)), 4),
        light_shift=_rounded(lamps),
        tints={name: _rounded(np.clip(factors, 0.0, 4.0)) for name, factors in tints.items()},
        textures=textures,
    )


def _standing(task: Task) -> tuple[str, ...]:
    """Fixtures besides the table or floor."""
    return tuple(arrangement(task.suite, task.task_id).fixtures)


def _rounded(values: np.ndarray) -> tuple[Any, ...]:
    return tuple(round(float(value), 4) for value in values)
