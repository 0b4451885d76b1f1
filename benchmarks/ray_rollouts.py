"""Rollouts on a Ray cluster of this machine: the episodes of local processes, and how much a second node adds.

A cluster of two nodes with one CPU each is started here. The same scenes are played by processes, by one node, by both,
and by both of which one is killed in the middle; every episode is compared by its digest. Throughput counts from the
first finished episode of each worker on, so that building simulators plays no role. The policy looks at two cameras and
costs nothing, so a node's core is busy throughout; on two cores nothing else may run.

    python benchmarks/ray_rollouts.py --json results/scale.json
"""

import argparse
import hashlib
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "libero_pro"))

from rich.console import Console

from libero_pro.episode import Episode
from libero_pro.figures import figure, keep
from libero_pro.ray_workers import RayWorkers
from libero_pro.rollout import run
from libero_pro.scene import SceneSpec
from libero_pro.suites import scene_for
from libero_pro.workers import Workers

Progress = Callable[[int, int], None]


def digest(episode: Episode) -> str:
    """SHA-256 over everything of an episode but how long it took."""
    found = hashlib.sha256()
    for name in (f.name for f in fields(episode)):
        value = getattr(episode, name)
        if isinstance(value, np.ndarray):
            found.update(f"{name} {value.dtype} {value.shape}".encode() + value.tobytes())
        elif name != "wall_s":
            found.update(f"{name} {value}".encode())
    return found.hexdigest()


def play(scenes: Sequence[SceneSpec], workers: Workers, horizon: int, progress: Progress) -> list[str]:
    """The digests of the scenes' episodes."""
    from rollout_parts import SeededPolicy

    policy = SeededPolicy(("agentview", "wrist"), n_action_steps=10)
    return [digest(e) for e in run(policy, scenes, workers=workers, horizon=horizon, progress=progress)]


def rate(scenes: Sequence[SceneSpec], workers: Workers, horizon: int) -> tuple[list[str], float]:
    """Digests, and episodes a second from the first of each worker on."""
    times: list[float] = []
    found = play(scenes, workers, horizon, lambda done, total: times.append(time.monotonic()))
    count = workers if isinstance(workers, int) else workers.count
    return found, (len(times) - count) / (times[-1] - times[count - 1])


def main() -> int:
    """Prints and writes rows; the exit code is 1 if an episode differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=24)
    parser.add_argument("--horizon", type=int, default=100)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    from ray_parts import two_nodes

    scenes = [scene_for("libero_object", 0, seed=seed) for seed in range(arguments.episodes)]
    horizon = arguments.horizon
    here, local = rate(scenes, 2, horizon)
    with two_nodes() as cluster:
        one, single = rate(scenes, RayWorkers.connect(1, cluster.address), horizon)
        both, double = rate(scenes, RayWorkers.connect(2, cluster.address), horizon)

        def lose(done: int, total: int) -> None:
            if done == total // 3:
                cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)

        without = play(scenes, RayWorkers.connect(2, cluster.address), horizon, lose)
        lost = not cluster.worker_nodes
    same, survived = here == one == both, lost and here == without
    command = shlex.join(["python", "benchmarks/ray_rollouts.py", *sys.argv[1:]])
    n, ratio = len(scenes), round(double / single, 3)
    rows: list[dict[str, Any]] = [
        figure("ray_identical", int(same), "1 if every episode is the same bit for bit", command, n=n,
               peer="two processes"),
        figure("ray_node_lost_identical", int(survived), "1 if every episode is the same bit for bit", command, n=n,
               peer="no node lost"),
        figure("ray_2_nodes", round(double, 4), "episodes/s", command, n=n, ratio=ratio,
               peer=f"one node of one core: {single:.4g} episodes/s"),
        figure("ray_2_nodes_local", round(double, 4), "episodes/s", command, n=n, ratio=round(double / local, 3),
               peer=f"two processes without Ray: {local:.4g} episodes/s"),
    ]  # fmt: skip
    for row in rows:
        Console().print(f"{row['figure']}: {row['value']} {row['unit']}, ratio {row['ratio']}, {row['peer']}")
    if arguments.json:
        keep(arguments.json, rows)
    return int(not (same and survived))


if __name__ == "__main__":
    sys.exit(main())
