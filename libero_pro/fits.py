"""Whether an operation fits a task: everything it names exists there and can be changed as asked."""

from functools import cache

from libero_pro.goals import player
from libero_pro.looks import surfaces
from libero_pro.operations import (
    MOVES,
    Crowd,
    Offset,
    Operation,
    Permute,
    Place,
    Polar,
    Region,
    Rephrase,
    Replace,
    Resume,
    Retarget,
    Texture,
    Tint,
)
from libero_pro.phrases import paraphrases
from libero_pro.placement import Arrangement, arrangement
from libero_pro.replacement import unfit
from libero_pro.scene import Goal
from libero_pro.suites import Task, nearest, tasks


def misfit(operation: Operation, task: Task) -> str | None:
    """Why an operation cannot be applied to a task, in one sentence, or None."""
    where = f"{task.suite} {task.task_id}"
    if isinstance(operation, MOVES):
        return _move_misfit(operation, arrangement(task.suite, task.task_id), task, where)
    match operation:
        case Replace():
            said = [task.prompt(source) for source in ("bddl", "filename")]
            reasons = (unfit(task, operation.object, category, task.goal(), said) for category in operation.by)
            return next((reason for reason in reasons if reason), None)
        case Retarget():
            return _retarget_misfit(operation, task, where)
        case Rephrase():
            if not any(paraphrases(task.prompt(source)) for source in ("bddl", "filename")):
                return f"no other words are known for '{task.prompt()}'; drop the task"
        case Resume():
            if all(instant.task_id != task.task_id for instant in operation.instants):
                return f"'instants' holds none of {where}; drop the task"
            return next((m for one in operation.instants if (m := _instant_misfit(one.goal, one.task_id, task))), None)
        case Tint():
            known = [*task.objects(), *task.fixtures(), *surfaces(task)]
            return None if operation.parts == "all" else _unknown(operation.parts, known, where)
        case Texture():
            return None if operation.surfaces == "all" else _unknown(operation.surfaces, surfaces(task), where)
    return None


@cache
def alternatives(task: Task, operation: Retarget) -> list[Task]:
    """Tasks of the suite with distinct goals about this task's objects only, restricted to the candidates."""
    there = (*task.objects(), *task.fixtures(), *task.problem().regions)
    goals: dict[Goal, Task] = {task.goal(): task}
    for other in tasks(task.suite):
        if all(name in there for predicate in other.goal() for name in predicate[1:]):
            goals.setdefault(other.goal(), other)
    if operation.candidates == "graspable":
        return list(goals.values())
    return [t for goal, t in goals.items() if player(goal, t.objects(), "target") in operation.candidates]


def _move_misfit(operation: Operation, plan: Arrangement, task: Task, where: str) -> str | None:
    match operation:
        case Permute(objects="all"):
            return None if len(plan.movable) >= 2 else f"{where} has fewer than two objects that can trade places"
        case Permute():
            if len(set(operation.objects)) != len(operation.objects):
                return "'objects' names an object twice"
            return next((m for name in operation.objects if (m := _name_misfit(name, plan, task, where))), None)
        case Offset():
            return _role_misfit(operation.target, plan, task, where, lead=True)
        case Place():
            area = operation.area
            if isinstance(area, Region) and area.name not in plan.regions:
                known = list(plan.regions)
                return f"region '{area.name}' is not on the ground of {where}{nearest(area.name, known)}; " + (
                    f"there are: {', '.join(known)}"
                )
            if isinstance(area, Polar) and area.around != "robot":
                misplaced = _role_misfit(area.around, plan, task, where, still=True)
                if misplaced:
                    return misplaced
            return None if operation.target == "all" else _role_misfit(operation.target, plan, task, where, lead=True)
        case Crowd():
            problem = _role_misfit(operation.near, plan, task, where, still=True)
            if problem is None and len(plan.movable) < 2:
                return f"{where} has no other object that could gather around '{operation.near}'"
            return problem
    return None


def _role_misfit(
    name: str, plan: Arrangement, task: Task, where: str, *, lead: bool = False, still: bool = False
) -> str | None:
    """The misfit of an instance, or of the instance that plays a role in the task's own goal."""
    if name in ("target", "receptacle"):
        playing = player(task.goal(), task.objects(), name)
        if playing is None:
            return f"'{name}': the goal of {where} has no movable {name}; drop the task"
        name = playing
    return _name_misfit(name, plan, task, where, lead=lead, still=still)


def _name_misfit(
    name: str, plan: Arrangement, task: Task, where: str, *, lead: bool = False, still: bool = False
) -> str | None:
    """`lead`: an object that follows its neighbor is fine, because the neighbor can be moved instead.

    `still`: the object need not move, only stand on the ground.
    """
    if name not in task.objects():
        return f"'{name}' is not an object of {where}{nearest(name, list(task.objects()))}"
    row = plan.row(name)
    if still and row is not None:
        return None
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
        if not alternatives(task, operation):
            return f"no task of {task.suite} moves {', '.join(operation.candidates)} among the objects of {where}"
    return None


def _instant_misfit(goal: Goal, task_id: int, task: Task) -> str | None:
    """Whether an instant of the task asks for what the task has."""
    if task_id != task.task_id:
        return None
    known = [*task.objects(), *task.fixtures(), *task.problem().regions]
    names = [name for predicate in goal for name in predicate[1:]]
    return _unknown(names, known, f"{task.suite} {task_id}")


def _unknown(names: tuple[str, ...] | list[str], known: tuple[str, ...] | list[str], where: str) -> str | None:
    for name in names:
        if name not in known:
            return f"'{name}' is not in {where}{nearest(name, list(known))}; there are: {', '.join(known)}"
    return None
