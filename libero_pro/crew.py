"""A crew: where workers are, and how one talks to them. Here they are processes of this machine.

Whatever carries the messages (a pipe; a cluster, see `libero_pro.ray_workers`), a worker lives by `serve`: it is sent
(key, job) and answers ("done", result), ("error", text), or first ("ask", request), which is answered by the reply.
"""

import os
import signal
import traceback
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "LP_NUM_THREADS": "0",  # software OpenGL
}

Ask = Callable[[Any], Any]
Setup = tuple[Callable[[Any], Any], Callable[[Any, Any, Ask], Any], int]  # make_state, work, states to keep


class WorkerError(RuntimeError):
    """Raised inside `work` when it asks a parent that has nothing to answer with."""


class Link(Protocol):
    """One worker as its parent sees it. `ready`: it listens; a worker that does not yet is given no job."""

    ready: bool

    def send(self, message: Any) -> None:
        """Never fails: that the worker is gone is noticed by `receive`."""

    def receive(self) -> tuple[str, Any]:
        """Its message; or ("ready", None) once, ("lost", reason) if it ended, ("gone", reason) if its machine did."""

    def end(self) -> None:
        """Ends it, also in the middle of a job."""


class Crew(Protocol):
    """At most `count` workers."""

    @property
    def count(self) -> int: ...

    def hire(self, setup: Setup) -> Link:
        """A fresh worker."""

    def wait(self, links: Sequence[Any], timeout: float) -> Collection[Any]:
        """Those of which something can be received, as soon as there is one, or none after `timeout` seconds."""


@dataclass(frozen=True)
class Inheritance:
    """What forked workers begin with: `states` by key, and `foreign` connections of this process that they close."""

    states: dict[Hashable, Any]
    foreign: tuple[Connection, ...] = ()


class Processes:
    """Processes of this machine; with an inheritance they are forks of this one."""

    def __init__(self, count: int, inherit: Inheritance | None = None):
        self.count = count
        self._inherit = inherit
        self._context: Any = get_context("spawn" if inherit is None else "fork")
        self._pipes: list[Connection] = []

    def hire(self, setup: Setup) -> "_Process":
        pipe, theirs = self._context.Pipe()
        self._pipes = [pipe, *(other for other in self._pipes if not other.closed)]
        inherited: tuple[Any, ...] = ()
        if self._inherit is not None:  # a fork holds copies of all our connections, which would hide our death
            inherited = (self._inherit.states, (*self._pipes, *self._inherit.foreign))
        process = self._context.Process(target=_live, args=(theirs, *inherited), daemon=True)
        with one_thread():
            process.start()
        theirs.close()
        link = _Process(process, pipe)
        link.send(setup)
        return link

    def wait(self, links: Sequence["_Process"], timeout: float) -> Collection["_Process"]:
        ready = set(wait([link.pipe for link in links], timeout))
        return [link for link in links if link.pipe in ready]


class _Process:
    ready = True  # what it is sent waits in the pipe

    def __init__(self, process: Any, pipe: Connection):
        self.process, self.pipe = process, pipe

    def send(self, message: Any) -> None:
        with suppress(OSError):
            self.pipe.send(message)

    def receive(self) -> tuple[str, Any]:
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(5)
            return "lost", f"it ended with exit code {self.process.exitcode}"

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _live(pipe: Connection, inherited: dict[Hashable, Any] | None = None, foreign: Sequence[Connection] = ()) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for connection in foreign:
        connection.close()
    serve(pipe, inherited)


def serve(pipe: Any, inherited: dict[Hashable, Any] | None = None) -> None:
    """A worker's life: receives a `Setup`, then jobs, until `pipe` says EOFError or OSError, as the parent is gone."""

    def ask(request: Any) -> Any:
        pipe.send(("ask", request))
        reply = pipe.recv()
        if isinstance(reply, WorkerError):
            raise reply
        return reply

    states: OrderedDict[Hashable, Any] = OrderedDict(inherited or {})
    with suppress(EOFError, OSError):
        make_state, work, keep = pipe.recv()
        while True:
            group, job = pipe.recv()
            try:
                message = ("done", work(state_of(group, states, make_state, keep), job, ask))
            except (EOFError, BrokenPipeError):
                return
            except Exception as error:
                if not str(error):
                    traceback.print_exc()
                message = ("error", sentence(error))
            pipe.send(message)


def state_of(key: Hashable, states: OrderedDict[Hashable, Any], make_state: Callable, keep: int) -> Any:
    """The cached state of `key`, built after making room for it (two at once may not fit in memory)."""
    if key not in states:
        while len(states) >= keep:
            _, old = states.popitem(last=False)
            close = getattr(old, "close", None)
            if close is not None:
                close()
            del old
        states[key] = make_state(key)
    states.move_to_end(key)
    return states[key]


def sentence(error: Exception) -> str:
    """An exception as the error of an outcome."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:500]


@contextmanager
def one_thread() -> Iterator[None]:
    """Libraries run one thread in processes started inside: it must be said before they import numpy."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
