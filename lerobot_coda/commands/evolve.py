"""`lerobot-coda evolve`: runs a co-evolution recipe, or goes on with it."""

import argparse
from pathlib import Path
from typing import Any

from lerobot_coda.preflight import preflight


def add(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "evolve",
        help="run a co-evolution recipe, or go on with it",
        epilog="example:\n  lerobot-coda evolve recipes/quickstart.yaml\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipe", type=Path, help="evolve recipe, e.g. recipes/quickstart.yaml")
    parser.add_argument("--output", type=Path, help="run folder (default: runs/<recipe name>)")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    from lerobot_coda import runfolder
    from lerobot_coda.evolve import evolve, read

    recipe, trains = read(arguments.recipe)
    output = arguments.output or Path("runs") / recipe.name
    runfolder.check(output, recipe, trains)
    preflight(output, needs_gl=True)
    evolve(arguments.recipe, output)
    _show(output)


def _show(output: Path) -> None:
    """The run's table, and where its page is."""
    from lerobot_coda.report import build_report, load_run, print_summary

    page = build_report(output)
    print_summary(load_run(output))
    print(f"\nreport: {page}")
