"""The simulator critic on episodes with a known cause, clusters, and the verdicts of validation."""

from dataclasses import replace

import numpy as np
import pytest
from synthetic import PLACES, START, T, above, beside, episode, lost, path, scene, solved

from lerobot_coda.critic.clusters import cluster
from lerobot_coda.critic.diagnosis import Cause, Mode, Stage
from lerobot_coda.critic.evidence import bears_out
from lerobot_coda.critic.measure import goal_objects, measure
from lerobot_coda.critic.simulator import diagnose
from lerobot_coda.critic.validate import judge, pairs_needed

MILK, KETCHUP, BASKET = above("milk_1"), above("ketchup_1"), above("basket_1")
HIGH_MILK, HIGH_BASKET = above("milk_1", 0.2), above("basket_1", 0.2)


def carried(to, *, release: int, closed_until: int, height: float = 0.2):
    """Grasp the milk at step 32, carry it towards `to`, lose it at instant `release`."""
    eef = path(START, MILK, above("milk_1", height), to)
    return episode(eef, closed=[(30, closed_until)], held={"milk_1": (32, release)})


def set_down_at(x: float, y: float):
    """Carried there and lowered before it is let go."""
    eef = path(START, MILK, HIGH_MILK, [x, y, 0.23], [x, y, 0.08])
    return episode(eef, closed=[(21, 88)], held={"milk_1": (23, 89)})


def pushed():
    milk = path(PLACES[0], PLACES[0], PLACES[0] + [0.1, 0, 0], PLACES[0] + [0.1, 0, 0])
    return episode(path(START, MILK, MILK + np.array([0.1, 0, 0]), START), move={"milk_1": milk})


CASES = {
    "took the ketchup and kept it": (
        lambda: episode(path(START, KETCHUP, above("ketchup_1", 0.2), START), closed=[(30, T)],
                        held={"ketchup_1": (32, T + 1)}), Stage.REACH, Cause.WRONG_OBJECT, Mode.LOCALIZATION),
    "closed at the ketchup, held nothing": (
        lambda: episode(path(START, KETCHUP, KETCHUP, START), closed=[(30, T)]),
        Stage.REACH, Cause.WRONG_OBJECT, Mode.LOCALIZATION),
    "delivered the ketchup": (
        lambda: episode(path(START, KETCHUP, above("ketchup_1", 0.2), HIGH_BASKET), closed=[(30, 85)],
                        held={"ketchup_1": (32, 86)}), Stage.REACH, Cause.IGNORED_INSTRUCTION, Mode.LOCALIZATION),
    "closed where nothing stands": (lost, Stage.REACH, Cause.MISSED_GRASP, Mode.LOCALIZATION),
    "closed beside the milk": (beside, Stage.GRASP, Cause.MISSED_GRASP, Mode.GRASP),
    "closed where open fingers no longer surround it": (
        lambda: episode(path(START, MILK + np.array([0.03, 0, 0]), above("milk_1", 0.2), START), closed=[(30, T)]),
        Stage.REACH, Cause.MISSED_GRASP, Mode.LOCALIZATION),
    "pushed the milk": (pushed, Stage.GRASP, Cause.PUSHED_AWAY, Mode.GRASP),
    "touched, never lifted": (
        lambda: episode(path(START, MILK, MILK, MILK), closed=[(30, T)], held={"milk_1": (32, 45)}),
        Stage.GRASP, Cause.SLIPPED, Mode.GRASP),
    "slipped 4 cm up": (
        lambda: carried(above("milk_1", 0.08), release=64, closed_until=T, height=0.08),
        Stage.GRASP, Cause.SLIPPED, Mode.GRASP),
    "dropped on the way": (
        lambda: carried(HIGH_BASKET, release=70, closed_until=T), Stage.TRANSPORT, Cause.DROPPED, Mode.TRANSPORT),
    "opened far from the basket": (
        lambda: carried(HIGH_BASKET, release=64, closed_until=62),
        Stage.TRANSPORT, Cause.EARLY_RELEASE, Mode.TRANSPORT),
    "set down beside the basket": (
        lambda: set_down_at(0.0, 0.16), Stage.PLACE, Cause.WRONG_PLACE, Mode.PLACEMENT),
    "put at the butter": (
        lambda: set_down_at(*PLACES[2, :2]), Stage.PLACE, Cause.WRONG_RECEPTACLE, Mode.PLACEMENT),
    "never let go": (
        lambda: carried(HIGH_BASKET, release=T + 1, closed_until=T), Stage.PLACE, Cause.NOT_RELEASED, Mode.PLACEMENT),
    "rose with it, over the basket and on": (
        lambda: carried(above("basket_1", 0.9), release=T + 1, closed_until=T),
        Stage.TRANSPORT, Cause.DRIFTED, Mode.MOTION),
    "in the basket, goal false": (
        lambda: carried(HIGH_BASKET, release=89, closed_until=86), Stage.PLACE, Cause.UNSATISFIED, Mode.PLACEMENT),
    "held it high and stood still": (
        lambda: episode(np.concatenate([path(START, MILK, HIGH_MILK, steps=45), np.repeat(HIGH_MILK[None], 45, 0)]),
                        closed=[(20, T)], held={"milk_1": (23, T + 1)}),
        Stage.TRANSPORT, Cause.STALLED, Mode.TRANSPORT),
    "still carrying": (
        lambda: carried(HIGH_MILK + np.array([-0.1, -0.02, 0]), release=T + 1, closed_until=T),
        Stage.TRANSPORT, Cause.OUT_OF_TIME, Mode.TRANSPORT),
    "stood still at the start": (
        lambda: episode(np.repeat(START[None], T + 1, 0)), Stage.REACH, Cause.STALLED, Mode.LOCALIZATION),
    "stood still over the milk": (
        lambda: episode(path(START, MILK, MILK, MILK)), Stage.GRASP, Cause.STALLED, Mode.GRASP),
    "pushed against a limit": (
        lambda: episode(np.repeat(START[None], T + 1, 0), push=1.0),
        Stage.REACH, Cause.UNREACHABLE, Mode.MOTION),
    "flew off": (
        lambda: episode(path(START, START + np.array([-0.3, 0, 0.8]))), Stage.REACH, Cause.DRIFTED, Mode.MOTION),
    "gave up": (
        lambda: replace(beside(), truncated=False), Stage.DONE, Cause.EARLY_STOP, Mode.MOTION),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_cause_stage_and_mode_are_found(name):
    build, stage, cause, mode = CASES[name]
    failed = build()
    found = diagnose(failed)
    assert (found.stage, found.cause, found.mode) == (stage, cause, mode), found.explanation
    assert found.objects[0] == "milk_1"
    assert bears_out(failed, found)


def test_every_cause_has_a_case():
    assert {case[2] for case in CASES.values()} == set(Cause)


def test_success_and_invalid_are_no_failures():
    assert diagnose(solved()) is None
    assert diagnose(replace(lost(), invalid="the worker died")) is None


def test_evidence_holds_the_measured_numbers():
    found = diagnose(beside())
    assert found.evidence["attempt_distance_m"] == pytest.approx(0.01, abs=0.002)
    assert found.evidence["attempt_step"] == 30
    assert "1.0 cm" in found.explanation


def test_a_goal_on_a_fixture_has_no_target_object():
    assert goal_objects(("open", "cabinet_1_top_region"), ("milk_1",)) == (None, None)
    drawer = scene().model_copy(update={"goal": (("open", "cabinet_1_top_region"),)})
    found = diagnose(episode(np.repeat(START[None], T + 1, 0), where=drawer))
    assert found.cause is Cause.STALLED and found.objects == ("cabinet_1_top_region",)


def test_the_first_goal_that_does_not_hold_is_diagnosed():
    both = scene().model_copy(
        update={"goal": tuple(("in", name, "basket_1_contain_region") for name in ("ketchup_1", "milk_1"))}
    )
    failed = episode(path(START, MILK, HIGH_MILK, START), where=both)
    holds = failed.goal_holds.copy()
    holds[-1, 0] = True
    assert measure(replace(failed, goal_holds=holds)).target == "milk_1"


def test_clusters_join_causes_of_one_mode():
    took = CASES["took the ketchup and kept it"][0]()
    failures = [replace(lost(), scene=scene(i)) for i in range(3)] + [replace(took, scene=scene(10))]
    failures += [replace(beside(), scene=scene(20))]
    clusters = cluster([diagnose(e) for e in failures])
    assert [(c.mode, c.size) for c in clusters] == [(Mode.LOCALIZATION, 4), (Mode.GRASP, 1)]
    assert clusters[0].causes == {"missed_grasp": 3, "wrong_object": 1}
    assert cluster([diagnose(e) for e in failures], minimum=2) == clusters[:1]


def _probe(failures, successes):
    episodes = [*failures, *successes]
    diagnoses = {d.hash: d for e in failures if (d := diagnose(e))}
    keys = {f"{e.actor}/{e.scene.hash}": e for e in episodes}
    return cluster(diagnoses.values())[0], diagnoses, keys


FAILURES = [lost(scene(i)) for i in range(4)]
SUCCESSES = [solved(scene(100 + i)) for i in range(5)]


def test_a_recreated_failure_is_validated():
    found, diagnoses, probe = _probe(FAILURES, SUCCESSES)
    pairs = [(lost(scene(200 + i)), solved(scene(300 + i))) for i in range(6)] + [(solved(), solved())] * 2
    verdict = judge(found, "p", pairs, diagnoses, probe, alpha=0.05)
    assert verdict.outcome == "validated"
    assert (verdict.only_program, verdict.only_control, verdict.pairs) == (6, 0, 8)
    assert verdict.p_value == pytest.approx(0.5**6)
    assert (verdict.evidence, verdict.evidence_of, verdict.false_alarms) == (4, 4, 0)


def test_a_failure_in_another_mode_does_not_count():
    found, diagnoses, probe = _probe(FAILURES, SUCCESSES)
    pairs = [(beside(scene(200 + i)), solved(scene(300 + i))) for i in range(8)]
    verdict = judge(found, "p", pairs, diagnoses, probe, alpha=0.05)
    assert verdict.outcome == "refuted" and verdict.program_failures == 8 and verdict.program_same == 0


def test_a_failure_that_control_scenes_show_as_well_is_refuted():
    found, diagnoses, probe = _probe(FAILURES, SUCCESSES)
    pairs = [(lost(scene(200 + i)), lost(scene(300 + i))) for i in range(8)]
    assert judge(found, "p", pairs, diagnoses, probe, alpha=0.05).outcome == "refuted"


def test_too_few_pairs_leave_it_undecided_and_say_how_many_it_takes():
    found, diagnoses, probe = _probe(FAILURES, SUCCESSES)
    pairs = [(lost(scene(200 + i)), solved(scene(300 + i))) for i in range(3)]
    verdict = judge(found, "p", pairs, diagnoses, probe, alpha=0.05)
    assert verdict.outcome == "undecided" and "about 5 pairs" in verdict.reason
    assert pairs_needed(1, 1, 8, 0.05) is None


def test_invalid_episodes_are_left_out_of_the_pairs():
    found, diagnoses, probe = _probe(FAILURES, SUCCESSES)
    broken = replace(lost(), invalid="the worker died")
    verdict = judge(found, "p", [(broken, solved())] * 8, diagnoses, probe, alpha=0.05)
    assert verdict.outcome == "undecided" and verdict.pairs == 0


def test_a_claim_that_the_states_contradict_is_refuted():
    found, diagnoses, probe = _probe(FAILURES, SUCCESSES)
    carried_away = CASES["dropped on the way"][0]()
    contradicted = {key: replace(carried_away, scene=e.scene) for key, e in probe.items() if not e.success}
    pairs = [(lost(scene(200 + i)), solved(scene(300 + i))) for i in range(8)]
    verdict = judge(found, "p", pairs, diagnoses, probe | contradicted, alpha=0.05)
    assert verdict.outcome == "refuted" and verdict.evidence == 0


def test_a_claim_that_successes_trigger_is_refuted():
    """A success in which the object is shoved into place supports "never lifted" as well as a failure does."""
    failures = [beside(scene(i)) for i in range(4)]
    shoved = [replace(beside(scene(100 + i)), success=True, terminated=True, truncated=False) for i in range(5)]
    found, diagnoses, probe = _probe(failures, shoved)
    pairs = [(beside(scene(200 + i)), solved(scene(300 + i))) for i in range(8)]
    verdict = judge(found, "p", pairs, diagnoses, probe, alpha=0.05)
    assert verdict.outcome == "refuted" and verdict.false_alarms == 5
