"""Learning progress: paired success before and after, its intervals, and what they decide.

Everything here is a pure function of counts. Comparisons are paired (same scenes, same seeds), so the test is McNemar's
exact one; rates carry Wilson intervals; a program's success probability is a Beta posterior from a uniform prior.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

from libero_pro.record import Record
from libero_pro.statistics import mcnemar, wilson

# What may become of a program: harder, easier, gone, as it is, fewer tasks, joined with another, or back again.
Action = Literal["promote", "refine", "retire", "keep", "specialize", "combine", "revive"]
SOLVED = 0.85  # posterior mean above which a program has nothing left to teach at its difficulty
MEANINGFUL = 0.05  # progress below it, and not certain either, is a stall: few scenes leave real progress uncertain
HOPELESS = 0.05  # ... and below which, without progress, it is too hard
UNLIKELY = 0.05  # p-value below which two rates differ
MOST_REPLAY = 0.9  # share of base demonstrations beyond which nothing new would be learned


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
    budget: int,
    scores: Mapping[str, tuple[float, tuple[int, int]]],
    *,
    uniform_share: float = 0.3,
    weights: Mapping[str, float] | None = None,
) -> dict[str, int]:
    """Splits `budget` environments over programs given (absolute progress, success posterior) of each.

    `uniform_share` goes evenly, half of the rest by |progress| and half by p(1-p); each program's share is then
    multiplied by its weight, 1 where none is given. The sum is exactly `budget`.
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
    shares = uniform_share * even + (1 - uniform_share) * (by_progress + by_learnability) / 2
    factors = weights or {}
    return whole(budget, {n: float(s) * factors.get(n, 1.0) for n, s in zip(names, shares, strict=True)})


def whole(budget: int, shares: Mapping[str, float]) -> dict[str, int]:
    """`budget` in whole numbers proportional to the shares, by largest remainder, ties by name; evenly if all are 0."""
    if not shares:
        return {}
    names = sorted(shares)
    values = np.array([shares[n] for n in names], float)
    exact = budget * (values / values.sum() if values.sum() > 0 else np.full(len(names), 1 / len(names)))
    counts = np.floor(exact + 1e-9).astype(int)
    order = np.argsort(-(exact - counts), kind="stable")
    counts[order[: budget - counts.sum()]] += 1
    return {name: int(count) for name, count in zip(names, counts, strict=True)}


def is_stalled(m: Measurement) -> bool:
    """Whether a round brought a program nothing: neither certain progress nor a gain worth another round."""
    return m.progress_low <= 0 and m.progress < MEANINGFUL


@dataclass(frozen=True)
class Decision:
    """What happens to a program next round, and the sentence with the numbers that made it so.

    tasks    those it specializes in;  partner: the program it is joined with
    """

    action: Action
    reason: str
    tasks: tuple[int, ...] = ()
    partner: str | None = None


def decide(
    measurement: Measurement,
    *,
    rounds_without_progress: int = 0,
    patience: int = 2,
    by_task: Mapping[int, tuple[int, int]] | None = None,
) -> Decision:
    """Promote what is solved, retire what stalls, refine what is out of reach, keep what is being learned.

    by_task  (successes, episodes) after the round's training by task id: a program that is solved on some tasks and
             not on others specializes in the others
    """
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
    if by_task and (failing := unsolved(by_task)):
        told = ", ".join(f"{task}: {by_task[task][0]}/{by_task[task][1]}" for task in failing)
        return Decision("specialize", f"solved but for some tasks ({told}): {numbers}", tasks=failing)
    stalled = is_stalled(m)
    if stalled and rounds_without_progress + 1 >= patience:
        return Decision("retire", f"no progress in {rounds_without_progress + 1} rounds: {numbers}")
    if stalled and now <= max(HOPELESS, 1.5 / (m.n + 2)):
        return Decision("refine", f"out of reach at this difficulty: {numbers}")
    return Decision("keep", f"{'no progress yet' if stalled else 'still being learned'}: {numbers}")


def unsolved(by_task: Mapping[int, tuple[int, int]]) -> tuple[int, ...]:
    """The tasks in which a program fails more often than not while it solves the others; none where that is chance.

    Fisher's exact test, one-sided, of the failing tasks' pooled successes against the others', whose pooled posterior
    mean must be `SOLVED`. The grouping follows the outcomes, so the test is a screen and no proof.
    """
    failing = tuple(sorted(task for task, (won, n) in by_task.items() if n and won < 0.5 * n))
    others = [counts for task, counts in by_task.items() if task not in failing and counts[1]]
    if not failing or not others:
        return ()
    won, n = sum(by_task[t][0] for t in failing), sum(by_task[t][1] for t in failing)
    solved, m = sum(k for k, _ in others), sum(count for _, count in others)
    if posterior_mean((1 + solved, 1 + m - solved)) < SOLVED:
        return ()
    return failing if _fewer((won, n), (solved, m)) < UNLIKELY else ()


def combination(exhausted: Mapping[str, Measurement]) -> tuple[str, Decision] | None:
    """Which two of the programs that are solved at their hardest are joined, best first; None with fewer than two."""
    best = sorted(exhausted, key=lambda name: (-posterior_mean(exhausted[name].posterior_after), name))[:2]
    if len(best) < 2:
        return None
    first, second = best
    told = " and ".join(f"{name} {exhausted[name].after.successes}/{exhausted[name].n}" for name in best)
    return first, Decision("combine", f"both are solved at their hardest: {told}", partner=second)


def revivals(then: Mapping[str, tuple[int, int]], now: Mapping[str, tuple[int, int]]) -> dict[str, Decision]:
    """The retired programs that come back: their success fell since they were retired.

    then, now  (successes, episodes) by program's name, when it was retired and in fresh scenes of it now. One-sided
    Fisher test at `UNLIKELY`.
    """
    found = {}
    for name in sorted(set(then) & set(now)):
        p = _fewer(now[name], then[name])
        if p < UNLIKELY:
            told = f"{then[name][0]}/{then[name][1]} when it was retired, {now[name][0]}/{now[name][1]} now, p={p:.3g}"
            found[name] = Decision("revive", f"what it taught is being forgotten: {told}")
    return found


def replay_share(retention: Measurement | None, usual: float) -> tuple[float, str]:
    """The share of base demonstrations in the next training set, and why, from the paired retention measurement.

    Where success on what the base policy could do fell by d (posterior means), the share rises from `usual` by
    (0.9 - usual) min(1, 2 d); by half of that while the interval of the fall still holds 0; a smaller fall than
    `MEANINGFUL` is none.
    """
    if retention is None or retention.n == 0:
        return usual, "retention was not measured"
    m, room = retention, max(0.0, MOST_REPLAY - usual)
    numbers = f"{m.before.successes}/{m.n} at first, {m.after.successes}/{m.n} now"
    fall = -m.progress
    if fall < MEANINGFUL:
        return usual, f"nothing is forgotten: {numbers}"
    raised = room * min(1.0, 2 * fall)
    if m.progress_high >= 0:
        return round(usual + raised / 2, 4), f"success fell, perhaps by chance: {numbers}"
    return round(usual + raised, 4), f"success fell: {numbers}"


def _fewer(some: tuple[int, int], others: tuple[int, int]) -> float:
    """p-value of Fisher's exact test that `some` (successes, n) succeed less often than `others`."""
    table = [[some[0], some[1] - some[0]], [others[0], others[1] - others[0]]]
    return float(stats.fisher_exact(table, alternative="less").pvalue)
