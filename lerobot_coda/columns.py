"""What the data engine writes beside images and actions for the policy to learn from: `observation.coda_*` columns."""

import numpy as np

from lerobot_coda.potential import StagedPotential
from lerobot_coda.potential.plans import plan_of
from lerobot_coda.potential.trace import Trace
from libero_pro.camera import project
from libero_pro.episode import Episode
from libero_pro.footage import shown_steps

POINTS, POTENTIAL, EXECUTED = "observation.coda_points", "observation.coda_potential", "observation.coda_executed"
STAGE = "observation.coda_stage"


def coda_columns(
    episode: Episode, potential: StagedPotential | None = None, *, render_every: int = 1
) -> dict[str, np.ndarray]:
    """Label columns of an episode whose images are rendered every `render_every` steps, each (T+1, d) float32.

    points     (10,) for target and receptacle, or twice for the handle of a goal that places nothing: u, v in [0, 1] of
               the agentview image, then x, y, z in metres, at the instant that the image shows
    potential  (1,) Phi of `potential`, or of the goal's canonical plan
    executed   (1,) 1 where the action column holds what was executed, 0 where it holds an expert's correction of it
    stage      (1,) of a latched potential only: the share of its stages that were reached, in [0, 1]; Phi depends on it
               beside the state, so the value function must see it
    Raises RecordError for a goal or a potential that speaks of what the episode does not hold.
    """
    goal = episode.scene.goal
    plan = potential or plan_of(episode)
    phi, stage = plan.evaluate(episode), plan.run(episode).stage if plan.latched else None
    trace = Trace(episode)
    placed = next((n for n, predicate in enumerate(goal, 1) if len(predicate) == 3), None)
    roles = (f"target{placed}", f"receptacle{placed}") if placed else ("handle", "handle")
    points = []
    for role in roles:
        world = trace.positions(role)[shown_steps(len(episode), render_every), 0]
        points.append(np.concatenate([project(episode.camera, world), world], axis=-1))
    executed = np.ones(len(episode) + 1)
    if episode.expert_actions is not None:
        executed[:-1] = (np.abs(episode.expert_actions - episode.actions) < 1e-6).all(axis=1)
    columns = {POINTS: np.concatenate(points, axis=-1), POTENTIAL: phi[:, None], EXECUTED: executed[:, None]}
    if stage is not None:
        columns[STAGE] = stage[:, None]
    return {name: values.astype(np.float32) for name, values in columns.items()}
