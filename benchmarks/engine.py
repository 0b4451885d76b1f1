"""The engine against LeRobot's own `LiberoEnv` and robosuite, in one process, on the same scenes and actions.

Times are processor time of this process where nothing else is said, so that a busy machine distorts ratios little.

    python benchmarks/engine.py --json engine.json      # about six minutes on two cores
    python benchmarks/engine.py --quick                 # a few steps of each, for a look
"""

import argparse
import gc
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from libero_pro.demonstrate import demonstrate
from libero_pro.figures import keep
from libero_pro.forked import run_in_forks
from libero_pro.programs import GenerationProgram, Permute, Resample
from libero_pro.rollout import Observation, run
from libero_pro.scene import SceneSpec
from libero_pro.suites import get_task, scene_for
from libero_pro.workers import Ask, run_in_workers

CHUNK = 10
SIZE = 128
SPATIAL, OBJECT = ("libero_spatial", 0), ("libero_object", 0)
PEER_ENV = "LeRobot's LiberoEnv"
PEER_ROBOSUITE = "robosuite's env.step"


@dataclass(frozen=True)
class Effort:
    """How often each thing is done."""

    peer_steps: int
    own_steps: int
    resets: int
    restores: int
    layouts: int
    demos: int
    rollouts: int


FULL = Effort(peer_steps=60, own_steps=300, resets=3, restores=300, layouts=60, demos=24, rollouts=16)
QUICK = Effort(peer_steps=5, own_steps=20, resets=1, restores=30, layouts=6, demos=2, rollouts=4)


class Rows:
    """Figures as they are found, printed at once."""

    def __init__(self, command: str) -> None:
        self.command, self.console = command, Console(highlight=False)
        self.rows: list[dict[str, Any]] = []

    def add(
        self, figure: str, value: float, unit: str, n: int, peer: str | None = None, of: float | None = None
    ) -> None:
        """`of` is the peer's value in the same unit; the ratio says how many times better the engine is."""
        better = None if of is None else value / of if unit.endswith(("/s", "/h")) else of / value
        ratio = None if better is None else round(better, 3)
        self.rows.append(
            {"figure": figure, "value": round(value, 4), "unit": unit, "peer": peer and f"{peer}: {of:.4g} {unit}",
             "ratio": ratio, "n": n, "low": None, "high": None, "command": self.command}
        )  # fmt: skip
        self.console.print(f"{figure}: {value:.4g} {unit}" + (f", {ratio:.2f}x {peer}" if ratio else ""), markup=False)

    def table(self) -> Table:
        """All figures."""
        table = Table(title=self.command, title_justify="left")
        for name in ("figure", "value", "unit", "ratio", "n"):
            table.add_column(name, justify="left" if name in ("figure", "unit") else "right")
        table.add_column("peer")
        for row in self.rows:
            ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}x"
            table.add_row(row["figure"], f"{row['value']:.4g}", row["unit"], ratio, str(row["n"]), row["peer"] or "")
        return table


def random_actions(count: int) -> np.ndarray:
    """(count, 7) in [-1, 1], the gripper fully one way or the other."""
    actions = np.random.default_rng(0).uniform(-1.0, 1.0, (count, 7))
    actions[:, 6] = np.sign(actions[:, 6])
    return actions


def cost_ms(work: Callable[[], Any], times: int) -> float:
    """Processor milliseconds of one call, over `times` of them."""
    began = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - began) * 1000 / times


def physics(rows: Rows, effort: Effort) -> None:
    """Control steps, starts and snapshots without images."""
    from libero_pro._libero import quiet_import
    from libero_pro.simulator import Simulator

    task = get_task(*SPATIAL)
    wrapper = quiet_import("libero.libero.envs.env_wrapper")
    peer = wrapper.ControlEnv(str(task.bddl_path), use_camera_obs=False, has_offscreen_renderer=False)
    peer.seed(0)
    peer.reset()
    peer.set_init_state(task.init_states()[0])
    sim, scene = Simulator(task), scene_for(*SPATIAL, init_state_id=0)
    sim.reset(scene)
    actions = random_actions(effort.own_steps)
    for action in actions[:2]:  # compiled functions are loaded
        peer.step(action)
        sim.step(action)
    theirs, ours = iter(actions), iter(actions)
    count = len(actions)
    peer_ms, own_ms = cost_ms(lambda: peer.step(next(theirs)), count), cost_ms(lambda: sim.step(next(ours)), count)
    rows.add("step", own_ms, "ms", count, PEER_ROBOSUITE, peer_ms)
    snapshot = sim.snapshot()
    rows.add("restore_ms", cost_ms(lambda: sim.restore(snapshot), effort.restores), "ms", effort.restores)

    def settled_reset() -> None:
        peer.reset()
        for _ in range(10):
            peer.step(np.array([0.0] * 6 + [-1.0]))

    program = GenerationProgram(
        suite=SPATIAL[0], task_ids=(SPATIAL[1],), operations=(Permute(), Resample()), difficulty=0.8
    )
    from libero_pro.validity import check

    began, accepted = time.process_time(), 0
    for index in range(effort.layouts):
        accepted += check(program.scene(index), sim).accepted
    layout_ms = (time.process_time() - began) * 1000 / max(1, accepted)
    peer_layout = cost_ms(settled_reset, effort.resets)
    rows.add("layout_ms", layout_ms, "ms", accepted, "robosuite's reset and ten no-op steps, unchecked", peer_layout)
    peer.close()


def images(rows: Rows, effort: Effort, name: tuple[str, int], label: str) -> tuple[float, float]:
    """Rollouts with two cameras; returns LeRobot's (ms a reset, ms a step)."""
    from lerobot.envs.libero import LiberoEnv

    from libero_pro._libero import quiet_import
    from libero_pro.render import Renderer
    from libero_pro.simulator import Simulator

    task, scene = get_task(*name), scene_for(*name, init_state_id=0)
    suite = quiet_import("libero.libero.benchmark").get_benchmark_dict()[name[0]]()
    peer = LiberoEnv(
        suite, name[1], name[0], obs_type="pixels_agent_pos", observation_width=SIZE, observation_height=SIZE,
        init_states=False,
    )  # fmt: skip
    peer.reset(seed=0)
    peer_reset = cost_ms(lambda: peer.reset(seed=0), effort.resets)
    peer._env.set_init_state(task.init_states()[0])
    theirs = iter(random_actions(effort.peer_steps).astype(np.float32))
    peer_step = cost_ms(lambda: peer.step(next(theirs)), effort.peer_steps)

    sim = Simulator(task)
    actions = random_actions(effort.own_steps).astype(np.float32).reshape(-1, CHUNK, 7)
    frames: list[Any] = []
    pictures: dict[str, list[dict[str, np.ndarray]]] = {}
    for profile in ("faithful", "fast"):
        with Renderer(sim.model, size=SIZE, profile=profile) as renderer:
            sim.reset(scene)
            sim.settle()
            renderer.render(sim.frame())
            shown: list[dict[str, np.ndarray]] = []
            seen: list[Any] = []

            def chunk(number: int, renderer: Renderer = renderer, shown: list = shown, seen: list = seen) -> None:
                seen.append(sim.frame())
                shown.append(renderer.render(seen[-1]))
                sim.step_chunk(actions[number], stop_at_success=False)

            numbers = iter(range(len(actions)))
            own = cost_ms(lambda: chunk(next(numbers)), len(actions)) / CHUNK  # noqa: B023
            rows.add(f"rollout_{profile}_{label}", own, "ms", effort.own_steps, f"{PEER_ENV}, a step", peer_step)
            pair = cost_ms(lambda: renderer.render(seen[0]), min(len(seen), 20))  # noqa: B023
            rows.add(f"render_{profile}_{label}", pair, "ms", min(len(seen), 20))
            if profile == "faithful":

                def start() -> None:
                    sim.reset(scene)
                    sim.settle()
                    renderer.render(sim.frame())

                rows.add(f"reset_{label}", cost_ms(start, effort.resets), "ms", effort.resets, PEER_ENV, peer_reset)
            frames, pictures[profile] = seen, shown
    both = [
        (exact[camera].astype(float), quick[camera].astype(float))
        for exact, quick in zip(pictures["faithful"], pictures["fast"], strict=True)
        for camera in exact
    ]
    psnr = [10 * np.log10(255**2 / np.mean((a - b) ** 2)) for a, b in both]
    rows.add(f"psnr_fast_{label}", float(np.mean(psnr)), "dB", len(frames))
    peer.close()
    return peer_reset, peer_step


class RandomPolicy:
    """Chunks drawn from the observation's seed."""

    actor, cameras, n_action_steps = "policy:random", ("agentview", "wrist"), CHUNK

    def reset(self) -> None:
        """Nothing to forget."""

    def act(self, observations: list[Observation]) -> np.ndarray:
        """(B, CHUNK, 7)."""
        return np.array([np.random.default_rng(o.seed).uniform(-1, 1, (CHUNK, 7)) for o in observations], np.float32)


def scaling(rows: Rows, effort: Effort) -> None:
    """Episodes a second of two workers against one, from the first finished episode on."""
    scenes = [scene_for(*OBJECT, seed=index) for index in range(effort.rollouts)]
    horizon = 100 if effort is FULL else 20

    def rate(workers: int) -> float:
        times: list[float] = []
        for _ in run(
            RandomPolicy(), scenes, workers=workers, horizon=horizon, size=SIZE,
            progress=lambda done, total: times.append(time.monotonic()),
        ):  # fmt: skip
            pass
        return (len(times) - workers) / (times[-1] - times[workers - 1])

    one = rate(1)
    rows.add("workers_2", rate(2), "episodes/s", effort.rollouts, "one worker, wall time", one)


def memory(rows: Rows) -> None:
    """What one more process costs: private memory after a reset and some steps."""
    scenes = [scene_for(*OBJECT, seed=index) for index in range(8)]
    key = OBJECT
    ours = [o.result for o in run_in_forks(scenes, make_state=_simulator, work=_stepped, workers=2, key=lambda _: key)]
    theirs = [o.result for o in run_in_workers([0], make_state=_peer, work=_peer_stepped, workers=1, key=lambda _: key)]
    failed = [mb for mb in (*ours, *theirs) if mb is None]
    if failed:
        raise RuntimeError("a worker of the memory measurement failed")
    rows.add("worker_mb", float(np.max(ours)), "MB", len(ours), f"{PEER_ENV}, a process", float(np.max(theirs)))  # type: ignore[arg-type]


def _simulator(key: tuple[str, int]) -> Any:
    from libero_pro.simulator import Simulator

    sim = Simulator(get_task(*key))
    sim.reset(scene_for(*key))
    sim.settle(2)  # what every worker would load for itself is shared
    return sim


def _stepped(sim: Any, scene: SceneSpec, ask: Ask) -> float:
    sim.reset(scene)
    sim.settle()
    return private_mb()


def _peer(key: tuple[str, int]) -> Any:
    from lerobot.envs.libero import LiberoEnv

    from libero_pro._libero import quiet_import

    suite = quiet_import("libero.libero.benchmark").get_benchmark_dict()[key[0]]()
    return LiberoEnv(
        suite, key[1], key[0], obs_type="pixels_agent_pos", observation_width=SIZE, observation_height=SIZE,
        init_states=False,
    )  # fmt: skip


def _peer_stepped(peer: Any, job: int, ask: Ask) -> float:
    peer.reset(seed=0)
    return private_mb()


def private_mb() -> float:
    """Memory (MB) that only this process uses."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1000


def demonstrations(rows: Rows, effort: Effort, peer_reset: float, peer_step: float) -> None:
    """Demonstrations an hour in two workers, and the steps a second at which they become a dataset."""
    from libero_pro.dataset import write_dataset

    scenes = [scene_for(*OBJECT, seed=100 + index) for index in range(effort.demos)]
    times: list[float] = []
    began = time.monotonic()
    episodes = list(demonstrate(scenes, workers=2, progress=lambda done, total: times.append(time.monotonic())))
    solved = [episode for episode in episodes if episode.success]
    steps = sum(len(episode) for episode in solved)
    hourly = 3600 * len(solved) / (times[-1] - began)
    # The expert's own cost left out: what LeRobot's env takes for as many resets and steps in two processes.
    peer = 3600 * 2 * len(solved) / ((len(solved) * peer_reset + steps * peer_step) / 1000)
    rows.add("demos_per_hour", hourly, "episodes/h", len(solved), f"{PEER_ENV}, two processes, same steps", peer)
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        write_dataset(solved, Path(folder) / "shard", repo_id="bench/engine", workers=2)
        rows.add("dataset_steps_s", steps / (time.monotonic() - began), "steps/s", steps)


def main() -> None:
    """Measures, prints the table, writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few steps of each: checks the script, not the engine")
    parser.add_argument("--only", nargs="+", choices=("physics", "images", "memory", "scaling", "demos"))
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
    effort = QUICK if arguments.quick else FULL
    rows = Rows(shlex.join(["python", "benchmarks/engine.py", *sys.argv[1:]]))
    peers: dict[str, tuple[float, float]] = {}
    parts: Sequence[tuple[str, Callable[[], Any]]] = (
        ("scaling", partial(scaling, rows, effort)),  # processes first: none is forked from one that holds OpenGL
        ("memory", partial(memory, rows)),
        ("physics", partial(physics, rows, effort)),
        ("images", lambda: peers.update(spatial=images(rows, effort, SPATIAL, "spatial"))),
        ("images", lambda: peers.update(object=images(rows, effort, OBJECT, "object"))),
        ("demos", lambda: demonstrations(rows, effort, *peers["object"])),
    )
    for name, part in parts:
        if not arguments.only or name in arguments.only or (name == "images" and "demos" in arguments.only):
            part()
            gc.collect()
    rows.console.print(rows.table())
    if arguments.json:
        keep(arguments.json, rows.rows)


if __name__ == "__main__":
    main()
