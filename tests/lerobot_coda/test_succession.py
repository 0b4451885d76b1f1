"""What becomes of programs: decisions applied together, and two exhausted programs joined."""

import pytest

from lerobot_coda.coprograms import CoProgram, TrainingProgram
from lerobot_coda.progress import measure
from lerobot_coda.succession import succeed
from libero_pro.programs import GenerationProgram, Offset, Permute, Resample


def program(name: str, *operations, difficulty: float = 0.5, tasks=(2, 5)) -> CoProgram:
    generation = GenerationProgram(
        suite="libero_object", task_ids=tasks, operations=(*operations, Resample()), difficulty=difficulty
    )
    return CoProgram(name=name, mode="localization", born=1, generation=generation, training=TrainingProgram(steps=5))


def solved(name: str, before: int, after: int, n: int = 20):
    return measure(name, 3, [i < before for i in range(n)], [i < after for i in range(n)])


def test_each_program_follows_its_decision_and_what_was_not_measured_stays():
    programs = [program("a", Permute()), program("b", Offset()), program("c", Permute(count=2))]
    found = succeed(programs, {"a": solved("a", 2, 20), "b": solved("b", 0, 6)}, {}, {}, 3)
    assert found.decisions["a"].action == "promote" and found.successors["a"].generation.difficulty == 0.75
    assert found.decisions["b"].action == "keep" and found.successors["b"] == programs[1]
    assert "c" not in found.decisions and found.following[2] == programs[2]


def test_a_stalled_program_waits_once_and_is_then_retired():
    stuck = program("a", Permute())
    once = succeed([stuck], {"a": solved("a", 8, 8)}, {}, {}, 3)
    assert once.decisions["a"].action == "keep" and once.stalled == {"a": 1}
    other = program("b", Offset())
    twice = succeed([stuck, other], {"a": solved("a", 8, 8)}, {}, once.stalled, 4)
    assert twice.decisions["a"].action == "retire" and twice.following == (other,)


def test_the_most_learnable_of_stalled_programs_stays_while_none_other_is_left():
    both, waited = [program("a", Permute()), program("b", Offset())], {"a": 1, "b": 1}
    found = succeed(both, {"a": solved("a", 4, 4), "b": solved("b", 9, 9)}, {}, waited, 4)
    assert found.following == (both[1],) and found.stalled == {"b": 0}
    assert found.decisions["a"].action == "retire" and found.decisions["b"].action == "keep"
    assert "nothing else is left" in found.decisions["b"].reason


def test_two_programs_that_are_solved_at_their_hardest_are_joined():
    hardest = [program("a", Permute(), difficulty=1.0), program("b", Offset(), difficulty=1.0)]
    found = succeed(hardest, {"a": solved("a", 5, 20), "b": solved("b", 5, 19)}, {}, {}, 3)
    both = found.following[0]
    assert both.name == "a+b" and both.parent == hardest[0].hash and both.other == hardest[1].hash
    assert found.decisions["a"].action == "combine" and found.decisions["b"].action == "promote"
    assert found.stalled == {"a+b": 0}


@pytest.mark.parametrize("tasks", [(5, 9), (7,)])
def test_programs_without_a_common_task_are_not_joined(tasks):
    hardest = [program("a", Permute(), difficulty=1.0, tasks=(2,)), program("b", Offset(), difficulty=1.0, tasks=tasks)]
    found = succeed(hardest, {"a": solved("a", 5, 20), "b": solved("b", 5, 20)}, {}, {}, 3)
    assert found.following == ()


def test_what_is_retired_is_remembered_and_comes_back_when_it_is_forgotten():
    hardest = program("a", Permute(), difficulty=1.0)
    gone = succeed([hardest], {"a": solved("a", 5, 19)}, {}, {}, 3).retired
    assert [(r.program, r.successes, r.n) for r in gone] == [(hardest, 19, 20)]
    other = program("b", Offset())
    kept = succeed([other], {"b": solved("b", 2, 6)}, {}, {}, 4, retired=gone, probed={"a": (3, 4)})
    assert kept.retired == gone and kept.following == (other,)
    back = succeed([other], {"b": solved("b", 6, 9)}, {}, {}, 5, retired=gone, probed={"a": (0, 4)})
    assert back.decisions["a"].action == "revive" and "0/4 now" in back.decisions["a"].reason
    again = back.following[1]
    assert (again.name, again.parent, again.born) == ("a", hardest.hash, 5) and back.retired == ()
    assert again.generation == hardest.generation and back.stalled["a"] == 0


def test_a_program_that_is_solved_but_for_one_task_specializes_in_it():
    found = succeed([program("a", Permute())], {"a": solved("a", 2, 14)}, {"a": {2: (14, 14), 5: (0, 6)}}, {}, 3)
    assert found.decisions["a"].action == "specialize" and found.following[0].generation.task_ids == (5,)
