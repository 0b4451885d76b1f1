"""The potential language: text and JSON mean the same, laws of the value, and what is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from synthetic import NAMES, episode, lost, path, scene, solved

from lerobot_coda.potential import Names, Stage, StagedPotential, Term, from_goal, from_text, to_text
from lerobot_coda.potential.terms import SIGNATURES
from libero_pro.record import RecordError
from libero_pro.suites import get_task, suite_names, tasks

THINGS = ("gripper", "target", "receptacle", "milk_1", "distractor", "drawer_1.handle")
PLAN = from_goal(scene().goal, NAMES)

numbers = st.floats(0.001, 1.0, allow_nan=False)


@st.composite
def terms(draw: st.DrawFn) -> Term:
    kind = draw(st.sampled_from(sorted(SIGNATURES)))
    signature = SIGNATURES[kind]
    things = draw(st.permutations(THINGS))[: len(signature.arguments)]
    number = None if signature.limit is None else draw(numbers)
    if kind == "goal":
        number = float(draw(st.integers(1, 6)))
    return Term(kind=kind, things=tuple(things), number=number, share=draw(st.sampled_from([1.0, 0.5]) | numbers))


def plain(term: Term) -> Term:
    """A condition has no share."""
    return term.model_copy(update={"share": 1.0})


@st.composite
def potentials(draw: st.DrawFn) -> StagedPotential:
    stages = []
    for number in range(draw(st.integers(1, 4))):
        try:
            stage = Stage(
                name=f"stage_{number}",
                link="next" if number == 0 else draw(st.sampled_from(["next", "then"])),
                weight=draw(numbers),
                progress=tuple(draw(st.lists(terms(), min_size=1, max_size=3))),
                until=tuple(
                    tuple(map(plain, clause))
                    for clause in draw(st.lists(st.lists(terms(), min_size=1, max_size=2), min_size=1, max_size=2))
                ),
            )
        except ValidationError:  # a contradiction by chance
            continue
        stages.append(stage.model_copy(update={"link": "next"}) if not stages else stage)
    return StagedPotential(stages=tuple(stages) or PLAN.stages, scale=draw(numbers), latched=True)


@settings(max_examples=40, deadline=None)
@given(potentials())
def test_text_and_json_read_back_as_the_same_potential(potential):
    assert from_text(to_text(potential)) == potential
    assert StagedPotential.parse(potential.to_json()) == potential


def test_every_task_has_a_plan_that_fits_its_scene():
    plans = {}
    for suite in suite_names():
        for task in tasks(suite):
            names = Names.of_task(task)
            plan = from_goal(task.goal(), task.objects(), parts=names.parts)
            plan.check(names)
            assert plan == from_goal(task.goal(), task.objects())  # the names alone say the same
            plans[suite, task.task_id] = plan
    assert len(plans) == 200
    names = [stage.name for stage in plans["libero_10", 3].stages]  # put in the drawer and close it
    assert names.index("open_move_2") < names.index("place_2") < names.index("move")


def test_value_falls_back_when_the_object_is_dropped_and_a_latched_one_does_not():
    milk = path([0.1, 0.2, 0.03], [0.1, 0.2, 0.25], [0.0, 0.1, 0.25], steps=60)
    dropped = np.concatenate([milk, np.repeat([[0.0, 0.1, 0.03]], 30, axis=0)])
    eef = np.concatenate([milk, np.repeat(milk[-1:], 30, axis=0)])
    e = episode(eef, held={"milk_1": (0, 61)}, move={"milk_1": dropped})
    phi = PLAN.evaluate(e)
    assert phi[60] > phi[0] and phi[65] < phi[60] / 2
    latched = PLAN.model_copy(update={"latched": True})
    assert latched.evaluate(e)[65] >= 0.5 * 3 / 5 - 1e-9  # reach, grasp and lift stay
    stage = latched.run(e).stage
    assert (np.diff(stage) >= 0).all() and stage[-1] == pytest.approx(3 / 5)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.05, 1.0))
def test_value_is_bounded_finite_and_0_at_the_terminal_whatever_happens(seed, scale):
    rng = np.random.default_rng(seed)
    wild = np.cumsum(rng.normal(0, 0.05, (40, 3)), axis=0)
    e = episode(wild, held={"milk_1": (5, 20)}, success=bool(seed % 2))
    plan = from_goal(e.scene.goal, NAMES, scale=scale)
    phi = plan.evaluate(e)
    assert phi.shape == (40,) and np.isfinite(phi).all()
    assert phi.min() >= 0 and phi.max() <= scale
    assert (phi[-1] == 0) if e.terminated else (phi == plan.run(e).phi).all()


def test_what_was_let_go_over_its_receptacle_does_not_fall_back_while_it_falls():
    milk = path([0.0, 0.0, 0.3], [0.0, 0.0, 0.2], steps=20)
    falling = np.concatenate([milk, [[0, 0, 0.18], [0, 0, 0.12], [0, 0, 0.06]]])
    e = episode(
        np.concatenate([milk, np.repeat(milk[-1:], 3, axis=0)]), held={"milk_1": (0, 21)}, move={"milk_1": falling}
    )
    assert (np.diff(PLAN.evaluate(e)[15:]) > 0).all()
    beside = falling + np.array([0.1, 0, 0])
    e = replace(e, object_pos=np.where(np.arange(4)[:, None] == 0, beside[:, None], e.object_pos))
    assert PLAN.evaluate(e)[-1] < PLAN.evaluate(e)[20] / 2


def test_value_depends_on_the_state_alone():
    """The same states in another order give the same values: the potential has no memory."""
    e, order = lost(), np.random.default_rng(0).permutation(91)
    order = np.concatenate([[0], order[order != 0]])  # the start stays: heights are measured from it
    mixed = replace(
        e, eef_pos=e.eef_pos[order], object_pos=e.object_pos[order], held=e.held[order], goal_holds=e.goal_holds[order]
    )
    assert np.allclose(PLAN.evaluate(mixed), PLAN.evaluate(e)[order])


def test_later_legs_count_when_earlier_blocks_are_done_and_others_at_once():
    goal = (("in", "milk_1", "basket_1_contain_region"), ("in", "butter_1", "basket_1_contain_region"))
    e = solved(scene().model_copy(update={"goal": goal}))
    holds = np.zeros((len(e) + 1, 2), bool)
    holds[:, 1] = True
    e = replace(e, goal_holds=holds, success=False, terminated=False)
    both = from_goal(goal, NAMES)
    assert both.evaluate(e)[0] >= 0.25  # the second is there: half of it
    ordered = both.model_copy(
        update={"stages": tuple(s.model_copy(update={"link": "then"}) if s.link == "also" else s for s in both.stages)}
    )
    assert ordered.evaluate(e)[0] < 0.1


def test_every_kind_of_term_measures_what_it_says():
    """On an episode with a drawer, one value each, worked out by hand."""
    instants = 3
    e = episode(np.array([[0.0, 0, 0.5], [0.1, 0.2, 0.13], [0.1, 0.2, 0.07]]), held={"milk_1": (2, 3)})
    turned = np.tile([1.0, 0, 0, 0], (instants, len(NAMES), 1))
    turned[2, 0] = [np.cos(0.3), np.sin(0.3), 0, 0]  # the milk tilts by 0.6 rad
    turned[1, 1] = [np.cos(0.2), 0, 0, np.sin(0.2)]  # the ketchup turns by 0.4 rad
    touched = np.zeros((instants, len(NAMES) + 1), bool)
    touched[1, 0] = touched[2, -1] = True
    e = replace(
        e,
        object_quat=turned,
        part_names=("drawer_1",),
        part_pos=np.array([[0.0], [-0.07], [-0.2]]),
        part_range=np.array([[0.0, -0.14]]),
        part_point=np.tile([0.1, 0.2, 0.33], (instants, 1, 1)),
        region_names=("spot",),
        region_pos=np.tile([0.1, 0.2, 0.2], (instants, 1, 1)),
        region_half=np.array([[0.05, 0.05, 0.05]]),
        touched=touched,
    )

    def at(text: str, instant: int) -> float:
        plan = from_text(f"scale 1\na 1: {text} until goal(1)")
        return float(plan.run(e).phi[instant])

    assert at("near(gripper, milk_1, 0.2)", 1) == pytest.approx(0.5)  # 10 cm above it
    assert at("over(gripper, milk_1, 0.2)", 1) == pytest.approx(1.0)
    assert at("lowered(gripper, milk_1, 0.2)", 1) == pytest.approx(0.5)
    assert at("above(gripper, milk_1, 0.2)", 1) == pytest.approx(0.5)
    assert at("inside(gripper, spot, 0.04)", 1) == pytest.approx(0.5)  # 2 cm below the box
    assert at("near(gripper, drawer_1.handle, 0.4)", 1) == pytest.approx(0.5)
    assert at("opened(drawer_1.handle)", 1) == pytest.approx(0.5)
    assert at("opened(drawer_1)", 2) == 1.0 and at("closed(drawer_1, 1)", 1) == pytest.approx(0.5)
    assert at("touching(milk_1)", 1) == 1.0 and at("touching(drawer_1.handle)", 2) == 1.0
    assert at("touching(milk_1)", 2) == 0.0
    assert at("upright(milk_1, 1.2)", 2) == pytest.approx(0.5)
    assert at("aligned(ketchup_1, milk_1, 0.8)", 1) == pytest.approx(0.5)
    assert at("clear(gripper, milk_1, 0.2)", 1) == pytest.approx(0.5)
    assert at("held(milk_1)", 2) == 1.0 and at("free(milk_1)", 2) == 0.0 and at("held(distractor)", 2) == 0.0
    assert at("held(milk_1) + 3*touching(milk_1)", 1) == pytest.approx(0.75)


REACH, GRASP = (
    "reach 1: near(gripper, target, 0.3) until near(gripper, target, 0.04)",
    ("grasp 1: near(gripper, target, 0.04) until held(target)"),
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "stages"),
        ("reach 1: fly(gripper, target) until held(target)", r"line 1, 'reach 1: .*'fly\(gripper, target\)' is not"),
        ("import os; os.system('rm -rf /')", r"line 1, \"import os; os.system.*NAME WEIGHT: PROGRESS until"),
        ("a 1: near(__import__('os'), target, 1) until held(target)", "is not understood"),
        ("a 1: near(gripper, ((((target)))), 0.3) until held(target)", "is not understood"),
        ("a nan: held(target) until held(target)", "is not understood"),
        ("a 1: near(gripper, target, NaN) until held(target)", "'NaN' is not a positive, finite number"),
        ("a 1: near(gripper, target, -1) until held(target)", "'-1' is not a positive"),
        ("a 1: near(gripper, target, milk_1) until held(target)", "line 1, 'a 1: near.*near is about 2 things"),
        ("a 1: near(gripper, target, 1e999) until held(target)", "finite"),
        ("a 1e9: held(target) until held(target)", "less than or equal to 10"),
        ("a 0: held(target) until held(target)", "greater than 0"),
        ("a 1: near(gripper, target, 5) until held(target)", "5 is more than 3"),
        ("a 1: near(gripper, target) until held(target)", "needs a number"),
        ("a 1: near(gripper, gripper, 0.1) until held(target)", "with itself"),
        ("a 1: held(target, 3) until held(target)", "held takes no number"),
        ("a 1: held(target) until held(target) and free(target)", "never ends"),
        ("a 1: held(target) until held(milk_1) and held(butter_1)", "never ends"),
        (f"{REACH}\n{REACH}", "two stages are called 'reach'"),
        (f"{GRASP}\n{REACH}", "stage 'reach' comes after 'grasp'"),
        (f"{GRASP}\nthen drop 1: free(target) until free(target)", "'drop' undoes 'grasp'"),
        (f"then {REACH}", "nothing before it"),
        (f"scale 0.5 latched\n{REACH}\nalso {GRASP}", "cannot be 'also'"),
        (f"scale 7\n{REACH}", "less than or equal to 1"),
        ("\n".join(f"s{i} 1: held(target) until goal(1)" for i in range(10_000)), "at most 20000 characters"),
        ("\n".join(f"s{i} 1: goal(1) until goal(1)" for i in range(30)), "line 25: .*at most 24 stages"),
    ],
)  # fmt: skip
def test_text_that_is_no_potential_is_refused_with_its_reason(text, said):
    with pytest.raises(RecordError, match=said):
        from_text(text)


@pytest.mark.parametrize(
    "data",
    [
        '{"stages": []}',
        '{"stages": [' + "[" * 5000 + "]" * 5000 + "]}",
        '{"stages": NaN}',
        "null",
        json.dumps({"stages": [{"name": "a", "progress": [{"kind": "held", "things": ["x"]}], "until": []}]}),
        json.dumps({"stages": [{"name": "a" * 99, "progress": [], "until": []}], "code": "print(1)"}),
    ],
)
def test_json_that_is_no_potential_is_refused(data):
    with pytest.raises(RecordError, match="StagedPotential"):
        StagedPotential.parse(data)


@pytest.mark.parametrize(
    ("term", "said"),
    [
        ("near(gripper, unicorn, 0.1)", "stage 'a': 'unicorn' is not in the scene"),
        ("near(gripper, bowl, 0.1)", "'bowl' is not in the scene"),
        ("held(wooden_cabinet_1_top_region)", "not an object that can be moved"),
        ("opened(plate_1)", "not a part that opens"),
        ("goal(2)", "the goal has 1 predicates"),
        ("near(gripper, target2, 0.1)", "the goal has 1 predicates"),
        ("upright(flat_stove_1, 0.1)", "orientation of 'flat_stove_1' is not known"),
        ("lowered(distractor, target, 0.1)", "may be many things"),
        ("touching(main_table_plate_region)", "not a part"),
    ],
)
def test_words_that_the_scene_does_not_have_are_refused(term, said):
    plan = from_text(f"a 1: {term} until goal(1)")
    with pytest.raises(RecordError, match=said):
        plan.check(Names.of_task(get_task("libero_goal", 8)))


def test_an_episode_of_an_earlier_version_says_what_it_lacks():
    drawer = from_text("a 1: opened(target) until goal(1)")
    with pytest.raises(RecordError, match="recorded without regions and parts, record it again"):
        drawer.evaluate(solved(scene().model_copy(update={"goal": (("open", "cabinet_1_top_region"),)})))
    with pytest.raises(RecordError, match="recorded without 'touched'; record it again"):
        from_text("a 1: touching(milk_1) until goal(1)").evaluate(solved())
