"""`lerobot-coda demos`: builds the dataset of expert demonstrations that a train recipe names."""

import argparse
from pathlib import Path
from typing import Any

from lerobot_coda.preflight import preflight


def add(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "demos",
        help="build the dataset that a train recipe names",
        epilog="example:\n  lerobot-coda demos recipes/sft_libero_object.yaml\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipe", type=Path, help="train recipe, e.g. recipes/sft_libero_object.yaml")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    from lerobot_coda.demos import build_demos
    from lerobot_coda.recipe import load_demos

    _, train = load_demos(arguments.recipe)
    preflight(Path(train["dataset"]["root"]), needs_gl=True)
    build_demos(arguments.recipe)
