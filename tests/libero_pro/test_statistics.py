"""Intervals and paired tests against published values and laws."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libero_pro.statistics import mcnemar, mean_of_rates, wilson


def test_wilson_intervals_are_the_published_ones():
    # Newcombe (1998), table I: 81/263 and 15/148, 0/20 and 1/29 of the score method without continuity correction.
    for successes, trials, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):
        assert wilson(successes, trials) == pytest.approx((low, high), abs=5e-5)
    assert wilson(0, 0) == (0.0, 1.0)


counts = st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@settings(max_examples=50, deadline=None)
@given(counts)
def test_the_mean_of_one_rate_is_the_rate(count):
    mean, low, high = mean_of_rates([count])
    assert (mean, low, high) == pytest.approx((count[0] / count[1], *wilson(*count)))


@settings(max_examples=50, deadline=None)
@given(st.lists(counts, min_size=1, max_size=5))
def test_a_mean_lies_in_its_interval_and_repeating_suites_narrows_it(some):
    mean, low, high = mean_of_rates(some)
    assert 0 <= low <= mean <= high <= 1
    assert mean == pytest.approx(sum(k / n for k, n in some) / len(some))
    again = mean_of_rates(some * 4)
    assert again[0] == pytest.approx(mean)
    # With four times the suites each side is half as wide.
    assert mean - again[1] == pytest.approx((mean - low) / 2, abs=1e-12) or low == 0
    assert again[2] - mean == pytest.approx((high - mean) / 2, abs=1e-12) or high == 1


def test_a_mean_needs_trials():
    for empty in ([], [(1, 2), (0, 0)]):
        with pytest.raises(ValueError, match="at least one"):
            mean_of_rates(empty)


def test_mcnemar_is_exact():
    before = [True] * 3 + [False] * 12 + [True] * 5
    after = [False] * 3 + [True] * 12 + [True] * 5
    test = mcnemar(before, after)
    assert (test.only_before, test.only_after) == (3, 12)
    # Binomial(15, 1/2): P(X >= 12) = (455 + 105 + 15 + 1) / 2^15.
    assert test.p_value == pytest.approx(576 / 2**15)
    assert test.p_two_sided == pytest.approx(1152 / 2**15)
    assert mcnemar([True], [True]).p_two_sided == 1.0
    with pytest.raises(ValueError, match="not pairs"):
        mcnemar([True], [])
