"""Arms and training programs at work: who chooses scenes and how, who acts in them, and what is trained on."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from fakeworld import FakeEngine, write_recipes
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from synthetic import START, above, beside, episode, lost, path, scene, solved

from lerobot_coda.baselines import ARMS, Arm, ArmName, regret, replay_weights, shares
from lerobot_coda.console import Display
from lerobot_coda.coprograms import StartCurriculum
from lerobot_coda.critic.diagnosis import Stage
from lerobot_coda.evolve import evolve
from lerobot_coda.generation import in_other_words
from lerobot_coda.potential.versions import Potentials
from lerobot_coda.programs import exploration
from lerobot_coda.recipe import load_evolve
from lerobot_coda.starts import began, late_start
from libero_pro.suites import scene_for

POSTERIORS = {"solved": (0.0, (19, 1)), "sometimes": (0.1, (10, 10)), "never": (0.0, (1, 19))}


def test_every_arm_has_its_switches():
    assert set(ARMS) == set(get_args(ArmName))
    assert ARMS["coda"] == Arm() and not ARMS["no-corrections"].experts and not ARMS["no-potential"].potential
    for name in ("no-critic", "no-validation", "no-potential", "no-corrections"):
        assert ARMS[name].source == "diagnoses" and ARMS[name] != ARMS["coda"]


def test_learnability_prefers_what_is_sometimes_solved_and_regret_what_never_is():
    by_learnability = shares(ARMS["sfl"], 100, POSTERIORS)
    assert by_learnability["sometimes"] > 3 * max(by_learnability["solved"], by_learnability["never"])
    by_regret = shares(ARMS["plr"], 100, POSTERIORS)
    assert by_regret["never"] > by_regret["sometimes"] > by_regret["solved"] > 0
    assert shares(ARMS["uniform"], 9, POSTERIORS) == {"solved": 3, "sometimes": 3, "never": 3}
    assert regret((19, 1)) == pytest.approx(0.05)


def test_rank_and_staleness_as_prioritized_level_replay_has_them():
    found = replay_weights({"a": 3.0, "b": 2.0, "c": 1.0}, {"c": 4}, temperature=0.5, staleness=0.25)
    ranked = [1.0, 1 / 4, 1 / 9]  # rank^(-1/0.5)
    assert found["a"] == pytest.approx(0.75 * ranked[0] / sum(ranked))
    assert found["c"] == pytest.approx(0.75 * ranked[2] / sum(ranked) + 0.25)
    assert replay_weights({}, {}) == {}


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.sampled_from("abcdef"), st.sampled_from([0.0, 0.5, 1.0]), min_size=1))
def test_replay_weights_are_a_distribution_and_equal_scores_share(scores):
    found = replay_weights(scores, {})
    assert sum(found.values()) == pytest.approx(1.0)
    for a in scores:
        for b in scores:
            assert scores[a] != scores[b] or found[a] == pytest.approx(found[b])
            assert scores[a] <= scores[b] or found[a] > found[b]


# --- late starts and other words ----------------------------------------------------------------------------------


def dropped(seed: int):
    eef = path(START, above("milk_1"), above("milk_1", 0.2), above("basket_1", 0.2))
    found = episode(eef, closed=[(30, 65)], held={"milk_1": (32, 66)}, where=scene(seed))
    return replace(found, qpos=np.zeros((len(found) + 1, 51)))  # an arm, two fingers and six objects


def test_a_stage_begins_where_the_one_before_is_done():
    one = solved()
    reached, lifted, carried = (began(one, stage) for stage in (Stage.GRASP, Stage.TRANSPORT, Stage.PLACE))
    assert 0 < reached < lifted < carried < len(one)
    assert began(dropped(0), Stage.TRANSPORT) is not None
    assert began(lost(), Stage.GRASP) is None and began(beside(), Stage.TRANSPORT) is None


def test_demonstrations_begin_late_where_the_policy_came_so_far(tmp_path):
    program = exploration(load_evolve(write_recipes(tmp_path, task_ids=[2, 7])), 1)[0]
    assert late_start(program, [dropped(0)]) is None, "it asks for none"
    start = StartCurriculum(stage=Stage.TRANSPORT)
    late = program.model_copy(update={"training": program.training.model_copy(update={"start": start})})
    elsewhere = replace(dropped(3), scene=scene(3, 9))
    episodes = [dropped(0), dropped(1), dropped(1), lost(scene(2)), elsewhere]
    made, count = late_start(late, episodes)
    assert count == 2 and (made.name, made.parent) == (f"{program.name}-late", late.hash)
    assert made.generation.task_ids == (7,) and made.generation.difficulty == 1.0
    (resume,) = made.generation.operations
    assert [i.seed for i in resume.instants] == [0, 1], "once each; task 9 is none of the program's"
    assert late_start(late, [lost(scene(2))]) is None
    released = replace(dropped(0), scene=scene().model_copy(update={"init_state_id": 3}))
    assert late_start(late, [released]) is None


def test_a_share_of_scenes_is_worded_otherwise():
    scenes = [scene_for("libero_object", 2, seed=seed) for seed in range(200)]
    found = [in_other_words(s, 0.3) for s in scenes]
    changed = [(a, b) for a, b in zip(scenes, found, strict=True) if a != b]
    assert 35 <= len(changed) <= 85
    assert all(b.instruction != a.instruction and b.goal == a.goal and b.seed == a.seed for a, b in changed)
    assert [in_other_words(s, 0.0) for s in scenes] == scenes and found == [in_other_words(s, 0.3) for s in scenes]


# --- whole rounds -------------------------------------------------------------------------------------------------

SMALL = {
    "rounds": 1,
    "base": {"demos_per_task": 1},
    "heldout": {"episodes_per_task": 1, "suites": ["libero_object_swap"]},
}


def run(folder: Path, engine: FakeEngine, **changes) -> dict:
    folder.mkdir(exist_ok=True)
    recipe = write_recipes(folder, **{**SMALL, **changes})
    return evolve(recipe, folder / "run", engine=engine, display=Display(Console(file=io.StringIO())))


def trained(folder: Path, number: int = 1) -> dict:
    return json.loads((folder / f"run/rounds/{number:03d}/training.json").read_text())


def version(folder: Path, number: int = 1) -> Potentials:
    return Potentials.load(folder / f"run/rounds/{number:03d}/dataset/potential.json")


def test_a_validated_diagnosis_refines_the_potential_of_the_whole_training_set(tmp_path):
    run(tmp_path, FakeEngine())
    told = trained(tmp_path)["potential"]
    assert [t["accepted"] for t in told["tried"]] == [True] and told["tried"][0]["acceptance"]["auc"] >= 0.95
    assert version(tmp_path) == Potentials.parse(told["potentials"]) != Potentials()
    again = FakeEngine()
    run(tmp_path, again)
    assert again.log == [], "what was settled is not settled again"


def test_thresholds_in_the_recipe_refuse_it_and_the_goal_s_own_stands(tmp_path):
    run(tmp_path, FakeEngine(), potential={"accept": {"rank_correlation": 1.0}})
    told = trained(tmp_path)["potential"]["tried"][0]
    assert not told["accepted"] and "rank correlation" in told["reason"]
    assert version(tmp_path) == Potentials()


def test_without_a_potential_all_labels_are_zero(tmp_path):
    run(tmp_path, FakeEngine(), arm="no-potential")
    assert version(tmp_path).form == "none" and trained(tmp_path)["potential"]["tried"] == []


def test_without_corrections_nobody_acts_after_the_base_but_the_policy(tmp_path):
    engine = FakeEngine()
    report = run(tmp_path, engine, arm="no-corrections")["rounds"][0]
    assert engine.log.count("demonstrate") == 1 and "correct" not in engine.log, "the base's demonstrations alone"
    assert "expert" not in report["usage"]["steps"] and report["usage"]["environments"] <= 24
    assert report["checkpoint_after"] == "r001"
    names = (tmp_path / "run/rounds/001/shard/shard").read_text().split()
    stored = {p.stem for p in (tmp_path / "run/rollouts/base").glob("*.npz")}
    assert names and set(names) <= stored
    assert trained(tmp_path)["training"]["corrections"] is False


def test_failed_scenes_are_replayed_and_what_is_measured_on_is_not(tmp_path):
    report = run(tmp_path, FakeEngine(), arm="failure-replay")["rounds"][0]
    shown = json.loads((tmp_path / "run/rounds/001/scenes.json").read_text())
    names = (tmp_path / "run/rounds/001/shard/shard").read_text().split()
    probed = {p.stem for p in (tmp_path / "run/rollouts/base").glob("*.npz")}
    assert {s["hash"] for s in shown} & probed and report["usage"]["environments"] <= 24
    measured = {pair["scene"] for pair in report["frontier"]["pairs"]}
    assert measured and not measured & set(names)


@pytest.mark.parametrize("arm", ["plr", "sfl", "no-critic", "no-validation"])
def test_arms_without_a_verdict_train_at_the_same_budget(tmp_path, arm):
    report = run(tmp_path, FakeEngine(), arm=arm)["rounds"][0]
    assert report["checkpoint_after"] == "r001" and report["usage"]["environments"] <= 24
    assert report["usage"]["validation_environments"] == 0
    assert not any(p["verdict"] for p in report["programs"])


def test_forgetting_raises_the_share_of_replay(tmp_path):
    class Forgets(FakeEngine):
        def rollout(self, checkpoint, scenes, out, tick):
            def played(where):
                first = "rounds" not in str(checkpoint)
                plain = not where.objects
                who = f"policy:{Path(out).name}"
                return self._keep((solved if plain and first else lost)(where, who), out)

            self._call("rollout")
            return [played(where) for where in scenes]

    run(tmp_path, Forgets(), rounds=2, retention={"scenes": 12}, arm="uniform")
    assert trained(tmp_path)["replay"] == "retention was not measured"
    assert "success fell: 12/12 at first, 0/12 now" in trained(tmp_path, 2)["replay"]
    assert trained(tmp_path, 2)["training"]["replay_share"] == 0.9 > trained(tmp_path)["training"]["replay_share"]
