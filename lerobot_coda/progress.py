"""Learning progress: paired success before and after, its intervals, and what they decide.

Everything here is a pure function of counts. Comparisons are paired (same scenes, same seeds), so the test is McNemar's
exact one; rates carry Wilson intervals; a program's success probability is a Beta posterior from a uniform prior.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from libero_pro.record import Record
from libero_pro.statistics import mcnemar, wilson

Action = Literal["promote", "refine", "retire", "keep"]
SOLVED = 0.85  # posterior mean above which a program has nothing left to teach at its difficulty
MEANINGFUL = 0.05  # progress below it, and not certain either, is a stall: few scenes leave real progress uncertain
HOPELESS = 0.05  # ... and below which, without progress, it is too hard


class Rate(Record):
    """Successes out of n with the 95 % Wilson interval."""

    successes: int
    n: int
    rate: float
    low: float
    high: float


def rate(successes: int, n: int) -> Rate:
    """`successes` of `n` with its Wilson interval; (0, 0) gives the whole interval."""
    low, high = wilson(successes, n)
    return Rate(successes=successes, n=n, rate=successes / n if n else 0.0, low=low, high=high)


class Measurement(Record):
    """Paired success of one program's scenes before and after a round's training.

    posterior_*    (a, b) of the Beta posterior of the success probability, uniform prior
    progress       difference of the posterior means;  `progress_low`, `progress_high` its central 95 % interval
    """

    program: str
    round: int
    n: int
    before: Rate
    after: Rate
    only_before: int
    only_after: int
    p_value: float
    p_two_sided: float
    posterior_before: tuple[int, int]
    posterior_after: tuple[int, int]
    progress: float
    progress_low: float
    progress_high: float


def measure(program: str, number: int, before: Sequence[bool], after: Sequence[bool]) -> Measurement:
    """The measurement of round `number` from paired outcomes."""
    n, k0, k1 = len(before), sum(before), sum(after)
    test = mcnemar(before, after)
    first, second = (1 + k0, 1 + n - k0), (1 + k1, 1 + n - k1)
    draws = np.random.default_rng(0)  # the interval is Monte Carlo with a fixed seed: the same counts, the same numbers
    gain = draws.beta(*second, 20_000) - draws.beta(*first, 20_000)
    low, high = np.quantile(gain, [0.025, 0.975])
    return Measurement(
        program=program,
        round=number,
        n=n,
        before=rate(k0, n),
        after=rate(k1, n),
        only_before=test.only_before,
        only_after=test.only_after,
        p_value=test.p_value,
        p_two_sided=test.p_two_sided,
        posterior_before=first,
        posterior_after=second,
        progress=round(posterior_mean(second) - posterior_mean(first), 6),
        progress_low=round(float(low), 4),
        progress_high=round(float(high), 4),
    )


def posterior_mean(posterior: tuple[int, int]) -> float:
    """Mean of a Beta(a, b)."""
    a, b = posterior
    return a / (a + b)


def learnability(posterior: tuple[int, int]) -> float:
    """E[p(1-p)] under a Beta(a, b): high for what is sometimes solved, low for the solved and for the hopeless."""
    a, b = posterior
    return a * b / ((a + b) * (a + b + 1))


def allocate(
    budget: int, scores: Mapping[str, tuple[float, tuple[int, int]]], *, uniform_share: float = 0.3
) -> dict[str, int]:
    """Splits `budget` environments over programs given (absolute progress, success posterior) of each.

    `uniform_share` goes evenly, half of the rest by |progress| and half by p(1-p); whole numbers by largest remainder,
    ties by name, so the sum is exactly `budget`.
    """
    if not scores:
        return {}
    names = sorted(scores)
    even = np.full(len(names), 1 / len(names))

    def share(values: list[float]) -> np.ndarray:
        total = sum(values)
        return np.array(values) / total if total > 0 else even

    by_progress = share([abs(scores[n][0]) for n in names])
    by_learnability = share([learnability(scores[n][1]) for n in names])
    weights = uniform_share * even + (1 - uniform_share) * (by_progress + by_learnability) / 2
    exact = weights * budget
    counts = np.floor(exact + 1e-9).astype(int)
    order = np.argsort(-(exact - counts), kind="stable")
    counts[order[: budget - counts.sum()]] += 1
    return {name: int(count) for name, count in zip(names, counts, strict=True)}


def is_stalled(m: Measurement) -> bool:
    """Whether a round brought a program nothing: neither certain progress nor a gain worth another round."""
    return m.progress_low <= 0 and m.progress < MEANINGFUL


@dataclass(frozen=True)
class Decision:
    """What happens to a program next round, and the sentence with the numbers that made it so."""

    action: Action
    reason: str


def decide(measurement: Measurement, *, rounds_without_progress: int = 0, patience: int = 2) -> Decision:
    """Promote what is solved, retire what stalls, refine what is out of reach, keep what is being learned."""
    m, now = measurement, posterior_mean(measurement.posterior_after)
    numbers = (
        f"{m.before.successes}/{m.n} before, {m.after.successes}/{m.n} after, "
        f"progress {m.progress:+.2f} [{m.progress_low:+.2f}, {m.progress_high:+.2f}], p={m.p_value:.3g}"
    )
    if m.n == 0:
        return Decision("keep", "not measured: no valid pair")
    if now >= SOLVED:
        return Decision("promote", f"solved at this difficulty: {numbers}")
    if m.progress_high < 0:
        return Decision("refine", f"success fell: {numbers}")
    stalled = is_stalled(m)
    if stalled and rounds_without_progress + 1 >= patience:
        return Decision("retire", f"no progress in {rounds_without_progress + 1} rounds: {numbers}")
    if stalled and now <= max(HOPELESS, 1.5 / (m.n + 2)):
        return Decision("refine", f"out of reach at this difficulty: {numbers}")
    return Decision("keep", f"{'no progress yet' if stalled else 'still being learned'}: {numbers}")
