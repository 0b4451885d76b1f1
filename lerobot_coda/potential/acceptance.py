"""Acceptance: a potential is used only if it measures up on stored episodes.

It must refer to what exists, be bounded, finite and 0 at terminals, rank successes over near misses over failures, and
rise along successes. What is asked stands in a frozen record, what was measured in another.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field
from scipy import stats

from lerobot_coda.potential.staged import StagedPotential
from libero_pro.episode import Episode
from libero_pro.record import Record, RecordError

Grade = Literal["success", "near_miss", "failure"]
FINAL = 5  # instants, a quarter of a second: what an episode came to
_MOVED_BY_HAND = 0.05  # metres from where it stood
_MOVED = 0.25  # of a part's range


class Thresholds(Record):
    """What a potential must reach.

    auc               P(a success's final potential > an unsuccessful episode's), before the goal holds
    near_miss_auc     P(a near miss's highest potential > a failure's)
    rank_correlation  mean over successes of Spearman's correlation of potential and time, until the goal holds
    episodes          at least so many of a grade, or its figure is not asked for
    """

    auc: float = Field(default=0.95, ge=0.5, le=1)
    near_miss_auc: float = Field(default=0.7, ge=0.5, le=1)
    rank_correlation: float = Field(default=0.9, ge=-1, le=1)
    episodes: int = Field(default=3, ge=1)


class Acceptance(Record):
    """The verdict with what was measured; a figure is None where there were too few episodes to measure it."""

    schema_version: Literal[1] = 1
    potential: str  # its hash
    accepted: bool
    reason: str
    thresholds: Thresholds
    successes: int
    near_misses: int
    failures: int
    highest: float | None = None
    auc: float | None = None
    near_miss_auc: float | None = None
    rank_correlation: float | None = None


def accept(potential: StagedPotential, episodes: Sequence[Episode], thresholds: Thresholds | None = None) -> Acceptance:
    """Judges a potential on valid episodes of scenes that it is meant for; invalid episodes are left out.

    A refusal is a result with its reason, not an error; so is a lack of episodes, since an untested potential is not
    accepted.
    """
    asked = thresholds or Thresholds()
    by_grade: dict[Grade, list[Episode]] = {"success": [], "near_miss": [], "failure": []}
    for episode in episodes:
        if episode.invalid is None and len(episode):
            by_grade[grade(episode)].append(episode)
    found: dict[str, Any] = {
        "potential": potential.hash,
        "thresholds": asked,
        "successes": len(by_grade["success"]),
        "near_misses": len(by_grade["near_miss"]),
        "failures": len(by_grade["failure"]),
    }
    reason = next(filter(None, (_illegal(potential, e) for some in by_grade.values() for e in some)), None)
    unsuccessful = found["near_misses"] + found["failures"]
    if reason is None and min(found["successes"], unsuccessful) < asked.episodes:
        reason = (
            f"{found['successes']} successes and {unsuccessful} unsuccessful episodes are too few to judge it by; "
            f"{asked.episodes} of each are needed"
        )
    if reason is None:
        measured = _measure(potential, by_grade, asked.episodes)
        found |= {name: None if value is None else round(value, 4) for name, value in measured.items()}
        reason = _shortfall(measured, asked)
    return Acceptance(accepted=reason is None, reason=reason or "it meets every threshold", **found)


def _illegal(potential: StagedPotential, episode: Episode) -> str | None:
    """Why the potential cannot be used at all, seen in one episode, or None."""
    where = f"in scene {episode.scene.hash}"
    try:
        phi = potential.evaluate(episode)
    except RecordError as error:
        return f"{where}: {error}"
    if not np.isfinite(phi).all():
        return f"it is not finite {where}"
    if phi.min() < 0 or phi.max() > potential.scale + 1e-9:
        return f"it leaves [0, {potential.scale:g}] {where}"
    if episode.terminated and phi[-1] != 0:
        return f"it is {phi[-1]:.3g} at the terminal {where}"
    return None


def _measure(
    potential: StagedPotential, by_grade: Mapping[Grade, Sequence[Episode]], least: int
) -> dict[str, float | None]:
    """highest, auc, near_miss_auc (None with fewer than `least` of either grade) and rank_correlation."""
    curves = {name: [before_goal(potential, e) for e in some] for name, some in by_grade.items()}
    final = {name: [final_level(phi) for phi in some] for name, some in curves.items()}
    peak = {name: [float(phi.max()) for phi in some] for name, some in curves.items()}
    near, failed = peak["near_miss"], peak["failure"]
    return {
        "highest": max(phi for some in peak.values() for phi in some),
        "auc": auc(final["success"], final["near_miss"] + final["failure"]),
        "near_miss_auc": auc(near, failed) if min(len(near), len(failed)) >= least else None,
        "rank_correlation": float(np.mean([rise(phi) for phi in curves["success"]])),
    }


def _shortfall(measured: Mapping[str, float | None], asked: Thresholds) -> str | None:
    """The first threshold that is missed, in words."""
    said = {
        "auc": "ranks successes over unsuccessful episodes with AUC",
        "near_miss_auc": "ranks near misses over failures with AUC",
        "rank_correlation": "rises along successes with rank correlation",
    }
    for name, words in said.items():
        value, least = measured[name], getattr(asked, name)
        if value is not None and value < least:
            return f"it {words} {value:.3f}, less than {least:g}"
    return None


def grade(episode: Episode) -> Grade:
    """How far an episode came, from facts that no potential enters.

    A near miss is an unsuccessful episode in which some but not all of the goal held, an object that the goal places
    was held away from its place, or a part that it names was moved a quarter of its way.
    """
    if episode.success:
        return "success"
    if (episode.goal_holds.any(axis=1) & ~episode.goal_holds[0].any()).any():
        return "near_miss"
    for predicate in episode.scene.goal:
        name = predicate[1]
        if name in episode.object_names:
            i = episode.object_names.index(name)
            away = np.linalg.norm(episode.object_pos[:, i] - episode.object_pos[0, i], axis=-1)
            if ((episode.held == i) & (away > _MOVED_BY_HAND)).any():
                return "near_miss"
        elif name in episode.part_names and episode.part_pos is not None and episode.part_range is not None:
            k = episode.part_names.index(name)
            way = np.abs(episode.part_pos[:, k] - episode.part_pos[0, k]).max()
            if way > _MOVED * abs(float(np.diff(episode.part_range[k])[0])):
                return "near_miss"
    return "failure"


def auc(higher: Sequence[float], lower: Sequence[float]) -> float:
    """Probability that a draw of `higher` exceeds one of `lower`, ties counting half (Mann and Whitney 1947)."""
    return float(stats.mannwhitneyu(higher, lower).statistic / (len(higher) * len(lower)))


def rank_correlation(potential: StagedPotential, episode: Episode) -> float:
    """Spearman's correlation of the potential with time until the goal holds; 0 for a potential that never changes."""
    return rise(before_goal(potential, episode))


def rise(phi: np.ndarray) -> float:
    """Spearman's correlation of a curve with time."""
    if len(phi) < 3 or np.ptp(phi) == 0:
        return 0.0
    return float(stats.spearmanr(np.arange(len(phi)), phi).statistic)


def final_level(phi: np.ndarray) -> float:
    """Mean of the last quarter of a second of a curve."""
    return float(phi[-FINAL:].mean())


def before_goal(potential: StagedPotential, episode: Episode) -> np.ndarray:
    """Phi until the whole goal holds for good: later, a potential that asks for the goal is right by definition."""
    phi = potential.run(episode).phi
    holds = episode.goal_holds.all(axis=1)
    unmet = np.flatnonzero(~holds)
    return phi[: unmet[-1] + 1] if len(unmet) else phi[:1]
