"""The pool of worker processes: grouping, isolation of failures, questions to the parent."""

import os
import time
from pathlib import Path

import pytest

from libero_pro.workers import run_in_workers


def make_state(key):
    if key == "broken":
        raise ValueError("cannot build 'broken'")
    return {"key": key, "jobs": 0}


def work(state, job, ask):
    """Jobs are (key, command, argument)."""
    _, command, argument = job
    state["jobs"] += 1
    if command == "die":
        os._exit(3)
    if command == "die once" and not Path(argument).exists():
        Path(argument).touch()
        os._exit(3)
    if command == "fail":
        raise ValueError(argument)
    if command == "sleep":
        time.sleep(argument)
    if command == "ask":
        return ask(argument)
    return {
        "pid": os.getpid(),
        "seen": state["jobs"],
        "key": state["key"],
        "threads": os.environ.get("OMP_NUM_THREADS"),
    }


def run(jobs, **options):
    options = {"workers": 2, "key": lambda job: job[0], **options}
    return list(run_in_workers(jobs, make_state=make_state, work=work, **options))


def test_every_job_is_done_once_and_keys_share_one_state():
    jobs = [(key, "go", None) for _ in range(3) for key in "ab"]
    outcomes = sorted(run(jobs), key=lambda outcome: outcome.index)
    assert [outcome.index for outcome in outcomes] == list(range(6))
    assert [outcome.job for outcome in outcomes] == jobs
    assert all(outcome.error is None and outcome.result["threads"] == "1" for outcome in outcomes)
    for key in "ab":
        mine = [outcome.result for outcome in outcomes if outcome.job[0] == key]
        assert {result["key"] for result in mine} == {key}
        assert len({result["pid"] for result in mine}) == 1
        assert [result["seen"] for result in mine] == [1, 2, 3]


def test_without_processes_the_same_happens_here():
    jobs = [("a", "go", None), ("b", "fail", "no luck"), ("a", "ask", 4)]
    outcomes = run(jobs, workers=0, respond=lambda requests: [10 * request for request in requests])
    assert {outcome.index: outcome.error for outcome in outcomes} == {0: None, 1: "ValueError: no luck", 2: None}
    assert {outcome.result["pid"] for outcome in outcomes if outcome.index == 0} == {os.getpid()}
    assert next(outcome.result for outcome in outcomes if outcome.index == 2) == 40


def test_errors_stay_with_their_job():
    jobs = [("a", "fail", "no luck"), ("broken", "go", None), ("a", "go", None)]
    errors = {outcome.index: outcome.error for outcome in run(jobs, workers=1)}
    assert errors == {0: "ValueError: no luck", 1: "ValueError: cannot build 'broken'", 2: None}


def test_a_dead_worker_is_replaced_and_its_job_rerun_once(tmp_path):
    jobs = [("a", "die once", str(tmp_path / "died")), ("a", "die", None), ("b", "go", None)]
    outcomes = {outcome.index: outcome for outcome in run(jobs)}
    assert outcomes[0].error is None and outcomes[0].result["key"] == "a"
    assert outcomes[1].error == "lost its worker process twice: it ended with exit code 3"
    assert outcomes[2].error is None


def test_a_silent_worker_is_given_up():
    start = time.monotonic()
    (outcome,) = run([("a", "sleep", 60)], workers=1, timeout_s=0.5)
    assert outcome.error is not None and "silent" in outcome.error
    assert time.monotonic() - start < 20


def test_the_parent_answers_waiting_workers_together():
    batches = []

    def respond(requests):
        batches.append(len(requests))
        return [request + 1 for request in requests]

    outcomes = run([(str(i), "ask", i) for i in range(6)], respond=respond)
    assert {outcome.index: outcome.result for outcome in outcomes} == {i: i + 1 for i in range(6)}
    assert sum(batches) == 6 and max(batches) <= 2


def test_asking_nobody_is_an_error():
    (outcome,) = run([("a", "ask", 1)], workers=1)
    assert outcome.error is not None and "no `respond`" in outcome.error


def test_an_abandoned_run_ends_its_processes():
    jobs = [("a", "go", None), ("a", "sleep", 60)]
    outcomes = run_in_workers(jobs, make_state=make_state, work=work, workers=1)
    pid = next(outcomes).result["pid"]
    outcomes.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
