"""`lerobot-coda completion`: what a shell needs to complete commands, options and file names."""

import argparse
from pathlib import Path
from typing import Any

_EXAMPLE = """examples:
  lerobot-coda completion bash > ~/.local/share/bash-completion/completions/lerobot-coda
  lerobot-coda completion zsh > ~/.zfunc/_lerobot-coda     (with fpath+=~/.zfunc before compinit in ~/.zshrc)
"""


def add(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "completion",
        help="shell completion of these commands",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"))
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    import shtab

    from lerobot_coda.cli import build_parser

    parser = build_parser()
    _complete_paths(parser, shtab.FILE)
    print(shtab.complete(parser, shell=arguments.shell))


def _complete_paths(parser: argparse.ArgumentParser, files: Any) -> None:
    """Marks every argument that is a path, in all subparsers, as one to be completed by file names."""
    for action in parser._actions:
        if action.type is Path:
            action.complete = files  # type: ignore[attr-defined]  # shtab's own mark
        elif isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                _complete_paths(below, files)
