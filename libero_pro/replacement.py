"""Another object of the catalogue in the place of one of a task's: which fit there, and the task that results.

The catalogue holds what the base tasks put on their tables and floors. So no replaced scene shows an object class of
LIBERO-Pro's `_object` suites, and how each object rests is known without a simulator.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache

import numpy as np

from libero_pro.layouts import Placed, layout
from libero_pro.record import RecordError
from libero_pro.scene import Goal, SceneSpec
from libero_pro.suites import BASE, TASKS_PER_SUITE, Task, get_task, nearest


@cache
def catalogue() -> dict[str, Placed]:
    """Category -> how such an object rests on flat ground, from the first base task that has it there."""
    found: dict[str, Placed] = {}
    for suite in BASE:
        for task_id in range(TASKS_PER_SUITE):
            nominal, objects = layout(suite, task_id), get_task(suite, task_id).problem().objects
            for name in nominal.free():
                found.setdefault(objects[name], nominal.objects[name])
    return dict(sorted(found.items()))


def stand_in(place: Placed, category: str) -> Placed:
    """How an object of the category rests where another one stood."""
    other = catalogue()[category]
    ground = place.position[2] + place.bottom
    position = (*place.position[:2], round(ground - other.bottom, 4))
    kept = {"position": position, "support": place.support, "region": place.region, "spread": place.spread}
    return other.model_copy(update=kept)


def task_of(scene: SceneSpec) -> Task:
    """The task that must be compiled for a scene: its own, with the objects that the scene replaces.

    RecordError for an unknown task, and for a replacement that the task's objects do not allow.
    """
    task = get_task(scene.suite, scene.task_id)
    return task if scene.replaced is None else replaced_task(task, scene.replaced)


def replaced_task(task: Task, replaced: Mapping[str, str]) -> Task:
    """The task with others in the places of some of its objects (instance -> category)."""
    for name, category in replaced.items():
        reason = _no_room(task, name, category)
        if reason:
            raise RecordError(f"replaced: {reason}")
    if len(set(replaced.values())) != len(replaced):
        raise RecordError("replaced: a category is named twice; each may stand in once")
    return replace(task, replaced=tuple(sorted(replaced.items())))


def unfit(task: Task, name: str, category: str, goal: Goal, instructions: Iterable[str]) -> str | None:
    """Why an object of the category may not take the place of a named one, in one sentence, or None.

    Goal and instructions stay true: neither may speak of the one that goes, nor of anything like the one that comes.
    """
    reason = _no_room(task, name, category)
    if reason:
        return reason
    if any(argument == name or argument.startswith(f"{name}_") for predicate in goal for argument in predicate[1:]):
        return f"'{name}' is what the goal of {task.suite} {task.task_id} is about; replace another object"
    for text in instructions:
        words = _words(text)
        for kind, part in ((task.problem().objects[name], "goes"), (category, "comes")):
            spoken = sorted(words & _words(kind))
            if spoken:
                return f"the instruction '{text}' says '{spoken[0]}', which a '{kind}' that {part} would make untrue"
    return None


def _no_room(task: Task, name: str, category: str) -> str | None:
    """Why the task's objects do not allow a replacement, whatever the goal is."""
    problem, where = task.problem(), f"{task.suite} {task.task_id}"
    if task.axis is not None:
        return f"{task.suite} is a LIBERO-Pro test suite; replace objects of {task.base_suite}"
    if name not in problem.objects:
        return f"'{name}' is not an object of {where}{nearest(name, list(problem.objects))}"
    if category not in catalogue():
        known = list(catalogue())
        return f"'{category}' is not in the catalogue{nearest(category, known)}; there are: {', '.join(known)}"
    if category in problem.objects.values():
        return f"{where} has a '{category}' already; name a category that it lacks"
    nominal = layout(task.suite, task.task_id)
    if name not in nominal.free():
        return f"'{name}' of {where} stands on '{nominal.objects[name].support}', not on flat ground"
    carried = [other for other, placed in nominal.objects.items() if placed.support == name]
    if carried or any(region.target == name for region in problem.regions.values()):
        return f"'{name}' of {where} carries or contains something; replace another object"
    place = _rectangle(stand_in(nominal.objects[name], category))
    for other, placed in (nominal.objects | nominal.fixtures).items():
        if other != name and _overlap(place, _rectangle(placed)):
            return f"'{category}' is too large for the place of '{name}' in {where}: it would touch '{other}'"
    return None


def _rectangle(placed: Placed) -> np.ndarray:
    """((x, y) lowest, (x, y) highest) of what it covers, world metres."""
    return np.reshape(placed.footprint, (2, 2)) + placed.position[:2]


def _overlap(a: np.ndarray, b: np.ndarray) -> bool:
    return bool((np.maximum(a[0], b[0]) < np.minimum(a[1], b[1])).all())


def _words(text: str) -> frozenset[str]:
    """The singular words of an instruction or a category that can name a thing."""
    words = re.findall(r"[a-z]+", text.lower().replace("_", " "))
    return frozenset(word.removesuffix("s") for word in words)
