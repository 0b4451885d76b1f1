"""The comparison of learning with and without a potential: what chooses, what counts, and what is reported."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import text2potential_learning as learning
from text2potential_learning import AUC, DECAYS, DEFAULT, ERROR, SUCCESS, TUNING, compare, figure_rows, gain

BEST = {"without": 0.8, "with": 0.97}


def trial(arm: str, seed: int, decay: float) -> dict[str, float]:
    """On tuning seeds each arm does best at its own decay; on the others every arm does better at another one."""
    if seed in TUNING:
        return {SUCCESS: float(decay == BEST.get(arm))}
    rate = {"cloning": 0.0, "without": 0.2, "with": 0.5}[arm] + (0.4 if decay == 0.9 else 0.0)
    return {SUCCESS: rate + 0.1 * seed, ERROR: 0.5, f"{AUC}, planned": rate}


def test_the_decay_is_chosen_on_seeds_that_count_for_nothing_else() -> None:
    found = compare(trial, 3)
    assert not set(TUNING) & set(range(100))
    assert {arm: found.decay(arm) for arm in BEST} == BEST
    assert set(found.measured) == {("cloning", DEFAULT), *BEST.items(), *((arm, DEFAULT) for arm in BEST)}
    rows = {row["figure"]: row for row in figure_rows("learning_gain", found, "command")}
    assert (rows["learning_gain"]["value"], rows["learning_gain"]["n"]) == (pytest.approx(30.0), 3)
    assert rows["learning_gain, without"]["value"] == pytest.approx(0.3)
    assert rows[f"learning_gain: {AUC}, planned"]["value"] == pytest.approx(0.3)
    assert f"learning_gain: {AUC}, planned, cloning" not in rows and f"learning_gain: {ERROR}, cloning" in rows
    assert rows[f"learning_gain: both with decay {DEFAULT}"]["unit"] == "points"
    assert {row["n"] for name, row in rows.items() if "tuning" in name} == {len(TUNING)}
    assert len([name for name in rows if "tuning" in name]) == 2 * len(DECAYS)


def test_the_gain_is_paired() -> None:
    mean, low, high = gain([0.5, 0.7, 0.9], [0.4, 0.5, 0.6])
    assert mean == pytest.approx(0.2) and low < 0.0 < high  # three seeds are few
    assert gain([0.5, 0.6], [0.4, 0.5])[1:] == (pytest.approx(0.1), pytest.approx(0.1))


def test_small_runs_of_pick_and_carry_repeat_themselves_and_the_arms_differ() -> None:
    run = learning.pick_and_carry(12, 0.3, 30)
    first = run("with", 0, 0.9)
    assert set(first) == {SUCCESS, f"{AUC}, planned"}
    assert first == run("with", 0, 0.9)
    assert first[f"{AUC}, planned"] != run("without", 0, 0.9)[f"{AUC}, planned"]
    assert np.isfinite(list(first.values())).all()
