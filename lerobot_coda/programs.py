"""Programs: what a validated weakness compiles to.

A `CoProgram` joins a generation program (scenes that recreate the difficulty) with a training program (how to learn to
overcome it). `compile_cluster` is a table, one rule a failure mode.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from lerobot_coda.critic.clusters import FailureCluster
from lerobot_coda.critic.diagnosis import Mode
from lerobot_coda.progress import Action
from lerobot_coda.recipe import EvolveRecipe, Training
from libero_pro.programs import GenerationProgram, Offset, Operation, Permute, Resample, Retarget
from libero_pro.record import Record, RecordError

Term = Literal["reach", "grasp", "lift", "carry", "place"]
STEP = 0.25  # how much harder or easier one decision makes a program
EASIEST = 0.15


class TrainingProgram(Record):
    """How to learn to overcome a difficulty. What it asks for is cut to the budget.

    demonstrations     expert episodes in fresh scenes of the program (0: as many as the budget gives it)
    grounding_layouts  static layouts on which the policy learns where the named object is; 0: none
    replay_share       share of the base demonstrations among the episodes trained on, against forgetting
    include_failures   whether failed probe episodes enter the dataset
    corrections        whether they do so with the expert's actions in the states that the policy visited; else with
                       their own actions, weighed by their advantages
    emphasis           the potential's stage that counts twice: where the failures happened
    noise              strength of the disturbances under which the expert demonstrates recoveries
    """

    schema_version: Literal[1] = 1
    demonstrations: int = Field(default=0, ge=0)
    grounding_layouts: int = Field(default=0, ge=0)
    grounding_weight: float = Field(default=0.0, ge=0.0)
    value_weight: float = Field(default=0.0, ge=0.0)
    replay_share: float = Field(default=0.3, ge=0.0, le=0.9)
    steps: int = Field(ge=1)
    include_failures: bool = False
    corrections: bool = True
    noise: float = Field(default=0.0, ge=0.0, le=1.0)
    emphasis: Term | None = None

    def policy_overrides(self, grounding: Path | None) -> dict[str, Any]:
        """What it sets in a train recipe's policy block; a None takes the recipe's own value away."""
        weight = {"grounding_weight": self.grounding_weight} if self.grounding_weight > 0 else {}
        return {"grounding_path": str(grounding) if grounding else None, "value_weight": self.value_weight, **weight}


class CoProgram(Record):
    """A generation and its training program under one name; `parent` is the hash of what it was refined from."""

    schema_version: Literal[1] = 1
    name: str
    mode: str  # the failure mode it answers, or "exploration"
    born: int
    parent: str | None = None
    generation: GenerationProgram
    training: TrainingProgram

    def after(self, action: Action, number: int) -> "CoProgram | None":
        """The program that follows it after round `number`'s decision; None where it is retired.

        Promotion raises the difficulty and retires what is solved at 1; refinement lowers it to no less than `EASIEST`.
        """
        difficulty = self.generation.difficulty
        if action == "retire" or (action == "promote" and difficulty >= 1.0):
            return None
        if action == "keep":
            return self
        wanted = min(1.0, difficulty + STEP) if action == "promote" else max(EASIEST, difficulty - STEP)
        if wanted == difficulty:
            return self
        changed = {"generation": self.generation.at(round(wanted, 4)), "born": number, "parent": self.hash}
        return self.model_copy(update=changed)


@dataclass(frozen=True)
class Rule:
    """What a failure mode compiles to, and why. Operations that do not fit a task are left out (see `_generation`)."""

    operations: tuple[Operation, ...]
    difficulty: float
    grounds: bool
    emphasis: Term
    noise: float  # multiple of the recipe's
    why: str


RULES: dict[Mode, Rule] = {
    Mode.LOCALIZATION: Rule(
        (Retarget(), Permute(), Resample(jitter_m=0.06)), 0.75, True, "reach", 1.0,
        "it goes where things stood, not where the named one stands: other places, other targets, and grounding",
    ),
    Mode.GRASP: Rule(
        (Retarget(), Permute(count=2), Resample(jitter_m=0.08)), 0.5, False, "grasp", 1.5,
        "it arrives and misses: many small offsets, with disturbances to recover from on the way",
    ),
    Mode.TRANSPORT: Rule(
        (Offset(target="receptacle", radius_m=0.08), Resample(jitter_m=0.05)), 0.5, False, "carry", 1.5,
        "it loses the object on the way: longer and other ways to carry, disturbed",
    ),
    Mode.PLACEMENT: Rule(
        (Offset(target="receptacle", radius_m=0.15), Resample(jitter_m=0.04)), 0.5, True, "place", 1.0,
        "it lets go in the wrong place: the receptacle elsewhere, and grounding of it",
    ),
    Mode.MOTION: Rule(
        (Offset(target="target", radius_m=0.2), Resample(jitter_m=0.06)), 0.5, False, "reach", 1.0,
        "it gets lost or stuck: targets over the whole workspace",
    ),
}  # fmt: skip


def compile_cluster(cluster: FailureCluster, recipe: EvolveRecipe, number: int) -> CoProgram:
    """The program of a cluster found in round `number`, by the rule of its mode, over all of the recipe's tasks."""
    rule, training = RULES[cluster.mode], recipe.training
    return CoProgram(
        name=f"{cluster.mode}-{number}",
        mode=str(cluster.mode),
        born=number,
        generation=_generation(recipe, rule.operations, rule.difficulty, domain=_domain(recipe, number, cluster.mode)),
        training=TrainingProgram(
            grounding_layouts=recipe.budget.layouts_per_round if rule.grounds else 0,
            grounding_weight=training.grounding_weight if rule.grounds else 0.0,
            value_weight=training.value_weight,
            replay_share=training.replay_share,
            steps=training.steps,
            include_failures=training.include_failures,
            corrections=training.corrections,
            noise=min(1.0, training.noise * rule.noise),
            emphasis=rule.emphasis,
        ),
    )


_EXPLORED: dict[str, tuple[Operation, ...]] = {
    "explore-places": (Permute(count=3), Resample(jitter_m=0.04)),
    "explore-offsets": (Offset(target="target", radius_m=0.12), Resample(jitter_m=0.06)),
    "explore-targets": (Retarget(), Resample(jitter_m=0.04)),
}


def exploration(recipe: EvolveRecipe, number: int) -> list[CoProgram]:
    """Broad, mild programs that know of no diagnosis: where the first round looks, and all that the uniform arm has."""
    training = recipe.training
    plan = TrainingProgram(
        grounding_layouts=recipe.budget.layouts_per_round,
        grounding_weight=training.grounding_weight,
        value_weight=training.value_weight,
        replay_share=training.replay_share,
        steps=training.steps,
        include_failures=training.include_failures,
        corrections=training.corrections,
        noise=training.noise,
    )
    found = []
    for name, operations in _EXPLORED.items():
        generation = _generation(recipe, operations, recipe.probe.difficulty, domain=_domain(recipe, number, name))
        if len(generation.operations) > 1:  # what is left is more than jitter
            found.append(CoProgram(name=name, mode="exploration", born=number, generation=generation, training=plan))
    return found


def combine(programs: Sequence[TrainingProgram], defaults: Training) -> TrainingProgram:
    """One training for all programs of a round: the most that any of them asks for."""
    if not programs:
        return TrainingProgram(steps=defaults.steps, replay_share=defaults.replay_share)
    return TrainingProgram(
        demonstrations=sum(p.demonstrations for p in programs),
        grounding_layouts=sum(p.grounding_layouts for p in programs),
        grounding_weight=max(p.grounding_weight for p in programs),
        value_weight=max(p.value_weight for p in programs),
        replay_share=max(p.replay_share for p in programs),
        steps=max(p.steps for p in programs),
        include_failures=any(p.include_failures for p in programs),
        corrections=any(p.corrections for p in programs),
        noise=max(p.noise for p in programs),
    )


def _generation(
    recipe: EvolveRecipe, operations: Sequence[Operation], difficulty: float, domain: int
) -> GenerationProgram:
    """The operations that every task of the recipe allows; where one does not fit, the rest still vary the scene."""
    kept: list[Operation] = []
    common = {"suite": recipe.suite, "task_ids": list(recipe.task_ids), "difficulty": difficulty, "domain": domain}
    common["prompt_source"] = recipe.heldout.prompt_source
    for operation in operations:
        try:
            GenerationProgram.parse({**common, "operations": [operation.model_dump()]})
        except RecordError:
            continue
        kept.append(operation)
    return GenerationProgram.parse({**common, "operations": [operation.model_dump() for operation in kept]})


def _domain(recipe: EvolveRecipe, number: int, name: str) -> int:
    """A random stream for each recipe seed, round and program name."""
    return (recipe.seed * 1_000_003 + number * 7919 + sum(name.encode()) * 101) % 2**31
