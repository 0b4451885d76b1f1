"""GenerationProgram: a recipe for scenes, as data. Typed operations on a base task, scaled by one difficulty."""

from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from libero_pro.placement import Arrangement, arrangement
from libero_pro.record import Record, RecordError
from libero_pro.scene import Goal, SceneSpec
from libero_pro.suites import BASE, TASKS_PER_SUITE, Task, get_task, nearest, tasks

_BATCH = 32  # candidate layouts drawn at once
_BATCHES = 32  # then the program is refused as too crowded
Name = Annotated[str, Field(min_length=1, max_length=60)]


class LayoutError(RecordError):
    """A program whose operations leave no free place for every object."""


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


class Retarget(Record):
    """With probability `difficulty` the goal and instruction of another task of the suite that fits the same objects.

    `candidates` restricts which object the goal may move; "graspable" allows every one, the task's own included.
    """

    op: Literal["retarget"] = "retarget"
    candidates: Literal["graspable"] | Annotated[tuple[Name, ...], Field(min_length=1, max_length=20)] = "graspable"


Operation = Annotated[Resample | Permute | Offset | Retarget, Field(discriminator="op")]


class GenerationProgram(Record):
    """Scenes of some tasks of a base suite, changed by `operations` in order (retargeting first).

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
                    problem = _misfit(operation, get_task(info.data["suite"], task_id))
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
        poses = {}
        moves = [operation for operation in self.operations if not isinstance(operation, Retarget)]
        if moves and self.difficulty > 0.0:
            plan = arrangement(task.suite, task.task_id)
            poses = plan.poses(self._layout(plan, source.goal(), moves, rng))
        return SceneSpec(
            suite=task.suite,
            task_id=task.task_id,
            instruction=source.prompt(self.prompt_source),
            prompt_source=self.prompt_source if source == task else "generated",
            goal=source.goal(),
            seed=seed,
            objects=poses,
            program=_hash(self),
        )

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
                choices = _alternatives(task, operation)
                source = choices[int(rng.integers(len(choices)))]
        return source

    def _layout(
        self, plan: Arrangement, goal: Goal, moves: list[Resample | Permute | Offset], rng: np.random.Generator
    ) -> np.ndarray:
        """xy (n, 2) of the first acceptable candidate."""
        for _ in range(_BATCHES):
            start = plan.draw(rng, _BATCH)
            moved = start.copy()
            for operation in moves:
                _apply(operation, plan, goal, self.difficulty, moved, rng)
            moved = plan.follow(start, moved)
            good = np.flatnonzero(plan.acceptable(start, moved))
            if len(good):
                return moved[good[0]]
        raise LayoutError(
            f"program {self.hash}: none of {_BATCH * _BATCHES} layouts is free of overlaps, within reach and true to "
            f"its prompt; lower the difficulty or the amounts"
        )


@lru_cache(maxsize=256)
def _hash(program: GenerationProgram) -> str:
    return program.hash


def base_program(suite: str, task_ids: tuple[int, ...], domain: int = 0) -> GenerationProgram:
    """The base distribution of some tasks: fresh resets, nothing changed."""
    return GenerationProgram(suite=suite, task_ids=tuple(task_ids), operations=(Resample(),), domain=domain)


def roles(goal: Goal, objects: tuple[str, ...]) -> dict[str, str]:
    """{"target": instance that the goal moves, "receptacle": movable instance it goes to}, as far as they exist."""
    found: dict[str, str] = {}
    for predicate in goal:
        if predicate[0] in ("in", "on") and predicate[1] in objects:
            found["target"] = predicate[1]
            holder = [name for name in objects if predicate[2] == name or predicate[2].startswith(f"{name}_")]
            if holder:
                found["receptacle"] = max(holder, key=len)
            break
    return found


def _apply(
    operation: Resample | Permute | Offset,
    plan: Arrangement,
    goal: Goal,
    difficulty: float,
    xy: np.ndarray,
    rng: np.random.Generator,
) -> None:
    """Changes candidates (count, n, 2) in place."""
    count = len(xy)
    if isinstance(operation, Resample):
        rows = list(plan.movable)
        xy[:, rows] += rng.uniform(-1.0, 1.0, (count, len(rows), 2)) * operation.jitter_m * difficulty
    elif isinstance(operation, Permute):
        rows = list(plan.movable) if operation.objects == "all" else [plan.names.index(n) for n in operation.objects]
        most = len(rows) if operation.count == "all" else min(operation.count, len(rows))
        chosen = rng.permuted(np.tile(rows, (count, 1)), axis=1)[:, : 2 + round(difficulty * (most - 2))]
        order = rng.permuted(np.tile(np.arange(chosen.shape[1]), (count, 1)), axis=1)
        same = np.all(order == np.arange(chosen.shape[1]), axis=1)
        order[same] = np.roll(order[same], 1, axis=1)
        each = np.arange(count)[:, None]
        xy[each, chosen] = xy[each, np.take_along_axis(chosen, order, axis=1)]
    else:
        name = operation.target
        if name in ("target", "receptacle"):
            name = roles(goal, plan.names).get(name, "")
        if name not in plan.names:  # a retargeted goal without that role
            return
        angle = rng.uniform(0.0, 2.0 * np.pi, count)
        radius = operation.radius_m * difficulty * rng.uniform(0.5, 1.0, count)
        shift = np.stack([np.cos(angle), np.sin(angle)], axis=1) * radius[:, None]
        for row in plan.leaders(plan.names.index(name)):
            xy[:, row] += shift


@cache
def _alternatives(task: Task, operation: Retarget) -> list[Task]:
    """Tasks of the suite with distinct goals about this task's objects only, restricted to the candidates."""
    there = (*task.objects(), *task.fixtures(), *task.problem().regions)
    goals: dict[Goal, Task] = {task.goal(): task}
    for other in tasks(task.suite):
        if all(name in there for predicate in other.goal() for name in predicate[1:]):
            goals.setdefault(other.goal(), other)
    if operation.candidates == "graspable":
        return list(goals.values())
    return [t for goal, t in goals.items() if roles(goal, t.objects()).get("target") in operation.candidates]


def _misfit(operation: Operation, task: Task) -> str | None:
    """Why an operation cannot be applied to a task, or None."""
    where = f"{task.suite} {task.task_id}"
    if isinstance(operation, Retarget):
        return _retarget_misfit(operation, task, where)
    plan = arrangement(task.suite, task.task_id)
    if isinstance(operation, Permute):
        if operation.objects == "all":
            return None if len(plan.movable) >= 2 else f"{where} has fewer than two objects that can trade places"
        if len(set(operation.objects)) != len(operation.objects):
            return "'objects' names an object twice"
        return next((m for name in operation.objects if (m := _name_misfit(name, plan, task, where))), None)
    if isinstance(operation, Offset):
        if operation.target not in ("target", "receptacle"):
            return _name_misfit(operation.target, plan, task, where, lead=True)
        name = roles(task.goal(), task.objects()).get(operation.target)
        if name is None:
            return f"'{operation.target}': the goal of {where} has no movable {operation.target}; drop the task"
        return _name_misfit(name, plan, task, where, lead=True)
    return None


def _name_misfit(name: str, plan: Arrangement, task: Task, where: str, lead: bool = False) -> str | None:
    """`lead`: an object that follows its neighbor is fine, because the neighbor can be moved instead."""
    if name not in task.objects():
        return f"'{name}' is not an object of {where}{nearest(name, list(task.objects()))}"
    row = plan.row(name)
    rows = () if row is None else plan.leaders(row) if lead else (row,)
    if not rows or any(one not in plan.movable_if_named for one in rows):
        free = ", ".join(plan.names[one] for one in plan.movable_if_named)
        return f"'{name}' of {where} cannot move by itself (it stands in, on or is named by something); free: {free}"
    return None


def _retarget_misfit(operation: Retarget, task: Task, where: str) -> str | None:
    if task.suite == "libero_spatial":
        return (
            "libero_spatial has one goal; its only other target, the second bowl, is what the held-out suite asks for"
        )
    if operation.candidates != "graspable":
        for name in operation.candidates:
            if name not in task.objects():
                return f"'{name}' is not an object of {where}{nearest(name, list(task.objects()))}"
        if not _alternatives(task, operation):
            return f"no task of {task.suite} moves {', '.join(operation.candidates)} among the objects of {where}"
    return None
