"""Random programs and scenes against the gates: does anything crash, explode after it passed, or leak a test?

Each scene comes from a program of random operations, amounts, tasks and difficulty. What passes every gate is settled
and driven with random actions; a diverging state counts as an explosion. Every passed scene is shown to the denylist
once more.

    python benchmarks/programs.py --count 1000 --json programs.json
"""

import argparse
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from lerobot_coda.console import Display
from libero_pro.denylist import leaks
from libero_pro.figures import keep
from libero_pro.forked import run_in_forks
from libero_pro.placement import arrangement
from libero_pro.programs import GenerationProgram, LayoutError
from libero_pro.record import RecordError
from libero_pro.replacement import catalogue, task_of
from libero_pro.scene import SceneSpec
from libero_pro.suites import BASE, TASKS_PER_SUITE, Task, get_task, scene_for
from libero_pro.workers import Ask

STEPS = 20  # random control steps after the protocol's no-ops
_ATTEMPTS = 20  # random operations that do not fit their task are drawn again


TASKS = tuple((suite, task_id) for suite in BASE for task_id in range(TASKS_PER_SUITE))


@dataclass(frozen=True)
class Tried:
    """What became of one random scene: `gate` rejected it, or ("") it passed and then exploded, leaked or neither."""

    gate: str
    reason: str
    exploded: bool = False
    leaked: bool = False


def random_program(rng: np.random.Generator, tasks: Sequence[tuple[str, int]] = TASKS) -> GenerationProgram:
    """One to four random operations that fit one of the tasks."""
    suite, task_id = tasks[int(rng.integers(len(tasks)))]
    common = {"suite": suite, "task_ids": [task_id], "difficulty": float(rng.uniform(0.05, 1.0))}
    operations: list[dict[str, Any]] = []
    wanted = int(rng.integers(1, 5))
    for _ in range(_ATTEMPTS):
        if len(operations) == wanted:
            break
        make = OPERATIONS[int(rng.integers(len(OPERATIONS)))]
        operation = make(rng, suite, task_id)
        try:
            GenerationProgram.parse({**common, "operations": [operation]})
        except RecordError:  # it names what this task does not have or cannot move
            continue
        operations.append(operation)
    return GenerationProgram.parse({**common, "operations": operations, "domain": int(rng.integers(2**31))})


def _named(rng: np.random.Generator, suite: str, task_id: int) -> str:
    return str(rng.choice(["target", "receptacle", *arrangement(suite, task_id).names]))


def _area(rng: np.random.Generator, suite: str, task_id: int) -> dict[str, Any]:
    low, high = np.sort(rng.uniform(-0.3, 0.3, (2, 2)), axis=0)
    near, far = np.sort(rng.uniform(0.05, 0.9, 2))
    left, right = np.sort(rng.uniform(-3.1, 3.1, 2))
    around = str(rng.choice(["robot", _named(rng, suite, task_id)]))
    areas: list[dict[str, Any]] = [
        {"shape": "box", "low": low.tolist(), "high": high.tolist()},
        {"shape": "region", "name": str(rng.choice(list(arrangement(suite, task_id).regions)))},
        {"shape": "polar", "around": around, "radius": [near, far], "angle": [left, right]},
        {"shape": "ray", "distance_m": float(rng.uniform(-0.3, 0.3))},
    ]
    return areas[int(rng.integers(len(areas)))]


def _instant(rng: np.random.Generator, suite: str, task_id: int) -> dict[str, Any]:
    """A stored instant with objects and arm anywhere near where a reset leaves them; mostly not a good one."""
    scene = scene_for(suite, task_id, seed=int(rng.integers(2**31)))
    qpos = _rest(suite, task_id).copy()
    qpos[:7] += rng.normal(0.0, 0.2, 7)
    first = 9 + 7 * int(rng.integers(len(get_task(suite, task_id).objects())))
    qpos[first : first + 3] += rng.normal(0.0, 0.1, 3)
    return {
        "task_id": task_id,
        "seed": scene.seed,
        "instruction": scene.instruction,
        "goal": scene.goal,
        "start": {"qpos": qpos.tolist(), "gripper": float(rng.choice([-1.0, 0.0, 1.0]))},
    }


@cache
def _rest(suite: str, task_id: int) -> np.ndarray:
    """Positions of a released start; a state is (time, qpos, qvel), and qpos has one number more a movable object."""
    task = get_task(suite, task_id)
    state = task.init_states()[0]
    return state[1 : 1 + (len(state) - 1 + len(task.objects())) // 2]


Make = Callable[[np.random.Generator, str, int], dict[str, Any]]
OPERATIONS: tuple[Make, ...] = (
    lambda rng, suite, task_id: {"op": "resample", "jitter_m": float(rng.uniform(0, 0.15))},
    lambda rng, suite, task_id: {"op": "permute", "count": int(rng.integers(2, 8))},
    lambda rng, suite, task_id: {
        "op": "offset", "target": _named(rng, suite, task_id), "radius_m": float(rng.uniform(0.01, 0.4))
    },
    lambda rng, suite, task_id: {
        "op": "place", "target": str(rng.choice(["all", _named(rng, suite, task_id)])),
        "area": _area(rng, suite, task_id),
    },
    lambda rng, suite, task_id: {
        "op": "crowd", "near": _named(rng, suite, task_id), "count": int(rng.integers(1, 5)),
        "radius_m": float(rng.uniform(0.05, 0.3)), "alike": bool(rng.integers(2)),
    },
    lambda rng, suite, task_id: {
        "op": "replace", "object": str(rng.choice(get_task(suite, task_id).objects())),
        "by": rng.choice(list(catalogue()), 1).tolist(),
    },
    lambda rng, suite, task_id: {"op": "retarget"},
    lambda rng, suite, task_id: {"op": "rephrase"},
    lambda rng, suite, task_id: {"op": "arm", "joint_rad": float(rng.uniform(0.01, 0.3))},
    lambda rng, suite, task_id: {"op": "camera", "shift_m": float(rng.uniform(0, 0.3))},
    lambda rng, suite, task_id: {"op": "light", "gain": float(rng.uniform(0, 0.9))},
    lambda rng, suite, task_id: {"op": "tint", "strength": float(rng.uniform(0.1, 1.0))},
    lambda rng, suite, task_id: {"op": "texture"},
    lambda rng, suite, task_id: {"op": "resume", "instants": [_instant(rng, suite, task_id)]},
)  # fmt: skip


def try_scenes(
    count: int,
    seed: int,
    workers: int,
    tasks: Sequence[tuple[str, int]] = TASKS,
    tick: Callable[[int], None] | None = None,
) -> list[Tried]:
    """`count` random scenes; an error that is not a gate's verdict is raised: it is the crash looked for."""
    tried: list[Tried] = []
    scenes: list[SceneSpec] = []
    for index in range(count):
        rng = np.random.default_rng((seed, index))
        try:
            scenes.append(random_program(rng, tasks).sample(rng))
        except LayoutError as error:
            tried.append(Tried("layout", str(error)))
    outcomes = run_in_forks(scenes, make_state=_simulator, work=_try, workers=workers, key=task_of)
    for outcome in outcomes:
        if outcome.result is None:
            raise RuntimeError(f"scene {outcome.job.to_json()} crashed: {outcome.error}")
        tried.append(outcome.result)
        if tick is not None:
            tick(len(tried))
    return tried


def _simulator(task: Task) -> Any:
    from libero_pro.simulator import Simulator

    return Simulator(task)


def _try(sim: Any, scene: SceneSpec, ask: Ask) -> Tried:
    from libero_pro.simulator import SimulationError
    from libero_pro.validity import check

    verdict = check(scene, sim)
    if not verdict.accepted:
        return Tried(verdict.gate or "unknown", verdict.reason)
    leaked = leaks(scene) is not None
    rng = np.random.default_rng(scene.seed)
    try:
        sim.reset(scene)
        sim.settle()
        sim.step_chunk(rng.uniform(-1.0, 1.0, (STEPS, 7)))
    except SimulationError as error:
        return Tried("", str(error), exploded=True, leaked=leaked)
    return Tried("", "", leaked=leaked)


def rows(tried: Sequence[Tried], command: str) -> list[dict[str, Any]]:
    """`{figure, value, unit, ...}` rows of the counts."""
    empty = {"peer": None, "ratio": None, "low": None, "high": None}

    def row(figure: str, value: int) -> dict[str, Any]:
        return {"figure": figure, "value": value, "unit": "scenes", **empty, "n": len(tried), "command": command}

    counts = Counter(one.gate for one in tried if one.gate)
    return [
        row("programs_crashed", 0),  # a crash ends the run
        row("programs_exploded", sum(one.exploded for one in tried)),
        row("programs_leaked", sum(one.leaked for one in tried)),
        row("programs_accepted", sum(not one.gate for one in tried)),
        *(row(f"programs_rejected_{gate}", count) for gate, count in counts.most_common()),
    ]


def main() -> int:
    """Prints a table, writes rows; the exit code is 1 if a scene exploded or leaked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    began = time.monotonic()
    display = Display()
    with display.stage("gate", "random scenes", arguments.count) as tick:
        tried = try_scenes(arguments.count, arguments.seed, arguments.workers, tick=tick)
    found = rows(tried, shlex.join(["python", "benchmarks/programs.py", *sys.argv[1:]]))
    table = Table(title=f"{len(tried)} random scenes in {time.monotonic() - began:.0f} s", title_justify="left")
    table.add_column("figure")
    table.add_column("scenes", justify="right")
    for row in found:
        table.add_row(row["figure"], str(row["value"]))
    display.console.print(table)
    for one in tried:
        if one.exploded or one.leaked:
            display.console.print(f"exploded or leaked: {one.reason}", markup=False)
    if arguments.json:
        keep(arguments.json, found)
    return int(any(one.exploded or one.leaked for one in tried))


if __name__ == "__main__":
    sys.exit(main())
