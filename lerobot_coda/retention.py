"""Forgetting: the same unperturbed scenes under the base policy and under each round's, paired."""

from lerobot_coda import archive
from lerobot_coda.budget import Usage
from lerobot_coda.engine import Gated
from lerobot_coda.generation import Placed
from lerobot_coda.progress import Measurement, measure
from lerobot_coda.rounds import Round
from libero_pro.suites import scene_for

RETENTION_SEED = 2_000_000  # of fresh resets that nothing else is drawn from
BASE = "base"  # the base policy's short name


def retained(round_: Round) -> Measurement | None:
    """What the round's policy still does of what the base policy did, on `retention.scenes` fresh resets.

    They are played once by each policy, the base policy in the round that starts from it; None there, and where the
    recipe does not watch it.
    """
    recipe, state = round_.recipe, round_.state
    placed = []
    for index in range(recipe.retention.scenes):
        turn, which = divmod(index, len(recipe.task_ids))
        seed = RETENTION_SEED + 1000 * recipe.seed + turn
        source = recipe.heldout.prompt_source
        placed.append(
            Placed("retention", scene_for(recipe.suite, recipe.task_ids[which], seed=seed, prompt_source=source))
        )
    if not placed:
        return None
    for rows in archive.scene_rows([Gated(p.scene) for p in placed], None):
        round_.run.memory.add(*rows)
    now = round_.rollout("retention", "evaluation", placed, Usage())
    if state.actor == BASE:
        return None
    then = archive.load_all(round_.run.folder, BASE, [p.scene for p in placed])
    pairs = [(a, b) for a, b in zip(then, now, strict=True) if a.invalid is None and b.invalid is None]
    return measure("retention", round_.number, [a.success for a, _ in pairs], [b.success for _, b in pairs])
