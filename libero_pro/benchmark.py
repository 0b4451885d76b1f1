"""The LIBERO-Pro benchmark: suites x tasks x released starts, run, counted and written down.

An interrupted run goes on where it stopped: every episode is a file of its own. The default seeds are those of
`lerobot-eval` (1000 + the episode's number), so both run the same scenes.
"""

import io
import json
import platform
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from libero_pro.defects import defects_in, defects_of, is_sound
from libero_pro.episode import Episode
from libero_pro.figures import csv_of
from libero_pro.protocol import NOTED, PHYSICS, Protocol, card, files_hash, versions
from libero_pro.record import RecordError, write_atomically
from libero_pro.render import Profile
from libero_pro.results_table import results_table
from libero_pro.rollout import ChunkPolicy, run
from libero_pro.scene import PromptSource, SceneSpec
from libero_pro.statistics import mean_of_rates, wilson
from libero_pro.suites import AXES, BASE, get_task, runnable_tasks, scene_for, suite_of
from libero_pro.workers import Workers

THREE = ("libero_spatial", "libero_object", "libero_goal")  # what many papers average over
MEANS = {"3 suites": THREE, "4 suites": BASE}
_TYPES = {
    "suite": "string", "task_id": "int64", "init_state_id": "int64", "seed": "int64", "success": "bool",
    "terminated": "bool", "truncated": "bool", "steps": "int64", "invalid": "string", "prompt_source": "string",
    "prompt": "string", "scene": "string", "wall_s": "float64",
}  # fmt: skip


@dataclass(frozen=True)
class BenchmarkResult:
    """One row an episode; counts with intervals by suite, by task, in all; how it was measured; where it is kept."""

    rows: list[dict[str, Any]]
    summary: dict[str, Any]
    protocol: Protocol
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
    workers: Workers = 2,
    profile: Profile = "faithful",
    size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    watch: Callable[[dict[str, Any]], None] | None = None,
) -> BenchmarkResult:
    """Runs `episodes` episodes a task; writes into `out`: episodes.parquet (and .csv), per_task.csv, summary.json,
    card.md (the protocol) and table.md (suites by axes, with a footnote per known defect).

    task_ids        of each suite; None: all that have released starts
    init_state_ids  released start of each episode, reused from the front if fewer than `episodes`; None: 0, 1, 2, ...
    seed            episode k resets with seed + k, which draws the fixtures' places
    horizon         control steps before truncation; None: the protocol's
    progress        called with (episodes done, of how many)
    watch           called with the row of each episode, in the order of the table

    Episodes with an infrastructure or physics error are reported as invalid and belong to no rate. RecordError before
    anything is simulated for an unknown suite, task or start, a missing file, or a folder of another protocol.
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
    rows = []
    for episode in recorded:
        rows.append(_row(episode))
        if watch is not None:
            watch(rows[-1])
    conditions = json.loads((out / "episodes" / "conditions.json").read_text())
    result = BenchmarkResult(rows, summarize(rows), _protocol(conditions, scenes, episodes, seed), out)
    _write(result)
    return result


def load_benchmark(folder: str | Path) -> BenchmarkResult:
    """Reads a finished benchmark folder; RecordError if it is none."""
    folder = Path(folder)
    try:
        written = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        import pyarrow.parquet

        rows = pyarrow.parquet.read_table(folder / "episodes.parquet").to_pylist()
    except (OSError, ValueError) as error:
        raise RecordError(
            f"{folder} is not a finished benchmark folder ({str(error).splitlines()[0]}); "
            "run `lerobot-coda benchmark` with --output there, it goes on where it stopped"
        ) from None
    if not isinstance(written, dict) or "protocol" not in written:
        raise RecordError(f"{folder}/summary.json has no protocol; run `lerobot-coda benchmark` there again")
    protocol = Protocol.parse(written.pop("protocol"))
    return BenchmarkResult(rows, written, protocol, folder)


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
        for task_id in task_ids if task_ids is not None else runnable_tasks(suite):
            starts = list(init_state_ids or range(len(get_task(suite, task_id).init_states()))) or [0]
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
    """Counts, success rate and Wilson 95 % interval of valid episodes: `overall`, `per_suite`, `per_task`, `means`.

    `means` are unweighted means over base suites, by axis (`base`, `swap`, ...), where all of their suites were run.
    `sound` holds the same without the episodes that a known defect distorts.
    """
    sound = [r for r in rows if is_sound(r["suite"], r["task_id"], r["init_state_id"], r["prompt_source"])]
    return {**_counts(rows), "sound": _counts(sound)}


def _counts(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    by_suite: dict[str, list[dict]] = {}
    by_task: dict[str, list[dict]] = {}
    for row in rows:
        by_suite.setdefault(row["suite"], []).append(row)
        by_task.setdefault(f"{row['suite']}/{row['task_id']}", []).append(row)
    per_suite = {name: _rate(group) for name, group in by_suite.items()}
    return {
        "overall": _rate(rows),
        "per_suite": per_suite,
        "per_task": {name: _rate(group) for name, group in by_task.items()},
        "means": _means(per_suite),
    }


def _means(per_suite: dict[str, dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for axis in ("base", *AXES):
        for name, bases in MEANS.items():
            rates = [per_suite.get(suite_of(base, axis)) for base in bases]
            counts = [(rate["successes"], rate["episodes"]) for rate in rates if rate and rate["episodes"]]
            if len(counts) == len(bases):
                mean, low, high = (round(value, 4) for value in mean_of_rates(counts))
                found.setdefault(axis, {})[name] = {"rate": mean, "low": low, "high": high}
    return found


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
        "terminated": int(episode.terminated),
        "truncated": int(episode.truncated),
        "steps": len(episode),
        "invalid": episode.invalid or "",
        "prompt_source": scene.prompt_source,
        "prompt": scene.instruction,
        "scene": scene.hash,
        "wall_s": episode.wall_s,
    }


def _protocol(conditions: dict[str, Any], scenes: Sequence[SceneSpec], episodes: int, seed: int) -> Protocol:
    """What was run, from the conditions that its episodes were recorded under."""
    ran: dict[str, list[int]] = {}
    for suite, task_id in dict.fromkeys((scene.suite, scene.task_id) for scene in scenes):
        ran.setdefault(suite, []).append(task_id)
    starts = dict.fromkeys(scene.init_state_id for scene in scenes if scene.init_state_id is not None)
    return Protocol(
        actor=conditions["actor"],
        suites={suite: tuple(ids) for suite, ids in ran.items()},
        episodes_per_task=episodes,
        prompt_source=scenes[0].prompt_source,
        horizons={suite: conditions["horizon"] or get_task(suite, 0).horizon for suite in ran},
        settle_steps=conditions["settle_steps"],
        n_action_steps=conditions["n_action_steps"],
        cameras=tuple(conditions["cameras"]),
        size=conditions["size"],
        profile=conditions["profile"],
        starts=tuple(starts),
        seed=seed,
        files={suite: files_hash(get_task(suite, task_id) for task_id in ids) for suite, ids in ran.items()},
        physics=versions(PHYSICS),
        software={"Python": platform.python_version(), **versions(NOTED)},
    )


def _write(result: BenchmarkResult) -> None:
    rows, summary, protocol, out = result.rows, result.summary, result.protocol, result.out
    source = protocol.prompt_source
    per_task = [
        {
            "suite": suite,
            "task": task_id,
            **summary["per_task"][f"{suite}/{task_id}"],
            "prompt": get_task(suite, task_id).prompt(source),
            "defects": "; ".join(defect.note for defect in defects_of(suite, task_id, prompt_source=source)),
        }
        for suite, ids in protocol.suites.items()
        for task_id in ids
    ]
    defects = defects_in((row["suite"], row["task_id"], row["init_state_id"], source) for row in rows)
    notes = [f"{defect.where()}: {defect.note}" for defect in defects]
    written = {**summary, "protocol": protocol.model_dump(mode="json")}
    write_atomically(out / "episodes.parquet", _parquet(rows))
    write_atomically(out / "episodes.csv", csv_of(rows))
    write_atomically(out / "per_task.csv", csv_of(per_task))
    write_atomically(out / "table.md", results_table(summary, protocol, defects).encode())
    write_atomically(out / "card.md", card(protocol, command=_command(), notes=notes).encode())
    write_atomically(out / "summary.json", json.dumps(written, indent=2).encode())  # last: it says the run is whole


def _command() -> str:
    """The command line without the folder that its program is installed in."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def _parquet(rows: Sequence[dict[str, Any]]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet

    columns = {
        name: pa.array([bool(row[name]) if kind == "bool" else row[name] for row in rows], pa.type_for_alias(kind))
        for name, kind in _TYPES.items()
    }
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pa.table(columns), buffer)
    return buffer.getvalue()
