"""What an experiment's arms reached and used, compared on the same held-out episodes.

Outcomes are paired by the run's seed, suite, task, released start and the episode's seed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lerobot_coda.baselines import ArmName
from lerobot_coda.budget import Usage
from lerobot_coda.finished import FinishedRun
from lerobot_coda.progress import Rate, rate
from libero_pro.figures import figure
from libero_pro.statistics import mcnemar

HEADLINE: ArmName = "coda"
CLOSED_LOOP: tuple[ArmName, ...] = (
    "failure-replay",
    "plr",
    "sfl",
)  # look at what the policy does, and diagnose nothing
Outcomes = dict[tuple[Any, ...], bool]  # success by (the run's seed, suite, task, released start, the episode's seed)


@dataclass(frozen=True)
class Arm:
    """An arm's finished runs: success of the base policy and of theirs on the same episodes, and what they used.

    curve  outcomes by round, the base policy's as round 0, on the episodes that all rounds were measured on
    """

    name: str
    runs: int
    before: Outcomes
    after: Outcomes
    curve: Mapping[int, Outcomes]
    environments: int
    validation_environments: int
    layouts: int
    steps: Mapping[str, int]
    leaked: int
    hours: float


def arm_of(name: str, runs: Sequence[FinishedRun]) -> Arm:
    """An arm from its runs, at least one."""
    before: Outcomes = {}
    after: Outcomes = {}
    curve: dict[int, Outcomes] = {}
    for run in runs:
        for number, episodes in run.outcomes.items():
            curve[number] = curve.get(number, {}) | {(run.seed, *key): solved for *key, solved in episodes}
        before |= {(run.seed, *key): solved for *key, solved in run.outcomes[0]}
        after |= {(run.seed, *key): solved for *key, solved in run.outcomes[max(run.outcomes)]}
    everywhere = set.intersection(*(set(outcomes) for outcomes in curve.values()))
    used = sum((run.usage for run in runs), Usage())
    return Arm(
        name=name, runs=len(runs), before=before, after=after,
        curve={n: {key: outcomes[key] for key in sorted(everywhere)} for n, outcomes in sorted(curve.items())},
        environments=used.environments, validation_environments=used.validation_environments, layouts=used.layouts,
        steps=used.steps, leaked=sum(run.leaked for run in runs), hours=sum(used.seconds.values()) / 3600,
    )  # fmt: skip


def curve_rows(axes: Mapping[str, Sequence[str]], arms: Sequence[Arm]) -> list[dict[str, Any]]:
    """Success over rounds, one row an axis, arm and round, with Wilson intervals."""
    rows = []
    for axis, suites in axes.items():
        for arm in arms:
            for number, outcomes in arm.curve.items():
                found = _success({key: won for key, won in outcomes.items() if key[1] in suites})
                told = {"n": found.n, "success_rate": found.rate, "low": found.low, "high": found.high}
                rows.append({"axis": axis, "arm": arm.name, "round": number, **told})
    return rows


def axis_rows(suites: Sequence[str], arms: Sequence[Arm], command: str) -> list[dict[str, Any]]:
    """One axis as figures: the base policy, each arm against it, and `coda` against the best closed-loop arm."""

    def on(outcomes: Outcomes) -> Outcomes:
        return {key: solved for key, solved in outcomes.items() if key[1] in suites}

    before = {key[1:]: solved for arm in arms for key, solved in on(arm.before).items()}
    after = {arm.name: on(arm.after) for arm in arms}
    rows = [_rate("before", before, command)]
    rows += [_rate(arm.name, after[arm.name], command, against=("before", on(arm.before))) for arm in arms]
    rows.append(figure("leaked", sum(arm.leaked for arm in arms), "scenes of all arms", command, n=len(arms)))
    own = next((arm for arm in arms if arm.name == HEADLINE), None)
    if own is None:
        return rows
    rows.append(_rate("after", after[HEADLINE], command, against=("before", on(own.before))))
    rows.append(figure("hours", round(own.hours / own.runs, 3), "h a run of coda", command, n=own.runs))
    rivals = [arm.name for arm in arms if arm.name in CLOSED_LOOP]
    if rivals:
        best = max(rivals, key=lambda name: _success(after[name]).rate)
        common = [key for key in after[best] if key in after[HEADLINE]]
        theirs, ours = ([after[name][key] for key in common] for name in (best, HEADLINE))
        test, points = mcnemar(theirs, ours), 100 * (sum(ours) - sum(theirs)) / len(common)
        peer = f"{best}: +{test.only_after} -{test.only_before}"
        rows.append(figure("over_best_closed_loop", round(points, 2), "points", command, peer=peer, n=len(common)))
        rows.append(figure("p_value", test.p_two_sided, "exact McNemar, two-sided", command, peer=peer, n=len(common)))
    return rows


def _rate(name: str, solved: Outcomes, command: str, *, against: tuple[str, Outcomes] | None = None) -> dict[str, Any]:
    """A success rate with its Wilson interval and, against other outcomes of the same episodes, what flipped."""
    found, peer = _success(solved), None
    if against:
        common = [key for key in against[1] if key in solved]
        test = mcnemar([against[1][key] for key in common], [solved[key] for key in common])
        peer = f"{against[0]}: +{test.only_after} -{test.only_before}, p={test.p_two_sided:.2g}"
    return figure(name, found.rate, "success rate", command, peer=peer, n=found.n, low=found.low, high=found.high)


def _success(outcomes: Outcomes) -> Rate:
    """Their rate and its Wilson interval, to four decimals."""
    found = rate(sum(outcomes.values()), len(outcomes))
    return found.model_copy(update={name: round(getattr(found, name), 4) for name in ("rate", "low", "high")})


def budget_rows(arms: Sequence[Arm]) -> list[dict[str, Any]]:
    """What each arm used, over all of its runs."""
    return [
        {
            "arm": arm.name, "runs": arm.runs, "environments": arm.environments,
            "validation_environments": arm.validation_environments, "layouts": arm.layouts,
            **{f"{purpose}_steps": arm.steps.get(purpose, 0) for purpose in ("probe", "expert", "validation")},
            "leaked": arm.leaked, "hours": round(arm.hours, 3),
        }
        for arm in arms
    ]  # fmt: skip
