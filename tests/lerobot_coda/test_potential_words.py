"""Text -> potential: plain words, diagnoses and models' answers, and what each of them is refused for."""

import json

import pytest

from lerobot_coda.critic.diagnosis import Cause, Diagnosis, Stage
from lerobot_coda.potential import Names, StagedPotential, from_goal, to_text
from lerobot_coda.potential.phrases import from_phrases
from lerobot_coda.potential.refine import from_model, prompt, refine
from libero_pro.record import RecordError
from libero_pro.suites import get_task, suite_names, tasks

KITCHEN = Names.of_task(get_task("libero_goal", 3))  # put the bowl in the top drawer
SOUP = Names.of_task(get_task("libero_object", 0))


def stages(text: str, names: Names = KITCHEN) -> list[str]:
    return [stage.name for stage in from_phrases(text, names).stages]


def test_words_become_stages_in_their_order():
    plan = from_phrases("First move above the bowl, then grasp it and put it on the plate.", KITCHEN)
    assert [stage.name for stage in plan.stages] == ["above", "reach", "grasp", "lift", "carry", "place"]
    assert to_text(plan).splitlines()[1] == (
        "above 1: over(gripper, akita_black_bowl_1, 0.35) until over(gripper, akita_black_bowl_1, 0.04)"
    )
    assert plan.stages[-1].until[0][1].things == ("akita_black_bowl_1", "plate_1")


def test_a_new_subject_begins_a_leg_and_undoing_latches():
    plan = from_phrases("Open the top drawer, put the bowl in it, and close it", KITCHEN)
    assert plan.latched
    assert [stage.name for stage in plan.stages if stage.link == "then"] == ["reach_2", "reach_3"]
    assert plan.stages[-1].until[0][0].things == ("wooden_cabinet_1_top_region.handle",)
    assert not from_phrases("turn on the stove and put the bowl on it", KITCHEN).latched


def test_lengths_avoidance_and_uprightness():
    plan = from_phrases("lift the wine bottle by 12 cm; keep it upright; avoid the plate by 0.1 m", KITCHEN)
    lift = plan.stages[-1]
    assert lift.progress[0].number == pytest.approx(0.12)
    assert {term.kind for term in lift.progress} == {"raised", "upright", "clear"}
    assert [term.kind for term in plan.stages[0].progress] == ["near", "clear"]


def test_a_thing_is_told_apart_by_where_it_stands():
    spatial = Names.of_task(get_task("libero_spatial", 1), goal=(("on", "akita_black_bowl_1", "plate_1"),))
    plan = from_phrases("grasp the black bowl next to the cookie box", spatial)
    assert plan.stages[0].progress[0].things[1] == "akita_black_bowl_2"


def test_most_instructions_of_the_benchmark_are_understood_and_name_the_goal_s_objects():
    right = 0
    for suite in suite_names():
        for task in tasks(suite):
            names = Names.of_task(task)
            try:
                plan = from_phrases(task.prompt(), names)
            except RecordError:
                continue
            said = {thing.removesuffix(".handle") for s in plan.stages for term in s.terms() for thing in term.things}
            right += all(predicate[1] in said for predicate in task.goal() if predicate[0] in ("in", "on"))
    assert right >= 170


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the text is empty"),
        ("dance with the bowl", "'dance with the bowl' is not understood"),
        ("grasp the banana", "in 'grasp the banana': there is no 'the banana' in the scene; there are akita"),
        ("open the plate", "'the plate' is plate_1, which does not open"),
        ("grasp the cabinet", "'the cabinet' is wooden_cabinet_1.*, which cannot be moved"),
        ("grasp it", "'it': nothing was spoken of"),
        ("open the top drawer by 3 cm", "a length is understood after lift and avoid only"),
        ("avoid the plate", "names nothing to do"),
        ("grasp the bowl " * 100, "has 300 words; use at most 200"),
        ("; ".join(["open the top drawer", "close the top drawer"] * 9), "more than 24 stages"),
        ("rm -rf / ; __import__('os')", "is not understood"),
    ],
)
def test_words_that_are_not_understood_are_refused_with_the_words(text, said):
    with pytest.raises(RecordError, match=said):
        from_phrases(text, KITCHEN)


def test_what_may_be_several_things_must_be_told_apart():
    other = Names.of_task(get_task("libero_goal", 8))  # its goal is about no drawer
    with pytest.raises(RecordError, match=r"'the drawer' may be wooden_cabinet_1_bottom_region or .*; say which"):
        from_phrases("open the drawer", other)
    assert from_phrases("open the drawer", KITCHEN).stages[-1].name == "open"  # the goal's


def diagnosis(stage: Stage, cause: Cause, target: str = "alphabet_soup_1") -> Diagnosis:
    return Diagnosis(
        episode="e", scene="s", suite="libero_object", task_id=0, stage=stage, cause=cause, objects=(target,),
        explanation="the gripper closed beside it", confidence=0.9,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("stage", "cause", "new", "kind"),
    [
        (Stage.REACH, Cause.WRONG_OBJECT, "find", "clear"),
        (Stage.GRASP, Cause.MISSED_GRASP, "contact", "touching"),
        (Stage.TRANSPORT, Cause.DROPPED, "keep", "raised"),
        (Stage.PLACE, Cause.WRONG_PLACE, "center", "over"),
        (Stage.REACH, Cause.DRIFTED, "approach", "near"),
    ],
)
def test_a_diagnosis_splits_the_stage_it_points_at(stage, cause, new, kind):
    plan = from_goal(SOUP.goal, SOUP.objects)
    refined = refine(plan, diagnosis(stage, cause), SOUP)
    assert len(refined.stages) == len(plan.stages) + 1
    added = next(s for s in refined.stages if s.name == new)
    assert kind in {term.kind for term in added.terms()}
    after = refined.stages[[s.name for s in refined.stages].index(new) + 1]
    assert after in plan.stages or after.model_copy(update={"link": "then"}) in plan.stages
    again = refine(refined, diagnosis(stage, cause), SOUP)  # split already: more weight instead
    assert len(again.stages) == len(refined.stages)
    assert sum(s.weight for s in again.stages) > sum(s.weight for s in refined.stages)


@pytest.mark.parametrize(("suite", "task_id"), [("libero_goal", 0), ("libero_10", 3), ("libero_10", 8)])
@pytest.mark.parametrize("cause", [Cause.WRONG_OBJECT, Cause.SLIPPED, Cause.DROPPED, Cause.WRONG_PLACE, Cause.DRIFTED])
def test_every_mode_refines_plans_of_other_goals(suite, task_id, cause):
    names = Names.of_task(get_task(suite, task_id))
    plan = from_goal(names.goal, names.objects)
    refined = refine(plan, diagnosis(Stage.REACH, cause, names.goal[0][1]), names)
    assert refined != plan and refined.latched == plan.latched
    assert StagedPotential.parse(refined.to_json()) == refined


def test_only_the_leg_of_the_diagnosed_object_is_refined():
    names = Names.of_task(get_task("libero_10", 0))  # soup and sauce
    refined = refine(
        from_goal(names.goal, names.objects), diagnosis(Stage.REACH, Cause.WRONG_OBJECT, names.goal[1][1]), names
    )
    assert "find_2" in [s.name for s in refined.stages] and "find" not in [s.name for s in refined.stages]


def test_a_model_s_potential_is_read_as_data():
    plan = from_goal(SOUP.goal, SOUP.objects)
    asked = {}

    def propose(question: str, schema: dict) -> str:
        asked.update(question=question, schema=schema)
        return plan.to_json()

    found = from_model(propose, SOUP, diagnosis=diagnosis(Stage.GRASP, Cause.SLIPPED), base=plan)
    assert found == plan
    assert "alphabet_soup_1" in asked["question"] and "closed beside it" in asked["question"]
    assert "reach 1: near(gripper, target, 0.3)" in asked["question"]
    assert asked["schema"]["properties"]["stages"] and len(prompt(SOUP)) < 4000


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("Sure! Here is the potential:", "it wrote: 'Sure! Here is"),
        ("import os", "it wrote: 'import os'"),
        ("", "it wrote: ''"),
        ("[" * 100_000, "characters, more than 20000"),
        ('{"stages": ' + "[" * 9000, "it wrote"),
        (json.dumps({"stages": [{"name": "s", "progress": [{"kind": "held", "things": ["unicorn"]}],
                                 "until": [[{"kind": "goal", "number": 1}]]}]}), "'unicorn' is not in the scene"),
        (json.dumps({"stages": [{"name": "s", "weight": 1e6, "progress": [{"kind": "held", "things": ["target"]}],
                                 "until": [[{"kind": "goal", "number": 1}]]}]}), "weight.*less than or equal to 10"),
        ('{"stages": [], "scale": NaN}', "it wrote"),
    ],
)  # fmt: skip
def test_a_model_s_nonsense_is_refused_with_the_offending_text(answer, said):
    with pytest.raises(RecordError, match=said) as error:
        from_model(lambda question, schema: answer, SOUP)
    assert str(error.value).startswith("the model's potential is refused: ") and len(str(error.value)) < 700
