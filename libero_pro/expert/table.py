"""How often the expert solves each task, and what stopped it where it did not."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from libero_pro.demonstrate import REFUSED, demonstrate
from libero_pro.episode import Episode
from libero_pro.record import Record, RecordError
from libero_pro.scene import SceneSpec
from libero_pro.statistics import wilson
from libero_pro.suites import scene_for, suite_names, tasks

ALL = "all"


class TaskRow(Record):
    """One task: `n` counted starts, `successes` of them, `invalid` ones that could not be run and do not count.

    steps    mean control steps of the successes, 0 without any
    causes   (reason, starts) of the failures, most frequent first; `invalid_causes` those of the invalid starts
    """

    suite: str
    task_id: int
    instruction: str
    n: int
    successes: int
    invalid: int
    steps: float
    causes: tuple[tuple[str, int], ...] = ()
    invalid_causes: tuple[tuple[str, int], ...] = ()


class Figure(Record):
    """A success fraction over tasks with its 95 % Wilson interval."""

    figure: str
    value: float
    n: int
    low: float
    high: float


def suites_of(names: Sequence[str]) -> list[str]:
    """Suite names with "all" spelled out; RecordError for an unknown one."""
    found = [suite for name in names for suite in (suite_names() if name == ALL else [name])]
    for suite in found:
        tasks(suite)
    return list(dict.fromkeys(found))


def starts(suite: str, task_id: int, states: int, *, fresh: bool = False) -> list[SceneSpec]:
    """The first released start states of a task, or as many fresh resets: seeds 0, 1, 2, ... either way."""
    if states < 1:
        raise RecordError(f"states must be at least 1, not {states}")
    released = len(tasks(suite)[task_id].init_states())
    if not fresh and states > released:
        raise RecordError(f"states: {suite} {task_id} has {released} released start states, not {states}")
    return [scene_for(suite, task_id, init_state_id=None if fresh else i, seed=i) for i in range(states)]


def expert_table(
    suites: Sequence[str],
    states: int,
    *,
    workers: int = 2,
    out: Path | None = None,
    fresh: bool = False,
    task_ids: Sequence[int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[TaskRow]:
    """Lets the expert try the first `states` starts of every task of the suites; one row a task, in their order.

    out    folder that keeps every episode: a run that is started again goes on from there
    fresh  fresh resets instead of released start states
    """
    wanted = [(suite, task.task_id) for suite in suites_of(suites) for task in tasks(suite)]
    wanted = [(suite, task_id) for suite, task_id in wanted if task_ids is None or task_id in task_ids]
    scenes = [scene for suite, task_id in wanted for scene in starts(suite, task_id, states, fresh=fresh)]
    found: dict[tuple[str, int], list[Episode]] = {key: [] for key in wanted}
    for episode in demonstrate(scenes, workers=workers, out=out, progress=progress):
        found[episode.scene.suite, episode.scene.task_id].append(episode)
    return [_row(key, episodes) for key, episodes in found.items()]


def _row(key: tuple[str, int], episodes: Sequence[Episode]) -> TaskRow:
    refused = [episode for episode in episodes if episode.tags.get("outcome") == REFUSED]
    invalid = [episode for episode in episodes if episode.invalid is not None and episode not in refused]
    solved = [episode for episode in episodes if episode.success]
    failed = [episode for episode in episodes if not episode.success and episode not in invalid]
    return TaskRow(
        suite=key[0],
        task_id=key[1],
        instruction=tasks(key[0])[key[1]].prompt(),
        n=len(episodes) - len(invalid),
        successes=len(solved),
        invalid=len(invalid),
        steps=round(sum(len(episode.actions) for episode in solved) / len(solved), 1) if solved else 0.0,
        causes=_counted(episode.tags.get("expert", "unknown") for episode in failed),
        invalid_causes=_counted(episode.invalid or "" for episode in invalid),
    )


def _counted(reasons: Any) -> tuple[tuple[str, int], ...]:
    return tuple(Counter(reasons).most_common())


def figures(rows: Sequence[TaskRow]) -> list[Figure]:
    """Success fractions: three base suites, the changed suites of these, and libero_10 with its changed suites."""
    changed = [f"libero_{base}_{axis}" for base in ("spatial", "object", "goal") for axis in ("swap", "task", "object")]
    groups = {
        "expert_spatial": ["libero_spatial"],
        "expert_object": ["libero_object"],
        "expert_goal": ["libero_goal"],
        "expert_variants": changed,
        "expert_libero_10": ["libero_10", "libero_10_swap", "libero_10_task", "libero_10_object"],
    }
    found = []
    for figure, suites in groups.items():
        mine = [row for row in rows if row.suite in suites]
        successes, n = sum(row.successes for row in mine), sum(row.n for row in mine)
        if n:
            low, high = wilson(successes, n)
            found.append(Figure(figure=figure, value=successes / n, n=n, low=low, high=high))
    return found


def print_table(rows: Sequence[TaskRow], console: Any = None) -> None:
    """Prints a line a task, the causes of its failures under it, and each suite's total."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Expert: solved starts", title_justify="left")
    for name in ("suite", "task", "solved", "steps", "what stopped it"):
        table.add_column(name, overflow="fold")
    for suite in dict.fromkeys(row.suite for row in rows):
        mine = [row for row in rows if row.suite == suite]
        for row in mine:
            stopped = "; ".join(f"{count}x {reason}" for reason, count in (*row.causes, *row.invalid_causes))
            solved = f"{row.successes}/{row.n}" + (f" ({row.invalid} invalid)" if row.invalid else "")
            table.add_row(suite, f"{row.task_id} {row.instruction}", solved, f"{row.steps:.0f}", stopped)
        total = f"{sum(row.successes for row in mine)}/{sum(row.n for row in mine)}"
        table.add_row(suite, "[bold]all", f"[bold]{total}", "", "", end_section=True)
    (console or Console()).print(table)
