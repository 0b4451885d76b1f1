"""Bring your own policy: anything that answers observations with action chunks runs through the whole engine.

    python examples/own_policy.py bench/own

A LeRobot checkpoint needs no code: `lerobot-coda benchmark --policy.path=CHECKPOINT --output bench/mine`.
"""

import sys
from pathlib import Path

import numpy as np

from libero_pro.benchmark import BenchmarkResult, run_benchmark
from libero_pro.rollout import Observation

HOVER, GRASP, GAIN = 0.25, 0.06, 8.0  # metres above the floor, metres, action per metre


class Memorizer:
    """Closes the hand at one place, whatever it sees and is told: the policy that LIBERO-Pro was made to expose."""

    actor = "policy:memorizer"  # who acts, as every episode records it; name a version of your weights here
    cameras: tuple[str, ...] = ()  # "agentview", "wrist"; none are rendered for a policy that looks at none
    n_action_steps = 8  # control steps executed of each chunk

    def __init__(self, place: tuple[float, float]) -> None:
        self._place = np.array(place)

    def reset(self) -> None:
        """Called once before a run; observations of many episodes then come interleaved."""

    def act(self, observations: list[Observation]) -> np.ndarray:
        """(B, n_action_steps, 7) in [-1, 1]: translation, rotation, gripper (-1 opens, 1 closes)."""
        actions = np.zeros((len(observations), self.n_action_steps, 7), np.float32)
        for row, seen in zip(actions, observations, strict=True):
            offset = self._place - seen.state[:2]
            above = np.linalg.norm(offset) < 0.02
            height = GRASP if above else HOVER
            row[:, :2] = np.clip(GAIN * offset, -1, 1)
            row[:, 2] = np.clip(GAIN * (height - seen.state[2]), -1, 1)
            row[:, 6] = 1 if above and seen.state[2] < GRASP + 0.02 else -1
        return actions


def main(out: Path, horizon: int | None = None) -> BenchmarkResult:
    """Two episodes of one task, unperturbed and with objects exchanged; prints the rates and writes the card."""
    suites = ("libero_object", "libero_object_swap")
    result = run_benchmark(
        Memorizer((0.0, -0.1)), suites, task_ids=[0], episodes=2, workers=0, out=out, horizon=horizon
    )
    for suite, rate in result.summary["per_suite"].items():
        print(f"{suite}: {rate['successes']} of {rate['episodes']}, {rate['mean_steps']} steps on average")
    print(f"table: {out / 'table.md'}, protocol: {out / 'card.md'}")
    return result


if __name__ == "__main__":
    main(Path(sys.argv[1]))
