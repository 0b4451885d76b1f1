"""Workers that share one simulator: a stem process builds it, then forks workers that hold it already.

An extra worker costs the memory that it writes to (some megabytes), not a compiled simulator (about a gigabyte), and
each task is compiled once, not once a worker. For physics only: an OpenGL context does not survive a fork.
"""

import signal
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from libero_pro.crew import Ask, Inheritance, one_thread, sentence
from libero_pro.workers import Outcome, Workers, run_in_workers

_LOSSES = 2  # times that a stem may be lost in a row without any result, before its first group is given up

Members = list[tuple[int, Any]]  # (index, job)


def run_in_forks[Job, Result](
    jobs: Sequence[Job],
    *,
    make_state: Callable[[Any], Any],
    work: Callable[[Any, Job, Ask], Result],
    workers: Workers = 2,
    key: Callable[[Job], Hashable] = lambda job: None,
    recycle_after: int = 8,
    timeout_s: float = 900.0,
) -> Iterator[Outcome[Job, Result]]:
    """As `run_in_workers`, for work that asks nothing and draws nothing; one state is held at a time, by all workers.

    A lost worker is replaced as there; a lost stem is, too. A stem is replaced after building `recycle_after` states.
    Only processes of this machine can be forks: the workers of a crew build their own states.
    """
    if not isinstance(workers, int) or workers <= 0:
        yield from run_in_workers(
            jobs, make_state=make_state, work=work, workers=workers, key=key, keep=1, timeout_s=timeout_s
        )
        return
    groups: OrderedDict[Hashable, Members] = OrderedDict()
    for index, job in enumerate(jobs):
        groups.setdefault(key(job), []).append((index, job))
    waiting = list(groups.items())
    losses = 0
    while waiting:
        before = sum(len(members) for _, members in waiting)
        done = set()
        for outcome in _grow(waiting[:recycle_after], make_state, work, workers, timeout_s):
            done.add(outcome.index)
            yield outcome
        waiting = [(name, [m for m in members if m[0] not in done]) for name, members in waiting]
        waiting = [(name, members) for name, members in waiting if members]
        losses = losses + 1 if sum(len(members) for _, members in waiting) == before else 0
        if losses >= _LOSSES:
            for index, job in waiting.pop(0)[1]:
                yield Outcome(index, job, None, f"its process was lost {_LOSSES} times while it was prepared")
            losses = 0


def _grow(
    groups: list[tuple[Hashable, Members]], make_state: Callable, work: Callable, workers: int, timeout_s: float
) -> Iterator[Outcome]:
    """Outcomes of one stem; fewer than there are jobs if it is lost."""
    context = get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=_stem, args=(theirs,))
    with one_thread():
        process.start()
    theirs.close()
    try:
        pipe.send((make_state, work, workers, timeout_s, groups))
        while True:
            message = pipe.recv()
            if message is None:
                return
            yield message
    except (EOFError, OSError):
        return
    finally:
        pipe.close()
        process.kill()
        process.join()


def _stem(pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, OSError):  # the parent is gone
        make_state, work, workers, timeout_s, groups = pipe.recv()
        for name, members in groups:
            try:
                state = make_state(name)
            except Exception as error:
                for index, job in members:
                    pipe.send(Outcome(index, job, None, sentence(error)))
                continue
            outcomes = run_in_workers(
                [job for _, job in members],
                make_state=make_state,
                work=work,
                workers=workers,
                key=_same(name),
                timeout_s=timeout_s,
                inherit=Inheritance({name: state}, (pipe,)),
            )
            for outcome in outcomes:
                pipe.send(replace(outcome, index=members[outcome.index][0]))
            del state
        pipe.send(None)


def _same(name: Hashable) -> Callable[[Any], Hashable]:
    return lambda job: name
