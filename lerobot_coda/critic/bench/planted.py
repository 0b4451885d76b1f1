"""Planted episodes: one fault, or none, in a scene, with the truth about it beside it."""

from dataclasses import replace
from typing import Literal, NoReturn

import numpy as np

from lerobot_coda.critic.bench.actor import Actor, NotPlanted, Solved
from lerobot_coda.critic.bench.faults import FAULTS
from lerobot_coda.critic.diagnosis import Cause, Stage
from libero_pro.episode import Episode
from libero_pro.record import Record
from libero_pro.scene import SceneSpec
from libero_pro.simulator import SimulationError, Simulator

_BEFOREHAND = 0.35  # share of episodes in which something harmless happens first
_RECOVERED = 0.3  # share of successes in which the object is lost and taken again


class Planted(Record):
    """The truth about one episode of the bench.

    name         of the episode's file;  `suite`, `task_id`, `seed` say where it was made
    cause, stage what was planted and where; None for a success
    predicate    the goal predicate that the fault is about;  `objects` its object or part, then what else it is about
    span         first and last instant of the failure (control steps);  `steps` of the whole episode
    """

    schema_version: Literal[1] = 1
    name: str
    suite: str
    task_id: int
    seed: int
    cause: Cause | None
    stage: Stage | None
    predicate: tuple[str, ...]
    objects: tuple[str, ...]
    span: tuple[int, int]
    steps: int


def plant(
    sim: Simulator, scene: SceneSpec, cause: Cause | None, rng: np.random.Generator, name: str = ""
) -> tuple[Episode, Planted]:
    """An episode in the scene that fails by this cause, or succeeds for None, and the truth about it.

    Raises NotPlanted where the cause does not apply to the scene's goal, where something else came of it, and where the
    goal held all the same.
    """
    instead = cause in (Cause.WRONG_OBJECT, Cause.IGNORED_INSTRUCTION)  # of the whole goal: none of it is worked on
    predicate = scene.goal[0 if instead else int(rng.integers(len(scene.goal)))]
    try:
        actor = Actor(sim, scene, predicate, rng)
        if rng.random() < _BEFOREHAND:
            _beforehand(actor)
        if cause is None:
            _succeed(actor)
        made = FAULTS[cause](actor) if cause is not None else _succeed(actor)
    except SimulationError as error:
        raise NotPlanted(str(error)) from None
    except Solved:
        if cause is not None:
            raise NotPlanted("the goal held all the same") from None
        episode = actor.finish()
        return episode, _truth(name, episode, None, None, predicate, (), (0, 0))
    episode = actor.finish()
    last = min(max(made.last, made.first), len(episode))
    objects = (predicate[1], *([made.other] if made.other else []))
    return episode, _truth(name, episode, cause, made.stage, predicate, objects, (made.first, last))


def blinded(episode: Episode) -> Episode:
    """The episode as a critic gets it that is to find out by itself whether it failed: no outcome, no tags."""
    return replace(episode, success=False, terminated=False, truncated=True, tags={}, wall_s=0.0)


def _truth(
    name: str,
    episode: Episode,
    cause: Cause | None,
    stage: Stage | None,
    predicate: tuple[str, ...],
    objects: tuple[str, ...],
    span: tuple[int, int],
) -> Planted:
    scene = episode.scene
    return Planted(
        name=name,
        suite=scene.suite,
        task_id=scene.task_id,
        seed=scene.seed,
        cause=cause,
        stage=stage,
        predicate=predicate,
        objects=objects,
        span=span,
        steps=len(episode),
    )


def _beforehand(actor: Actor) -> None:
    """Something harmless after a few steps: a pause, a detour, or fingers that close in the air and open again."""
    rng = actor.rng
    begin = actor.instant + int(rng.integers(3, 12))
    actor.follow(lambda _: actor.instant >= begin)
    kind = rng.integers(3)
    if kind == 0:
        actor.rest(8, 25)
    elif kind == 1:
        actor.move(rng.uniform(-0.8, 0.8, 3) * [1.0, 1.0, 0.3], int(rng.integers(5, 12)))
    else:
        actor.move(np.zeros(3), int(rng.integers(6, 13)), 1.0)
        actor.move(np.zeros(3), 8, -1.0)


def _succeed(actor: Actor) -> NoReturn:
    """The expert to the end; sometimes it loses the object on the way and takes it again."""
    if actor.part is None and actor.rng.random() < _RECOVERED:
        actor.follow_to(*(("lift",) if actor.rng.random() < 0.5 else ("transport",)))
        for _ in range(int(actor.rng.integers(0, 8))):
            actor.act(actor.paced(actor.expert().action))
        if actor.holding == actor.target:
            action = actor.paced(actor.expert().action)
            actor.lose(lambda: action)
    actor.follow(lambda _: False)
    raise NotPlanted("the goal did not come to hold")
