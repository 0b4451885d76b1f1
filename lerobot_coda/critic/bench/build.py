"""The bench set: planted failures of every cause over many tasks, and as many successes. Built offline, resumable.

    bench = build(Path("runs/critic_bench"), per_cause=20, seed=1)
    for planted in bench.items: episode = bench.episode(planted)

Attempts are numbered for each cause and depend on their number alone; the first `per_cause` of them that took are the
set, so neither an interruption nor the number of workers changes it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import PrivateAttr

from lerobot_coda.critic.bench.actor import NotPlanted
from lerobot_coda.critic.bench.faults import FAULTS
from lerobot_coda.critic.bench.planted import Planted, plant
from lerobot_coda.critic.diagnosis import Cause
from libero_pro.episode import Episode
from libero_pro.journal import Journal
from libero_pro.record import Record, RecordError
from libero_pro.suites import get_task, scene_for
from libero_pro.workers import Ask, run_in_workers

SUCCESS = "success"
KINDS = (*(str(cause) for cause in FAULTS), SUCCESS)
# Objects, places and goals of every kind: base suites, changed ones, parts, two predicates.
TASKS: tuple[tuple[str, int], ...] = (
    ("libero_object", 1), ("libero_object", 4), ("libero_object", 7), ("libero_object_swap", 2),
    ("libero_object_task", 5), ("libero_spatial", 0), ("libero_spatial", 2), ("libero_spatial", 7),
    ("libero_spatial_swap", 1), ("libero_spatial_task", 8), ("libero_goal", 0), ("libero_goal", 1), ("libero_goal", 4),
    ("libero_goal", 6), ("libero_goal", 7), ("libero_goal", 8), ("libero_goal", 9), ("libero_goal_swap", 8),
    ("libero_goal_object", 1), ("libero_10", 0), ("libero_10", 4),
)  # fmt: skip
_MADE = 2  # version of how failures are planted: other ones make other sets
_SCENES = 1_000  # scene seeds that belong to one bench seed
_SPARE = 4  # one more attempt than is wanted for each so many, from the beginning; successes hardly ever fail
_FEWEST = 4  # attempts of a kind in a further round
_TRIES = 8  # attempts for each episode that is wanted, at most
FILE = "bench.json"  # the truth


class BenchSet(Record):
    """A finished set: what was planted, in the order of the kinds; `seed` decides scenes, moments and movements."""

    schema_version: Literal[1] = 1
    seed: int
    per_cause: int
    tasks: tuple[tuple[str, int], ...]
    items: tuple[Planted, ...]
    _folder: Path = PrivateAttr(default=Path())

    @classmethod
    def open(cls, folder: Path) -> "BenchSet":
        """The set in a folder; RecordError with the way out if there is none, or an unfinished one."""
        path = Path(folder) / FILE
        if not path.exists():
            raise RecordError(
                f"{folder} holds no finished bench set; build it with `lerobot-coda critic-bench --build`"
            )
        found = cls.load(path)
        found._folder = Path(folder)
        return found

    def episode(self, planted: Planted) -> Episode:
        """The recorded episode."""
        return Episode.load(self._folder / "episodes" / f"{planted.name}.npz")


class _Attempt(NamedTuple):
    kind: str
    number: int
    suite: str
    task_id: int


def build(
    folder: Path,
    *,
    per_cause: int = 20,
    seed: int = 0,
    tasks: Sequence[tuple[str, int]] = TASKS,
    kinds: Sequence[str] = KINDS,
    workers: int = 2,
    progress: Callable[[int], None] | None = None,
) -> BenchSet:
    """Builds (or takes up) the set in `folder`: `per_cause` episodes of each cause, and as many successes as failures.

    progress  called with the number of episodes there are
    RecordError for an unknown task or kind, for a folder that holds another set, and if a cause cannot be planted often
    enough in the tasks.
    """
    wanted = {kind: per_cause for kind in kinds if kind != SUCCESS}
    if SUCCESS in kinds:
        wanted[SUCCESS] = max(per_cause, sum(wanted.values()))
    _check(per_cause, tasks, kinds)
    folder = Path(folder)
    conditions = {
        "made": _MADE,
        "seed": seed,
        "per_cause": per_cause,
        "tasks": [list(task) for task in tasks],
        "kinds": list(kinds),
    }
    journal = Journal(folder / "attempts.jsonl", conditions)
    while True:
        rows = {(row["kind"], row["number"]): row["planted"] for row in journal.rows}
        due = [attempt for kind, count in wanted.items() for attempt in _due(kind, count, rows, tasks)]
        if not due:
            break
        for outcome in run_in_workers(
            due,
            make_state=_simulator,
            work=partial(_attempt, seed=seed, folder=folder),
            workers=workers,
            key=lambda attempt: (attempt.suite, attempt.task_id),
        ):
            attempt, planted = outcome.job, outcome.result
            reason = outcome.error or (planted if isinstance(planted, str) else "")
            body = planted.model_dump(mode="json") if isinstance(planted, Planted) else None
            journal.append({"kind": attempt.kind, "number": attempt.number, "planted": body, "reason": reason})
            if progress is not None:
                progress(sum(row["planted"] is not None for row in journal.rows))
    rows = {(row["kind"], row["number"]): row["planted"] for row in journal.rows}
    items = [Planted.parse(row) for kind, count in wanted.items() for row in _taken(kind, rows)[:count]]
    for kind, count in wanted.items():
        found = len(_taken(kind, rows))
        if found < count:
            raise RecordError(
                f"'{kind}' was planted {found} times in {_TRIES * count} attempts, {count} are wanted; add tasks"
            )
    BenchSet(seed=seed, per_cause=per_cause, tasks=tuple(tasks), items=tuple(items)).save(folder / FILE)
    return BenchSet.open(folder)


def _check(per_cause: int, tasks: Sequence[tuple[str, int]], kinds: Sequence[str]) -> None:
    if per_cause < 1:
        raise RecordError(f"per_cause must be at least 1, not {per_cause}")
    for kind in kinds:
        if kind not in KINDS:
            raise RecordError(f"there is no fault '{kind}'; there are: {', '.join(KINDS)}")
    for suite, task_id in tasks:
        get_task(suite, task_id)


def _taken(kind: str, rows: dict[tuple[str, int], Any]) -> list[Any]:
    """What was planted of a kind, in the order of its attempts."""
    numbers = sorted(number for name, number in rows if name == kind)
    return [rows[kind, number] for number in numbers if rows[kind, number] is not None]


def _due(kind: str, count: int, rows: dict[tuple[str, int], Any], tasks: Sequence[tuple[str, int]]) -> list[_Attempt]:
    """The attempts that are still to be made in the present round of a kind; none once there are enough."""
    upto = count + count // (_SPARE if kind != SUCCESS else 4 * _SPARE)
    while True:
        missing = [number for number in range(upto) if (kind, number) not in rows]
        if missing:
            turn = KINDS.index(kind)
            return [_Attempt(kind, number, *tasks[(number + 5 * turn) % len(tasks)]) for number in missing]
        have = sum(rows[kind, number] is not None for number in range(upto))
        if have >= count or upto >= _TRIES * count:
            return []
        upto = min(_TRIES * count, upto + max(_FEWEST, 2 * (count - have)))


def _simulator(key: tuple[str, int]) -> Any:
    from libero_pro.simulator import Simulator

    return Simulator(get_task(*key))


def _attempt(sim: Any, attempt: _Attempt, ask: Ask, *, seed: int, folder: Path) -> Planted | str:
    """What was planted, its episode stored; or why nothing came of it."""
    turn = KINDS.index(attempt.kind)
    scene = scene_for(attempt.suite, attempt.task_id, seed=100_000 + _SCENES * seed + attempt.number)
    rng = np.random.default_rng([seed, turn, attempt.number])
    cause = None if attempt.kind == SUCCESS else Cause(attempt.kind)
    # The name tells nothing: a critic may be shown it.
    name = f"{np.random.default_rng([seed, turn, attempt.number, 1]).integers(16**8):08x}"
    try:
        episode, planted = plant(sim, scene, cause, rng, name)
    except NotPlanted as error:
        return str(error)
    episode.save(folder / "episodes" / f"{name}.npz")
    return planted
