"""Arms: what a run is compared with. Each is a record of switches that the same loop reads, at the same budget.

Beside `coda` and plain fine-tuning there are three ways to choose scenes without a diagnosis: at random (`uniform`),
where the policy failed (`failure-replay`), and closed-loop curricula over levels, prioritized level replay (`plr`,
Jiang et al. 2021) and sampling for learnability (`sfl`, Rutherford et al. 2024). The ablations take one part of `coda`
away each. A level is a program of broad changes on one task.
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np

from lerobot_coda.progress import allocate, learnability, posterior_mean, whole
from libero_pro.record import Record

ArmName = Literal[
    "coda", "sft", "uniform", "failure-replay", "plr", "sfl",
    "no-critic", "no-validation", "no-potential", "no-progress", "no-corrections",
]  # fmt: skip
Score = tuple[float, tuple[int, int]]  # absolute progress and success posterior of a program
RANK_TEMPERATURE, STALENESS = 0.3, 0.3  # of prioritized level replay, as robust PLR has them


class Arm(Record):
    """How an arm chooses, trains and decides.

    source       where programs come from: none (no generated scenes), exploration (broad changes), failures (the
                 failed scenes again, then broad changes of their tasks), levels (broad changes, task by task), or
                 diagnoses (compiled from failure clusters)
    allocation   how a round's scenes are split over programs: even, progress (and learnability), plr, sfl
    critic       whether failures are told apart; without, one broad program answers all of them
    validation   whether a diagnosis must be borne out before its program may spend the budget
    potential    whether the value function starts from a potential, and diagnoses refine it
    decisions    whether programs are made harder, easier, retired ... by their measured progress
    experts      whether the expert acts after the base policy was made; without, the policy learns from its own
                 episodes in the generated scenes, by their advantages alone
    """

    source: Literal["none", "exploration", "failures", "levels", "diagnoses"] = "diagnoses"
    allocation: Literal["even", "progress", "plr", "sfl"] = "progress"
    critic: bool = True
    validation: bool = True
    potential: bool = True
    decisions: bool = True
    experts: bool = True


_OPEN = {"critic": False, "validation": False, "decisions": False}

ARMS: dict[ArmName, Arm] = {
    "coda": Arm(),
    "sft": Arm(source="none", allocation="even", **_OPEN),
    "uniform": Arm(source="exploration", allocation="even", **_OPEN),
    "failure-replay": Arm(source="failures", allocation="even", **_OPEN),
    "plr": Arm(source="levels", allocation="plr", **_OPEN),
    "sfl": Arm(source="levels", allocation="sfl", **_OPEN),
    "no-critic": Arm(critic=False, validation=False),
    "no-validation": Arm(validation=False),
    "no-potential": Arm(potential=False),
    "no-progress": Arm(allocation="even", decisions=False),
    "no-corrections": Arm(experts=False),
}


def shares(
    arm: Arm,
    budget: int,
    scores: Mapping[str, Score],
    *,
    waited: Mapping[str, int] | None = None,
    weights: Mapping[str, float] | None = None,
) -> dict[str, int]:
    """How many of `budget` scenes each program gets, by name.

    waited   rounds since a level was last played (plr), 0 where it is not told
    weights  factors that training programs ask for
    """
    factors = weights or {}
    if arm.allocation == "progress":
        return allocate(budget, scores, weights=factors)
    if arm.allocation == "plr":
        wanted = replay_weights({name: regret(posterior) for name, (_, posterior) in scores.items()}, waited or {})
    elif arm.allocation == "sfl":
        wanted = {name: learnability(posterior) for name, (_, posterior) in scores.items()}
    else:
        wanted = dict.fromkeys(scores, 1.0)
    return whole(budget, {name: value * factors.get(name, 1.0) for name, value in wanted.items()})


def regret(posterior: tuple[int, int]) -> float:
    """What is lost against an antagonist that solves the level, as the expert does: 1 - E[p] (Dennis et al. 2020)."""
    return 1.0 - posterior_mean(posterior)


def replay_weights(
    scores: Mapping[str, float],
    waited: Mapping[str, int],
    *,
    temperature: float = RANK_TEMPERATURE,
    staleness: float = STALENESS,
) -> dict[str, float]:
    """P = (1 - rho) P_score + rho P_stale of prioritized level replay; sums to 1.

    P_score is proportional to rank^(-1/beta), rank 1 for the largest score, levels of equal score sharing their ranks'
    mean weight; P_stale to the rounds that a level waited, evenly where none did. beta = temperature, rho = staleness.
    """
    if not scores:
        return {}
    names = sorted(scores)
    values, since = np.array([scores[n] for n in names]), np.array([waited.get(n, 0) for n in names], float)
    by_rank = np.arange(1, len(names) + 1, dtype=float) ** (-1 / temperature)
    order = np.argsort(-values, kind="stable")
    weight = np.empty(len(names))
    weight[order] = by_rank
    for value in set(values.tolist()):
        weight[values == value] = weight[values == value].mean()
    stale = since if since.sum() > 0 else np.ones(len(names))
    mixed = (1 - staleness) * weight / weight.sum() + staleness * stale / stale.sum()
    return {name: float(p) for name, p in zip(names, mixed, strict=True)}
