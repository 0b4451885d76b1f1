"""Statistics against values worked out by hand, and the laws of allocation and decision."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lerobot_coda.budget import Limits, Usage
from lerobot_coda.progress import (
    allocate,
    combination,
    decide,
    learnability,
    mcnemar,
    measure,
    rate,
    replay_share,
    revivals,
    unsolved,
    whole,
)


def test_wilson_interval():
    found = rate(7, 10)
    assert (found.low, found.high) == (pytest.approx(0.3968, abs=1e-3), pytest.approx(0.8922, abs=1e-3))
    assert (rate(0, 0).low, rate(0, 0).high) == (0.0, 1.0)


def test_mcnemar_counts_only_discordant_pairs():
    before = [True] * 5 + [False] * 8 + [True]
    after = [True] * 5 + [True] * 8 + [False]
    test = mcnemar(before, after)
    assert (test.only_before, test.only_after) == (1, 8)
    assert test.p_value == pytest.approx(10 / 512)
    assert test.p_two_sided == pytest.approx(20 / 512)
    assert mcnemar(after, before).p_value == pytest.approx(511 / 512)
    with pytest.raises(ValueError, match="not pairs"):
        mcnemar([True], [])


def test_measurement_has_beta_posteriors_and_an_interval_that_holds_the_progress():
    found = measure("p", 1, [False] * 10, [True] * 7 + [False] * 3)
    assert (found.posterior_before, found.posterior_after) == ((1, 11), (8, 4))
    assert found.progress == pytest.approx(8 / 12 - 1 / 12)
    assert found.progress_low < found.progress < found.progress_high and found.progress_low > 0.2
    assert found == measure("p", 1, [False] * 10, [True] * 7 + [False] * 3)


def test_learnability_is_largest_for_what_is_sometimes_solved():
    assert learnability((11, 11)) > learnability((21, 1)) and learnability((11, 11)) > learnability((1, 21))


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 500),
    st.dictionaries(st.text(min_size=1, max_size=3),
                    st.tuples(st.floats(-1, 1), st.tuples(st.integers(1, 30), st.integers(1, 30))), max_size=6),
)  # fmt: skip
def test_allocation_spends_exactly_the_budget_and_no_less_than_the_uniform_share(budget, scores):
    shares = allocate(budget, scores, uniform_share=0.3)
    assert sum(shares.values()) == (budget if scores else 0)
    assert all(count >= int(0.3 * budget / len(scores)) for count in shares.values())


def test_allocation_prefers_progress_and_learnability():
    shares = allocate(100, {"learning": (0.4, (8, 8)), "solved": (0.0, (15, 1))})
    assert shares["learning"] > 70
    assert allocate(10, {"a": (0.0, (2, 2)), "b": (0.0, (2, 2))}) == {"a": 5, "b": 5}


@pytest.mark.parametrize(
    ("before", "after", "stalled", "action"),
    [
        (2, 19, 0, "promote"),
        (2, 11, 0, "keep"),
        (10, 11, 0, "keep"),
        (10, 11, 1, "retire"),
        (0, 2, 1, "keep"),  # too few scenes to be certain, and a gain all the same
        (0, 0, 0, "refine"),
        (18, 4, 0, "refine"),
    ],
)
def test_decisions(before, after, stalled, action):
    outcomes = [[i < k for i in range(20)] for k in (before, after)]
    decision = decide(measure("p", 1, *outcomes), rounds_without_progress=stalled)
    assert decision.action == action
    assert f"{before}/20 before, {after}/20 after" in decision.reason


def paired(before: int, after: int, n: int = 20):
    return measure("p", 1, [i < before for i in range(n)], [i < after for i in range(n)])


def test_weights_shift_the_budget():
    scores = {"a": (0.1, (5, 5)), "b": (0.1, (5, 5))}
    assert allocate(30, scores, weights={"a": 2.0}) == {"a": 20, "b": 10}


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 300), st.dictionaries(st.text(min_size=1, max_size=3), st.floats(0, 1e3), max_size=6))
def test_whole_numbers_add_up_and_are_within_one_of_their_share(budget, shares):
    counts, total = whole(budget, shares), sum(shares.values())
    assert sum(counts.values()) == (budget if shares else 0)
    if total > 1e-6:
        assert all(abs(counts[n] - budget * share / total) < 1 + 1e-6 for n, share in shares.items())


def test_a_program_solved_but_for_some_tasks_specializes_in_them():
    decision = decide(paired(6, 14), by_task={2: (7, 7), 5: (7, 7), 9: (0, 6)})
    assert (decision.action, decision.tasks) == ("specialize", (9,))
    assert "9: 0/6" in decision.reason
    assert decide(paired(6, 14), by_task={2: (5, 7), 5: (5, 7), 9: (4, 6)}).action == "keep"
    assert decide(paired(2, 19), by_task={2: (12, 12), 9: (0, 6)}).action == "promote", "what is solved is promoted"


def test_chance_is_no_reason_to_specialize():
    assert unsolved({2: (10, 10), 9: (0, 1)}) == ()
    assert unsolved({2: (10, 10), 9: (1, 4)}) == (9,)
    assert unsolved({9: (0, 5)}) == () and unsolved({}) == ()
    assert unsolved({2: (6, 10), 9: (0, 5)}) == (), "nothing is solved"


def test_two_programs_that_are_solved_are_joined_best_first():
    first, decision = combination({"a": paired(0, 18), "b": paired(0, 20), "c": paired(0, 19)})
    assert (first, decision.partner, decision.action) == ("b", "c", "combine") and "18" not in decision.reason
    assert combination({"a": paired(0, 18)}) is None


def test_what_is_forgotten_comes_back():
    found = revivals({"a": (18, 20), "b": (18, 20), "c": (3, 3)}, {"a": (8, 20), "b": (16, 20), "d": (0, 9)})
    assert list(found) == ["a"] and "18/20 when it was retired, 8/20 now" in found["a"].reason


@pytest.mark.parametrize(
    ("before", "after", "share", "said"),
    [
        (18, 19, 0.3, "nothing is forgotten"),
        (18, 18, 0.3, "nothing is forgotten"),
        (18, 15, 0.3818, "perhaps by chance"),  # 0.3 + 0.6 * 2 * 3/22 / 2
        (18, 8, 0.8455, "success fell: 18/20 at first, 8/20 now"),
        (20, 2, 0.9, "success fell"),
    ],
)
def test_forgetting_is_answered_by_the_share_of_replay(before, after, share, said):
    found, why = replay_share(paired(before, after), 0.3)
    assert found == pytest.approx(share, abs=1e-3) and said in why
    assert replay_share(None, 0.3)[0] == 0.3


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 12), st.integers(0, 12), st.floats(0, 0.9))
def test_more_forgetting_never_replays_less(before, after, usual):
    share = replay_share(paired(before, after, 12), usual)[0]
    worse = replay_share(paired(before, max(0, after - 1), 12), usual)[0]
    assert usual - 1e-4 <= share <= 0.9 + 1e-4 and worse >= share - 1e-4


def test_usage_adds_up_and_limits_hold():
    one = Usage(environments=10, steps={"probe": 5}, seconds={"train": 3600.0})
    total = one + Usage(environments=5, layouts=7, steps={"probe": 1, "expert": 2})
    assert (total.environments, total.layouts, total.steps) == (15, 7, {"probe": 6, "expert": 2})
    limits = Limits(environments=20, environments_per_round=10, hours=2)
    assert limits.environments_left(total) == 5
    assert limits.spent(total, minimum=5, hours=1.9) is None
    assert "15 of 20 environments" in limits.spent(total, minimum=6, hours=1.9)
    assert "2.00 of 2 hours" in limits.spent(total, minimum=5, hours=2.0)
