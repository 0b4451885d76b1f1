"""Start states for demonstrations that begin late: instants at which the policy came to a stage it then failed in."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lerobot_coda.coprograms import CoProgram
from lerobot_coda.critic.diagnosis import Stage
from lerobot_coda.potential.plans import base_name, plan_of
from libero_pro.episode import Episode
from libero_pro.operations import Resume, Resumption
from libero_pro.programs import GenerationProgram
from libero_pro.record import RecordError

MAX_INSTANTS = 64  # of a program
# The stages of a canonical plan after which each begins, in a leg that places something and in one that moves a part.
_AFTER: dict[Stage, tuple[str, ...]] = {
    Stage.GRASP: ("reach",),
    Stage.TRANSPORT: ("lift", "touch"),
    Stage.PLACE: ("carry", "touch"),
}


def began(episode: Episode, stage: Stage) -> int | None:
    """The first instant at which what comes before a stage is done; None where the episode never came so far."""
    after = _AFTER[stage]
    reached = [done for name, done in plan_of(episode).done(episode).items() if base_name(name) in after]
    instants = np.flatnonzero(np.logical_or.reduce(reached)) if reached else np.array([], int)
    return int(instants[0]) if len(instants) and instants[0] < len(episode) else None


class LateStart(NamedTuple):
    """A program of scenes that begin late, and how many different ones it has."""

    program: CoProgram
    scenes: int


def late_start(program: CoProgram, episodes: Sequence[Episode]) -> LateStart | None:
    """The program of scenes that begin where these episodes came to its curriculum's stage; None where none did.

    Its scenes are those instants, one each, whatever the program's difficulty. Released starts give none.
    """
    start = program.training.start
    if start is None:
        return None
    instants: dict[str, Resumption] = {}
    for episode in episodes:
        step = began(episode, start.stage) if episode.invalid is None and len(episode) else None
        if step is None or episode.scene.task_id not in program.generation.task_ids:
            continue
        try:
            found = Resumption.of(episode, step)
        except RecordError:  # a released start, or moved fixtures: nothing may be resumed from there
            continue
        instants.setdefault(found.hash, found)
    chosen = tuple(instants.values())[:MAX_INSTANTS]
    if not chosen:
        return None
    generation = GenerationProgram.parse(
        {
            **program.generation.model_dump(),
            "task_ids": sorted({instant.task_id for instant in chosen}),
            "operations": [Resume(instants=chosen).model_dump()],
            "difficulty": 1.0,
        }
    )
    made = {"name": f"{program.name}-late", "generation": generation, "parent": program.hash, "other": None}
    return LateStart(program.model_copy(update=made), len(chosen))
