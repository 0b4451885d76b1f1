"""The benchmark against stock `lerobot-eval`, on the same policy and episodes: is the outcome the same, and how fast?

Three ways through the same episodes of a base suite, prompts by file name, faithful rendering:

  ours    `libero_pro.benchmark.run_benchmark`, what `lerobot-coda benchmark` runs
  libero  `lerobot-eval --env.type=libero`, LeRobot's own environment on robosuite; the released start states, which
          its loader expects as torch files, are rewritten for it into a temporary folder, nothing else is changed
  plugin  `lerobot-eval --env.type=libero_pro`, this package's environment in LeRobot's loop

On libero_10 8, whose stove starts switched on, LeRobot's own environment has the fixtures at other places than ours
from the first frame; tasks whose fixtures start open (libero_spatial 4; libero_10 3, 9) were not compared.

Times are those of the evaluations alone (`eval_s` of `lerobot-eval`): the policy is loaded, simulators are not.

    python benchmarks/benchmark.py --policy.path=CHECKPOINT --suite libero_object --task-ids 0 3 --json b.json
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from libero_pro import gl
from libero_pro.benchmark import run_benchmark
from libero_pro.policy_runner import LeRobotChunkPolicy
from libero_pro.suites import BASE, get_task

SEED = 1000  # lerobot-eval's own


@dataclass(frozen=True)
class Pass:
    """One way through the episodes: seconds, and success by (task id, episode)."""

    seconds: float
    success: dict[tuple[int, int], bool]


def main() -> None:
    """Runs the three, prints the table and writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy.path", dest="policy", required=True, metavar="CHECKPOINT")
    parser.add_argument("--suite", choices=BASE, default="libero_object")
    parser.add_argument("--task-ids", type=int, nargs="+", default=[0, 3])
    parser.add_argument("--episodes", type=int, default=5, help="of each task (default 5)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--episode-length", type=int, help="control steps before truncation; default: the protocol's")
    parser.add_argument("--skip-plugin", action="store_true", help="leave out the plugin's environment")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()

    gl.configure()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        policy = LeRobotChunkPolicy.from_pretrained(arguments.policy)
        passes = {"ours": ours(policy, arguments, folder)}
        size = policy.image_size or 128
        passes["libero"] = stock("libero", arguments, size, folder)
        if not arguments.skip_plugin:
            passes["plugin"] = stock("libero_pro", arguments, size, folder)
    rows = figures(passes, shlex.join(["python", *sys.argv]))
    for row in rows:
        ratio = "" if row["ratio"] is None else f"  {row['ratio']:.2f} x {row['peer']}"
        print(f"{row['figure']:<38}{row['value']:>10g} {row['unit']}  n={row['n']}{ratio}")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def ours(policy: LeRobotChunkPolicy, arguments: argparse.Namespace, folder: Path) -> Pass:
    """`run_benchmark` over the episodes; fails if one is invalid."""
    began = time.perf_counter()
    result = run_benchmark(
        policy,
        [arguments.suite],
        task_ids=arguments.task_ids,
        episodes=arguments.episodes,
        prompt_source="filename",
        seed=SEED,
        horizon=arguments.episode_length,
        workers=arguments.workers,
        out=folder / "ours",
    )
    seconds = time.perf_counter() - began
    for row in result.rows:
        if row["invalid"]:
            sys.exit(f"{row['suite']} {row['task_id']} start {row['init_state_id']} is invalid: {row['invalid']}")
    return Pass(seconds, {(row["task_id"], row["init_state_id"]): bool(row["success"]) for row in result.rows})


def stock(environment: str, arguments: argparse.Namespace, size: int, folder: Path) -> Pass:
    """`lerobot-eval` with its defaults over the same episodes, in an environment `libero` or `libero_pro`."""
    out = folder / environment
    command = [
        str(Path(sys.executable).with_name("lerobot-eval")),
        f"--policy.path={arguments.policy}",
        "--policy.device=cpu",
        f"--env.type={environment}",
        f"--env.task={arguments.suite}",
        f"--env.task_ids={arguments.task_ids}",
        f"--env.observation_height={size}",
        f"--env.observation_width={size}",
        f"--eval.n_episodes={arguments.episodes}",
        "--eval.batch_size=1",
        f"--seed={SEED}",
        f"--output_dir={out}",
    ]
    if environment == "libero_pro":
        command.append("--env.prompt_source=filename")
    if arguments.episode_length is not None:
        command.append(f"--env.episode_length={arguments.episode_length}")
    config = start_states_for_torch(arguments.suite, arguments.task_ids, folder)
    done = subprocess.run(
        command, env={**os.environ, "LIBERO_CONFIG_PATH": str(config)}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"lerobot-eval --env.type={environment} failed:\n{done.stderr[-3000:]}")
    info = json.loads((out / "eval_info.json").read_text(encoding="utf-8"))
    success = {
        (task["task_id"], number): bool(outcome)
        for task in info["per_task"]
        for number, outcome in enumerate(task["metrics"]["successes"])
    }
    return Pass(info["overall"]["eval_s"], success)


def start_states_for_torch(suite: str, task_ids: Sequence[int], folder: Path) -> Path:
    """A LIBERO configuration whose start states LeRobot's own environment can load; returns its folder."""
    for task_id in task_ids:
        task = get_task(suite, task_id)
        target = folder / "init_files" / suite / task.init_path.name.removesuffix(".npz")
        target.parent.mkdir(parents=True, exist_ok=True)
        torch.save(np.array(task.init_states()), target)
    (folder / "config.yaml").write_text(yaml.safe_dump({"init_states": str(folder / "init_files")}), encoding="utf-8")
    return folder


def figures(passes: dict[str, Pass], command: str) -> list[dict[str, Any]]:
    """Rows: episodes an hour of each with the ratio of ours to it, and whether every episode agrees."""
    mine = passes["ours"]
    n = len(mine.success)

    def row(figure: str, value: float, unit: str, **more: Any) -> dict[str, Any]:
        empty = {"peer": None, "ratio": None, "n": n, "low": None, "high": None}
        return {"figure": figure, "value": value, "unit": unit, **empty, **more, "command": command}

    rate = {name: 3600 * n / found.seconds for name, found in passes.items()}
    peers = {"libero": "lerobot-eval --env.type=libero", "plugin": "lerobot-eval --env.type=libero_pro"}
    rows = []
    for name, peer in peers.items():
        if name not in passes:
            continue
        suffix = "" if name == "libero" else f"_in_{name}"
        ratio = round(rate["ours"] / rate[name], 3)
        agree = sum(mine.success[key] == outcome for key, outcome in passes[name].success.items())
        same = int(agree == n and passes[name].success.keys() == mine.success.keys())
        rows.append(row(f"episodes_per_hour{suffix}", round(rate["ours"], 1), "episodes/h", peer=peer, ratio=ratio))
        rows.append(row(f"episodes_per_hour_of_peer{suffix}", round(rate[name], 1), "episodes/h", peer=peer))
        rows.append(row(f"identical_to_lerobot_eval{suffix}", same, "1 if every episode agrees", peer=peer))
        rows.append(row(f"episodes_that_agree{suffix}", agree, "episodes", peer=peer))
    rows.append(row("success_rate", round(sum(mine.success.values()) / n, 4), "success rate"))
    return rows


if __name__ == "__main__":
    main()
