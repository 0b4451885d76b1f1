"""The processes at work on a run, as the operating system tells of them: the run itself is asked for nothing.

The run's own process is the one that has the run's lock open to write; the others descend from it.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import psutil

from lerobot_coda.training import COMMAND

APART_S = 2.0  # between two looks at least: CPU time is counted in hundredths of a second
RAY = "The recipe's rollout.backend is ray: its simulation workers live in Ray's cluster; `ray status` tells of them."
UNSEEN = (
    "The process that holds the run's lock cannot be seen from here (it is another machine's, container's or user's):"
    " look at its workers there."
)
_SPAWNED, _MINDER = "multiprocessing.spawn", "multiprocessing.resource_tracker"


@dataclass(frozen=True)
class Worker:
    """A process at work.

    what    it is, for people; `depth` generations below the run's own process
    cpu     cores in use since the last look, or since it started when it is seen for the first time
    memory  bytes that are resident; what forks share counts for each
    since   when it started (UTC), `seconds` ago
    """

    what: str
    pid: int
    depth: int
    cpu: float
    memory: int
    since: str
    seconds: float


@dataclass(frozen=True)
class Work:
    """Who is at work, parents before their children; `told` says who cannot be shown and why, a sentence each.

    cores  of this machine
    """

    workers: tuple[Worker, ...] = ()
    told: tuple[str, ...] = ()
    cores: int = field(default_factory=lambda: psutil.cpu_count() or 1)


class Roster:
    """The processes of one run, looked at again and again."""

    def __init__(self, run: Path):
        self._lock = (run / ".lock").resolve()
        self._holder: psutil.Process | None = None
        self._used: dict[psutil.Process, float] = {}  # CPU seconds, at the last look
        self._looked, self._found = float("-inf"), Work()

    def look(self, backend: str = "local") -> Work:
        """Who is at work on the run, whose lock is held; `backend` is that of its recipe's rollouts."""
        now = time.monotonic()
        if now - self._looked >= APART_S:
            if self._holder is None or not _holds(self._holder, self._lock):
                self._holder = _holder(self._lock)
            told = (RAY,) if backend == "ray" else ()
            if self._holder is None:
                self._found = Work(told=(*told, UNSEEN))
            else:
                self._found = Work(tuple(self._workers(self._holder, now - self._looked)), told)
            self._looked = now
        return self._found

    def _workers(self, holder: psutil.Process, elapsed: float) -> list[Worker]:
        """Those that still live when they are asked."""
        rows: list[Worker] = []
        before, self._used = self._used, {}
        commands: dict[psutil.Process | None, Sequence[str]] = {None: ()}
        for process, parent, depth, forks in _family(holder):
            with suppress(psutil.Error):
                command, began, times = process.cmdline(), process.create_time(), process.cpu_times()
                commands[process], self._used[process] = command, times.user + times.system
                if not command or _MINDER in " ".join(command):  # it has ended, or only keeps count of the others
                    continue
                seconds, used = max(time.time() - began, 0.01), self._used[process]
                rows.append(
                    Worker(
                        what=called(command, commands.get(parent, ()), depth, forks) or process.name(),
                        pid=process.pid,
                        depth=depth,
                        cpu=(used - before[process]) / elapsed if process in before else used / seconds,
                        memory=process.memory_info().rss,
                        since=datetime.fromtimestamp(began, UTC).strftime("%H:%M:%S"),
                        seconds=seconds,
                    )
                )
        return rows


def called(command: Sequence[str], parent: Sequence[str], depth: int, forks: bool) -> str | None:
    """What a process of a run is, by its command line and its `parent`'s; None if they do not tell.

    depth  generations below the run's own process
    forks  it has children: a simulator that is built once, for workers that are forks of it
    """
    if depth == 0:
        return "the run itself"
    forked, spawned = list(command) == list(parent), _SPAWNED in " ".join(command)
    if _trains(parent) and (forked or spawned):
        return "data loader of lerobot-train"
    if _trains(command):
        return "lerobot-train"
    if spawned:
        return "simulator that workers are forked from" if forks else "simulation worker"
    return "fork of the run" if forked else None


def _trains(command: Sequence[str]) -> bool:
    return set(COMMAND[1:]) <= set(command)


def _family(holder: psutil.Process) -> Iterator[tuple[psutil.Process, psutil.Process | None, int, bool]]:
    """The process and all that descend from it, as a tree is read: (process, parent, generation, has children)."""
    below: defaultdict[int, list[psutil.Process]] = defaultdict(list)
    with suppress(psutil.Error):
        for process in holder.children(recursive=True):
            with suppress(psutil.Error):
                below[process.ppid()].append(process)
    waiting: list[tuple[psutil.Process, psutil.Process | None, int]] = [(holder, None, 0)]
    while waiting:
        process, parent, depth = waiting.pop()
        children = below[process.pid]
        yield process, parent, depth, bool(children)
        waiting += [(child, process, depth + 1) for child in reversed(children)]


def _holder(lock: Path) -> psutil.Process | None:
    """The process that took the lock: the oldest that holds it, as one that it forked may hold it too."""
    holders = [process for process in psutil.process_iter() if _holds(process, lock)]
    return min(holders, key=lambda process: process.create_time(), default=None)


def _holds(process: psutil.Process, lock: Path) -> bool:
    """Whether it has the lock open to write; who only looks at it, as we do, has it open to read."""
    with suppress(psutil.Error, OSError):
        return any(Path(file.path) == lock and getattr(file, "mode", "a") != "r" for file in process.open_files())
    return False
