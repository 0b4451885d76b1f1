"""`lerobot-coda replay`: simulates stored episodes again; every state must come out the same, bit for bit."""

import argparse
from pathlib import Path
from typing import Any

from lerobot_coda.console import add_options, display_of

_EXAMPLE = """example:
  lerobot-coda replay runs/quickstart/demos/base

EPISODE is a file or a folder; invalid episodes are counted and left out. The exit code is 1 if a state differs.
"""


def add(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "replay",
        help="re-simulate stored episodes and check them bit for bit",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("episodes", type=Path, nargs="+", metavar="EPISODE", help="episode file or folder")
    parser.add_argument("--out", type=Path, metavar="FILE", help="keep each result; the same command then goes on")
    parser.add_argument("--limit", type=int, metavar="N", help="replay N of the episodes, evenly spread")
    parser.add_argument("--workers", type=int, default=2)
    add_options(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    from libero_pro.record import RecordError
    from libero_pro.replay import episode_files

    files = episode_files(arguments.episodes)
    if arguments.limit is not None:
        if arguments.limit < 1:
            raise RecordError(f"--limit must be at least 1, not {arguments.limit}")
        files = [files[index * len(files) // arguments.limit] for index in range(min(arguments.limit, len(files)))]
    from libero_pro.journal import Journal
    from libero_pro.replay import replay_files

    journal = Journal(arguments.out, {"replay": [str(path) for path in files]}) if arguments.out else None
    found: dict[str, str | None] = {row["episode"]: row["differs"] for row in journal.rows} if journal else {}
    display = display_of(arguments)
    with display.stage("replay", "replay", len(files)) as tick:
        tick(len(found))
        for path, differs in replay_files([f for f in files if str(f) not in found], workers=arguments.workers):
            found[str(path)] = differs
            if journal is not None:
                journal.append({"episode": str(path), "differs": differs})
            tick(len(found))
    different = {name: reason for name, reason in found.items() if reason}
    for name, reason in different.items():
        display.say(f"{name}: {reason}")
    left_out = f"; {len(files) - len(found)} invalid ones are left out" if len(found) < len(files) else ""
    display.say(f"{len(found) - len(different)} of {len(found)} episodes replay bit for bit{left_out}")
    if different:
        raise SystemExit(1)
