"""`lerobot-coda generate`: scenes of a generation program that pass every gate, with demonstrations if wanted."""

import argparse
from pathlib import Path
from typing import Any

from lerobot_coda.console import add_options, display_of

_EXAMPLE = """example:
  lerobot-coda generate program.json --count 200 --out scenes
  lerobot-coda generate program.json --count 50 --out demos --demonstrate

A program is JSON, e.g. {"suite": "libero_object", "task_ids": [0, 1], "difficulty": 0.8,
"operations": [{"op": "permute"}, {"op": "resample", "jitter_m": 0.05}, {"op": "light"}]}.
{"op": "replace", "object": "milk_1", "by": ["moka_pot"]} puts another object in the place of a named one.
The same command goes on where an earlier one stopped.
"""


def add(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "generate",
        help="validated scenes of a generation program",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("program", type=Path, metavar="PROGRAM.json")
    parser.add_argument("--count", type=int, required=True, metavar="N", help="scenes that must pass every gate")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for scenes.jsonl and verdicts")
    parser.add_argument("--demonstrate", action="store_true", help="the expert must solve each; keep its episodes")
    parser.add_argument("--noise", type=float, default=0.0, help="probability per step of a disturbance (default 0)")
    parser.add_argument("--workers", type=int, default=2)
    add_options(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    from libero_pro.generate import EPISODES, generate
    from libero_pro.scenefile import read_program

    program = read_program(arguments.program)

    display = display_of(arguments)
    with display.stage("gate", "generate", arguments.count) as tick:
        made = generate(
            program,
            arguments.count,
            arguments.out,
            workers=arguments.workers,
            demonstrate=arguments.demonstrate,
            noise=arguments.noise,
            progress=lambda done: tick(min(done, arguments.count)),
        )
    rejected = ", ".join(f"{gate} {count}" for gate, count in made.rejected.most_common()) or "none"
    display.say(f"rejected: {rejected}")
    kept = f", their demonstrations in {arguments.out / EPISODES}" if arguments.demonstrate else ""
    display.say(f"{len(made.scenes)} scenes of program {program.hash} are in {made.path}{kept}")
