"""The harness of `benchmarks/programs.py` on a few scenes, and that it would notice what it looks for."""

import numpy as np
import pytest

from benchmarks import programs
from libero_pro.programs import GenerationProgram, base_program
from libero_pro.simulator import SimulationError

TASKS = (("libero_object", 0),)


def test_random_programs_use_every_operation_and_fit_their_task():
    seen = set()
    for index in range(120):
        drawn = programs.random_program(np.random.default_rng((1, index)))
        assert GenerationProgram.parse(drawn.to_json()) == drawn
        seen |= {operation.op for operation in drawn.operations}
    assert len(seen) == len(programs.OPERATIONS) == 14


@pytest.mark.sim
def test_random_scenes_neither_crash_nor_explode_nor_leak():
    tried = programs.try_scenes(16, 0, 0, TASKS)
    assert len(tried) == 16
    assert not any(one.exploded or one.leaked for one in tried)
    found = {row["figure"]: row["value"] for row in programs.rows(tried, "test")}
    assert found["programs_accepted"] >= 2
    assert found["programs_accepted"] + sum(v for k, v in found.items() if "rejected" in k) == 16


def test_an_explosion_and_a_leak_after_the_gates_are_counted(monkeypatch):
    class Exploding:
        reset = settle = lambda self, *_: None

        def step_chunk(self, actions):
            raise SimulationError("it diverged")

    class Accepted:
        accepted, gate, reason = True, None, ""

    monkeypatch.setattr("libero_pro.validity.check", lambda scene, sim: Accepted)
    monkeypatch.setattr(programs, "leaks", lambda scene: "it is a test")
    scene = base_program("libero_object", (0,)).scene(0)
    tried = programs._try(Exploding(), scene, lambda request: None)
    assert tried.exploded and tried.leaked
    counts = {row["figure"]: row["value"] for row in programs.rows([tried], "test")}
    assert (counts["programs_exploded"], counts["programs_leaked"]) == (1, 1)
