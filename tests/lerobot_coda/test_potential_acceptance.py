"""Acceptance: what is asked, what is measured, and why a potential is refused."""

import re
from dataclasses import replace

import numpy as np
import pytest
from synthetic import NAMES, START, above, beside, episode, lost, path, scene, solved

from lerobot_coda.potential import from_goal, from_text
from lerobot_coda.potential.acceptance import Acceptance, Thresholds, accept, auc, grade

PLAN = from_goal(scene().goal, NAMES)


def dropped(seed: int = 0):
    """A near miss: lifted and let go on the way."""
    eef = path(START, above("milk_1"), above("milk_1", 0.2), above("basket_1", 0.2))
    return episode(eef, closed=[(30, 65)], held={"milk_1": (32, 66)}, where=scene(seed))


STORED = [
    *(solved(scene(seed)) for seed in range(4)),
    *(dropped(seed) for seed in range(4)),
    *(lost(scene(seed)) for seed in range(3)),
    beside(),
]


def test_grades_are_facts_of_the_episode():
    assert [grade(e) for e in (solved(), dropped(), lost(), beside())] == ["success", "near_miss", "failure", "failure"]
    half = replace(lost(), goal_holds=np.arange(91)[:, None] == 50)
    assert grade(half) == "near_miss"  # the goal held for an instant


def test_auc_counts_pairs():
    assert auc([3, 4], [1, 2]) == 1.0 and auc([1, 2], [3, 4]) == 0.0 and auc([1, 2], [1, 2]) == 0.5


def test_the_canonical_plan_is_accepted_with_its_numbers():
    found = accept(PLAN, STORED)
    assert found.accepted, found.reason
    assert (found.successes, found.near_misses, found.failures) == (4, 4, 4)
    assert found.auc >= 0.95 and found.near_miss_auc == 1.0 and found.rank_correlation >= 0.9
    assert found.potential == PLAN.hash and Acceptance.parse(found.to_json()) == found


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a 1: near(gripper, ketchup_1, 0.3) until held(ketchup_1)", "it ranks successes over .* with AUC"),
        ("a 1: clear(gripper, milk_1, 1) until goal(1)", "it ranks successes over .* with AUC 0"),
        ("a 1: held(milk_1) until goal(1)", "rises along successes with rank correlation"),
        ("a 1: held(cookies_1) until goal(1)", "in scene .*: stage 'a': 'cookies_1' is not in the scene"),
    ],
)
def test_a_potential_that_does_not_measure_up_is_refused_with_the_reason(text, reason):
    found = accept(from_text(text), STORED)
    assert not found.accepted
    assert re.search(reason, found.reason), found.reason


def test_without_episodes_it_is_not_accepted():
    found = accept(PLAN, STORED[:2])
    assert not found.accepted and "too few" in found.reason and found.auc is None
    assert accept(PLAN, [replace(e, invalid="diverged") for e in STORED]).successes == 0


def test_thresholds_are_the_caller_s():
    strict = Thresholds(rank_correlation=1.0)
    assert not accept(PLAN, STORED, strict).accepted
    weak = from_text("a 1: held(milk_1) until goal(1)")
    assert accept(weak, STORED, Thresholds(rank_correlation=0.0, near_miss_auc=0.5, auc=0.5)).accepted
