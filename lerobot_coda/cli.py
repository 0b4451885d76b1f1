"""`lerobot-coda`: evolve a policy, build a train recipe's demonstrations, report on a run, run the benchmark."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from lerobot_coda.preflight import preflight, python_problem
from lerobot_coda.threads import set_threads


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; 0 on success, 2 with one sentence on bad input, 130 when interrupted."""
    if problem := python_problem():
        print(f"lerobot-coda: {problem}", file=sys.stderr)
        return 2
    arguments = _parser().parse_args(argv)
    set_threads()
    os.environ.setdefault("TQDM_DISABLE", "1")  # libraries' bars would break into ours
    from libero_pro.record import RecordError

    try:
        arguments.run(arguments)
    except RecordError as error:
        print(f"lerobot-coda: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        # A full disk or a vanished folder, wherever it is met: what is finished stays, and the same command goes on.
        print(f"lerobot-coda: {error.strerror or error}: {error.filename or ''}; put it right and run the same command "
              "again, it goes on where it stopped", file=sys.stderr)  # fmt: skip
        return 2
    except KeyboardInterrupt:
        print("lerobot-coda: interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


def _evolve(arguments: argparse.Namespace) -> None:
    from lerobot_coda import runfolder
    from lerobot_coda.evolve import evolve, read

    recipe, trains = read(arguments.recipe)
    output = arguments.output or Path("runs") / recipe.name
    runfolder.check(output, recipe, trains)
    preflight(output, needs_gl=True)
    summary = evolve(arguments.recipe, output)
    _print_summary(output, summary)


def _print_summary(output: Path, summary: dict) -> None:
    """The run's table, and where its page is."""
    from lerobot_coda.report import build_report, load_run, print_summary

    page = build_report(output)
    print_summary(load_run(output))
    print(f"\nreport: {page}")


def _demos(arguments: argparse.Namespace) -> None:
    from lerobot_coda.demos import build_demos
    from lerobot_coda.recipe import load_demos

    _, train = load_demos(arguments.recipe)
    preflight(Path(train["dataset"]["root"]), needs_gl=True)
    build_demos(arguments.recipe)


def _report(arguments: argparse.Namespace) -> None:
    import json

    from lerobot_coda.report import figure_rows, load_run, print_summary, write_report
    from libero_pro.record import write_atomically

    summary = load_run(arguments.run_folder)
    page = write_report(summary, arguments.run_folder / "report")
    print_summary(summary)
    if arguments.json:
        write_atomically(arguments.json, (json.dumps(figure_rows(summary), indent=1) + "\n").encode())
    print(f"\nreport: {page}")


def _benchmark(arguments: argparse.Namespace) -> None:
    from lerobot_coda.console import Display, Planned
    from libero_pro.suites import get_task

    for suite in arguments.suites:
        for task_id in arguments.task_ids or (0,):
            get_task(suite, task_id)
    preflight(arguments.output, needs_gl=True)
    from libero_pro.benchmark import run_benchmark
    from libero_pro.policy_runner import LeRobotChunkPolicy

    display = Display()
    units = len(arguments.suites) * len(arguments.task_ids or range(10)) * arguments.episodes
    display.plan([Planned("evaluate", "benchmark", units)])
    policy = LeRobotChunkPolicy.from_pretrained(arguments.policy, device=arguments.device)
    with display.stage("evaluate", "benchmark", units) as tick:
        result = run_benchmark(
            policy,
            arguments.suites,
            task_ids=arguments.task_ids,
            episodes=arguments.episodes,
            prompt_source=arguments.prompt_source,
            seed=arguments.seed,
            workers=arguments.workers,
            profile=arguments.profile,
            out=arguments.output,
            progress=lambda done, total: tick(done),
        )
    print((result.out / "card.md").read_text(encoding="utf-8"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lerobot-coda", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    evolve = commands.add_parser("evolve", help="run a co-evolution recipe, or go on with it")
    evolve.add_argument("recipe", type=Path, help="evolve recipe, e.g. recipes/quickstart.yaml")
    evolve.add_argument("--output", type=Path, help="run folder (default: runs/<recipe name>)")
    evolve.set_defaults(run=_evolve)

    demos = commands.add_parser("demos", help="build the dataset that a train recipe names")
    demos.add_argument("recipe", type=Path, help="train recipe, e.g. recipes/sft_libero_object.yaml")
    demos.set_defaults(run=_demos)

    report = commands.add_parser("report", help="write a run's page, tables and videos")
    report.add_argument("run_folder", type=Path, metavar="RUN")
    report.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers as rows")
    report.set_defaults(run=_report)

    benchmark = commands.add_parser("benchmark", help="the LIBERO-Pro protocol for any LeRobot checkpoint")
    benchmark.add_argument("policy", type=Path, help="checkpoint folder (.../pretrained_model)")
    benchmark.add_argument("--suites", nargs="+", required=True)
    benchmark.add_argument("--task-ids", nargs="+", type=int, help="default: all ten")
    benchmark.add_argument("--episodes", type=int, default=50, help="episodes a task (default 50)")
    benchmark.add_argument("--prompt-source", choices=("bddl", "filename"), default="bddl")
    benchmark.add_argument("--profile", choices=("faithful", "fast"), default="faithful")
    benchmark.add_argument("--seed", type=int, default=1000)
    benchmark.add_argument("--workers", type=int, default=2)
    benchmark.add_argument("--device", default="cpu")
    benchmark.add_argument("--output", type=Path, required=True, help="results folder; an interrupted run goes on")
    benchmark.set_defaults(run=_benchmark)
    return parser


if __name__ == "__main__":
    sys.exit(main())
