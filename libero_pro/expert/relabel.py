"""What the expert would have done in states that someone else visited: corrections for imitation (DAgger)."""

import mujoco
import numpy as np

from libero_pro.episode import Episode
from libero_pro.expert.articulation import articulations
from libero_pro.expert.expert import Plans, decide
from libero_pro.expert.subtasks import ORDER
from libero_pro.expert.world import World
from libero_pro.record import RecordError
from libero_pro.simulator import Simulator


def relabel(sim: Simulator, episode: Episode) -> np.ndarray:
    """The expert's action (T, 7) float32 at instants 0 to T-1 of an episode, from its stored states, without physics.

    Rows are NaN where the expert has no answer (an object lies out of reach, say). Velocities are not stored, so the
    few labels that depend on them (wait for the fingers) are those of a scene at rest. Raises RecordError if the
    simulator holds another task or the goal is one without a skill.
    """
    sim.check_task(episode.scene)
    model = sim.model
    kept = model.body_pos.copy(), model.body_quat.copy()
    labels = np.full((len(episode), 7), np.nan, np.float32)
    joints, plans = articulations(sim.env), Plans()
    world: World | None = None
    try:
        model.body_pos[:], model.body_quat[:] = episode.body_pos, episode.body_quat
        data = mujoco.MjData(model)
        for instant in range(len(episode)):
            data.qpos[:] = episode.qpos[instant]
            mujoco.mj_fwdPosition(model, data)
            world = world or World(model, data)
            try:
                labels[instant] = decide(world, joints, episode.scene.goal, episode.goal_holds[instant], plans).action
            except RecordError:
                if instant == 0 and not _has_skill(episode):
                    raise
    finally:
        model.body_pos[:], model.body_quat[:] = kept
    return labels


def _has_skill(episode: Episode) -> bool:
    """Every predicate of the goal is of a form that the expert works on."""
    return all(predicate[0] in ORDER for predicate in episode.scene.goal)
