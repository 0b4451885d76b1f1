"""`lerobot-coda`: the command line. Each command is a module of `lerobot_coda.commands`."""

import argparse
import os
import sys
from collections.abc import Sequence

from lerobot_coda.commands import (
    benchmark,
    compare,
    completion,
    critic_bench,
    dashboard,
    demos,
    diagnose,
    doctor,
    evolve,
    experiment,
    export_progress,
    generate,
    memory,
    model_card,
    potential,
    pretrained,
    push,
    render,
    replay,
    report,
    rerun,
    status,
    validate,
)
from lerobot_coda.preflight import python_problem
from lerobot_coda.threads import set_threads

DESCRIPTION = "A LIBERO-Pro data engine and a vision-language-action policy that improve each other."
COMMANDS = (
    evolve, experiment, status, report, dashboard, demos,
    benchmark, compare, model_card, doctor, diagnose, critic_bench, pretrained,
    generate, validate, replay, render, rerun,
    potential, export_progress, memory, push, completion,
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; 0 on success, 2 with one sentence on bad input, 130 when interrupted."""
    if problem := python_problem():
        print(f"lerobot-coda: {problem}", file=sys.stderr)
        return 2
    arguments = build_parser().parse_args(argv)
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


def build_parser() -> argparse.ArgumentParser:
    """The command line with all of its commands."""
    parser = argparse.ArgumentParser(prog="lerobot-coda", description=DESCRIPTION)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
