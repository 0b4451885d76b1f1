"""`lerobot-coda pretrained`: where the policies that come with the package are."""

import argparse
from typing import Any

_EXAMPLE = """examples:
  lerobot-coda pretrained
  lerobot-eval --policy.path=$(lerobot-coda pretrained libero_object_sft) --env.type=libero_pro --env.task=libero_object
"""


def add(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "pretrained",
        help="the folder of a policy that comes with the package",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="print only this policy's folder; default: list all")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    from lerobot_coda.pretrained import folder, names

    if arguments.name is not None:
        print(folder(arguments.name))
        return
    for name in names():
        print(f"{name}  {folder(name)}")
