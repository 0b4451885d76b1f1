"""`lerobot-coda model-card`: a benchmark folder as a section and `model-index` metadata of a model card."""

import argparse
from pathlib import Path
from typing import Any

_EXAMPLE = """example:
  lerobot-coda model-card bench/all CHECKPOINT/README.md --name my-policy
"""


def add(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "model-card",
        help="write a benchmark folder into a model card",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="benchmark folder")
    parser.add_argument("card", type=Path, metavar="README", help="model card to write into; made if there is none")
    parser.add_argument("--name", default="policy", help="the model's name, if the card has none (default: policy)")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    from libero_pro.benchmark import load_benchmark
    from libero_pro.model_card import update_card

    update_card(arguments.card, load_benchmark(arguments.folder), model_name=arguments.name)
    print(f"model card: {arguments.card}")
