"""`lerobot-coda report`: a run's page, tables and videos."""

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "report",
        help="write a run's page, tables and videos",
        epilog="example:\n  lerobot-coda report runs/quickstart --json results/quickstart.json\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_folder", type=Path, metavar="RUN")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers as rows")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    import json

    from lerobot_coda.report import figure_rows, load_run, print_summary, write_report
    from libero_pro.record import write_atomically

    summary = load_run(arguments.run_folder)
    page = write_report(summary, arguments.run_folder / "report")
    print_summary(summary)
    if arguments.json:
        write_atomically(arguments.json, (json.dumps(figure_rows(summary), indent=1) + "\n").encode())
    print(f"\nreport: {page}")
