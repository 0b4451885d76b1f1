"""How good are the canonical potentials? Over expert successes and failures injected into them, in one process.

Every one of the 200 tasks must have a potential that names only what its scene has. Of the chosen tasks, those that the
expert solves give a success and up to five failures each (dropped, other task, missed grasp, early release, stalled).

    python benchmarks/potential.py --suites libero_object libero_goal --per-suite 5 --json potential.json
"""

import argparse
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from lerobot_coda.critic.bench.actor import NotPlanted
from lerobot_coda.critic.bench.planted import plant
from lerobot_coda.critic.diagnosis import Cause
from lerobot_coda.potential import Names, StagedPotential, from_goal
from lerobot_coda.potential.acceptance import auc, before_goal, final_level, grade, rise
from lerobot_coda.potential.plans import plan_of
from libero_pro.episode import Episode
from libero_pro.expert import solve
from libero_pro.figures import figure, keep
from libero_pro.record import RecordError, write_atomically
from libero_pro.simulator import Simulator
from libero_pro.suites import BASE, Task, scene_for, suite_names, tasks

RESAMPLES = 1000
FAILURES = (
    Cause.DROPPED, Cause.IGNORED_INSTRUCTION, Cause.MISSED_GRASP, Cause.EARLY_RELEASE, Cause.STALLED
)  # fmt: skip


def main() -> None:
    """Records, measures, prints the table and writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", nargs="+", default=list(BASE), choices=suite_names(), metavar="SUITE")
    parser.add_argument("--per-suite", type=int, default=3, help="tasks of each suite, evenly spread (default 3)")
    parser.add_argument("--per-task", type=int, default=1, help="demonstrations a task (default 1)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--episodes", type=Path, metavar="FOLDER", help="keeps the episodes, and takes up what is there"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()

    covered = tasks_with_potential()
    recorded: list[Episode] = []
    tried: Counter[str] = Counter()
    for suite in arguments.suites:
        for task in spread(tasks(suite), arguments.per_suite):
            began = time.perf_counter()
            found = list(recorded_once(task, arguments.per_task, arguments.seed, arguments.episodes))
            recorded += found
            tried["tasks"] += 1
            tried["solved"] += any(e.success for e in found)
            made = ", ".join(e.tags.get("injected", "success") for e in found) or "not solved"
            print(f"{suite} {task.task_id}: {made} ({time.perf_counter() - began:.0f} s)", flush=True)
    rows = measure(recorded, covered, tried, shlex.join(["python", *sys.argv]))
    for row in rows:
        between = "" if row["low"] is None else f"  [{row['low']:g}, {row['high']:g}]"
        print(f"{row['figure']:<28}{row['value']:>10g} {row['unit']}{between}  n={row['n']}")
    if arguments.json:
        keep(arguments.json, rows)


def tasks_with_potential() -> int:
    """How many of the 200 tasks have a potential that names only what their scene has."""
    count = 0
    for suite in suite_names():
        for task in tasks(suite):
            try:
                from_goal(task.goal(), task.objects()).check(Names.of_task(task))
            except RecordError as error:
                print(f"{suite} {task.task_id}: {error}")
            else:
                count += 1
    return count


def spread(all_tasks: Sequence[Task], count: int) -> list[Task]:
    """`count` of the tasks, evenly spread."""
    picked = np.unique(np.linspace(0, len(all_tasks) - 1, min(count, len(all_tasks))).round().astype(int))
    return [all_tasks[i] for i in picked]


def recorded_once(task: Task, demonstrations: int, seed: int, folder: Path | None) -> Iterator[Episode]:
    """What `record` gives, from the folder where it was recorded before."""
    kept = folder / f"{task.suite}-{task.task_id}-{demonstrations}-{seed}" if folder else None
    if kept is not None and (kept / "complete").exists():
        yield from map(Episode.load, sorted(kept.glob("*.npz")))
        return
    for number, episode in enumerate(record(task, demonstrations, seed)):
        if kept is not None:
            episode.save(kept / f"{number:03}.npz")
        yield episode
    if kept is not None:
        write_atomically(kept / "complete", b"")


def record(task: Task, demonstrations: int, seed: int) -> Iterator[Episode]:
    """Successes of the expert in fresh scenes of the task, and failures injected into each."""
    sim = Simulator(task)
    rng = np.random.default_rng([seed, task.task_id])
    for k in range(demonstrations):
        try:
            episode = solve(sim, scene_for(task.suite, task.task_id, seed=7000 + 100 * seed + k))
        except RecordError:
            continue
        if not episode.success or episode.invalid is not None:
            continue
        yield episode
        for cause in FAILURES:
            with suppress(NotPlanted, RecordError):  # nor can the expert carry everything to where it could be dropped
                failed, _ = plant(sim, episode.scene, cause, rng)
                yield failed.tagged(injected=str(cause))


def measure(episodes: list[Episode], covered: int, tried: Counter[str], command: str) -> list[dict[str, Any]]:
    """The rows: coverage, AUC, rank correlation and time a frame, with intervals from resampled episodes."""

    def row(name: str, value: float, unit: str, n: int, low: float | None = None, high: float | None = None) -> dict:
        between = {"low": None if low is None else round(low, 4), "high": None if high is None else round(high, 4)}
        return figure(name, round(float(value), 4), unit, command, n=n, **between)

    rows = [
        row("tasks_with_potential", covered, "of 200 tasks", 200),
        row("tasks_recorded", tried["solved"], "tasks the expert solved", tried["tasks"]),
    ]
    if not episodes:
        return rows
    plans = [plan_of(e) for e in episodes]
    curves = [before_goal(plan, e) for plan, e in zip(plans, episodes, strict=True)]
    grades = np.array([grade(e) for e in episodes])
    final, peak = np.array([final_level(c) for c in curves]), np.array([c.max() for c in curves])
    won, near, failed = (grades == name for name in ("success", "near_miss", "failure"))
    rng = np.random.default_rng(0)
    for name, scores, higher, lower in (("auc", final, won, ~won), ("near_miss_auc", peak, near, failed)):
        if higher.any() and lower.any():
            low, high = interval(rng, scores[higher], scores[lower], auc)
            rows.append(row(name, auc(scores[higher], scores[lower]), "AUC", len(scores), low, high))
    kinds = np.array([e.tags.get("injected", "success") for e in episodes])
    for kind in FAILURES:
        if (kinds == kind).any():
            rows.append(row(f"auc {kind}", auc(final[won], final[kinds == kind]), "AUC", int((kinds == kind).sum())))
    rises = np.array([rise(c) for c, success in zip(curves, won, strict=True) if success])
    low, high = interval(rng, rises, rises, lambda a, _: float(np.mean(a)))
    rows.append(row("rank_correlation", rises.mean(), "Spearman", len(rises), low, high))
    frames = sum(len(e) + 1 for e in episodes)
    rows.append(row("frame_ms", 1e3 * seconds(plans, episodes) / frames, "ms a frame", frames))
    return rows


def interval(
    rng: np.random.Generator, a: np.ndarray, b: np.ndarray, statistic: Callable[[Any, Any], float]
) -> tuple[float, float]:
    """Central 95 % of the statistic over episodes drawn with replacement."""
    draws = [statistic(rng.choice(a, len(a)), rng.choice(b, len(b))) for _ in range(RESAMPLES)]
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)


def seconds(plans: Sequence[StagedPotential], episodes: Sequence[Episode]) -> float:
    """Time to evaluate every episode, the best of three passes."""
    passes = []
    for _ in range(3):
        began = time.perf_counter()
        for plan, episode in zip(plans, episodes, strict=True):
            plan.evaluate(episode)
        passes.append(time.perf_counter() - began)
    return min(passes)


if __name__ == "__main__":
    main()
