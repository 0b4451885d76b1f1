"""`lerobot-coda doctor`: is this machine, this simulator and this checkpoint fit for a result that counts?"""

import argparse
import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from lerobot_coda.doctor import Finding

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
EPILOG = """examples:
  lerobot-coda doctor
  lerobot-coda doctor --policy.path=runs/quickstart/base/train/checkpoints/last/pretrained_model --json doctor.json

The exit code is 1 if a check fails."""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command to the parser's subcommands."""
    parser = commands.add_parser(
        "doctor",
        help="check the machine, the simulator and a checkpoint, and say what to do",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--policy.path", dest="policy", metavar="FOLDER", help="checkpoint folder or Hub repository")
    parser.add_argument("--full", action="store_true", help="hash every file of the benchmark (650 MB), not a part")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the findings as JSON")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    from lerobot_coda.doctor import examine
    from libero_pro.record import write_atomically

    findings = show(examine(arguments.policy, arguments.full))
    if arguments.json:
        write_atomically(arguments.json, (json.dumps([asdict(found) for found in findings], indent=1) + "\n").encode())
    if any(finding.status == "fail" for finding in findings):
        raise SystemExit(1)


def show(findings: Iterable["Finding"], console: Console | None = None) -> list["Finding"]:
    """Prints findings as they come, a row each with what to do below, and their count; returns them."""
    console = console or Console(highlight=False)
    shown = []
    for finding in findings:
        shown.append(finding)
        row = Table.grid(padding=(0, 2, 0, 0))
        row.add_column(width=4)
        row.add_column(width=20)
        row.add_column()
        text = Text(finding.found)
        if finding.remedy:
            text.append(f"\n-> {finding.remedy}", style="bold")
        row.add_row(Text(finding.status, style=STYLES[finding.status]), finding.name, text)
        console.print(row)
    counts = {status: sum(finding.status == status for finding in shown) for status in STYLES}
    console.print(", ".join(f"{count} {status}" for status, count in counts.items()))
    return shown
