"""`kill -9` at random moments of a real co-evolution: does it go on each time, and does it decide the same in the end?

A small run on two tasks is made twice in the real simulator with the real trainer: once undisturbed, once killed at
random until it was killed as often as asked. Compared are scenes, programs, verdicts, measurements and decisions.

    python -m benchmarks.kills --kills 20 --json results/kills.json     # about half an hour on one core
"""

import argparse
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from libero_pro.figures import figure, keep
from libero_pro.record import RecordError

SETTLE_S = 3.0  # in which a killed run's own processes must be gone
RECIPE = {
    "name": "kills",
    "suite": "libero_object",
    "task_ids": [2, 5],
    "seed": 0,
    "rounds": 2,
    "workers": 1,
    "base": {"policy": "libero_object_sft", "demos_per_task": 2},
    "probe": {"scenes": 8, "difficulty": 1.0},
    "validation": {"pairs": 6, "programs": 1},
    "training": {"train": "train.yaml", "steps": 20},
    "budget": {"environments_per_round": 16, "layouts_per_round": 60},
    "heldout": {"suites": ["libero_object"], "episodes_per_task": 1, "frontier": 0},
    "render": {"profile": "fast", "every": 4},
}
TRAIN = Path(__file__).parents[1] / "recipes" / "coda_libero_object.yaml"


def command(recipe: Path, output: Path) -> list[str]:
    """The command line whose process is killed."""
    return [sys.executable, "-m", "lerobot_coda.cli", "evolve", str(recipe), "--output", str(output), "--quiet"]


def decisions(output: Path) -> dict[str, Any]:
    """What a finished run decided and measured, without times: its rounds, and the scenes it learned in."""
    summary = json.loads((output / "summary.json").read_text(encoding="utf-8"))
    if not summary["finished"]:
        raise RecordError(f"{output} is not finished")
    rounds = [{k: v for k, v in report.items() if k not in ("usage", "seconds")} for report in summary["rounds"]]
    usage = {k: v for k, v in summary["usage"].items() if k != "seconds"}
    scenes = [
        [scene["hash"] for scene in json.loads(path.read_text(encoding="utf-8"))]
        for path in sorted((output / "rounds").glob("*/scenes.json"))
    ]
    return {"rounds": rounds, "usage": usage, "scenes": scenes, "heldout": summary["heldout"]}


def weights(output: Path) -> list[bytes]:
    """The rounds' trained weights."""
    return [
        path.read_bytes() for path in sorted((output / "rounds").glob("*/train/checkpoints/last/*/model.safetensors"))
    ]


def children(parent: int) -> list[int]:
    """All descendants of a process that live now."""
    found, left = [], [parent]
    while left:
        try:
            names = Path(f"/proc/{left.pop()}/task").glob("*/children")
            own = [int(pid) for name in names for pid in name.read_text().split()]
        except OSError:
            continue
        found += own
        left += own
    return found


def alive(pids: Sequence[int]) -> list[int]:
    """Those of the processes that are there and no zombies."""
    found = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if state != "Z":
            found.append(pid)
    return found


def disturbed(line: Sequence[str], log: Path, kills: int, rng: random.Random, longest_s: float) -> tuple[int, int]:
    """Runs the command to its end, killed up to `kills` times; returns how often, and how many orphans were left."""
    done = orphans = 0
    with log.open("ab") as out:
        while True:
            process = subprocess.Popen(line, stdout=out, stderr=subprocess.STDOUT)
            try:
                code = process.wait(timeout=rng.uniform(0.2, longest_s) if done < kills else None)
            except subprocess.TimeoutExpired:
                family = children(process.pid)
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
                time.sleep(SETTLE_S)
                orphans += len(alive(family))
                done += 1
                print(f"killed {done} of {kills}", flush=True)
                continue
            if code != 0:
                raise RecordError(f"the run ended with code {code} after {done} kills; its log is {log}")
            return done, orphans


def main(argv: Sequence[str] | None = None) -> int:
    """Runs both; 2 with one sentence where a run does not go on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument(
        "--longest", type=float, default=60.0, help="seconds a start is left alone at most (default 60)"
    )
    parser.add_argument("--out", type=Path, help="folder that keeps the runs (default: a temporary one)")
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.out or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "train.yaml").write_bytes(TRAIN.read_bytes())
        recipe = folder / "kills.yaml"
        recipe.write_text(yaml.safe_dump(RECIPE))
        try:
            disturbed(command(recipe, folder / "whole"), folder / "whole.log", 0, random.Random(0), 1.0)
            rng = random.Random(arguments.seed)
            line = command(recipe, folder / "killed")
            kills, orphans = disturbed(line, folder / "killed.log", arguments.kills, rng, arguments.longest)
        except RecordError as error:
            print(f"kills: {error}", file=sys.stderr)
            return 2
        whole, killed = decisions(folder / "whole"), decisions(folder / "killed")
        same = {key: int(whole[key] == killed[key]) for key in whole}
        same["weights"] = int(weights(folder / "whole") == weights(folder / "killed"))
    told = shlex.join(["python", "-m", "benchmarks.kills", *(sys.argv[1:] if argv is None else argv)])
    rows = [
        figure("kills", kills, "kill -9 that the run went on from", told, n=arguments.kills),
        figure("orphans", orphans, "processes left by a killed run", told, n=kills),
        *(figure(f"same_{key}", value, "1 if as undisturbed", told, n=kills) for key, value in same.items()),
    ]
    for row in rows:
        print(f"{row['figure']:16} {row['value']:6} {row['unit']}")
    if arguments.json:
        keep(arguments.json, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
