"""Demonstrations: the expert solves a scene, optionally disturbed on the way, and the episode is recorded."""

import numpy as np

from libero_pro.episode import Episode
from libero_pro.expert.expert import Expert
from libero_pro.expert.outcomes import OK, Attempts
from libero_pro.record import RecordError
from libero_pro.recorder import EpisodeRecorder
from libero_pro.scene import SceneSpec
from libero_pro.simulator import SimulationError, Simulator

SETTLE_STEPS = 10  # the protocol's no-ops before an episode
_REST_STEPS = 3  # kept after the hand has left, to see that the goal still holds
_PATIENCE = 20  # at most, if something still moves
_BURST = (3, 9)  # length of a disturbance in control steps: low, high (exclusive)
_BURST_SIZE = 0.6  # largest added translation component


def solve(
    sim: Simulator,
    scene: SceneSpec,
    *,
    noise: float = 0.0,
    rng: np.random.Generator | None = None,
    max_steps: int | None = None,
) -> Episode:
    """Resets the simulator to the scene, settles it and lets the expert act until the goal is reached and at rest.

    noise      probability per step that a disturbance begins: a random translation added for 3 to 8 steps to what is
               executed, while `expert_actions` keeps what the expert wanted in the disturbed state (DART)
    max_steps  default: the task's horizon

    An episode succeeds if the goal still holds after the object was let go and the hand has withdrawn. If the expert
    gives up or runs out of time the episode is an ordinary failure that carries the reason in `tags["expert"]` and its
    kind in `tags["outcome"]` (see `outcomes`). Raises RecordError if the goal is one without a skill, or its object
    cannot be grasped at the start.
    """
    rng = np.random.default_rng(scene.seed) if rng is None else rng
    limit = sim.horizon if max_steps is None else max_steps
    sim.reset(scene)
    try:
        sim.settle(SETTLE_STEPS)
    except SimulationError as error:
        return _nothing(sim, scene, str(error))
    expert = Expert(sim)
    recorder = EpisodeRecorder(sim, scene, "expert")
    recorder.start()
    expert.decide()  # refuses unknown goals before anything is recorded
    attempts = Attempts()
    push: np.ndarray = np.zeros(3)
    left = rested = 0
    outcome = ""
    try:
        for _ in range(limit):
            decision = expert.decide()
            attempts.observe(decision)
            if decision.phase == "done":
                rested += 1
                if rested > (_REST_STEPS if expert.at_rest else _PATIENCE):
                    outcome = "solved"
                    break
            else:
                rested = 0
            if left == 0 and noise > 0 and rng.random() < noise:
                left = int(rng.integers(*_BURST))
                push = rng.uniform(-_BURST_SIZE, _BURST_SIZE, 3)
            executed = decision.action
            if left > 0:
                left -= 1
                executed = executed.copy()
                executed[:3] = np.clip(executed[:3] + push, -1.0, 1.0)
            recorder.step(executed, decision.action)
    except SimulationError as error:
        return recorder.finish(invalid=str(error))
    except RecordError as error:
        outcome = str(error)
    if outcome == "solved":
        return recorder.finish(expert=outcome, outcome=OK)
    reason = outcome or attempts.out_of_time()
    return recorder.finish(truncated=not outcome, expert=reason, outcome=attempts.outcome(reason))


def _nothing(sim: Simulator, scene: SceneSpec, reason: str) -> Episode:
    """An episode without a step, for a start that is not a physical state."""
    recorder = EpisodeRecorder(sim, scene, "expert")
    recorder.start()
    return recorder.finish(invalid=reason)
