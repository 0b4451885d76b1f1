"""`lerobot-coda evolve`: runs a co-evolution recipe, or goes on with it."""

import argparse
from pathlib import Path
from typing import Any

from lerobot_coda.console import add_options, display_of
from lerobot_coda.preflight import check_bases, check_critic, preflight, run_room_gb
from lerobot_coda.recipe import EvolveRecipe, parse_recipe

UNITS = {
    "demonstrate": "expert demonstrations, episodes",
    "dataset": "dataset shards, episodes written",
    "sft": "training of the base policy, steps",
    "evaluate": "held-out evaluation, episodes",
    "gate": "scenes to generate and check",
    "probe": "probe, episodes",
    "validate": "validation, episodes",
    "ground": "static layouts to render",
    "measure": "paired re-evaluation, episodes",
    "train": "training of the rounds, steps",
}


def add(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "evolve",
        help="run a co-evolution recipe, or go on with it",
        epilog="example:\n  lerobot-coda evolve recipes/quickstart.yaml\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipe", type=Path, help="evolve recipe, e.g. recipes/quickstart.yaml")
    parser.add_argument("--output", type=Path, help="run folder (default: runs/<recipe name>)")
    parser.add_argument("--arm", help="another arm than the recipe's: a baseline or an ablation at the same budget")
    parser.add_argument("--seed", type=int, help="another seed than the recipe's")
    parser.add_argument(
        "--push",
        metavar="NAMESPACE/NAME",
        help="push each state to the Hub when it is finished: private, checked before",
    )
    parser.add_argument(
        "--base", metavar="OWNER/NAME", help="with --push: the adapters' base model, where it is a folder"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the plan and what it costs, and do nothing")
    add_options(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    from lerobot_coda import hub, runfolder
    from lerobot_coda.evolve import evolve, read

    changes = {key: value for key in ("arm", "seed") if (value := getattr(arguments, key)) is not None}
    recipe, trains = read(arguments.recipe, changes)
    if arguments.dry_run:
        _show_plan(recipe)
        return
    output = arguments.output or Path("runs") / recipe.name
    runfolder.check(output, recipe, trains)
    target = None
    if arguments.push:
        target = parse_recipe(hub.Target, {"repo": arguments.push, "base": arguments.base}, "evolve --push")
        hub.prepare(target, recipe.name, runfolder.identity(recipe, trains), trains=trains.values())
    preflight(output, needs_gl=True, room_gb=run_room_gb(recipe.rounds))
    check_critic(recipe.critic)
    check_bases(trains.values())
    follow = (lambda say: hub.push_so_far(output, target, say=say)) if target else None
    display = display_of(arguments, log=output / runfolder.LOG)
    evolve(arguments.recipe, output, display=display, changes=changes, after=follow)
    _show(output)
    if target:
        hub.push(output, target, say=print)


def _show_plan(recipe: EvolveRecipe) -> None:
    """What the recipe would do, stage by stage kind, with the time that takes on two quiet cores."""
    from rich.console import Console
    from rich.table import Table

    from lerobot_coda.outlook import costs, plan
    from lerobot_coda.report.page import minutes

    table = Table("stage", "units", "time", title=f"{recipe.name}: arm {recipe.arm}, {recipe.rounds} rounds")
    found = costs(plan(recipe), recipe.workers)
    for cost in found:
        table.add_row(UNITS[cost.kind], f"{cost.units:,}", minutes(cost.seconds))
    table.add_section()
    table.add_row("all, on two quiet cores", "", minutes(sum(cost.seconds for cost in found)))
    Console().print(table)
    budget, rounds = recipe.budget, recipe.rounds
    environments = min(budget.environments or 10**9, budget.environments_per_round * rounds)
    print(f"at most {environments} generated environments and {budget.layouts_per_round * rounds} static layouts")


def _show(output: Path) -> None:
    """The run's table, and where its page is."""
    from lerobot_coda.report import build_report, load_run, print_summary

    page = build_report(output)
    print_summary(load_run(output))
    print(f"\nreport: {page}")
