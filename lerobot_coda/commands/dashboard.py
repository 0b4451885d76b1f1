"""`lerobot-coda dashboard`: a run under way as a page in the browser that refreshes itself."""

import argparse
from pathlib import Path
from typing import Any

_EXAMPLE = """example:
  lerobot-coda dashboard runs/quickstart
  lerobot-coda dashboard runs/quickstart --port 8000

The page reads the run's folder and changes nothing there. It is served on this machine only; with --host 0.0.0.0
everyone who reaches the machine can read it.
"""


def add(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "dashboard",
        help="a run under way as a page in the browser",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_folder", type=Path, metavar="RUN")
    parser.add_argument("--host", default="127.0.0.1", help="address to serve on (default 127.0.0.1: this machine)")
    parser.add_argument("--port", type=int, default=7860, help="port to serve on (default 7860)")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    from lerobot_coda.dashboard import serve

    serve(arguments.run_folder, arguments.host, arguments.port)
