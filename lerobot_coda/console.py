"""What a person sees while a run works: the stage, its progress, and the time left for the whole run.

A terminal gets live bars, anything else plain lines. The estimate is the sum of the stages that are left, each priced
by what its units have cost so far in this run, or by a prior until then.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

Tick = Callable[[int], None]  # called with the number of units done so far in the stage
PLAIN_EVERY_S = 10.0

# Seconds a unit costs on two cores, before this run has measured its own.
PRIOR_S: Mapping[str, float] = {
    "gate": 0.2, "probe": 1.8, "validate": 1.5, "measure": 1.5, "evaluate": 1.7, "demonstrate": 0.5,
    "ground": 0.025, "dataset": 0.8, "train": 0.35, "sft": 0.18,
}  # fmt: skip


@dataclass
class Planned:
    """A stage ahead: its kind (what prices it), its label and how many units it has."""

    kind: str
    label: str
    units: int


class Display:
    """Stages in order. `plan` says what lies ahead; `stage` runs one and takes it off the plan."""

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic):
        self.console = console or Console(highlight=False)
        self._clock = clock
        self._started = clock()
        self._ahead: list[Planned] = []
        self._units: dict[str, float] = {}
        self._seconds: dict[str, float] = {}

    def plan(self, stages: Sequence[Planned]) -> None:
        """Replaces what lies ahead."""
        self._ahead = list(stages)

    def say(self, text: str) -> None:
        """A line of its own."""
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
        live = self._bars() if self.console.is_terminal else None
        spoken = began

        def status() -> str:
            left = self.left_s(stage, done - first, self._clock() - began) if done > first else self.left_s(stage, done)
            return f"{_clock(self._clock() - self._started)} elapsed, about {_clock(left)} left"

        with live or nullcontext():
            task = live.add_task(escape(label), total=stage.units, status=status()) if live else None
            if live is None:
                self.say(f"{label}: {units} to do ({status()})")

            def tick(now: int) -> None:
                nonlocal done, spoken, first
                if done == 0 and now > 1:
                    first = now  # found done already: no measure of speed
                done = now
                if live is not None and task is not None:
                    live.update(task, completed=now, status=status())
                elif self._clock() - spoken >= PLAIN_EVERY_S:
                    spoken = self._clock()
                    self.say(f"{label}: {now}/{stage.units} ({status()})")

            yield tick
        seconds = self._clock() - began
        if done > first:
            self._units[kind] = self._units.get(kind, 0.0) + done - first
            self._seconds[kind] = self._seconds.get(kind, 0.0) + seconds
        self.say(f"[green]done[/green] {escape(label)} in {_clock(seconds)} (about {_clock(self.left_s())} left)")

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


def _clock(seconds: float) -> str:
    """`3:07` or `1:02:40`."""
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
