"""Worker processes for simulator work: grouped jobs, a few cached simulators a worker, and a way to ask the parent.

    for outcome in run_in_workers(scenes, key=task_of, make_state=build_simulator, work=rollout, respond=infer):
        outcome.index, outcome.result, outcome.error

* `make_state(key)` and `work(state, job, ask)` run in spawned processes (module-level functions or `functools.partial`s
  of them: they travel by import name). A worker keeps its last `keep` states, and jobs of one key go to the same worker
  first, so that an expensive state (a simulator: seconds and about 1 GB) is built as rarely as possible.
* `ask(request)` inside `work` sends any message to the parent and blocks for the reply. The parent answers with
  `respond(requests) -> replies`, called with every request that is waiting at that moment: batched policy inference
  without shared state, since a request carries all it needs. Without `respond` there is nobody to ask.
* An exception in `work` or `make_state` is that job's error. A worker that dies or falls silent for `timeout_s` is
  replaced and its job rerun once; the second time it is that job's error. Nothing else is lost.
* Results stream in completion order, tagged with the job's index; they do not depend on `workers` if `work` does not
  depend on what ran before in the same state.
* Libraries run one thread in a worker. Ctrl-C reaches the parent only, which ends the workers; if the parent is killed,
  workers notice the closed pipe and leave.
"""

import os
import signal
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "LP_NUM_THREADS": "0",  # software OpenGL
}

_NOBODY = "work asked its parent, but run_in_workers was given no `respond`"

_WORTH_SHARING = 3  # jobs left of a key that another worker holds; a state costs about as much as two

Ask = Callable[[Any], Any]


class WorkerError(RuntimeError):
    """Raised inside `work` when it asks a parent that has nothing to answer with."""


@dataclass(frozen=True)
class Inheritance:
    """What forked workers begin with: `states` by key, and `foreign` connections of this process that they close."""

    states: dict[Hashable, Any]
    foreign: tuple[Connection, ...] = ()


@dataclass(frozen=True)
class Outcome[Job, Result]:
    """What became of one job: `result`, or `error` in one sentence (then `result` is None)."""

    index: int
    job: Job
    result: Result | None
    error: str | None = None
    wall_s: float = 0.0


def run_in_workers[Job, Result](
    jobs: Sequence[Job],
    *,
    make_state: Callable[[Any], Any],
    work: Callable[[Any, Job, Ask], Result],
    workers: int = 2,
    key: Callable[[Job], Hashable] = lambda job: None,
    respond: Callable[[list[Any]], Sequence[Any]] | None = None,
    keep: int = 2,
    recycle_after: int = 8,
    timeout_s: float = 900.0,
    inherit: Inheritance | None = None,
) -> Iterator[Outcome[Job, Result]]:
    """Runs every job once and yields outcomes as they complete. `workers=0` runs in this process, group by group.

    A worker process is replaced by a fresh one after building `recycle_after` states, because simulators do not give
    all their memory back. With `inherit` workers are forks of this process that hold its states (`libero_pro.forked`).
    """
    groups: OrderedDict[Hashable, list[int]] = OrderedDict()
    for index, job in enumerate(jobs):
        groups.setdefault(key(job), []).append(index)
    if workers <= 0:
        yield from _run_here(jobs, groups, make_state, work, respond, keep)
        return
    pool = _Pool(min(workers, max(1, len(jobs))), make_state, work, keep, recycle_after, inherit)
    attempts = [0] * len(jobs)
    try:
        for worker in pool.workers:
            pool.dispatch(worker, jobs, groups)
        while any(worker.index is not None for worker in pool.workers):
            messages = pool.messages(timeout_s)
            requests = [(worker, body) for worker, kind, body in messages if kind == "ask"]
            if requests:
                _answer(requests, respond)
            for worker, kind, body in messages:
                current = worker.index
                if kind == "ask" or current is None:
                    continue
                elapsed = time.monotonic() - worker.started
                worker.index = None
                if kind == "lost":
                    attempts[current] += 1
                    pool.replace(worker)
                    if attempts[current] < 2:
                        groups.setdefault(key(jobs[current]), []).insert(0, current)
                for idle in pool.workers:  # all: a rerun may find another one without work
                    pool.dispatch(idle, jobs, groups)
                if kind == "done":
                    yield Outcome(current, jobs[current], body, None, elapsed)
                elif kind == "error":
                    yield Outcome(current, jobs[current], None, body, elapsed)
                elif attempts[current] >= 2:
                    yield Outcome(current, jobs[current], None, f"lost its worker process twice: {body}", elapsed)
    finally:
        pool.close()


@dataclass
class _Worker:
    """Parent's view of one process. `keys` mirrors the process's cache of states, oldest first."""

    process: Any
    pipe: Connection
    index: int | None = None
    started: float = 0.0
    heard: float = 0.0
    keys: list[Hashable] = field(default_factory=list)
    built: int = 0


class _Pool:
    """The processes of one `run_in_workers` call."""

    def __init__(
        self,
        count: int,
        make_state: Callable,
        work: Callable,
        keep: int,
        recycle_after: int,
        inherit: Inheritance | None = None,
    ):
        self._inherit = inherit
        self._context: Any = get_context("spawn" if inherit is None else "fork")
        self._setup = (make_state, work, max(1, keep))
        self._keep = max(1, keep)
        self._recycle_after = max(1, recycle_after)
        self.workers: list[_Worker] = []
        try:
            for _ in range(count):
                self.workers.append(_Worker(*self._start()))
        except BaseException:
            self.close()
            raise

    def _start(self) -> tuple[Any, Connection]:
        pipe, theirs = self._context.Pipe()
        inherited: tuple[Any, ...] = ()
        if self._inherit is not None:  # a fork holds copies of all our connections, which would hide our death
            ours = (pipe, *(worker.pipe for worker in self.workers if not worker.pipe.closed))
            inherited = (self._inherit.states, (*ours, *self._inherit.foreign))
        process = self._context.Process(target=_worker_main, args=(theirs, *inherited), daemon=True)
        with one_thread():
            process.start()
        theirs.close()
        with suppress(OSError):  # a process that dies at once is noticed when its pipe is read
            pipe.send(self._setup)
        return process, pipe

    def replace(self, worker: _Worker) -> None:
        """Ends the worker's process and gives it a fresh one."""
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()
        worker.process, worker.pipe = self._start()
        worker.keys, worker.built = [], 0

    def dispatch(self, worker: _Worker, jobs: Sequence[Any], groups: OrderedDict[Hashable, list[int]]) -> None:
        """Sends the worker its next job, if there is one: of a key it holds, of a free key, or of a long group."""
        if worker.index is not None or not groups:
            return
        held = {key for other in self.workers if other is not worker for key in other.keys}
        mine = [key for key in reversed(worker.keys) if key in groups]
        free = [key for key in groups if key not in held]
        longest = max(groups, key=lambda key: len(groups[key]))
        if not mine and not free and len(groups[longest]) < _WORTH_SHARING:
            return
        chosen = (mine or free or [longest])[0]
        index = groups[chosen].pop(0)
        if not groups[chosen]:
            del groups[chosen]
        if chosen in worker.keys:
            worker.keys.remove(chosen)
        else:
            if worker.built >= self._recycle_after:
                self.replace(worker)
            worker.built += 1
        worker.keys = [*worker.keys, chosen][-self._keep :]
        worker.index = index
        worker.started = worker.heard = time.monotonic()
        with suppress(OSError):  # a dead process is noticed when its pipe is read
            worker.pipe.send((chosen, jobs[index]))

    def messages(self, timeout_s: float) -> list[tuple[_Worker, str, Any]]:
        """Waits for busy workers: ("done", result), ("error", text), ("ask", request) or ("lost", reason) of each."""
        busy = [worker for worker in self.workers if worker.index is not None]
        silent_until = min(worker.heard for worker in busy) + timeout_s
        ready = set(wait([worker.pipe for worker in busy], timeout=max(0.0, silent_until - time.monotonic())))
        found: list[tuple[_Worker, str, Any]] = []
        for worker in busy:
            if worker.pipe in ready:
                try:
                    kind, body = worker.pipe.recv()
                    worker.heard = time.monotonic()
                except (EOFError, OSError):
                    worker.process.join(5)
                    kind, body = "lost", f"it ended with exit code {worker.process.exitcode}"
                found.append((worker, kind, body))
            elif time.monotonic() - worker.heard >= timeout_s:
                found.append((worker, "lost", f"it was silent for {timeout_s:.0f} s"))
        return found

    def close(self) -> None:
        """Ends every process, also in the middle of a job."""
        for worker in self.workers:
            worker.process.kill()
        for worker in self.workers:
            worker.process.join()
            worker.pipe.close()


def _answer(requests: list[tuple[_Worker, Any]], respond: Callable[[list[Any]], Sequence[Any]] | None) -> None:
    replies: Sequence[Any] = [WorkerError(_NOBODY)] * len(requests)
    if respond is not None:
        replies = respond([request for _, request in requests])
    for (worker, _), reply in zip(requests, replies, strict=True):
        worker.heard = time.monotonic()  # the silence was the parent's
        with suppress(OSError):
            worker.pipe.send(reply)


def _run_here(
    jobs: Sequence[Any],
    groups: OrderedDict[Hashable, list[int]],
    make_state: Callable,
    work: Callable,
    respond: Callable[[list[Any]], Sequence[Any]] | None,
    keep: int,
) -> Iterator[Outcome]:
    def ask(request: Any) -> Any:
        if respond is None:
            raise WorkerError(_NOBODY)
        return respond([request])[0]

    states: OrderedDict[Hashable, Any] = OrderedDict()
    for group, indices in groups.items():
        for index in indices:
            start = time.monotonic()
            try:
                result = work(_state(states, group, make_state, max(1, keep)), jobs[index], ask)
                yield Outcome(index, jobs[index], result, None, time.monotonic() - start)
            except Exception as error:
                yield Outcome(index, jobs[index], None, sentence(error), time.monotonic() - start)


def _worker_main(
    pipe: Connection, inherited: dict[Hashable, Any] | None = None, foreign: Sequence[Connection] = ()
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for connection in foreign:
        connection.close()

    def ask(request: Any) -> Any:
        pipe.send(("ask", request))
        reply = pipe.recv()
        if isinstance(reply, WorkerError):
            raise reply
        return reply

    states: OrderedDict[Hashable, Any] = OrderedDict(inherited or {})
    with suppress(EOFError, OSError):  # the parent is gone
        make_state, work, keep = pipe.recv()
        while True:
            group, job = pipe.recv()
            try:
                message = ("done", work(_state(states, group, make_state, keep), job, ask))
            except (EOFError, BrokenPipeError):
                return
            except Exception as error:
                if not str(error):
                    traceback.print_exc()
                message = ("error", sentence(error))
            pipe.send(message)


def _state(states: OrderedDict[Hashable, Any], key: Hashable, make_state: Callable, keep: int) -> Any:
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
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(_ONE_THREAD)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
