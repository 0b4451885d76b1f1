"""Paired comparison of two made-up runs, and its refusals."""

from pathlib import Path

import pytest
from benchmark_parts import run_made_up

from libero_pro.benchmark import load_benchmark
from libero_pro.compare import compare
from libero_pro.record import RecordError


def early(scene) -> bool:
    """The first run solves starts 0 and 1 of every task."""
    return scene.init_state_id < 2


def late(scene) -> bool | None:
    """The second solves starts 1 to 3; one episode of the swap suite is invalid."""
    if (scene.suite, scene.task_id, scene.init_state_id) == ("libero_spatial_swap", 1, 3):
        return None
    return scene.init_state_id > 0


def test_flips_are_counted_by_suite_and_named(tmp_path: Path):
    suites = ["libero_spatial", "libero_spatial_swap"]
    first = run_made_up(tmp_path / "a", early, suites)
    second = run_made_up(tmp_path / "b", late, suites)
    found = compare(first, second)
    base = found.per_suite["libero_spatial"]
    assert (base.n, base.first, base.second, base.gained, base.lost) == (8, 4, 6, 4, 2)
    assert base.p_value == pytest.approx(0.6875)  # binomial(6, 1/2), two-sided at 4: 44/64
    swap = found.per_suite["libero_spatial_swap"]
    assert (swap.n, swap.gained, swap.lost) == (7, 3, 2)
    assert (found.overall.n, found.overall.gained, found.overall.lost, found.invalid) == (15, 7, 4, 1)
    assert found.sound.n == 15 - 4  # without task 0 of the swap suite, whose prompt is false
    assert ("libero_spatial", 0, 2, 1002) in found.gained and ("libero_spatial", 1, 0, 1000) in found.lost
    assert found.unpaired == (0, 0)
    again = compare(load_benchmark(tmp_path / "a"), load_benchmark(tmp_path / "b"))
    assert again == found
    back = compare(second, first)
    assert (back.gained, back.lost) == (found.lost, found.gained)


def test_only_what_both_ran_is_paired(tmp_path: Path):
    first = run_made_up(tmp_path / "a", early, ["libero_goal", "libero_10"])
    second = run_made_up(tmp_path / "b", early, ["libero_goal"], episodes=2)
    found = compare(first, second)
    assert (found.overall.n, found.unpaired) == (4, (12, 0))
    assert found.overall.p_value == 1.0
    third = run_made_up(tmp_path / "c", early, ["libero_object"])
    with pytest.raises(RecordError, match="no episode in common: the first ran libero_goal, libero_10, the second"):
        compare(first, third)


def test_unlike_runs_are_refused(tmp_path: Path):
    first = run_made_up(tmp_path / "a", early)
    second = run_made_up(tmp_path / "b", early, prompt_source="filename")
    with pytest.raises(RecordError, match="prompt_source is 'bddl' in the first and 'filename' in the second"):
        compare(first, second)
    assert compare(first, second, allowed=["prompt_source"]).overall.n == 8
    seeded = run_made_up(tmp_path / "c", early, seed=7)
    with pytest.raises(RecordError, match="seed is 1000 in the first and 7"):
        compare(first, seeded)
    with pytest.raises(RecordError, match="no episode in common"):
        compare(first, seeded, allowed=["seed"])
