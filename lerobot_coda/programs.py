"""Compilation: from a validated weakness to a co-program, by the rule of its failure class.

What a rule says stands in `rules`, what a program is in `coprograms`; here both meet the recipe. Programs that know of
no diagnosis (`exploration`, `levels`, `undiagnosed`) are made here, too.
"""

from collections.abc import Collection, Mapping, Sequence

from lerobot_coda.coprograms import (
    EASIEST,
    EXPLORATION,
    MAX_OPERATIONS,
    CoProgram,
    StartCurriculum,
    TrainingProgram,
    specialize,
)
from lerobot_coda.critic.clusters import FailureCluster
from lerobot_coda.potential.refinement import Refinement
from lerobot_coda.recipe import EvolveRecipe, Training
from lerobot_coda.rules import Rule, difficulty_of, operations_of, rule_of
from libero_pro.programs import GenerationProgram, Offset, Operation, Permute, Resample, Retarget
from libero_pro.record import RecordError

__all__ = [
    "CoProgram", "TrainingProgram", "combine", "compile_cluster", "exploration", "generation_of", "levels",
    "undiagnosed",
]  # fmt: skip


def compile_cluster(
    cluster: FailureCluster, recipe: EvolveRecipe, number: int, *, difficulty: Mapping[str, float] | None = None
) -> CoProgram:
    """The program of a cluster found in round `number`, by the rule of its class, over all of the recipe's tasks.

    difficulty  what a critic suggested: operation's name -> difficulty in [0, 1]
    """
    rule, suggested = rule_of(cluster), difficulty or {}
    return CoProgram(
        name=f"{cluster.mode}-{number}",
        mode=str(cluster.mode),
        born=number,
        generation=generation_of(
            recipe,
            operations_of(rule, suggested, MAX_OPERATIONS),
            difficulty_of(rule, suggested, EASIEST),
            domain_of(recipe, number, cluster.mode),
        ),
        training=_training(rule, cluster, recipe),
    )


def _training(rule: Rule, cluster: FailureCluster, recipe: EvolveRecipe) -> TrainingProgram:
    plan = recipe.training
    late = rule.start is not None and plan.late_starts > 0
    return TrainingProgram(
        start=StartCurriculum.parse({"stage": rule.start, "share": plan.late_starts}) if late else None,
        rephrase_share=rule.rephrase,
        grounding_layouts=recipe.budget.layouts_per_round if rule.grounds else 0,
        grounding_weight=plan.grounding_weight if rule.grounds else 0.0,
        value_weight=plan.value_weight,
        replay_share=plan.replay_share,
        steps=plan.steps,
        include_failures=plan.include_failures,
        corrections=plan.corrections,
        refinement=Refinement(mode=cluster.mode, objects=cluster.objects) if recipe.potential.refine else None,
        noise=min(1.0, plan.noise * rule.noise),
        n_action_steps=rule.n_action_steps,
        advantage_temperature=rule.advantage_temperature,
    )


_EXPLORED: dict[str, tuple[Operation, ...]] = {
    "explore-places": (Permute(count=3), Resample(jitter_m=0.04)),
    "explore-offsets": (Offset(target="target", radius_m=0.12), Resample(jitter_m=0.06)),
    "explore-targets": (Retarget(), Resample(jitter_m=0.04)),
}


def exploration(recipe: EvolveRecipe, number: int) -> list[CoProgram]:
    """Broad, mild programs that know of no diagnosis: where the first round looks, and all that the uniform arm has."""
    found = []
    for name, operations in _EXPLORED.items():
        generation = generation_of(recipe, operations, recipe.probe.difficulty, domain_of(recipe, number, name))
        if len(generation.operations) > 1:  # what is left is more than jitter
            found.append(_broad(name, generation, recipe, number))
    return found


def levels(recipe: EvolveRecipe, number: int) -> list[CoProgram]:
    """The broad programs task by task: what a curriculum over levels chooses from."""
    return [
        specialize(program, [task], number).model_copy(update={"name": f"{program.name}-{task}", "parent": None})
        for program in exploration(recipe, number)
        for task in recipe.task_ids
    ]


def undiagnosed(recipe: EvolveRecipe, number: int, tasks: Collection[int]) -> CoProgram:
    """One program with every broad change, on the tasks where the policy failed: an answer that asks for no cause."""
    operations = {operation.op: operation for some in reversed(_EXPLORED.values()) for operation in some}
    name = f"failures-{number}"
    generation = generation_of(
        recipe, tuple(operations.values()), recipe.probe.difficulty, domain_of(recipe, number, name)
    )
    return specialize(_broad(name, generation, recipe, number), tasks, number).model_copy(update={"parent": None})


def _broad(name: str, generation: GenerationProgram, recipe: EvolveRecipe, number: int) -> CoProgram:
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
    return CoProgram(name=name, mode=EXPLORATION, born=number, generation=generation, training=plan)


def combine(programs: Sequence[TrainingProgram], defaults: Training) -> TrainingProgram:
    """One training for all programs of a round: the most that any of them asks for, and the most careful chunks.

    What is asked for a program's own scenes (start, words, weight, refinement) stays with it.
    """
    if not programs:
        return TrainingProgram(steps=defaults.steps, replay_share=defaults.replay_share)
    chunks = [p.n_action_steps for p in programs if p.n_action_steps is not None]
    temperatures = [p.advantage_temperature for p in programs if p.advantage_temperature is not None]
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
        n_action_steps=min(chunks, default=None),
        advantage_temperature=min(temperatures, default=None),
    )


def generation_of(
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


def domain_of(recipe: EvolveRecipe, number: int, name: str) -> int:
    """A random stream for each recipe seed, round and program name."""
    return (recipe.seed * 1_000_003 + number * 7919 + sum(name.encode()) * 101) % 2**31
