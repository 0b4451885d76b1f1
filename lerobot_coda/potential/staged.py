"""Staged potentials: a typed plan for a goal, evaluated on stored episodes. Data, never code.

Phi(s) = scale * sum_{k < K(s)} w_k + scale * w_{K(s)} h_{K(s)}(s), where K(s) is the first stage not done in s and
h in [0, 1] its progress. Stages are read from the state alone (an object that is dropped falls back), so Phi is Markov
and shaping with it leaves optimal chunks optimal; at a terminal state the learner takes Phi = 0.
"""

from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from libero_pro.episode import Episode
from libero_pro.goals import roles
from libero_pro.record import Record
from libero_pro.scene import Goal

Term = Literal["reach", "grasp", "lift", "carry", "place"]
REACH_SCALE, LIFT_HEIGHT, CARRY_SCALE, PLACE_SCALE = 0.30, 0.10, 0.35, 0.15  # metres
REACHED, CARRIED = 0.04, 0.05  # metres


class Stage(Record):
    """One stage: which progress term runs in it and what share of the potential it earns."""

    term: Term
    weight: float = Field(gt=0, le=10)


class StagedPotential(Record):
    """An ordered plan for moving `target` on or into `receptacle`; `scale` bounds Phi to [0, scale]."""

    schema_version: Literal[1] = 1
    target: str = Field(min_length=1, max_length=80)
    receptacle: str = Field(min_length=1, max_length=80)
    stages: tuple[Stage, ...] = Field(min_length=1, max_length=12)
    scale: float = Field(default=0.5, gt=0, le=1)

    @model_validator(mode="after")
    def _ordered(self) -> "StagedPotential":
        order = {"reach": 0, "grasp": 1, "lift": 2, "carry": 3, "place": 4}
        ranks = [order[stage.term] for stage in self.stages]
        if ranks != sorted(set(ranks)):
            raise ValueError("stages must be distinct and in the order reach, grasp, lift, carry, place")
        return self

    @classmethod
    def from_goal(
        cls, goal: Goal, object_names: tuple[str, ...], emphasis: Term | None = None, scale: float = 0.5
    ) -> "StagedPotential":
        """The canonical plan for an In or On goal; `emphasis` gives the stage a diagnosis points at twice the weight.

        Raises RecordError for a goal without a movable target and receptacle.
        """
        role = roles(goal, object_names)
        terms: tuple[Term, ...] = ("reach", "grasp", "lift", "carry", "place")
        stages = tuple(Stage(term=term, weight=2.0 if term == emphasis else 1.0) for term in terms)
        return cls(target=role.target, receptacle=role.receptacle, stages=stages, scale=scale)

    def evaluate(self, episode: Episode) -> np.ndarray:
        """Phi at each instant, (T+1,) in [0, scale]; the terminal instant of a success is 0.

        Raises ValueError when the episode lacks the target or the receptacle.
        """
        done, progress = self._terms(episode)
        weights = np.array([stage.weight for stage in self.stages])
        weights = weights / weights.sum()
        phi = np.zeros(len(episode) + 1)
        alive = np.ones(len(episode) + 1, bool)  # all stages before this one are done
        for k, stage in enumerate(self.stages):
            phi += alive * weights[k] * np.where(done[stage.term], 1.0, progress[stage.term])
            alive &= done[stage.term]
        phi *= self.scale
        if episode.terminated:
            phi[-1] = 0.0
        return phi

    def _terms(self, episode: Episode) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Done-predicates and progress of every term, each (T+1,).

        A later predicate implies the earlier ones: an object that rests in its receptacle needs no holding.
        """
        target = episode.object_names.index(self.target)
        receptacle = episode.object_names.index(self.receptacle)
        position, goal = episode.object_pos[:, target], episode.object_pos[:, receptacle]
        rest = position[0, 2]
        reach = np.linalg.norm(episode.eef_pos - position, axis=-1)
        across = np.linalg.norm(position[:, :2] - goal[:, :2], axis=-1)
        height = position[:, 2] - rest
        held = episode.held == target
        placed = episode.goal_holds.all(axis=-1)
        carried = (held & (across < CARRIED)) | placed
        lifted = (held & (height > LIFT_HEIGHT * 0.8)) | carried
        grasped = held | lifted
        reached = (reach < REACHED) | grasped
        done = {"reach": reached, "grasp": grasped, "lift": lifted, "carry": carried, "place": placed}
        progress = {
            "reach": _falling(reach, REACH_SCALE),
            "grasp": np.where(held, 1.0, _falling(reach, REACHED)),
            "lift": np.clip(height / LIFT_HEIGHT, 0.0, 1.0),
            "carry": _falling(across, CARRY_SCALE),
            "place": _falling(position[:, 2] - goal[:, 2], PLACE_SCALE),
        }
        return done, progress


def _falling(distance: np.ndarray, scale: float) -> np.ndarray:
    """1 at distance 0 or less, 0 at `scale` and beyond."""
    return np.clip(1.0 - distance / scale, 0.0, 1.0)
