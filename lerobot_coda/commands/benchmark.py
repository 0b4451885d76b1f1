"""`lerobot-coda benchmark`: the LIBERO-Pro protocol for any LeRobot checkpoint, with a live table of its suites."""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from lerobot_coda.console import PLAIN_EVERY_S, Log, add_options
from lerobot_coda.preflight import preflight

_EXAMPLE = """examples:
  lerobot-coda benchmark --policy.path=CHECKPOINT --output bench/all
  lerobot-coda benchmark --policy.path=CHECKPOINT --suites base --perturbations swap task --episodes 20 --output bench/a
  lerobot-coda benchmark --policy.path=CHECKPOINT --suites grid --output bench/grid
"""


def add(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "benchmark",
        help="the LIBERO-Pro protocol for any LeRobot checkpoint",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("policy", nargs="?", help="the same as --policy.path")
    parser.add_argument(
        "--policy.path", dest="policy_path", metavar="CHECKPOINT", help="checkpoint folder or Hub repository"
    )
    parser.add_argument(
        "--suites", nargs="+", default=["all"], help="names, or: all (default; 20), base (4), pro (16), grid (10)"
    )
    parser.add_argument(
        "--perturbations", nargs="+", metavar="AXIS", help="run base suites perturbed: swap object lan task"
    )
    parser.add_argument("--task-ids", nargs="+", type=int, help="of each suite; default: all ten")
    parser.add_argument("--episodes", type=int, default=50, help="episodes a task (default 50)")
    parser.add_argument("--n-action-steps", type=int, help="steps executed of each chunk; default: the checkpoint's")
    parser.add_argument("--prompt-source", choices=("bddl", "filename"), default="bddl")
    parser.add_argument("--profile", choices=("faithful", "fast"), default="faithful", help="rendering")
    parser.add_argument("--seed", type=int, default=1000, help="episode k resets with seed + k (default 1000)")
    parser.add_argument("--workers", type=int, default=2, help="simulator processes (default 2)")
    parser.add_argument("--device", "--policy.device", dest="device", default="cpu", help="of the policy")
    parser.add_argument("--rename-map", help="JSON, LIBERO's image key -> the policy's, as in lerobot-eval")
    parser.add_argument("--output", type=Path, required=True, help="results folder; an interrupted run goes on")
    add_options(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    from libero_pro.record import RecordError
    from libero_pro.suites import select_suites

    if (arguments.policy is None) == (arguments.policy_path is None):
        raise RecordError("name one checkpoint: --policy.path=.../pretrained_model")
    renamed = _rename_map(arguments.rename_map)
    suites = select_suites(_split(arguments.suites), arguments.perturbations and _split(arguments.perturbations))
    # Also reads every task and start file, before anything expensive is imported.
    from libero_pro.benchmark import benchmark_scenes, run_benchmark

    protocol = {
        "task_ids": arguments.task_ids,
        "episodes": arguments.episodes,
        "prompt_source": arguments.prompt_source,
        "seed": arguments.seed,
    }
    scenes = benchmark_scenes(suites, **protocol)
    preflight(arguments.output, needs_gl=True)
    from libero_pro.policy_runner import CAMERA_KEYS, LeRobotChunkPolicy

    policy = LeRobotChunkPolicy.from_pretrained(
        arguments.policy or arguments.policy_path,
        device=arguments.device,
        n_action_steps=arguments.n_action_steps,
        camera_keys={camera: renamed.get(key, key) for camera, key in CAMERA_KEYS.items()},
    )
    console = Console(highlight=False)
    kept = sum((arguments.output / "episodes" / f"{scene.hash}.npz").is_file() for scene in scenes)
    shown = Console(highlight=False, quiet=arguments.quiet)
    board = Board([scene.suite for scene in scenes], kept, shown, log=Log(arguments.log_json))
    with board.shown():
        result = run_benchmark(
            policy,
            suites,
            **protocol,
            workers=arguments.workers,
            profile=arguments.profile,
            out=arguments.output,
            progress=board.progress,
            watch=board.watch,
        )
    console.print(board.table())
    console.print(f"results: {result.out / 'table.md'}, protocol: {result.out / 'card.md'}", soft_wrap=True)


class Board:
    """Successes by suite while a benchmark runs: a live table in a terminal, else a line every ten seconds.

    suites  of each episode to come;  `kept` episodes that an earlier run left, which say nothing about speed
    """

    def __init__(
        self,
        suites: Sequence[str],
        kept: int = 0,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        log: Log | None = None,
    ):
        self._console = console or Console(highlight=False)
        self._clock, self._began, self._spoken = clock, clock(), clock()
        self._planned = {suite: suites.count(suite) for suite in dict.fromkeys(suites)}
        self._outcomes: dict[str, list[bool | None]] = {suite: [] for suite in self._planned}
        self._kept, self._done = kept, 0
        self._live: Live | None = None
        self._log = log or Log()

    def progress(self, done: int, total: int) -> None:
        """Takes the number of finished episodes."""
        self._done = done
        self._log.event(self._status(), "benchmark", done, total)
        if self._live is not None:
            self._live.update(self.table())
        elif self._clock() - self._spoken >= PLAIN_EVERY_S:
            self._spoken = self._clock()
            found = [outcome for outcomes in self._outcomes.values() for outcome in outcomes if outcome is not None]
            self._console.print(f"benchmark: {self._status()}; {sum(found)} of {len(found)} counted succeeded")

    def watch(self, row: Mapping[str, Any]) -> None:
        """Takes the outcome of an episode; they come in the order of the table."""
        self._outcomes[row["suite"]].append(None if row["invalid"] else bool(row["success"]))

    def table(self) -> Table:
        """Suites with how many episodes are counted, how many succeeded and the rate's interval."""
        from libero_pro.statistics import wilson

        table = Table(caption=self._status(), caption_justify="left")
        table.add_column("suite", no_wrap=True)
        for name in ("counted", "succeeded", "rate", "95 % interval", "invalid"):
            table.add_column(name, justify="right")
        everything = [outcome for outcomes in self._outcomes.values() for outcome in outcomes]
        groups = [(suite, outcomes, self._planned[suite]) for suite, outcomes in self._outcomes.items()]
        if len(groups) > 1:
            groups.append(("all", everything, sum(self._planned.values())))
        for suite, outcomes, planned in groups:
            valid = [outcome for outcome in outcomes if outcome is not None]
            low, high = wilson(sum(valid), len(valid))
            table.add_row(
                suite,
                f"{len(outcomes)}/{planned}",
                str(sum(valid)),
                f"{100 * sum(valid) / len(valid):.1f} %" if valid else "-",
                f"{100 * low:.0f} to {100 * high:.0f} %" if valid else "-",
                str(len(outcomes) - len(valid) or ""),
                style="bold" if suite == "all" else None,
            )
        return table

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Shows the table while the run works."""
        if not self._console.is_terminal:
            yield
            return
        with Live(self.table(), console=self._console, transient=True, refresh_per_second=2) as self._live:
            yield
        self._live = None

    def _status(self) -> str:
        total, elapsed = sum(self._planned.values()), self._clock() - self._began
        text = f"{self._done}/{total} episodes, {elapsed / 60:.1f} min"
        fresh = self._done - self._kept
        if fresh > 0 and self._done < total:
            text += f", about {elapsed / fresh * (total - self._done) / 60:.0f} min left"
        return text


def _split(words: Sequence[str]) -> list[str]:
    """Names given apart, or with commas between them."""
    return [name for word in words for name in word.split(",") if name]


def _rename_map(text: str | None) -> dict[str, str]:
    """RecordError unless it is a JSON object that renames LIBERO's two image keys."""
    from libero_pro.record import RecordError

    if text is None:
        return {}
    known = ("observation.images.image", "observation.images.image2")
    try:
        found = json.loads(text)
        if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
            raise ValueError("not an object of names")
    except ValueError as error:
        raise RecordError(f"rename-map is not a JSON object of key names ({error}): {text}") from None
    for key in found:
        if key not in known:
            raise RecordError(f"rename-map: '{key}' is not one of LIBERO's image keys, {' and '.join(known)}")
    return found
