"""`lerobot-coda critic-bench`: how right a critic is, on failures that were planted with a known cause."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lerobot_coda.console import add_options, display_of

if TYPE_CHECKING:
    from lerobot_coda.critic.bench.build import BenchSet
    from lerobot_coda.critic.bench.trial import Judge

_EXAMPLE = """examples:
  lerobot-coda critic-bench --build                  (once, about 12 minutes on one core, then the simulator critic)
  lerobot-coda critic-bench                          (the simulator critic)
  lerobot-coda critic-bench --critic critic.yaml --limit 100
  lerobot-coda critic-bench --push me/critic-bench

--critic takes `simulator`, or a YAML file with the fields of a recipe's `critic:` block (kind, model, url, ...), alone
or under that key. Critics get the episodes without their outcome. An interrupted --build goes on where it stopped.
"""
_FOLDER = Path("runs/critic_bench")


def add(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "critic-bench",
        help="score a critic on planted failures",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, default=_FOLDER, metavar="DIR", help=f"the bench set (default {_FOLDER})")
    parser.add_argument("--build", action="store_true", help="build the set in DIR first, or take up its building")
    parser.add_argument("--per-cause", type=int, default=20, metavar="N", help="failures of each cause (default 20)")
    parser.add_argument("--seed", type=int, default=3, help="of scenes, moments and movements (default 3)")
    parser.add_argument("--workers", type=int, default=2, help="processes that build or draw (default 2; 0: this one)")
    parser.add_argument("--critic", default="simulator", metavar="CRITIC", help="simulator, or a YAML file")
    parser.add_argument("--limit", type=int, metavar="N", help="judge N of the episodes, spread over all causes")
    parser.add_argument("--out", type=Path, metavar="DIR", help="what a model answered (default: DIR/answers/CRITIC)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows")
    parser.add_argument("--push", metavar="NAMESPACE/NAME", help="push the set to the Hub as a dataset, and no more")
    parser.add_argument("--public", action="store_true", help="a dataset made by --push is public")
    add_options(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    from lerobot_coda.critic.bench.build import KINDS, SUCCESS, BenchSet, build

    display = display_of(arguments)
    if arguments.build:
        count = arguments.per_cause * 2 * (len(KINDS) - (SUCCESS in KINDS))
        with display.stage("demonstrate", "build the bench set", count) as tick:
            build(
                arguments.data,
                per_cause=arguments.per_cause,
                seed=arguments.seed,
                workers=arguments.workers,
                progress=lambda done: tick(min(done, count)),
            )
    bench = BenchSet.open(arguments.data)
    if arguments.push:
        from lerobot_coda.critic.bench.push import push_bench

        published = push_bench(arguments.data, arguments.push, private=not arguments.public)
        display.say(f"{published.revision.name}: {published.outcome}")
        return
    _score(arguments, bench, display)


def _score(arguments: argparse.Namespace, bench: "BenchSet", display: Any) -> None:
    """Puts the critic on trial, prints its score and writes the rows."""
    import shlex
    import sys

    from lerobot_coda.critic.bench.score import score
    from lerobot_coda.critic.bench.tables import print_score, rows
    from lerobot_coda.critic.bench.trial import judged, sample
    from libero_pro.figures import keep

    name, version, judge = _judge(arguments, bench)
    items = sample(bench.items, arguments.limit)
    with display.stage("critic", "ask the critic", len(items)) as tick:
        answers = judged(items, judge, tick)
    scored = score(items, answers, critic=name, version=version)
    print_score(scored, display.console)
    if arguments.json:
        command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
        keep(arguments.json, rows(scored, command))


def _judge(arguments: argparse.Namespace, bench: "BenchSet") -> tuple[str, str, "Judge"]:
    """(name, version, judge) of the critic that is asked for."""
    from lerobot_coda.critic.bench.trial import critic_judge, simulator_judge
    from lerobot_coda.critic.simulator import CRITIC_VERSION

    if arguments.critic == "simulator":
        return "simulator", CRITIC_VERSION, simulator_judge(bench)
    from lerobot_coda.critic.settings import CriticSettings, open_critic
    from lerobot_coda.recipe import parse_recipe, read_yaml
    from libero_pro.record import RecordError

    path = Path(arguments.critic)
    if not path.is_file():
        raise RecordError(f"--critic '{arguments.critic}' is neither 'simulator' nor a file with a critic's settings")
    data = read_yaml(path)
    settings = parse_recipe(CriticSettings, data.get("critic", data), f"--critic {path}")
    if settings.kind == "simulator":
        return "simulator", CRITIC_VERSION, simulator_judge(bench)
    # A recipe's limit is for a round of a few clusters; here each episode is asked about, as often as retries allow.
    enough = max(settings.max_requests, len(bench.items) * (1 + settings.retries))
    settings = settings.model_copy(update={"max_requests": enough})
    own = f"{settings.kind}-{Path(str(settings.model)).name}-{settings.hash}"  # critics do not overwrite one another
    critic = open_critic(settings, arguments.out or arguments.data / "answers" / own)
    judge = critic_judge(
        bench,
        critic,
        arguments.data / "sheets",
        frames=settings.frames,
        size=settings.image_size,
        workers=arguments.workers,
    )
    return critic.name, critic.version, judge
