"""What a person sees while a run works: the stage, its progress, and the time left for the whole run.

A terminal gets live bars, anything else plain lines, a program JSON lines. The estimate is the sum of the stages that
are left, each priced by what its units have cost so far in this run, or by a prior until then.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.text import Text

Tick = Callable[[int], None]  # called with the number of units done so far in the stage
PLAIN_EVERY_S = 10.0
LOG_EVERY_S = 1.0

# Seconds a unit costs on two cores, before this run has measured its own.
PRIOR_S: Mapping[str, float] = {
    "gate": 0.25, "probe": 2.0, "validate": 1.9, "measure": 2.0, "evaluate": 1.7, "demonstrate": 0.5,
    "ground": 0.035, "dataset": 0.8, "train": 0.27, "sft": 0.12,
}  # fmt: skip


@dataclass
class Planned:
    """A stage ahead: its kind (what prices it), its label and how many units it has."""

    kind: str
    label: str
    units: int


class Log:
    """Events as JSON lines, appended to each of `paths`; None: nowhere.

    An event is {time (UTC, ISO 8601), step, done, total, message}; step, done and total are null for a mere message.
    """

    def __init__(self, *paths: Path | None):
        self.paths = tuple(path for path in paths if path is not None)

    def event(self, message: str, step: str | None = None, done: int | None = None, total: int | None = None) -> None:
        """Appends one line; the file and its folder are made with the first."""
        moment = datetime.now(UTC).isoformat(timespec="milliseconds")
        event = {"time": moment, "step": step, "done": done, "total": total, "message": message}
        for path in self.paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(event, ensure_ascii=False) + "\n")


class Display:
    """Stages in order. `plan` says what lies ahead; `stage` runs one and takes it off the plan.

    quiet  no progress is shown, only what `say` says;  log  gets everything, also then
    """

    def __init__(
        self,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        quiet: bool = False,
        log: Log | None = None,
    ):
        self.console = console or Console(highlight=False)
        self._quiet = quiet
        self._log = log or Log()
        self._clock = clock
        self._started = clock()
        self._ahead: list[Planned] = []
        self._units: dict[str, float] = {}
        self._seconds: dict[str, float] = {}

    @contextmanager
    def logged(self, path: Path) -> Iterator[None]:
        """Events meanwhile go to `path` as well: one run's own log among several runs."""
        before, self._log = self._log, Log(*self._log.paths, path)
        try:
            yield
        finally:
            self._log = before

    def plan(self, stages: Sequence[Planned]) -> None:
        """Replaces what lies ahead."""
        self._ahead = list(stages)

    def say(self, text: str) -> None:
        """A line of its own."""
        self._log.event(Text.from_markup(text).plain)
        self.console.print(text, soft_wrap=True)

    def skip(self, label: str) -> None:
        """Takes a stage that was finished earlier off the plan."""
        self._take(label)

    def drop(self, prefix: str) -> None:
        """Takes off the plan what did not come to pass: every stage whose label begins with `prefix`."""
        self._ahead = [stage for stage in self._ahead if not stage.label.startswith(prefix)]

    def left_s(self, running: Planned | None = None, done: int = 0, elapsed: float = 0.0) -> float:
        """Estimated seconds left for the run: the rest of the running stage and all that is planned."""
        left = sum(self._price(stage.kind) * stage.units for stage in self._ahead)
        if running is not None:
            price = elapsed / done if done else self._price(running.kind)
            left += max(0, running.units - done) * price
        return left

    @contextmanager
    def stage(self, kind: str, label: str, units: int) -> Iterator[Tick]:
        """Shows a stage while it runs; yields the function that takes the number of units done."""
        self._take(label)
        stage, began, done, first = Planned(kind, label, max(units, 1)), self._clock(), 0, 0
        live = self._bars() if self.console.is_terminal and not self._quiet else None
        spoken = logged = began

        def status() -> str:
            left = self.left_s(stage, done - first, self._clock() - began) if done > first else self.left_s(stage, done)
            return f"{_clock(self._clock() - self._started)} elapsed, about {_clock(left)} left"

        with live or nullcontext():
            task = live.add_task(escape(label), total=stage.units, status=status()) if live else None
            if live is None:
                self._progress(f"{escape(label)}: {units} to do ({status()})")
            self._log.event("begins", label, 0, units)

            def tick(now: int) -> None:
                nonlocal done, spoken, logged, first
                if done == 0 and now > 1:
                    first = now  # found done already: no measure of speed
                done = now
                if live is not None and task is not None:
                    live.update(task, completed=now, status=status())
                elif self._clock() - spoken >= PLAIN_EVERY_S:
                    spoken = self._clock()
                    self._progress(f"{escape(label)}: {now}/{stage.units} ({status()})")
                if self._clock() - logged >= LOG_EVERY_S:
                    logged = self._clock()
                    self._log.event(status(), label, now, units)

            yield tick
        seconds = self._clock() - began
        if done > first:
            self._units[kind] = self._units.get(kind, 0.0) + done - first
            self._seconds[kind] = self._seconds.get(kind, 0.0) + seconds
        left = f"in {_clock(seconds)} (about {_clock(self.left_s())} left)"
        self._log.event(f"done {left}", label, units, units)
        self._progress(f"[green]done[/green] {escape(label)} {left}")

    def _progress(self, text: str) -> None:
        """A line about progress, which a quiet display leaves out."""
        if not self._quiet:
            self.console.print(text, soft_wrap=True)

    def _price(self, kind: str) -> float:
        if self._units.get(kind):
            return self._seconds[kind] / self._units[kind]
        # A machine that is slower than the priors at what it has done is expected to be slower at the rest.
        expected = sum(PRIOR_S.get(k, 1.0) * n for k, n in self._units.items())
        factor = sum(self._seconds.values()) / expected if expected else 1.0
        return PRIOR_S.get(kind, 1.0) * min(max(factor, 0.2), 10.0)

    def _take(self, label: str) -> None:
        """Removes the first planned stage with this label."""
        for index, stage in enumerate(self._ahead):
            if stage.label == label:
                del self._ahead[index]
                return

    def _bars(self) -> Progress:
        columns: list[Any] = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
        return Progress(*columns, TextColumn("{task.fields[status]}"), console=self.console, transient=True)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that every long command has."""
    parser.add_argument("-q", "--quiet", action="store_true", help="show results and errors, but no progress")
    parser.add_argument(
        "--log-json", type=Path, metavar="FILE", help="append each event to FILE as a line of JSON, for programs"
    )


def display_of(arguments: argparse.Namespace, log: Path | None = None) -> Display:
    """The display that a command's options ask for; `log` is where events go that --log-json sends nowhere else."""
    return Display(quiet=arguments.quiet, log=Log(arguments.log_json or log))


def _clock(seconds: float) -> str:
    """`3:07` or `1:02:40`."""
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
