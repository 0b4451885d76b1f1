"""Benchmark folders without a simulator: what a run would leave, from a table of outcomes."""

from collections.abc import Callable
from pathlib import Path

import pytest
from rollout_parts import SeededPolicy, made_up_episode

from libero_pro import benchmark
from libero_pro.benchmark import BenchmarkResult, run_benchmark
from libero_pro.scene import SceneSpec

Outcome = Callable[[SceneSpec], bool | None]  # None: the episode is invalid


def play(outcome: Outcome, conditions: dict | None = None):
    """A stand-in for `libero_pro.rollout.run` whose episodes end as `outcome` says."""
    import json
    from dataclasses import asdict, replace

    from libero_pro.rollout import Conditions

    def run(policy, scenes, *, out, profile, size, horizon, progress=None, **options):
        out.mkdir(parents=True, exist_ok=True)
        mine = Conditions(policy.actor, policy.cameras, policy.n_action_steps, profile, size or 128, horizon)
        (out / "conditions.json").write_text(json.dumps({**asdict(mine), **(conditions or {})}))
        for number, scene in enumerate(scenes, 1):
            success = outcome(scene)
            episode = made_up_episode(scene, 40, success=bool(success), actor=policy.actor)
            if success is None:
                episode = replace(episode, truncated=False, invalid="the state diverged")
            if progress is not None:
                progress(number, len(scenes))
            yield episode

    return run


def run_made_up(
    out: Path, outcome: Outcome, suites=("libero_object_swap",), conditions: dict | None = None, **options
) -> BenchmarkResult:
    """A finished benchmark folder; two tasks a suite and four episodes a task unless the options say otherwise."""
    options = {"task_ids": [0, 1], "episodes": 4, **options}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(benchmark, "run", play(outcome, conditions))
        return run_benchmark(SeededPolicy(("agentview",)), list(suites), out=out, **options)
