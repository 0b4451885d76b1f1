"""Intervals and tests of success counts, by scipy: one rate, a mean of rates, paired outcomes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest

CONFIDENCE = 0.95


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Wilson score interval of a success rate at 95 %; (0, 1) without trials."""
    if trials == 0:
        return 0.0, 1.0
    interval = binomtest(successes, trials).proportion_ci(CONFIDENCE, method="wilson")
    return float(interval.low), float(interval.high)


def mean_of_rates(counts: Sequence[tuple[int, int]]) -> tuple[float, float, float]:
    """Unweighted mean of the rates of (successes, trials), and its 95 % interval (mean, low, high).

    The interval recovers each rate's variance from its Wilson limits l, u (Zou, Huang and Zhang 2009, linear functions
    of binomial proportions): low = m - sqrt(sum((p - l)^2)) / k, high = m + sqrt(sum((u - p)^2)) / k.
    ValueError without rates or for a rate without trials.
    """
    if not counts or any(trials == 0 for _, trials in counts):
        raise ValueError("a mean of rates needs at least one rate, each with at least one trial")
    rates = np.array([successes / trials for successes, trials in counts])
    low, high = np.array([wilson(successes, trials) for successes, trials in counts]).T
    mean = float(rates.mean())
    below, above = np.linalg.norm(rates - low) / len(rates), np.linalg.norm(high - rates) / len(rates)
    return mean, max(0.0, mean - float(below)), min(1.0, mean + float(above))


@dataclass(frozen=True)
class McNemar:
    """Discordant pairs and their exact p-values: `p_value` one-sided for "more only_after than only_before"."""

    only_before: int
    only_after: int
    p_value: float
    p_two_sided: float


def mcnemar(before: Sequence[bool], after: Sequence[bool]) -> McNemar:
    """Exact McNemar test of paired outcomes: under no change a discordant pair falls either way with even chances."""
    if len(before) != len(after):
        raise ValueError(f"{len(before)} outcomes before and {len(after)} after are not pairs")
    lost = sum(b and not a for b, a in zip(before, after, strict=True))
    won = sum(a and not b for b, a in zip(before, after, strict=True))
    if lost + won == 0:
        return McNemar(0, 0, 1.0, 1.0)
    one = binomtest(won, lost + won, 0.5, alternative="greater").pvalue
    two = binomtest(won, lost + won, 0.5).pvalue
    return McNemar(lost, won, float(one), float(two))
