"""`lerobot-coda diagnose`: why a policy fails on test suites, tested in the simulator, and nothing learned from it."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from lerobot_coda.console import add_options, display_of
from lerobot_coda.preflight import check_critic, preflight

if TYPE_CHECKING:
    from lerobot_coda.console import Display
    from lerobot_coda.examination import Examined

_EXAMPLE = """example:
  lerobot-coda diagnose recipes/libero_object.yaml --policy.path=CHECKPOINT --suites libero_object_swap --output runs/d
  lerobot-coda memory lineage runs/d HASH        from a scene that it failed in to the programs that led to

The recipe says which tasks, critic, clusters and validation are meant; its base suite is where programs draw their
scenes, since none is ever drawn from a test. Nothing is trained. Whoever trains on a program that was found here has
used these suites, and can no longer test on them.
"""


def add(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "diagnose",
        help="why a policy fails on test suites, without training",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipe", type=Path, help="evolve recipe, e.g. recipes/libero_object.yaml")
    parser.add_argument("--policy.path", dest="policy", type=Path, required=True, metavar="CHECKPOINT", help="a folder")
    parser.add_argument("--suites", nargs="+", metavar="SUITE", help="default: the recipe's held-out suites")
    parser.add_argument("--episodes", type=int, default=5, metavar="N", help="released starts a task (default 5)")
    parser.add_argument(
        "--pairs", type=int, metavar="N", help="pairs of scenes that test a program (default: the recipe's; 0: none)"
    )
    parser.add_argument("--output", type=Path, required=True, help="results folder; an interrupted run goes on")
    add_options(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    from lerobot_coda.recipe import load_evolve
    from libero_pro.record import RecordError

    recipe = load_evolve(arguments.recipe)
    if not (arguments.policy / "config.json").is_file():
        raise RecordError(f"--policy.path {arguments.policy} is not a checkpoint's folder (.../pretrained_model)")
    if arguments.pairs is not None:
        if arguments.pairs < 0:
            raise RecordError(f"--pairs must be at least 0, not {arguments.pairs}")
        changed = recipe.validation.model_copy(update={"pairs": arguments.pairs})
        recipe = recipe.model_copy(update={"validation": changed})
    preflight(arguments.output, needs_gl=True)
    check_critic(recipe.critic)
    from lerobot_coda.engine import LiberoEngine
    from lerobot_coda.examination import examine

    display = display_of(arguments)
    found = examine(
        recipe,
        arguments.policy,
        arguments.output,
        arguments.suites or recipe.heldout.suites,
        episodes=arguments.episodes,
        engine=LiberoEngine.of(recipe),
        display=display,
    )
    for examined in found:
        show(examined, display)
    seen = [e.failed_scenes(cluster)[0] for e in found for _, cluster in e.compiled]
    if seen:
        display.say(escape(f"what came of a scene: lerobot-coda memory lineage {arguments.output} {seen[0]}"))


def show(examined: "Examined", display: "Display") -> None:
    """Prints how often it failed, then each cluster with its program and verdict."""
    episodes = [episode for episode in examined.probed.episodes if episode.invalid is None]
    failed = sum(not episode.success for episode in episodes)
    lines = [f"{examined.suite}: {failed} of {len(episodes)} episodes failed"]
    for cluster in examined.clusters:
        lines.append(f"  {cluster.title}, most in the stage {cluster.stage}")
        for program in (program for program, found in examined.compiled if found.hash == cluster.hash):
            said = examined.verdicts.get(program.name)
            verdict = f"{said.outcome}, {said.reason}" if said else "not validated"
            lines.append(f"    program {program.name} ({program.hash}): {verdict}")
    for line in lines:
        display.say(escape(line))
