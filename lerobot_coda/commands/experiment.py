"""`lerobot-coda experiment`: runs arms from one base policy at one budget, and compares them on held-out suites."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lerobot_coda.console import add_options, display_of
from lerobot_coda.preflight import check_bases, check_critic, preflight, run_room_gb
from libero_pro.figures import csv_of, keep
from libero_pro.record import RecordError, write_atomically

_EXAMPLE = """examples:
  lerobot-coda experiment recipes/experiments/libero_object.yaml
  lerobot-coda experiment recipes/experiments/libero_object.yaml --arms coda sfl --results results
"""


def add(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "experiment",
        help="compare arms at the same budget on held-out suites",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipe", type=Path, help="experiment, e.g. recipes/experiments/libero_object.yaml")
    parser.add_argument("--arms", nargs="+", help="run only these of its arms; finished ones are compared in any case")
    parser.add_argument("--output", type=Path, help="folder of the runs (default: runs/<name>); what is done stays")
    parser.add_argument(
        "--results", type=Path,
        help="folder for AXIS.json, NAME/*.csv and NAME/runs/*.json, a file a finished run, which stands for runs made "
        "elsewhere (default: the runs' folder)",
    )  # fmt: skip
    add_options(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    from lerobot_coda.evolve import read
    from lerobot_coda.experiment import load_experiment, run_arms

    experiment, recipes = load_experiment(arguments.recipe)
    wanted = arguments.arms or list(experiment.arms)
    if unknown := [arm for arm in wanted if arm not in experiment.arms]:
        raise RecordError(f"--arms: the experiment has no arm '{unknown[0]}'; it has {', '.join(experiment.arms)}")
    output = arguments.output or Path("runs") / experiment.name
    preflight(output, needs_gl=True, room_gb=max(run_room_gb(recipe.rounds) for recipe in recipes.values()))
    for path in recipes:
        recipe, trains = read(path)
        check_critic(recipe.critic)
        check_bases(trains.values())
    results = arguments.results or output
    records = results / experiment.name / "runs"
    arms = run_arms(experiment, recipes, output, wanted, display=display_of(arguments), records=records)
    _tell(experiment, arms, results)


def _tell(experiment: Any, arms: Sequence[Any], results: Path) -> None:
    """Prints what the arms reached and used, and writes it: a file of figures an axis, and the budget as CSV."""
    from lerobot_coda.comparison import axis_rows, budget_rows, curve_rows

    if not arms:
        raise RecordError(f"no arm of {experiment.name} is finished; run it without --arms, or name other arms")
    command, console = shlex.join(["lerobot-coda", *sys.argv[1:]]), Console(highlight=False)
    for axis, suites in experiment.axes.items():
        rows = axis_rows(suites, arms, command)
        keep(results / f"{axis}.json", rows)
        table = Table("", "value", "95 %", "n", "against", title=f"{axis}: {', '.join(suites)}", title_justify="left")
        for row in rows:
            interval = "" if row["low"] is None else f"{row['low']:.3f} to {row['high']:.3f}"
            table.add_row(row["figure"], f"{row['value']:.4g} {row['unit']}", interval, str(row["n"]), row["peer"])
        console.print(table)
    used = budget_rows(arms)
    table = Table(*used[0], title="used", title_justify="left")
    for row in used:
        table.add_row(*map(str, row.values()))
    console.print(table)
    for name, found in (("budget", used), ("curve", curve_rows(experiment.axes, arms))):
        write_atomically(results / experiment.name / f"{name}.csv", csv_of(found))
    print(f"figures: {', '.join(str(results / f'{axis}.json') for axis in experiment.axes)}")
