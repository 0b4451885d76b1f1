"""Workers forked from one prepared process: what they hold, what they survive, and that nobody stays behind."""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from libero_pro.forked import run_in_forks
from libero_pro.workers import Outcome


def make_state(name: str) -> dict:
    if name == "broken":
        raise ValueError("no such task")
    if name == "fatal":
        os.kill(os.getpid(), signal.SIGKILL)
    return {"name": name, "built by": os.getpid()}


def work(state: dict, job: tuple, ask: object) -> tuple:
    name, number = job[:2]
    if len(job) > 2:  # a file: the job ends its process, or the stem, the first time
        path, victim = Path(job[2]), job[3]
        if not path.exists():
            path.write_text("")
            os.kill(os.getpid() if victim == "worker" else os.getppid(), signal.SIGKILL)
            time.sleep(0.5)
    if number < 0:
        raise RuntimeError("a bad job")
    time.sleep(0.02)
    return name, number, state["name"], state["built by"], os.getpid()


def run(jobs: Sequence[tuple], workers: int = 2) -> list[Outcome]:
    outcomes = list(run_in_forks(jobs, make_state=make_state, work=work, workers=workers, key=lambda job: job[0]))
    assert sorted(outcome.index for outcome in outcomes) == list(range(len(jobs)))
    return sorted(outcomes, key=lambda outcome: outcome.index)


def test_workers_share_what_the_stem_built():
    outcomes = run([("a", n) for n in range(8)] + [("b", n) for n in range(8)])
    for name in ("a", "b"):
        results = [o.result for o in outcomes if o.job[0] == name]
        assert all(result[:3] == (name, number, name) for number, result in enumerate(results))
        builders, processes = {r[3] for r in results}, {r[4] for r in results}
        assert len(builders) == 1 and len(processes) == 2 and not builders & processes


def test_errors_are_the_jobs_own():
    outcomes = run([("a", 1), ("a", -1), ("broken", 0), ("b", 2)])
    assert [outcome.error for outcome in outcomes] == [
        None,
        "RuntimeError: a bad job",
        "ValueError: no such task",
        None,
    ]


def test_a_lost_worker_and_a_lost_stem_are_replaced(tmp_path: Path):
    jobs = [
        ("a", 0),
        ("a", 1, str(tmp_path / "1"), "worker"),
        ("b", 2, str(tmp_path / "2"), "stem"),
        ("b", 3),
        ("c", 4),
    ]
    assert [outcome.result[1] for outcome in run(jobs)] == [0, 1, 2, 3, 4]


def test_what_kills_its_stem_is_given_up_and_the_rest_runs():
    outcomes = run([("fatal", 0), ("a", 1)])
    assert "lost 2 times" in outcomes[0].error
    assert outcomes[1].result[1] == 1


def test_no_process_stays_behind_when_the_caller_leaves(tmp_path: Path):
    generator = run_in_forks(
        [("a", n) for n in range(50)], make_state=make_state, work=work, workers=2, key=lambda job: job[0]
    )
    result = next(generator).result
    generator.close()
    for pid in (result[3], result[4]):
        for _ in range(100):
            if not alive(pid):
                break
            time.sleep(0.1)
        assert not alive(pid)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def test_without_processes_everything_runs_here():
    assert {outcome.result[4] for outcome in run([("a", 0), ("b", 1)], workers=0)} == {os.getpid()}
