"""The critic bench: planted failures are what they are called, and a critic's score is right."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from synthetic import lost, solved

from lerobot_coda.critic.bench import build as building
from lerobot_coda.critic.bench.build import KINDS, SUCCESS, BenchSet, build
from lerobot_coda.critic.bench.planted import Planted, blinded
from lerobot_coda.critic.bench.score import Answer, Share, score
from lerobot_coda.critic.bench.tables import print_score, rows
from lerobot_coda.critic.bench.trial import judged, sample, simulator_judge
from lerobot_coda.critic.diagnosis import CLASSES, Cause, Diagnosis, Stage
from lerobot_coda.critic.simulator import diagnose
from libero_pro.figures import keep
from libero_pro.record import RecordError


def truth(cause: Cause | None, stage: Stage | None = Stage.REACH, *, name: str = "a", first: int = 30, task: int = 7):
    """A planted episode of the milk task."""
    return Planted(
        name=name,
        suite="libero_object",
        task_id=task,
        seed=0,
        cause=cause,
        stage=stage if cause else None,
        predicate=("in", "milk_1", "basket_1_contain_region"),
        objects=("milk_1",) if cause else (),
        span=(first, first + 10) if cause else (0, 0),
        steps=90,
    )


def claim(cause: Cause, stage: Stage = Stage.REACH, *, first: int = 30, confidence: float = 0.9) -> Answer:
    """An answer about the milk."""
    said = Diagnosis(
        episode="e",
        scene="s",
        suite="libero_object",
        task_id=7,
        stage=stage,
        cause=cause,
        objects=("milk_1", "basket_1"),
        explanation="",
        confidence=confidence,
        predicate=("in", "milk_1", "basket_1_contain_region"),
        span=(first, first + 5),
    )
    return Answer(said)


ITEMS = [
    truth(Cause.DROPPED, Stage.TRANSPORT),
    truth(Cause.DROPPED, Stage.TRANSPORT),
    truth(Cause.STALLED),
    truth(Cause.STALLED),
    truth(None),
    truth(None),
]
ANSWERS = [
    claim(Cause.DROPPED, Stage.TRANSPORT, first=34),
    claim(Cause.SLIPPED, Stage.GRASP, first=80, confidence=0.5),
    Answer(None),
    Answer(None, "prose"),
    claim(Cause.STALLED, confidence=0.8),
    Answer(None),
]


def test_every_answer_counts_where_it_belongs():
    found = score(ITEMS, ANSWERS, critic="c", version="1")
    shares = {name: (share.hits, share.n) for name, share in found if isinstance(share, Share)}
    assert shares == {
        "detected": (2, 4), "false_alarms": (1, 2), "cause": (1, 4), "stage": (1, 4), "both": (1, 4),
        "objects": (2, 4), "invalid": (1, 6), "in_time": (1, 2), "predicate": (0, 0),
    }  # fmt: skip
    assert found.confusion == {
        "dropped": {"dropped": 1, "slipped": 1},
        "stalled": {"invalid": 1, "no failure": 1},
        "no failure": {"no failure": 1, "stalled": 1},
    }
    assert found.time_error == pytest.approx(27) and found.by_cause["dropped"] == Share(hits=1, n=2)


def test_calibration_counts_false_alarms_as_wrong():
    found = score(ITEMS, ANSWERS, critic="c", version="1")
    assert [(b.low, b.n, b.right) for b in found.bins] == [(0.5, 1, 0), (0.8, 1, 0), (0.9, 1, 1)]
    assert found.ece == pytest.approx((0.5 + 0.8 + 0.1) / 3, abs=1e-4)
    assert found.brier == pytest.approx((0.5**2 + 0.8**2 + 0.1**2) / 3, abs=1e-4)
    silent = score(ITEMS, [Answer(None)] * len(ITEMS), critic="c", version="1")
    assert silent.ece is None and silent.time_error is None and silent.detected.hits == 0


def test_a_perfect_critic_has_a_perfect_score():
    items = [truth(cause) for cause in CLASSES] + [truth(None)]
    answers = [claim(cause, confidence=1.0) for cause in CLASSES] + [Answer(None)]
    found = score(items, answers, critic="c", version="1")
    assert found.both.value == 1 and found.false_alarms.hits == 0 and found.ece == 0 and found.time_error == 0
    assert all(row == {name: 1} for name, row in found.confusion.items())


def test_answers_must_match_the_episodes():
    with pytest.raises(RecordError, match="1 answers to 2 episodes cannot be scored"):
        score([truth(None), truth(None)], [Answer(None)], critic="c", version="1")


def test_the_score_is_printed_and_kept_as_rows(tmp_path: Path):
    found = score(ITEMS, ANSWERS, critic="c", version="1")
    console = Console(width=140, record=True)
    print_score(found, console)
    text = console.export_text()
    assert "25.0 % (1/4)" in text and "no failure" in text and "time error, median" in text
    keep(tmp_path / "critic.json", rows(found, "a command"))
    kept = {row["figure"]: row for row in json.loads((tmp_path / "critic.json").read_text())}
    assert kept["cause_accuracy"]["value"] == 0.25 and kept["cause_accuracy"]["n"] == 4
    assert kept["predicate_accuracy"]["value"] is None and kept["cause_accuracy dropped"]["value"] == 0.5
    assert all(row["command"] == "a command" for row in kept.values())


def test_a_sample_is_spread_over_the_causes():
    items = [truth(cause, name=f"{cause}{k}") for cause in CLASSES for k in range(10)]
    picked = sample(items, 32)
    assert len(picked) == 32 and {item.cause for item in picked} == set(CLASSES)
    assert sample(items, 1000) == items == sample(items, None)
    with pytest.raises(RecordError, match="at least one episode"):
        sample(items, 0)


def test_a_blinded_episode_tells_no_outcome_but_its_states():
    for episode in (solved(), lost().tagged(truth="missed")):
        shown = blinded(episode)
        assert (shown.success, shown.terminated, shown.truncated, shown.tags) == (False, False, True, {})
    assert diagnose(blinded(solved())) is None and diagnose(blinded(lost())) is not None


def test_every_cause_is_explained_with_an_example_and_planted():
    assert set(CLASSES) == set(Cause)
    assert all(len(entry.means) > 10 and len(entry.example) > 10 for entry in CLASSES.values())
    assert set(KINDS) == {str(cause) for cause in Cause if cause is not Cause.EARLY_STOP} | {SUCCESS}
    assert len(KINDS) - 1 >= 12


# --- attempts and their bookkeeping, without a simulator


class Deeds:
    """Stands in for planting: attempts whose number is divisible by `every` fail."""

    def __init__(self, every: int = 3, stop_after: int | None = None) -> None:
        self.every, self.left, self.made = every, stop_after, []

    def __call__(self, sim, attempt, ask, *, seed: int, folder: Path):
        if self.left is not None and self.left == len(self.made):
            raise KeyboardInterrupt
        self.made.append((attempt.kind, attempt.number))
        if attempt.number % self.every == 0:
            return "it did not take"
        cause = None if attempt.kind == SUCCESS else Cause(attempt.kind)
        name = f"{attempt.kind}-{attempt.number}"
        lost().save(folder / "episodes" / f"{name}.npz")
        return truth(cause, name=name)


@pytest.fixture
def planted(monkeypatch):
    def use(**options) -> Deeds:
        deeds = Deeds(**options)
        monkeypatch.setattr(building, "_attempt", deeds)
        monkeypatch.setattr(building, "_simulator", lambda key: None)
        return deeds

    return use


def small(folder: Path, **options) -> BenchSet:
    kinds = ("dropped", "stalled", SUCCESS)
    return build(folder, per_cause=4, kinds=kinds, tasks=(("libero_object", 7),), workers=0, **options)


def test_building_goes_on_until_there_are_enough_and_is_balanced(tmp_path: Path, planted):
    planted()
    seen = []
    bench = small(tmp_path, progress=seen.append)
    assert [sum(item.cause == cause for item in bench.items) for cause in (Cause.DROPPED, Cause.STALLED, None)] == [
        4,
        4,
        8,
    ]
    assert seen[-1] >= 16 and bench.episode(bench.items[0]).actor == "policy:test"
    assert BenchSet.open(tmp_path) == bench


def test_an_interrupted_building_gives_the_same_set(tmp_path: Path, planted):
    planted()
    whole = small(tmp_path / "whole")
    planted(stop_after=9)
    with pytest.raises(KeyboardInterrupt):
        small(tmp_path / "cut")
    with pytest.raises(RecordError, match=r"holds no finished bench set; build it with `lerobot-coda critic-bench"):
        BenchSet.open(tmp_path / "cut")
    rest = planted()
    assert small(tmp_path / "cut").items == whole.items
    assert len(rest.made) + 9 == len((tmp_path / "whole" / "attempts.jsonl").read_text().splitlines()) - 1


def test_a_cause_that_never_takes_is_an_error(tmp_path: Path, planted):
    planted(every=1)
    with pytest.raises(RecordError, match="'dropped' was planted 0 times in 32 attempts, 4 are wanted"):
        small(tmp_path)


def test_bad_requests_are_refused_before_work(tmp_path: Path):
    with pytest.raises(RecordError, match="per_cause must be at least 1"):
        build(tmp_path, per_cause=0)
    with pytest.raises(RecordError, match="there is no fault 'sabotage'"):
        build(tmp_path, kinds=("sabotage",))
    with pytest.raises(RecordError, match="did you mean 'libero_goal'"):
        build(tmp_path, tasks=(("libero_gaol", 0),))
    assert not list(tmp_path.iterdir())


def test_a_folder_with_another_set_is_refused(tmp_path: Path, planted):
    planted()
    small(tmp_path)
    with pytest.raises(RecordError, match="seed = 0, not 5; choose another folder"):
        small(tmp_path, seed=5)


def test_the_simulator_critic_answers_from_the_states(tmp_path: Path, planted):
    planted()
    bench = small(tmp_path)
    answers = judged(bench.items[:2], simulator_judge(bench))
    assert [answer.claim.cause for answer in answers] == [Cause.MISSED_GRASP] * 2


# --- planting in the simulator


@pytest.mark.sim
def test_faults_planted_in_the_simulator_are_found():
    from lerobot_coda.critic.bench.actor import NotPlanted
    from lerobot_coda.critic.bench.planted import plant
    from libero_pro.simulator import Simulator
    from libero_pro.suites import get_task, scene_for

    sim = Simulator(get_task("libero_object", 4))
    friction = sim.model.geom_friction.copy()
    scene = scene_for("libero_object", 4, seed=100)
    for cause in (Cause.MISSED_GRASP, Cause.DROPPED, Cause.EARLY_RELEASE, Cause.STALLED, Cause.NOT_RELEASED, None):
        for draw in range(4):
            try:
                episode, planted = plant(sim, scene, cause, np.random.default_rng([3, draw]))
                break
            except NotPlanted:
                continue
        else:
            pytest.fail(f"{cause} was not planted")
        found = diagnose(blinded(episode))
        assert episode.success == (cause is None) and (planted.cause, planted.steps) == (cause, len(episode))
        assert (found.cause, found.stage) == (cause, planted.stage) if cause else found is None, found
        assert cause is None or abs(found.span[0] - planted.span[0]) <= 20
    assert np.array_equal(sim.model.geom_friction, friction)
    again, _ = plant(sim, scene, None, np.random.default_rng([3, draw]))
    assert np.array_equal(replace(again, wall_s=0.0).qpos, episode.qpos)
    with pytest.raises(NotPlanted):
        plant(sim, scene, Cause.WRONG_RECEPTACLE, np.random.default_rng(0))
