"""What the data engine writes beside images and actions for the policy to learn from: `observation.coda_*` columns."""

import numpy as np

from lerobot_coda.potential import StagedPotential
from libero_pro.camera import project
from libero_pro.episode import Episode
from libero_pro.footage import shown_steps
from libero_pro.goals import roles

POINTS, POTENTIAL, EXECUTED = "observation.coda_points", "observation.coda_potential", "observation.coda_executed"


def coda_columns(
    episode: Episode, potential: StagedPotential | None = None, *, render_every: int = 1
) -> dict[str, np.ndarray]:
    """Label columns of an episode whose images are rendered every `render_every` steps, each (T+1, d) float32.

    points     (10,) for target and receptacle: u, v in [0, 1] of the agentview image, then x, y, z in metres, at the
               instant that the image shows
    potential  (1,) Phi of `potential`, or of the goal's canonical plan
    executed   (1,) 1 where the action column holds what was executed, 0 where it holds an expert's correction of it
    Raises RecordError for a goal without a movable target and receptacle.
    """
    role = roles(episode.scene.goal, episode.object_names)
    plan = potential or StagedPotential.from_goal(episode.scene.goal, episode.object_names)
    if (plan.target, plan.receptacle) != (role.target, role.receptacle):
        plan = plan.model_copy(update={"target": role.target, "receptacle": role.receptacle})
    points = []
    for name in (role.target, role.receptacle):
        world = episode.object_pos[:, episode.object_names.index(name)]
        world = world[shown_steps(len(episode), render_every)]
        points.append(np.concatenate([project(episode.camera, world), world], axis=-1))
    executed = np.ones(len(episode) + 1)
    if episode.expert_actions is not None:
        executed[:-1] = (np.abs(episode.expert_actions - episode.actions) < 1e-6).all(axis=1)
    return {
        POINTS: np.concatenate(points, axis=-1).astype(np.float32),
        POTENTIAL: plan.evaluate(episode)[:, None].astype(np.float32),
        EXECUTED: executed[:, None].astype(np.float32),
    }
