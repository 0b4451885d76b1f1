"""`lerobot-coda demos`: builds the dataset that a train recipe names, or tells what the expert solves."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lerobot_coda.console import Display, Planned, add_options, display_of
from lerobot_coda.preflight import preflight

_EXAMPLES = """examples:
  lerobot-coda demos recipes/sft_libero_object.yaml
  lerobot-coda demos --suite all --states 10 --output runs/expert
"""


def add(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "demos",
        help="build the dataset that a train recipe names",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipe", type=Path, nargs="?", help="train recipe, e.g. recipes/sft_libero_object.yaml")
    parser.add_argument("--suite", nargs="+", help="instead of a recipe: the expert's success on suites, or all")
    parser.add_argument("--states", type=int, default=10, help="released starts of each task (default 10)")
    parser.add_argument("--fresh", action="store_true", help="fresh resets instead of released starts")
    parser.add_argument("--workers", type=int, default=2, help="simulator processes (default 2)")
    parser.add_argument("--output", type=Path, help="keeps the episodes; an interrupted run goes on")
    add_options(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    from libero_pro.record import RecordError

    if (arguments.recipe is None) == (arguments.suite is None):
        raise RecordError("name one: a train recipe, or --suite with suite names")
    if arguments.suite:
        _tell(arguments)
        return
    from lerobot_coda.demos import build_demos
    from lerobot_coda.recipe import load_demos

    _, train = load_demos(arguments.recipe)
    preflight(Path(train["dataset"]["root"]), needs_gl=True)
    build_demos(arguments.recipe, display=display_of(arguments))


def _tell(arguments: argparse.Namespace) -> None:
    """Prints what the expert solved, and what stopped it."""
    from libero_pro.expert.table import print_table

    if arguments.output:
        preflight(arguments.output, needs_gl=False)
    display = display_of(arguments)
    print_table(
        tabulate(arguments.suite, arguments.states, arguments.workers, arguments.output, arguments.fresh, display)
    )


def tabulate(
    names: Sequence[str],
    states: int,
    workers: int,
    out: Path | None,
    fresh: bool,
    display: Display,
    task_ids: Sequence[int] | None = None,
) -> list[Any]:
    """`expert_table` of the suites with its progress shown; RecordError for an unknown suite or start."""
    from libero_pro.expert.table import expert_table, starts, suites_of
    from libero_pro.suites import tasks

    suites = suites_of(names)
    wanted = [(s, t.task_id) for s in suites for t in tasks(s) if task_ids is None or t.task_id in task_ids]
    units = sum(len(starts(s, t, states, fresh=fresh)) for s, t in wanted)
    display.plan([Planned("demonstrate", "expert", units)])
    with display.stage("demonstrate", "expert", units) as tick:
        return expert_table(
            suites,
            states,
            workers=workers,
            out=out,
            fresh=fresh,
            task_ids=task_ids,
            progress=lambda done, total: tick(done),
        )
