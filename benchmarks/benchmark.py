"""The benchmark against stock `lerobot-eval`, on the same policy and episodes: is the outcome the same, and how fast?

Three ways through the same episodes of a base suite, prompts by file name, faithful rendering:

  ours    `libero_pro.benchmark.run_benchmark`, what `lerobot-coda benchmark` runs
  libero  `lerobot-eval --env.type=libero`, LeRobot's own environment on robosuite; the released start states, which
          its loader expects as torch files, are rewritten for it into a temporary folder, nothing else is changed
  plugin  `lerobot-eval --env.type=libero_pro`, this package's environment in LeRobot's loop (--plugin)

Ours runs before and after each stock pass, from nothing each time, so that a machine that slows down shows.
Times: `eval_s` of `lerobot-eval`, which begins when its policy is loaded and its libraries are imported; of ours all
that follows a loaded policy: worker processes, their imports, simulators, files. Stock runs with its own defaults (one
environment at a time on two cores) in the environment that this script was started in.

Tasks whose fixtures start open or switched on (libero_spatial 4; libero_10 3, 8, 9) are refused: there LIBERO draws the
fixtures' places after as many joint positions as the environment has seen resets, so that its start states depend on
how many episodes ran before (`libero_pro.defects`).

    python -m benchmarks.benchmark --policy.path=CHECKPOINT --suite libero_object --task-ids 0 5 --json b.json
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from libero_pro import gl
from libero_pro.defects import defects_of
from libero_pro.figures import figure, keep
from libero_pro.suites import BASE, get_task

# LeRobot and torch are imported where they are used: simulator processes import this file again, as they do the far
# lighter console script of `lerobot-coda benchmark`.
if TYPE_CHECKING:
    from libero_pro.policy_runner import LeRobotChunkPolicy

SEED = 1000  # lerobot-eval's own
PEERS = {"libero": "lerobot-eval --env.type=libero", "libero_pro": "lerobot-eval --env.type=libero_pro"}


@dataclass(frozen=True)
class Pass:
    """One way through the episodes: seconds, and success by (task id, episode)."""

    seconds: float
    success: dict[tuple[int, int], bool]

    @property
    def rate(self) -> float:
        """Episodes an hour."""
        return 3600 * len(self.success) / self.seconds


def main() -> None:
    """Runs the passes, prints the table and writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy.path", dest="policy", required=True, metavar="CHECKPOINT")
    parser.add_argument("--suite", choices=BASE, default="libero_object")
    parser.add_argument("--task-ids", type=int, nargs="+", default=[0, 5])
    parser.add_argument("--episodes", type=int, default=5, help="of each task (default 5)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--episode-length", type=int, help="control steps before truncation; default: the protocol's")
    parser.add_argument("--plugin", action="store_true", help="also time this package's environment in lerobot-eval")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows into this file of rows")
    parser.add_argument("--name", metavar="POLICY", help="ending of the names of the figures, for a second policy")
    arguments = parser.parse_args()
    for task_id in arguments.task_ids:
        if "history" in {found.kind for found in defects_of(arguments.suite, task_id, prompt_source="filename")}:
            sys.exit(f"{arguments.suite} {task_id}: LeRobot's own environment starts it by history; choose other tasks")

    from libero_pro.policy_runner import LeRobotChunkPolicy

    environment = dict(os.environ)  # stock's, before this package sets anything for itself
    environment["MUJOCO_GL"] = gl.configure() or "egl"
    peers = list(PEERS) if arguments.plugin else ["libero"]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        policy = LeRobotChunkPolicy.from_pretrained(arguments.policy)
        mine = [ours(policy, arguments, folder / "ours0")]
        theirs = {}
        for number, peer in enumerate(peers, 1):
            theirs[peer] = stock(peer, arguments, policy.image_size or 128, folder, environment)
            mine.append(ours(policy, arguments, folder / f"ours{number}"))
    rows = figures(mine, theirs, shlex.join(["python", "-m", "benchmarks.benchmark", *sys.argv[1:]]))
    if arguments.name:
        rows = [{**row, "figure": f"{row['figure']}_{arguments.name}"} for row in rows]
    for row in rows:
        ratio = "" if row["ratio"] is None else f"  {row['ratio']:.2f} x {row['peer']}"
        print(f"{row['figure']:<42}{row['value']:>10g} {row['unit']}  n={row['n']}{ratio}")
    if arguments.json:
        keep(arguments.json, rows)


def ours(policy: "LeRobotChunkPolicy", arguments: argparse.Namespace, out: Path) -> Pass:
    """`run_benchmark` over the episodes; fails if one is invalid."""
    from libero_pro.benchmark import run_benchmark

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
        out=out,
    )
    seconds = time.perf_counter() - began
    for row in result.rows:
        if row["invalid"]:
            sys.exit(f"{row['suite']} {row['task_id']} start {row['init_state_id']} is invalid: {row['invalid']}")
    return Pass(seconds, {(row["task_id"], row["init_state_id"]): bool(row["success"]) for row in result.rows})


def stock(peer: str, arguments: argparse.Namespace, size: int, folder: Path, environment: Mapping[str, str]) -> Pass:
    """`lerobot-eval` with its defaults over the same episodes, in its environment `libero` or in `libero_pro`."""
    out = folder / peer
    command = [
        str(Path(sys.executable).with_name("lerobot-eval")),
        f"--policy.path={arguments.policy}",
        "--policy.device=cpu",
        f"--env.type={peer}",
        f"--env.task={arguments.suite}",
        f"--env.task_ids={arguments.task_ids}",
        f"--env.observation_height={size}",
        f"--env.observation_width={size}",
        f"--eval.n_episodes={arguments.episodes}",
        "--eval.batch_size=1",
        f"--seed={SEED}",
        f"--output_dir={out}",
    ]
    if peer == "libero_pro":
        command.append("--env.prompt_source=filename")
    if arguments.episode_length is not None:
        command.append(f"--env.episode_length={arguments.episode_length}")
    config = start_states_for_torch(arguments.suite, arguments.task_ids, folder)
    env = {**environment, "LIBERO_CONFIG_PATH": str(config)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{PEERS[peer]} failed:\n{done.stderr[-3000:]}")
    info = json.loads((out / "eval_info.json").read_text(encoding="utf-8"))
    success = {
        (task["task_id"], number): bool(outcome)
        for task in info["per_task"]
        for number, outcome in enumerate(task["metrics"]["successes"])
    }
    return Pass(info["overall"]["eval_s"], success)


def start_states_for_torch(suite: str, task_ids: Sequence[int], folder: Path) -> Path:
    """A LIBERO configuration whose start states LeRobot's own environment can load; returns its folder."""
    import torch

    for task_id in task_ids:
        task = get_task(suite, task_id)
        target = folder / "init_files" / suite / task.init_path.name.removesuffix(".npz")
        target.parent.mkdir(parents=True, exist_ok=True)
        torch.save(np.array(task.init_states()), target)
    (folder / "config.yaml").write_text(yaml.safe_dump({"init_states": str(folder / "init_files")}), encoding="utf-8")
    return folder


def figures(mine: Sequence[Pass], theirs: Mapping[str, Pass], command: str) -> list[dict[str, Any]]:
    """Rows: episodes an hour of ours (low and high: its slowest and fastest pass) and of each peer, and what agrees.

    The ratio to a peer is that of the mean of the passes before and after it.
    """
    n = len(mine[0].success)
    rows = []
    for number, (name, found) in enumerate(theirs.items()):
        around = mine[number : number + 2]
        rate = 3600 * len(around) * n / sum(one.seconds for one in around)
        low, high = (round(extreme(one.rate for one in around), 1) for extreme in (min, max))
        agree = sum(one.success.get(key) == outcome for one in around for key, outcome in found.success.items())
        same = agree == len(around) * n and all(one.success.keys() == found.success.keys() for one in around)
        suffix, peer = "" if name == "libero" else "_in_plugin", {"peer": PEERS[name], "n": n}
        hourly = {"ratio": round(rate / found.rate, 3), "low": low, "high": high}
        rows += [
            figure(f"episodes_per_hour{suffix}", round(rate, 1), "episodes/h", command, **peer, **hourly),
            figure(f"episodes_per_hour_of_peer{suffix}", round(found.rate, 1), "episodes/h", command, **peer),
            figure(f"identical_to_lerobot_eval{suffix}", int(same), "1 if every episode agrees", command, **peer),
            figure(f"episodes_that_agree{suffix}", agree / len(around), "episodes", command, **peer),
        ]
    solved = sum(mine[0].success.values())
    return [*rows, figure("success_rate", round(solved / n, 4), "success rate", command, n=n)]


if __name__ == "__main__":
    main()
