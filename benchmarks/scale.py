"""What limits a round from 1 to 1,000 rollout workers? A discrete-event model on costs measured here.

Two policies: the small one, whose costs are read from `results/` but for three that stand below with their origin, and
a VLA, whose costs on an accelerator are assumptions (see docs/scale.md) and can be given. A round is of four policy
episodes a worker, and the rest in the recipe's proportions. The VLA's second row has what it takes for the workers to
be what limits.

    python benchmarks/scale.py --json results/scale.json
    python benchmarks/scale.py --infer 0.05 --infer-each 0.004 --train 0.5      # your accelerator's seconds
"""

import argparse
import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lerobot_coda.scale import Costs, Machines, Report, Work, carried, grown, provision, simulate
from libero_pro.figures import figure, keep

RESULTS = Path(__file__).parents[1] / "results"
WORKERS = (1, 10, 100, 1000)
EPISODES = 4  # of the policy, a worker
EPISODE_BYTES = 95_000  # a stored episode of recipes/libero_object.yaml, mean of 880
ROW_BYTES = 580  # memory.sqlite of the same run over its 1,900 rows

# A round of recipes/libero_object.yaml. Measured by hand: a training step of a round on two cores (0.42 to 0.55 s in
# two rounds of 600), and an observation of the small policy on one. Estimated: a simulator with its renderer.
SMALL = Work(probe=28, validation=80, measure=80, demonstrations=62, chunk=8, cameras=1, frames=40, train=600)
SMALL_TRAIN, SMALL_INFER, BUILD = 0.48, 0.018, 3.0
# A round of recipes/pi0_libero_pro.yaml.
VLA = Work(probe=60, validation=80, measure=80, demonstrations=180, chunk=10, cameras=2, frames=320, train=1000)


def measured(topic: str, name: str, column: str = "value") -> float:
    """A figure in `results/<topic>.json`."""
    rows = json.loads((RESULTS / f"{topic}.json").read_text(encoding="utf-8"))
    return next(float(row[column]) for row in rows if row["figure"] == name)


def simulator_costs(profile: str) -> dict[str, float]:
    """Seconds of a core, of benchmarks/engine.py and benchmarks/memory.py."""
    reset = measured("engine", "reset_object") / 1000
    pair = measured("engine", f"render_{profile}_object") / 1000  # of two cameras
    demonstration = 2 * 3600 / measured("engine", "demos_per_hour")  # in two workers
    steps = measured("engine", "dataset_steps_s", "n") / measured("engine", "demos_per_hour", "n")
    return {
        "build": BUILD,
        "reset": reset,
        "step": measured("engine", f"rollout_{profile}_object") / 1000 - pair / 10,  # a look every ten
        "image": pair / 2,
        "expert": (demonstration - reset) / steps,
        "record": 1 / measured("critic", "memory_writes_sqlite"),
    }


def told(report: Report) -> str:
    """Stations with their utilization, the busiest first."""
    names = sorted(report.stations, key=report.utilization, reverse=True)
    return ", ".join(f"{name} {report.utilization(name):.0%}" for name in names[:3])


def main() -> int:
    """Prints a table; writes a row for each number of workers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--infer", type=float, default=0.07, help="seconds of a call of the VLA")
    parser.add_argument("--infer-each", type=float, default=0.008, help="and for each observation of its batch")
    parser.add_argument("--train", type=float, default=0.8, help="seconds of a training step of 32")
    parser.add_argument("--critic", type=float, default=6.0, help="seconds until the endpoint answers")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    command = shlex.join(["python", "benchmarks/scale.py", *sys.argv[1:]])

    small = Costs(**simulator_costs("fast"), infer=0.0, infer_each=SMALL_INFER, train=SMALL_TRAIN, critic=0.0)
    vla = Costs(
        **simulator_costs("faithful"), infer=arguments.infer, infer_each=arguments.infer_each, train=arguments.train,
        critic=arguments.critic,
    )  # fmt: skip
    table = Table(
        "policy", "workers", "inference", "learners", "renderers", "environments/h", "busiest", "looks", "memory",
        "episodes",
    )  # fmt: skip
    rows: list[dict[str, Any]] = []

    def add(policy: str, work: Work, machines: Machines, report: Report, name: str | None) -> None:
        flows = carried(work, report, image_bytes=_image(policy), episode_bytes=EPISODE_BYTES, row_bytes=ROW_BYTES)
        had = f"{machines.inference} inference, {machines.learners} learners, {machines.renderers} renderers"
        table.add_row(
            policy, *map(str, (machines.workers, machines.inference, machines.learners, machines.renderers)),
            f"{report.throughput:,.0f}", told(report),
            f"{flows['observations_per_s'] / 1e6:.1f} MB/s", f"{flows['rows_per_h']:,.0f} rows/h",
            f"{flows['episodes_bytes_per_h'] / 1e9:.2f} GB/h",
        )  # fmt: skip
        if name is not None:
            unit = "environments/h, simulated" if "small" in policy else "environments/h, simulated, assumed GPU"
            peer = f"bottleneck: {report.bottleneck}, {report.utilization(report.bottleneck):.0%} of the round; {had}"
            rows.append(figure(name, round(report.throughput, 1), unit, command, n=work.environments, peer=peer))

    for workers in WORKERS:
        work, machines = _round(SMALL, workers), Machines(workers=workers, renderers=max(2, workers))
        machines = replace(machines, batch=1, critic_minute=1e9)
        add("small", work, machines, simulate(work, small, machines), f"simulated_throughput_small_{workers}")
    for workers in WORKERS:
        work, machines = _round(VLA, workers), Machines(workers=workers, renderers=16)
        add("VLA", work, machines, simulate(work, vla, machines), f"simulated_throughput_{workers}")
        machines, report = provision(work, vla, machines)
        add("VLA, provisioned", work, machines, report, f"simulated_throughput_provisioned_{workers}")
    Console(width=200).print(table)
    if arguments.json:
        keep(arguments.json, rows)
    return 0


def _round(work: Work, workers: int) -> Work:
    return grown(work, EPISODES * workers / (work.probe + work.validation + work.measure))


def _image(policy: str) -> int:
    """Bytes of a camera's image."""
    size = 128 if policy == "small" else 256
    return 3 * size * size


if __name__ == "__main__":
    sys.exit(main())
