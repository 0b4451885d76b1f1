"""What the simulator critic measures: holds, attempts, parts, several predicates, and the record that comes of it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import NAMES, PLACES, START, T, above, beside, episode, lost, path, scene, solved

from lerobot_coda.critic.diagnosis import Cause, Diagnosis, Stage
from lerobot_coda.critic.measure import SECOND, extent, measure, unsatisfied
from lerobot_coda.critic.simulator import diagnose
from libero_pro.episode import Episode
from libero_pro.record import RecordError

MILK = above("milk_1")
DRAWER, OTHER = "cabinet_1_top_region", "cabinet_1_middle_region"
HANDLES = np.array([[0.0, 0.3, 0.1], [0.0, 0.3, 0.03]])


def cabinet(eef: np.ndarray, *, pulled: dict[str, np.ndarray], closed=(), touched: dict | None = None) -> Episode:
    """An episode about the top drawer, which is open from -0.14 on (negative), beside a second one."""
    where = scene().model_copy(update={"goal": (("open", DRAWER),)})
    made = episode(eef, closed=closed, where=where)
    parts = (DRAWER, OTHER)
    touches = np.zeros((T + 1, len(NAMES) + 2), bool)
    for name, (start, stop) in (touched or {}).items():
        touches[start:stop, len(NAMES) + parts.index(name)] = True
    position = np.stack([pulled.get(name, np.zeros(T + 1)) for name in parts], axis=-1)
    point = np.repeat(HANDLES[None], T + 1, axis=0)
    point[..., 0] -= position
    return replace(
        made, part_names=parts, part_pos=position, part_range=np.array([[0.0, -0.14]] * 2), part_point=point,
        touched=touches,
    )  # fmt: skip


def drawn(to: float, start: int = 40, stop: int = 70) -> np.ndarray:
    return np.interp(np.arange(T + 1), [start, stop], [0.0, to])


AT_HANDLE = path(START, HANDLES[0], HANDLES[0] + np.array([0.05, 0, 0]), START)
STAYS = np.repeat(START[None], T + 1, axis=0)


@pytest.mark.parametrize(
    ("made", "stage", "cause", "first"),
    [
        (cabinet(AT_HANDLE, pulled={DRAWER: drawn(-0.08)}, touched={DRAWER: (32, 66)}, closed=[(30, 64)]),
         Stage.TRANSPORT, Cause.EARLY_RELEASE, 65),
        (cabinet(path(START, HANDLES[0], HANDLES[0], HANDLES[0]), pulled={DRAWER: drawn(-0.08)},
                 touched={DRAWER: (32, T + 1)}, closed=[(30, T)]), Stage.TRANSPORT, Cause.STALLED, 30),
        (cabinet(AT_HANDLE, pulled={OTHER: drawn(-0.15)}), Stage.REACH, Cause.IGNORED_INSTRUCTION, 41),
        (cabinet(AT_HANDLE, pulled={OTHER: drawn(-0.05)}), Stage.REACH, Cause.WRONG_OBJECT, 42),
        (cabinet(AT_HANDLE, pulled={}, closed=[(30, 60)]), Stage.GRASP, Cause.MISSED_GRASP, 30),
        (cabinet(path(START, HANDLES[0] + np.array([-0.09, 0, 0]), START), pulled={}, closed=[(45, 70)]),
         Stage.REACH, Cause.MISSED_GRASP, 45),
        (cabinet(STAYS, pulled={}), Stage.REACH, Cause.STALLED, 0),
    ],
)  # fmt: skip
def test_a_part_fails_on_its_way_as_an_object_does(made, stage, cause, first):
    found = diagnose(made)
    assert (found.stage, found.cause) == (stage, cause), found.explanation
    assert found.predicate == ("open", DRAWER) and found.objects[0] == DRAWER
    assert abs(found.span[0] - first) <= 3


def test_closed_fingers_that_push_do_not_hold():
    """Both pads touch what closed fingers run into."""
    eef = path(START, MILK - np.array([0.1, 0, 0]), MILK, MILK + np.array([0.1, 0, 0]))
    moved = np.repeat(PLACES[:1], T + 1, axis=0)
    moved[60:, 0] += np.linspace(0, 0.1, T + 1 - 60)
    pushing = episode(eef, closed=[(5, T)], move={"milk_1": moved})
    held = np.full(T + 1, -1, np.int16)
    held[60:75] = NAMES.index("milk_1")
    found = diagnose(replace(pushing, held=held))
    assert found.cause is Cause.PUSHED_AWAY and found.stage is Stage.GRASP
    assert abs(found.span[0] - 63) <= 3


def test_a_twitch_far_away_is_no_attempt():
    """Fingers that close in the air and open again, before the hand comes to the object, decide nothing."""
    stands = episode(path(START, MILK, MILK, MILK), closed=[(5, 15)])
    assert diagnose(stands).cause is Cause.STALLED
    kept = episode(path(START, MILK, MILK, MILK), closed=[(5, 25)])
    assert diagnose(kept).cause is Cause.MISSED_GRASP


def test_it_counts_where_the_hand_was_not_only_over_what():
    """High over the milk the hand is not at it."""
    high = episode(path(START, MILK + np.array([0, 0, 0.25]), MILK + np.array([0, 0, 0.25])))
    assert measure(high).nearest > 0.1 and diagnose(high).stage is Stage.REACH
    assert measure(episode(path(START, MILK, MILK))).nearest == 0


def two_goals(*names: str) -> tuple[tuple[str, ...], ...]:
    return tuple(("in", name, "basket_1_contain_region") for name in names)


def test_the_predicate_that_was_worked_on_is_diagnosed():
    both = scene().model_copy(update={"goal": two_goals("ketchup_1", "milk_1")})
    eef = path(START, MILK, above("milk_1", 0.2), above("basket_1", 0.2))
    dropped = episode(eef, closed=[(30, T)], held={"milk_1": (32, 70)}, where=both)
    found = diagnose(dropped)
    assert unsatisfied(dropped) == both.goal[1]
    assert (found.cause, found.objects[0], found.predicate) == (Cause.DROPPED, "milk_1", both.goal[1])
    idle = episode(STAYS, where=both)
    assert unsatisfied(idle) == both.goal[0]


def test_work_on_another_goal_object_is_not_the_wrong_object():
    """The milk is in the basket, as the goal has it; the ketchup was then missed."""
    both = scene().model_copy(update={"goal": two_goals("milk_1", "ketchup_1")})
    eef = path(START, MILK, above("milk_1", 0.2), above("basket_1", 0.2), [0.1, -0.32, 0.07], [0.1, -0.32, 0.2])
    made = episode(eef, closed=[(18, 53), (70, T)], held={"milk_1": (20, 54)}, where=both)
    holds = made.goal_holds.copy()
    holds[54:, 0] = True
    found = diagnose(replace(made, goal_holds=holds))
    assert (found.cause, found.stage, found.objects[0]) == (Cause.MISSED_GRASP, Stage.REACH, "ketchup_1")


def test_taking_another_goal_object_is_no_attempt_at_this_one():
    """The milk was delivered, and the hand then stood still: it did not miss the ketchup where the milk stood."""
    both = scene().model_copy(update={"goal": two_goals("milk_1", "ketchup_1")})
    basket = above("basket_1", 0.2)
    made = episode(
        path(START, MILK, above("milk_1", 0.2), basket, basket, basket), closed=[(18, 53)], held={"milk_1": (20, 54)},
        where=both,
    )  # fmt: skip
    holds = made.goal_holds.copy()
    holds[54:, 0] = True
    found = diagnose(replace(made, goal_holds=holds))
    assert (found.cause, found.stage, found.predicate) == (Cause.STALLED, Stage.REACH, both.goal[1])


def test_what_falls_between_opening_fingers_was_not_put_down():
    up, fallen = [0, 32, 60], [60, 66]
    height = np.interp(np.arange(T + 1), up, [0, 0, 0.12]) - np.interp(np.arange(T + 1), fallen, [0, 0.12])
    whole = np.repeat(PLACES[1:2], T + 1, axis=0)
    whole[:, 2] += height
    ketchup = above("ketchup_1")
    made = episode(
        path(START, ketchup, above("ketchup_1", 0.2), above("ketchup_1", 0.2)), closed=[(30, 60)],
        held={"ketchup_1": (32, 66)}, move={"ketchup_1": whole},
    )  # fmt: skip
    assert measure(made).others[0].fall == pytest.approx(0.12)
    assert diagnose(made).cause is Cause.WRONG_OBJECT


def test_a_diagnosis_says_when_and_shows_it():
    eef = path(START, MILK, above("milk_1", 0.2), above("basket_1", 0.2))
    found = diagnose(episode(eef, closed=[(30, T)], held={"milk_1": (32, 70)}))
    assert found.cause is Cause.DROPPED and found.span == (69, 79) and found.frames == (69, 74, 79)
    assert found.difficulty == {"resume": 0.5, "offset": 0.5}
    assert Diagnosis.parse(found.to_json()) == found


def test_an_earlier_diagnosis_keeps_its_identity():
    """Fields that came later are left out where they are not given: hashes in stored runs stay valid."""
    old = {
        "schema_version": 1, "episode": "e", "scene": "s", "suite": "libero_goal", "task_id": 1, "stage": "reach",
        "cause": "stalled", "objects": [], "evidence": {}, "explanation": "", "confidence": 0.5, "critic": "simulator",
        "version": "1",
    }  # fmt: skip
    read = Diagnosis.parse(old)
    assert read.model_dump(mode="json") == old and read.span == (0, 0)
    assert read.hash != read.model_copy(update={"span": (1, 2)}).hash
    with pytest.raises(RecordError, match="span"):
        Diagnosis.parse({**old, "span": [9, 3]})
    with pytest.raises(RecordError, match=r"difficulty\.offset"):
        Diagnosis.parse({**old, "difficulty": {"offset": 2}})


def test_a_goal_that_holds_in_the_end_is_no_failure():
    assert diagnose(replace(solved(), success=False, truncated=True)) is None


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(-0.4, 0.4), st.floats(-0.4, 0.4), st.floats(0.03, 0.6)), min_size=2, max_size=5),
    st.lists(st.tuples(st.integers(0, T), st.integers(1, 40)), max_size=3),
    st.integers(0, T),
)
def test_every_failure_has_a_diagnosis_within_its_episode(points, closed, length):
    """Whatever an arm does: a claim whose instants lie in the episode, the same each time."""
    made = episode(path(START, *points, steps=max(length, 1)), closed=[(a, a + n) for a, n in closed])
    found = diagnose(made)
    assert found is not None and 0 <= found.span[0] <= found.span[1] <= len(made)
    assert all(0 <= frame <= len(made) for frame in found.frames)
    assert found == diagnose(made)


def test_what_happens_after_the_horizon_is_not_asked():
    for build in (lost, beside):
        made = build()
        assert diagnose(made).span[1] <= len(made)
    assert SECOND == 20  # control steps of a 20 Hz controller


def test_sizes_come_from_the_measured_layouts():
    half, top = extent("libero_object_swap", 7, "milk_1")
    assert 0.02 < half < 0.03 and 0.05 < top < 0.07
    assert extent("libero_object", 7, "unicorn_1") == (0.035, 0.05)
