"""Clusters of failures: what is joined, what splits, and that the order of the diagnoses does not matter."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import beside, lost, scene

from lerobot_coda.critic.clusters import APART, SMALLEST, WEIGHTS, cluster, distances
from lerobot_coda.critic.diagnosis import Cause, Diagnosis, Mode, Stage
from lerobot_coda.critic.simulator import diagnose

CAUSES = {
    Stage.REACH: (Cause.WRONG_OBJECT, Cause.MISSED_GRASP, Cause.STALLED),
    Stage.GRASP: (Cause.SLIPPED, Cause.MISSED_GRASP, Cause.OUT_OF_TIME),
    Stage.PLACE: (Cause.WRONG_PLACE, Cause.UNSATISFIED, Cause.OUT_OF_TIME),
}


def claim(number: int, stage=Stage.REACH, cause=Cause.MISSED_GRASP, objects=("milk_1", "basket_1"), why="it missed"):
    return Diagnosis(
        episode=f"policy:x/{number}", scene=f"{number:016x}", suite="libero_object", task_id=number % 3, stage=stage,
        cause=cause, objects=objects, explanation=why, confidence=0.9,
    )  # fmt: skip


@st.composite
def diagnoses(draw):
    found = []
    for number in range(draw(st.integers(1, 24))):
        stage = draw(st.sampled_from(list(CAUSES)))
        objects = (draw(st.sampled_from(("milk_1", "ketchup_1", "butter_1"))), "basket_1")
        found.append(claim(number, stage, draw(st.sampled_from(CAUSES[stage])), objects))
    return found


@settings(max_examples=60, deadline=None)
@given(diagnoses(), st.randoms(use_true_random=False))
def test_clusters_are_a_partition_by_mode_that_does_not_depend_on_order(found, rng):
    clusters = cluster(found)
    assert sorted(h for c in clusters for h in c.diagnoses) == sorted(d.hash for d in found)
    by_hash = {d.hash: d for d in found}
    for c in clusters:
        assert {by_hash[h].mode for h in c.diagnoses} == {c.mode} and sum(c.causes.values()) == c.size
    for mode in Mode:  # splitting never leaves a cluster too small to say anything
        sizes = [c.size for c in clusters if c.mode == mode]
        assert len(sizes) <= 1 or min(sizes) >= SMALLEST
    shuffled = [*found, *found]
    rng.shuffle(shuffled)
    assert cluster(shuffled) == clusters


@settings(max_examples=30, deadline=None)
@given(diagnoses())
def test_distances_are_a_bounded_semimetric(found):
    between = distances(found, {}, None)
    assert np.allclose(between, between.T) and np.allclose(np.diag(between), 0.0)
    assert between.min() >= 0.0 and between.max() <= 1.0 + 1e-9


def test_twenty_failures_of_localization_are_one_cluster_whatever_stood_there():
    names = ("milk_1", "ketchup_1", "butter_1")
    found = [claim(i, cause=Cause.MISSED_GRASP, objects=(names[i % 3], "basket_1")) for i in range(16)]
    found += [claim(20 + i, cause=Cause.WRONG_OBJECT, objects=(names[i % 3], "salad_1")) for i in range(4)]
    assert [c.size for c in cluster(found)] == [20]


def test_another_stage_and_another_cause_of_one_mode_split_once_both_are_large_enough():
    early = [claim(i, cause=Cause.STALLED, why="it stood still at the start") for i in range(5)]
    late = [
        claim(10 + i, Stage.GRASP, Cause.WRONG_OBJECT, ("butter_1", "milk_1"), "it took the milk") for i in range(5)
    ]
    assert [c.size for c in cluster(early + late, embed=lambda texts: np.eye(len(texts)))] == [5, 5]
    assert [c.size for c in cluster(early + late[:3], embed=lambda texts: np.eye(len(texts)))] == [8]


def test_where_the_target_stood_counts_and_is_no_reason_to_split():
    near, far = lost(scene(1)), lost(scene(2))
    moved = far.object_pos.copy()
    moved[:, 0, 0] += 0.15
    far = replace(far, object_pos=moved)
    found = [diagnose(near), diagnose(far)]
    episodes = dict(zip((d.episode for d in found), (near, far), strict=True))
    assert distances(found, episodes, None)[0, 1] - distances(found, {}, None)[0, 1] == pytest.approx(
        WEIGHTS["place"] * 0.5, abs=1e-6
    )
    assert WEIGHTS["place"] + WEIGHTS["objects"] + WEIGHTS["text"] < APART


def test_words_that_mean_the_same_are_near():
    from lerobot_coda.backbones.language import embed

    found = [
        claim(1, why="the gripper closed at the ketchup instead"),
        claim(2, why="it grabbed the ketchup bottle by mistake"),
        claim(3, why="the drawer was never opened"),
    ]
    between = distances(found, {}, lambda texts: embed(texts).numpy())
    assert between[0, 1] < between[0, 2]


def test_small_groups_are_left_out():
    failures = [diagnose(lost(scene(i))) for i in range(3)] + [diagnose(beside(scene(9)))]
    assert [c.mode for c in cluster(failures, minimum=2)] == [Mode.LOCALIZATION]
