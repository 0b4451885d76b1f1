"""The pool with workers that come late, go away with their machine, or never start: a crew of made-up ones."""

from collections.abc import Sequence
from typing import Any

import pytest

from libero_pro.forked import run_in_forks
from libero_pro.record import RecordError
from libero_pro.workers import run_in_workers


class Made:
    """A worker that does its jobs at once; `fate` says what becomes of it instead."""

    def __init__(self, fate: str, setup: tuple, log: list[str]):
        self.fate, self.setup, self.log = fate, setup, log
        self.ready, self.ended = fate == "ready", False
        self.said: list[tuple[str, Any]] = []
        if fate != "ready":
            self.said = {"late": [("ready", None)], "never": [], "broken": [("lost", "no such module")]}[fate]

    def send(self, message: Any) -> None:
        assert self.ready and not self.ended
        group, job = message
        make_state, work, _ = self.setup
        self.log.append(job)
        if job in ("lose me", "drop me") and self.log.count(job) <= 3:
            self.said.append(("gone" if job == "lose me" else "lost", "it went away"))
        else:
            self.said.append(("done", work(make_state(group), job, None)))

    def receive(self) -> tuple[str, Any]:
        kind, body = self.said.pop(0)
        self.ready = self.ready or kind == "ready"
        return kind, body

    def end(self) -> None:
        self.ended = True


class Crew:
    def __init__(self, *fates: str):
        self.count, self.fates, self.hired, self.log = len(fates), list(fates), [], []

    def hire(self, setup: tuple) -> Made:
        self.hired.append(Made(self.fates.pop(0) if self.fates else "ready", setup, self.log))
        return self.hired[-1]

    def wait(self, links: Sequence[Made], timeout: float) -> list[Made]:
        return [link for link in links if link.said]


def run(crew: Crew, jobs: Sequence[str]) -> dict[str, Any]:
    outcomes = run_in_workers(jobs, make_state=str, work=lambda state, job, ask: job.upper(), workers=crew)
    found = {outcome.job: outcome.error or outcome.result for outcome in outcomes}
    assert all(link.ended for link in crew.hired)
    return found


def test_what_goes_with_its_machine_is_run_again_as_often_as_it_takes():
    crew = Crew("ready", "ready")
    assert run(crew, ["a", "lose me", "b"]) == {"a": "A", "lose me": "LOSE ME", "b": "B"}
    assert crew.log.count("lose me") == 4


def test_what_ends_its_worker_is_run_again_once():
    assert run(Crew("ready"), ["drop me"]) == {"drop me": "lost its worker process twice: it went away"}


def test_who_is_not_ready_gets_no_job_and_holds_up_nobody():
    crew = Crew("never", "ready", "late")
    assert run(crew, list("abcdefgh")) == {job: job.upper() for job in "abcdefgh"}


def test_no_more_are_hired_than_there_are_jobs():
    crew = Crew("ready", "ready", "ready")
    assert run(crew, ["a"]) == {"a": "A"} and len(crew.hired) == 1
    assert run(Crew("ready"), []) == {}


def test_who_cannot_start_ends_the_run_after_three():
    crew = Crew("broken", "broken", "broken")
    with pytest.raises(RecordError, match="no worker can be started: no such module"):
        run(crew, ["a", "b", "c"])
    assert run(Crew("broken", "late", "broken", "broken"), list("abcd")) == {job: job.upper() for job in "abcd"}


def test_who_is_elsewhere_is_no_fork():
    outcomes = run_in_forks(["a", "b"], make_state=str, work=lambda state, job, ask: job.upper(), workers=Crew("late"))
    assert {outcome.job: outcome.result for outcome in outcomes} == {"a": "A", "b": "B"}


def test_a_cluster_without_room_is_said():
    with pytest.raises(RecordError, match="no worker was ready within 900 s"):
        run(Crew("never", "never"), ["a", "b"])
