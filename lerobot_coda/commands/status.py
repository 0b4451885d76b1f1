"""`lerobot-coda status`: where a run stands, what it found so far and what is left."""

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "status",
        help="where a run stands, and what is left of it",
        epilog="example:\n  lerobot-coda status runs/quickstart\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_folder", type=Path, metavar="RUN")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    from lerobot_coda import outlook
    from lerobot_coda.recipe import EvolveRecipe, parse_recipe, read_yaml
    from lerobot_coda.report import load_run
    from lerobot_coda.report.page import minutes

    run = arguments.run_folder
    summary = load_run(run)
    recipe = parse_recipe(EvolveRecipe, read_yaml(run / "recipe.yaml"), f"recipe {run / 'recipe.yaml'}")
    done = outlook.finished(run)
    left = [] if summary.finished else outlook.ahead(run, recipe, done)
    print(f"{summary.name} ({recipe.arm}): {summary.status}")
    print(f"a process is at work in {run}" if outlook.at_work(run) else f"no process is at work in {run}")
    print(f"{len(done)} steps are finished, in {minutes(sum(step.seconds for step in done))}")
    if done:
        print(f"the last one: {done[-1].label}, {minutes(done[-1].seconds)}")
    if left:
        seconds = sum(cost.seconds for cost in outlook.costs(left, recipe.workers))
        print(f"at most {len(left)} are left, about {minutes(seconds)} on two quiet cores; next: {left[0].label}")
        print(f"to go on: {summary.commands[0]}")
    else:
        print(f"to read it: lerobot-coda report {run}")
