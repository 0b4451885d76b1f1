"""Workers for simulator work: grouped jobs, a few cached simulators a worker, and a way to ask the parent.

    for outcome in run_in_workers(scenes, key=task_of, make_state=build_simulator, work=rollout, respond=infer):
        outcome.index, outcome.result, outcome.error

* Workers are spawned processes of this machine, or wherever a `Crew` has them (`libero_pro.ray_workers`).
* `make_state(key)` and `work(state, job, ask)` run in workers (module-level functions or `functools.partial`s of them:
  they travel by import name). A worker keeps its last `keep` states, and jobs of one key go to the same worker first,
  so that an expensive state (a simulator: seconds and about 1 GB) is built as rarely as possible.
* `ask(request)` inside `work` sends any message to the parent and blocks for the reply. The parent answers with
  `respond(requests) -> replies`, called with every request that is waiting at that moment: batched policy inference
  without shared state, since a request carries all it needs. Without `respond` there is nobody to ask.
* An exception in `work` or `make_state` is that job's error. A worker that dies or falls silent for `timeout_s` is
  replaced and its job rerun once; the second time it is that job's error. What is lost with its machine is rerun, too,
  and not counted. Nothing else is lost.
* Results stream in completion order, tagged with the job's index; they do not depend on `workers` if `work` does not
  depend on what ran before in the same state.
* Libraries run one thread in a worker. Ctrl-C reaches the parent only, which ends the workers; if the parent is killed,
  workers notice the closed pipe and leave.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from libero_pro.crew import Ask, Crew, Inheritance, Link, Processes, Setup, WorkerError, sentence, state_of
from libero_pro.record import RecordError

_NOBODY = "work asked its parent, but run_in_workers was given no `respond`"

_WORTH_SHARING = 3  # jobs left of a key that another worker holds; a state costs about as much as two

_STARTS = 3  # workers that end before they are ready, with none between them that was, end the run

Workers = int | Crew  # processes of this machine, or a crew


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
    workers: Workers = 2,
    key: Callable[[Job], Hashable] = lambda job: None,
    respond: Callable[[list[Any]], Sequence[Any]] | None = None,
    keep: int = 2,
    recycle_after: int = 8,
    timeout_s: float = 900.0,
    inherit: Inheritance | None = None,
) -> Iterator[Outcome[Job, Result]]:
    """Runs every job once and yields outcomes as they complete. `workers=0` runs in this process, group by group.

    A worker is replaced by a fresh one after building `recycle_after` states, because simulators do not give all their
    memory back. With `inherit` workers are forks of this process that hold its states (`libero_pro.forked`).
    RecordError where no worker can be started.
    """
    groups: OrderedDict[Hashable, list[int]] = OrderedDict()
    for index, job in enumerate(jobs):
        groups.setdefault(key(job), []).append(index)
    if isinstance(workers, int) and workers <= 0:
        yield from _run_here(jobs, groups, make_state, work, respond, keep)
        return
    if not jobs:
        return
    crew = Processes(workers, inherit) if isinstance(workers, int) else workers
    pool = _Pool(crew, min(crew.count, len(jobs)), (make_state, work, max(1, keep)), recycle_after)
    attempts = [0] * len(jobs)
    try:
        while pool.give(jobs, groups):
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
                if kind in ("lost", "gone"):
                    attempts[current] += kind == "lost"
                    pool.replace(worker)
                    if attempts[current] < 2:
                        groups.setdefault(key(jobs[current]), []).insert(0, current)
                pool.give(jobs, groups)  # to all: a rerun may find another one without work
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
    """One place in the pool. `keys` mirrors the cache of states of who works there, oldest first."""

    link: Link
    index: int | None = None
    started: float = 0.0
    heard: float = field(default_factory=time.monotonic)
    keys: list[Hashable] = field(default_factory=list)
    built: int = 0


class _Pool:
    """The workers of one `run_in_workers` call."""

    def __init__(self, crew: Crew, count: int, setup: Setup, recycle_after: int):
        self._crew, self._setup = crew, setup
        self._keep = setup[2]
        self._recycle_after = max(1, recycle_after)
        self._failed_starts = 0  # in a row
        self.workers: list[_Worker] = []
        try:
            for _ in range(count):
                self.workers.append(_Worker(crew.hire(setup)))
        except BaseException:
            self.close()
            raise

    def replace(self, worker: _Worker) -> None:
        """Ends the worker and hires a fresh one."""
        worker.link.end()
        worker.link = self._crew.hire(self._setup)
        worker.heard = time.monotonic()
        worker.keys, worker.built = [], 0

    def give(self, jobs: Sequence[Any], groups: OrderedDict[Hashable, list[int]]) -> bool:
        """Gives idle workers jobs of the groups; whether anything is left to be done."""
        for worker in self.workers:
            if groups and worker.index is None and worker.link.ready:
                self._dispatch(worker, jobs, groups)
        return bool(groups) or any(worker.index is not None for worker in self.workers)

    def _dispatch(self, worker: _Worker, jobs: Sequence[Any], groups: OrderedDict[Hashable, list[int]]) -> None:
        """Sends the worker its next job, if there is one: of a key it holds, of a free key, or of a long group."""
        held = {key for other in self.workers if other is not worker for key in other.keys}
        mine = [key for key in reversed(worker.keys) if key in groups]
        free = [key for key in groups if key not in held]
        longest = max(groups, key=lambda key: len(groups[key]))
        if not mine and not free and len(groups[longest]) < _WORTH_SHARING:
            return
        chosen = (mine or free or [longest])[0]
        if chosen not in worker.keys and worker.built >= self._recycle_after:
            self.replace(worker)
            if not worker.link.ready:
                return
        index = groups[chosen].pop(0)
        if not groups[chosen]:
            del groups[chosen]
        if chosen in worker.keys:
            worker.keys.remove(chosen)
        else:
            worker.built += 1
        worker.keys = [*worker.keys, chosen][-self._keep :]
        worker.index = index
        worker.started = worker.heard = time.monotonic()
        worker.link.send((chosen, jobs[index]))

    def messages(self, timeout_s: float) -> list[tuple[_Worker, str, Any]]:
        """Waits for busy workers, and for ones to become ready: what the busy ones say, "lost" of a silent one.

        While some are busy the others may take any time to be ready: a cluster grows when it can.
        """
        busy = [worker for worker in self.workers if worker.index is not None]
        starting = [worker for worker in self.workers if not worker.link.ready]
        since = min(w.heard for w in busy) if busy else max(w.heard for w in self.workers)
        left = max(0.0, since + timeout_s - time.monotonic())
        talking = self._crew.wait([worker.link for worker in (*busy, *starting)], left)
        if not talking and not busy:
            raise RecordError(f"no worker was ready within {timeout_s:.0f} s")
        for worker in starting:
            if worker.link in talking:
                self._begin(worker, *worker.link.receive())
        found: list[tuple[_Worker, str, Any]] = []
        for worker in busy:
            if worker.link in talking:
                found.append((worker, *worker.link.receive()))
                worker.heard = time.monotonic()
            elif time.monotonic() - worker.heard >= timeout_s:
                found.append((worker, "lost", f"it was silent for {timeout_s:.0f} s"))
        return found

    def _begin(self, worker: _Worker, kind: str, body: Any) -> None:
        """The first message of a worker: it is ready, or another one is tried in its place."""
        self._failed_starts = self._failed_starts + 1 if kind == "lost" else 0
        if self._failed_starts >= _STARTS:
            raise RecordError(f"no worker can be started: {body}")
        if kind != "ready":
            self.replace(worker)

    def close(self) -> None:
        """Ends every worker, also in the middle of a job."""
        for worker in self.workers:
            worker.link.end()


def _answer(requests: list[tuple[_Worker, Any]], respond: Callable[[list[Any]], Sequence[Any]] | None) -> None:
    replies: Sequence[Any] = [WorkerError(_NOBODY)] * len(requests)
    if respond is not None:
        replies = respond([request for _, request in requests])
    for (worker, _), reply in zip(requests, replies, strict=True):
        worker.heard = time.monotonic()  # the silence was the parent's
        worker.link.send(reply)


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
                result = work(state_of(group, states, make_state, max(1, keep)), jobs[index], ask)
                yield Outcome(index, jobs[index], result, None, time.monotonic() - start)
            except Exception as error:
                yield Outcome(index, jobs[index], None, sentence(error), time.monotonic() - start)
