"""`lerobot-coda push`: a run's datasets, checkpoints, memory and report to the Hugging Face Hub."""

import argparse
from pathlib import Path
from typing import Any

_EXAMPLE = """examples:
  lerobot-coda push runs/quickstart --repo me/quickstart
  lerobot-coda push runs/quickstart --repo lab/quickstart --what checkpoints,report --public
Run it again after an interruption: what is complete there stays as it is. HF_TOKEN or `hf auth login` gives the token.
"""


def add(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "push",
        help="push a run to the Hugging Face Hub",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_folder", type=Path, metavar="RUN")
    parser.add_argument("--repo", required=True, metavar="NAMESPACE/NAME", help="where to; made where it is missing")
    visibility = parser.add_mutually_exclusive_group()
    visibility.add_argument("--private", action="store_true", help="new repositories are private (the default)")
    visibility.add_argument("--public", action="store_true", help="new repositories are public")
    parser.add_argument(
        "--what",
        default="datasets,checkpoints,memory,report",
        metavar="LIST",
        help="any of datasets,checkpoints,memory,report (default: all that the run has)",
    )
    parser.add_argument("--license", default="apache-2.0", help="that the cards state (default: apache-2.0)")
    parser.add_argument(
        "--base", metavar="OWNER/NAME", help="the adapters' base model on the Hub, where they were trained on a folder"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    from lerobot_coda.hub import Target, push
    from lerobot_coda.recipe import parse_recipe

    given = {
        "repo": arguments.repo,
        "private": not arguments.public,
        "what": [part.strip() for part in arguments.what.split(",")],
        "license": arguments.license,
        "base": arguments.base,
    }
    push(arguments.run_folder, parse_recipe(Target, given, "push"), say=print)
