"""How right a critic is: its answers on the bench set against what was planted."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np

from lerobot_coda.critic.bench.planted import Planted
from lerobot_coda.critic.evidence import Claimed
from libero_pro.record import Record, RecordError
from libero_pro.statistics import wilson
from libero_pro.suites import get_task

NONE, INVALID = "no failure", "invalid"  # columns of the confusion matrix besides the causes
BINS = 10
IN_TIME = 20  # control steps, a second: a failure is found in time if its first instant is off by no more


class Scored(Claimed, Protocol):
    """What a claim holds beside, as far as it is scored."""

    @property
    def span(self) -> tuple[int, int]: ...
    @property
    def confidence(self) -> float: ...


class Answer(NamedTuple):
    """What a critic said of one episode: a claim, or None for "no failure"; `invalid` where it had no usable answer."""

    claim: Scored | None
    invalid: str | None = None


class Share(Record):
    """`hits` of `n` with the 95 % Wilson interval; an empty share is 0 of 0 within [0, 1]."""

    hits: int
    n: int

    @property
    def value(self) -> float:
        """The rate; 0 without any."""
        return self.hits / self.n if self.n else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Lower and upper limit."""
        return wilson(self.hits, self.n)


class Bin(Record):
    """Claims of one range of confidence: how many, their mean confidence, and how many of their causes are right."""

    low: float
    high: float
    n: int
    confidence: float
    right: int


class Score(Record):
    """A critic's score.

    detected       failures that it called failures;  `false_alarms` successes that it called failures
    cause, stage   failures of which it named these rightly;  `both` rightly together
    objects        failures of which the first two objects are right (one where only one is known)
    predicate      failures of tasks with several predicates of which it named the right one
    by_cause       cause -> right causes among the failures planted with it;  `by_suite` the same by suite
    confusion      planted (or "no failure") -> claimed (or "no failure", "invalid") -> episodes
    time_error     median distance of the first instant from the planted one, control steps, over detected failures
    in_time        detected failures whose first instant is off by a second at most
    bins           reliability of the confidences, false alarms counted as wrong; `ece` their expected calibration error
    brier          mean squared distance of the confidence from being right
    """

    schema_version: Literal[1] = 1
    critic: str
    version: str
    detected: Share
    false_alarms: Share
    cause: Share
    stage: Share
    both: Share
    objects: Share
    predicate: Share
    invalid: Share
    by_cause: dict[str, Share]
    by_suite: dict[str, Share]
    confusion: dict[str, dict[str, int]]
    time_error: float | None
    in_time: Share
    bins: tuple[Bin, ...]
    ece: float | None
    brier: float | None


def score(items: Sequence[Planted], answers: Sequence[Answer], *, critic: str, version: str) -> Score:
    """Scores answers, one an item in the same order; RecordError if their numbers differ or there is nothing to score.

    An invalid answer to a failure is a miss of everything, to a success it is no alarm.
    """
    if len(items) != len(answers) or not items:
        raise RecordError(f"{len(answers)} answers to {len(items)} episodes cannot be scored; give one for each")
    pairs = list(zip(items, answers, strict=True))
    failures = [(item, answer) for item, answer in pairs if item.cause is not None]
    claimed = [(item, answer.claim) for item, answer in failures if answer.claim is not None]
    alarms = [answer.claim for item, answer in pairs if item.cause is None and answer.claim is not None]
    errors = [abs(claim.span[0] - item.span[0]) for item, claim in claimed]
    several = [(i, answer) for i, answer in failures if len(get_task(i.suite, i.task_id).goal()) > 1]

    def share(hits: Iterable[bool], n: int) -> Share:
        return Share(hits=sum(hits), n=n)

    def right(some: Sequence[tuple[Planted, Answer]]) -> Share:
        return share((a.claim is not None and a.claim.cause == item.cause for item, a in some), len(some))

    confusion: dict[str, Counter[str]] = {}
    for item, answer in pairs:
        said = INVALID if answer.invalid else NONE if answer.claim is None else str(answer.claim.cause)
        confusion.setdefault(str(item.cause or NONE), Counter())[said] += 1
    outcomes = [(claim.confidence, claim.cause == item.cause) for item, claim in claimed]
    outcomes += [(claim.confidence, False) for claim in alarms]
    bins = _reliability(outcomes)
    return Score(
        critic=critic,
        version=version,
        detected=share((a.claim is not None for _, a in failures), len(failures)),
        false_alarms=share((True for _ in alarms), len(pairs) - len(failures)),
        cause=right(failures),
        stage=share((claim.stage == item.stage for item, claim in claimed), len(failures)),
        both=share((c.stage == item.stage and c.cause == item.cause for item, c in claimed), len(failures)),
        objects=share((c.objects[: len(item.objects)] == item.objects for item, c in claimed), len(failures)),
        predicate=share((a.claim is not None and a.claim.predicate == i.predicate for i, a in several), len(several)),
        invalid=share((a.invalid is not None for _, a in pairs), len(pairs)),
        by_cause={
            str(cause): right([pair for pair in failures if pair[0].cause == cause])
            for cause in dict.fromkeys(item.cause for item, _ in failures)
        },
        by_suite={
            suite: right([pair for pair in failures if pair[0].suite == suite])
            for suite in sorted({item.suite for item, _ in failures})
        },
        confusion={name: dict(sorted(row.items())) for name, row in confusion.items()},
        time_error=float(np.median(errors)) if errors else None,
        in_time=share((error <= IN_TIME for error in errors), len(errors)),
        bins=bins,
        ece=round(sum(abs(b.n * b.confidence - b.right) for b in bins) / len(outcomes), 4) if outcomes else None,
        brier=round(float(np.mean([(c - hit) ** 2 for c, hit in outcomes])), 4) if outcomes else None,
    )


def _reliability(outcomes: Sequence[tuple[float, bool]]) -> tuple[Bin, ...]:
    """Equal ranges of confidence that hold claims; the last includes 1."""
    found = []
    for k in range(BINS):
        inside = [(c, hit) for c, hit in outcomes if min(int(c * BINS), BINS - 1) == k]
        if inside:
            mean = float(np.mean([c for c, _ in inside]))
            hits = sum(hit for _, hit in inside)
            found.append(Bin(low=k / BINS, high=(k + 1) / BINS, n=len(inside), confidence=mean, right=hits))
    return tuple(found)
