"""Shaping by a potential never changes which chunk is best, and each violated assumption is caught changing it."""

import pytest

from benchmarks.invariance import Outcome, rows, run

SOUND = ("baseline", "reward", "latch seen", "limit as terminal")
VIOLATIONS = (
    "discount once, not to the power tau",
    "exponent of the whole chunk, not tau",
    "potential kept at terminals",
    "latch hidden from the critic",
    "time limit without bootstrap, potential kept",
    "two versions in one chunk",
)


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return run(mdps=200, seed=1)


@pytest.mark.parametrize("learner", SOUND)
def test_invariance_holds_on_every_mdp(outcome: Outcome, learner: str) -> None:
    assert outcome.n >= 200
    assert outcome.sound[learner] == 0


def test_invariance_is_equality_of_values(outcome: Outcome) -> None:
    assert set(outcome.sound) == set(SOUND)
    assert outcome.gap < 1e-9


@pytest.mark.parametrize("violation", VIOLATIONS)
def test_invariance_is_lost_when_an_assumption_is_violated(outcome: Outcome, violation: str) -> None:
    assert outcome.violated[violation] >= 10


def test_invariance_figures_count_the_changed_mdps(outcome: Outcome) -> None:
    figures = {row["figure"]: row for row in rows(outcome, "command")}
    assert (figures["invariance_changed"]["value"], figures["invariance_changed"]["n"]) == (0, 200)
    assert len(figures) == 1 + len(VIOLATIONS)
