"""Evidence, interventions, and validation in sequence, on episodes with a known cause."""

from dataclasses import replace

import numpy as np
import pytest
from synthetic import PLACES, START, T, above, beside, episode, path, scene, solved

from lerobot_coda.critic.clusters import cluster
from lerobot_coda.critic.diagnosis import Cause, Mode, Stage
from lerobot_coda.critic.evidence import bears_out
from lerobot_coda.critic.intervene import REMEDIES, contrast
from lerobot_coda.critic.review import Claim
from lerobot_coda.critic.sequential import Trial, batches, validate
from lerobot_coda.critic.simulator import diagnose
from lerobot_coda.critic.validate import Intervened, judge, screen, spent
from libero_pro.layouts import layout

MILK, KETCHUP = above("milk_1"), above("ketchup_1")
HIGH_MILK, HIGH_BASKET = above("milk_1", 0.2), above("basket_1", 0.2)


def lost(where=None, actor="policy:test"):
    """The gripper closes where nothing stands, and goes on away from everything."""
    aside, above_it = np.array([-0.2, -0.25, 0.07]), np.array([-0.2, -0.25, 0.2])
    return episode(path(START, aside, above_it, aside), closed=[(30, T)], where=where, actor=actor)


def took_the_ketchup(where=None):
    eef = path(START, KETCHUP, above("ketchup_1", 0.2), START)
    return episode(eef, closed=[(30, T)], held={"ketchup_1": (32, T + 1)}, where=where)


def carried(*, release: int, closed_until: int, to=HIGH_BASKET, where=None):
    eef = path(START, MILK, HIGH_MILK, to)
    return episode(eef, closed=[(30, closed_until)], held={"milk_1": (32, release)}, where=where)


def pushed():
    milk = path(PLACES[0], PLACES[0], PLACES[0] + [0.1, 0, 0], PLACES[0] + [0.1, 0, 0])
    return episode(path(START, MILK, MILK + np.array([0.1, 0, 0]), START), move={"milk_1": milk})


FAILED = {
    "wrong object": took_the_ketchup,
    "nothing there": lost,
    "beside it": beside,
    "pushed": pushed,
    "slipped": lambda: episode(path(START, MILK, MILK, MILK), closed=[(30, T)], held={"milk_1": (32, 45)}),
    "dropped": lambda: carried(release=70, closed_until=T),
    "let go early": lambda: carried(release=64, closed_until=62),
    "beside the basket": lambda: carried(release=89, closed_until=86, to=np.array([0.0, 0.13, 0.23])),
    "never let go": lambda: carried(release=T + 1, closed_until=T),
    "in the basket": lambda: carried(release=89, closed_until=86),
    "stood still": lambda: episode(np.repeat(START[None], T + 1, 0)),
    "pushed a limit": lambda: episode(np.repeat(START[None], T + 1, 0), push=1.0),
    "flew off": lambda: episode(path(START, START + np.array([-0.3, 0, 0.8]))),
}


@pytest.mark.parametrize("name", FAILED)
def test_states_allow_what_the_simulator_critic_says_of_them(name):
    failed = FAILED[name]()
    assert bears_out(failed, diagnose(failed)), diagnose(failed).explanation


@pytest.mark.parametrize("name", FAILED)
def test_states_forbid_another_instructed_object(name):
    failed = FAILED[name]()
    told = diagnose(failed)
    assert not bears_out(failed, told.model_copy(update={"objects": ("butter_1", *told.objects[1:])}))


# What no reading of these states allows, whoever says it.
FALSE = {
    "nothing there": [
        (Stage.GRASP, Cause.SLIPPED), (Stage.TRANSPORT, Cause.DROPPED), (Stage.PLACE, Cause.WRONG_PLACE),
        (Stage.REACH, Cause.STALLED), (Stage.REACH, Cause.DRIFTED), (Stage.REACH, Cause.IGNORED_INSTRUCTION),
        (Stage.GRASP, Cause.PUSHED_AWAY), (Stage.REACH, Cause.OUT_OF_TIME),
    ],
    "wrong object": [
        (Stage.REACH, Cause.MISSED_GRASP), (Stage.GRASP, Cause.SLIPPED), (Stage.PLACE, Cause.NOT_RELEASED),
    ],
    "beside it": [
        (Stage.TRANSPORT, Cause.EARLY_RELEASE), (Stage.GRASP, Cause.SLIPPED), (Stage.PLACE, Cause.UNSATISFIED),
    ],
    "dropped": [
        (Stage.REACH, Cause.WRONG_OBJECT), (Stage.TRANSPORT, Cause.EARLY_RELEASE), (Stage.PLACE, Cause.NOT_RELEASED),
        (Stage.GRASP, Cause.SLIPPED), (Stage.REACH, Cause.MISSED_GRASP),
    ],
    "let go early": [(Stage.TRANSPORT, Cause.DROPPED), (Stage.GRASP, Cause.MISSED_GRASP)],
    "in the basket": [
        (Stage.PLACE, Cause.WRONG_PLACE), (Stage.PLACE, Cause.NOT_RELEASED), (Stage.REACH, Cause.STALLED),
    ],
    "stood still": [(Stage.REACH, Cause.MISSED_GRASP), (Stage.REACH, Cause.DRIFTED), (Stage.REACH, Cause.OUT_OF_TIME)],
}  # fmt: skip


@pytest.mark.parametrize(("name", "said"), [(name, said) for name, told in FALSE.items() for said in told])
def test_states_forbid_another_stage_or_cause(name, said):
    failed = FAILED[name]()
    stage, cause = said
    assert not bears_out(failed, diagnose(failed).model_copy(update={"stage": stage, "cause": cause}))


def test_the_object_taken_instead_must_be_the_one_that_was_taken():
    failed = took_the_ketchup()
    told = diagnose(failed)
    assert told.objects == ("milk_1", "ketchup_1")
    assert not bears_out(failed, told.model_copy(update={"objects": ("milk_1", "butter_1")}))
    assert bears_out(failed, told.model_copy(update={"objects": ("milk_1",)}))


@pytest.mark.parametrize("name", FAILED)
def test_a_success_triggers_no_claim(name):
    told = diagnose(FAILED[name]())
    assert not bears_out(solved(), told.model_copy(update={"objects": told.objects[:1]}))


def probe_of(failures, successes=()):
    told = [diagnose(e) for e in failures]
    episodes = {f"{e.actor}/{e.scene.hash}": e for e in (*failures, *successes)}
    return cluster(told)[0], {d.hash: d for d in told}, episodes


FAILURES = [lost(scene(i)) for i in range(6)]
SUCCESSES = [solved(scene(100 + i)) for i in range(5)]
RECREATED = [(lost(scene(200 + i)), solved(scene(300 + i))) for i in range(8)]


def claim(stage=Stage.REACH, cause=Cause.MISSED_GRASP, objects=("milk_1",)):
    return Claim(stage=stage, cause=cause, objects=objects, explanation="a model says so", confidence=0.9)


def test_a_critics_claim_about_a_cluster_is_put_to_every_member():
    found, diagnoses, episodes = probe_of(FAILURES, SUCCESSES)
    assert screen(found, diagnoses, episodes, claim()).refuted_by is None
    wrong = screen(found, diagnoses, episodes, claim(Stage.TRANSPORT, Cause.DROPPED))
    assert (wrong.refuted_by, wrong.evidence, wrong.evidence_of) == ("evidence", 0, 6)
    assert screen(found, diagnoses, episodes, claim(objects=("butter_1",))).refuted_by == "evidence"
    assert screen(found, diagnoses, episodes, claim(objects=("unicorn_1",))).refuted_by == "evidence"


def test_of_members_with_another_target_only_stage_and_cause_are_meant():
    butter = [lost(scene(50 + i, target="butter_1")) for i in range(3)]
    found, diagnoses, episodes = probe_of([*FAILURES, *butter])
    assert found.size == 9 and screen(found, diagnoses, episodes, claim()).evidence == 9


def verdict_of(kept: int, removed: int, pairs: int = 8, alpha: float = 0.05):
    found, diagnoses, episodes = probe_of(FAILURES, SUCCESSES)
    contrasts = [
        ((solved if i < kept else lost)(scene(400 + i)), (solved if i < removed else lost)(scene(500 + i)))
        for i in range(pairs)
    ]
    made = Intervened("object at the unperturbed place", contrasts, alpha)
    return judge(found, "p", RECREATED, diagnoses, episodes, alpha=0.05, intervened=made)


def test_a_cause_whose_removal_helps_is_validated():
    verdict = verdict_of(kept=0, removed=6)
    assert (verdict.outcome, verdict.decided_by) == ("validated", "intervention")
    assert (verdict.contrasts, verdict.removed_solved, verdict.kept_solved, verdict.only_removed) == (8, 6, 0, 6)
    assert verdict.intervention_p == pytest.approx(0.5**6) and verdict.steps == 2 * 8 * 90 + 2 * 8 * 90
    assert "6/8 solved, 0 with the cause left in place" in verdict.reason


def test_getting_past_the_failure_without_a_success_is_no_evidence():
    found, diagnoses, episodes = probe_of(FAILURES, SUCCESSES)
    pairs = [(lost(scene(400 + i)), carried(release=70, closed_until=T, where=scene(500 + i))) for i in range(6)]
    verdict = judge(
        found, "p", RECREATED, diagnoses, episodes, alpha=0.05, intervened=Intervened("x", pairs, 0.05)
    )  # fmt: skip
    assert (verdict.outcome, verdict.decided_by, verdict.removed_solved) == ("refuted", "intervention", 0)


def test_a_cause_whose_removal_does_not_help_is_refuted_though_it_was_recreated():
    for kept, removed in ((0, 0), (8, 8)):  # nothing helps, or anything does
        verdict = verdict_of(kept, removed)
        assert (verdict.outcome, verdict.decided_by) == ("refuted", "intervention"), verdict.reason
        assert verdict.p_value < 0.05


def test_too_few_interventions_leave_it_undecided_and_say_how_many_it_takes():
    verdict = verdict_of(kept=0, removed=3)
    assert (verdict.outcome, verdict.decided_by, verdict.needed) == ("undecided", "intervention", 13)


def test_all_looks_together_err_no_more_than_alpha():
    assert sum(spent(0.05, look) for look in range(60)) == pytest.approx(0.05)
    assert batches(16, 0.05) == (8, 8) and batches(15, 0.05) == (8, 7)
    assert batches(12, 0.05) == (12,)  # six pairs could decide nothing


class Plays:
    """Answers with given outcomes and counts what was asked for."""

    def __init__(self, recreates: int = 99, helps: int = 99, removable: bool = True):
        self.left, self.helps, self.removable = recreates, helps, removable
        self.asked: list[tuple[str, int]] = []
        self.seed = 1000

    def _pair(self, first, second):
        self.seed += 2
        return first(scene(self.seed)), second(scene(self.seed + 1))

    def pairs(self, trials, count, look):
        self.asked.append(("pairs", count * len(trials)))
        self.left -= count
        return [
            [self._pair(lost if self.left + count - i > 0 else solved, solved) for i in range(count)] for _ in trials
        ]

    def contrasts(self, trials, count, look):
        self.asked.append(("contrasts", count * len(trials)))
        for trial in trials:
            trial.tried += count
        self.helps -= count
        won = self.helps + count
        return [
            [self._pair(lost, solved if i < won else lost) for i in range(count)] if self.removable else []
            for _ in trials
        ]


def run(player, *, failures=FAILURES, said=None, before=None, pairs=16):
    found, diagnoses, episodes = probe_of(failures, SUCCESSES)
    trial = before or Trial(found, "p", said)
    validate([trial], player, diagnoses, episodes, pairs=pairs, alpha=0.05)
    return trial


def test_what_stored_states_refute_costs_no_step():
    player = Plays()
    trial = run(player, said=claim(Stage.GRASP, Cause.SLIPPED))
    assert (trial.verdict.outcome, trial.verdict.decided_by, trial.verdict.steps) == ("refuted", "evidence", 0)
    assert player.asked == []


def test_it_stops_as_soon_as_it_is_decided():
    player = Plays()
    trial = run(player)
    assert trial.verdict.outcome == "validated" and trial.verdict.decided_by == "intervention"
    assert player.asked == [("pairs", 8), ("contrasts", 8)]
    player = Plays(recreates=0)
    assert run(player).verdict.decided_by == "re-creation" and player.asked == [("pairs", 8)]
    player = Plays(helps=0)
    assert run(player).verdict.outcome == "refuted" and player.asked == [("pairs", 8), ("contrasts", 8)]


def test_what_is_undecided_at_the_first_look_gets_a_second():
    player = Plays(recreates=4, helps=4)
    trial = run(player)
    assert player.asked[:2] == [("pairs", 8), ("pairs", 8)]
    assert (trial.verdict.outcome, trial.looks) == ("undecided", 2) and trial.verdict.alpha == spent(0.05, 1)


def test_undecided_pairs_accumulate():
    first = run(Plays(recreates=4))
    assert first.verdict.outcome == "undecided" and len(first.pairs) == 16
    found, *_ = probe_of(FAILURES)
    again = Trial(found, "p", None, pairs=list(first.pairs), looks=first.looks)
    player = Plays()
    assert run(player, before=again).verdict.outcome == "validated"
    assert len(again.pairs) == 24 and again.verdict.alpha == spent(0.05, 2) and player.asked[0] == ("pairs", 8)
    assert again.verdict.only_program == 12


def test_where_nothing_can_be_removed_the_other_tests_decide():
    trial = run(Plays(removable=False))
    assert (trial.verdict.outcome, trial.verdict.intervention) == ("validated", "")


def test_the_programs_own_failures_are_intervened_on_after_the_clusters():
    found, diagnoses, episodes = probe_of(FAILURES)
    trial = Trial(found, "p", pairs=[*RECREATED, (beside(scene(700)), solved(scene(701)))])
    failures = trial.failures(diagnoses, episodes)
    assert len(failures) == 6 + 8  # the one beside it failed in another mode
    assert {e.scene.hash for e, _ in failures[:6]} == {e.scene.hash for e in FAILURES}


def test_localization_the_object_goes_where_it_stands_unperturbed_or_another_one_does():
    place = np.array(layout("libero_object", 7).objects["milk_1"].position[:2])
    failed = lost(scene(3))
    found = contrast(REMEDIES[Mode.LOCALIZATION], failed, diagnose(failed))
    assert found.removed.objects["milk_1"].position[:2] == pytest.approx(place, abs=1e-3)
    assert found.kept.objects["milk_1"].position[:2] == pytest.approx(PLACES[0, :2], abs=1e-3)
    arrived = [n for n, p in found.kept.objects.items() if np.allclose(p.position[:2], place, atol=1e-3)]
    assert arrived in (["ketchup_1"], ["butter_1"])
    for one in (found.kept, found.removed):
        assert (one.goal, one.instruction, one.seed, one.program) == (
            failed.scene.goal, failed.scene.instruction, failed.scene.seed, None,
        )  # fmt: skip
        assert one.objects["basket_1"].position[:2] == pytest.approx(PLACES[3, :2], abs=1e-3)
    wrong = contrast(REMEDIES[Mode.LOCALIZATION], failed, claim(objects=("butter_1",)))
    assert wrong.removed.objects["butter_1"].position[:2] == pytest.approx(place, abs=1e-3)


def test_nothing_is_moved_that_stands_where_it_should():
    place = np.array([*layout("libero_object", 7).objects["milk_1"].position[:2], 0.03])
    at_home = lost(scene(3))
    positions = at_home.object_pos.copy()
    positions[:, 0] = place
    at_home = replace(at_home, object_pos=positions)
    assert contrast(REMEDIES[Mode.LOCALIZATION], at_home, claim()) is None
    released = scene(3).model_copy(update={"init_state_id": 0})
    assert contrast(REMEDIES[Mode.LOCALIZATION], lost(released), claim()) is None


@pytest.mark.parametrize(
    ("mode", "kept", "removed"),
    [(Mode.GRASP, (29, 29), (40, 58)), (Mode.TRANSPORT, (40, 58), (70, 88)), (Mode.MOTION, (0, 0), (29, 29))],
)
def test_the_expert_plays_up_to_the_failing_stage_and_through_it(mode, kept, removed):
    where = scene(3)
    expert = solved(where, "expert")
    expert = replace(expert, qpos=np.arange(T + 1)[:, None] * 1e-3 * np.ones((1, 9)))  # tells the instants
    found = contrast(REMEDIES[mode], beside(where), claim(), expert)
    for one, (low, high) in ((found.kept, kept), (found.removed, removed)):
        assert low <= round(one.start.qpos[0] * 1e3) <= high and not one.objects
    assert found.removed.start.gripper == (1.0 if mode != Mode.MOTION else -1.0)
    assert contrast(REMEDIES[mode], beside(where), claim(), None) is None
    assert contrast(REMEDIES[mode], beside(where), claim(objects=("butter_1",)), expert) is None


@pytest.mark.sim
@pytest.mark.parametrize("mode", [Mode.GRASP, Mode.TRANSPORT])
def test_a_policy_goes_on_from_where_the_expert_brought_it(mode):
    """In the real simulator, to a stove, which is no object: both starts pass the gates, and the bowl is where the
    remedy says."""
    from libero_pro.expert import solve
    from libero_pro.judge import judge as gates
    from libero_pro.simulator import Simulator
    from libero_pro.suites import get_task, scene_for

    sim, where = Simulator(get_task("libero_goal", 1)), scene_for("libero_goal", 1, seed=0)
    expert = solve(sim, where)
    failed = replace(expert, actor="policy:test", success=False)
    found = contrast(REMEDIES[mode], failed, claim(objects=("akita_black_bowl_1",)), expert)
    assert all(verdict.accepted for _, verdict in gates([found.kept, found.removed], workers=0, static=True))
    bowl = sim.object_names.index("akita_black_bowl_1")
    heights, held = [], []
    for one in (found.kept, found.removed):
        sim.reset(one)
        held.append(sim.reader.held() == bowl)
        heights.append(float(sim.data.xpos[sim.model.body("akita_black_bowl_1_main").id][2]))
    assert held == [mode is Mode.TRANSPORT, True] and heights[1] - expert.object_pos[0, bowl, 2] > 0.04
