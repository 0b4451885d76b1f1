"""Programs and potentials that a language model writes, through the checks that everybody's pass.

A model, behind a server or on this machine, is told of the failures, of what may be asked for, and of what was tried
before; it answers with a `Proposal`, data of a schema. What comes of it is a co-program like a rule's, which validation
tests like a rule's; or a reason. Nothing in an answer is run.
"""

import itertools
import json
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from lerobot_coda.budget import Usage
from lerobot_coda.console import Tick
from lerobot_coda.coprograms import EASIEST, MAX_OPERATIONS, CoProgram, StartCurriculum
from lerobot_coda.critic.answer import Known, find_object, one_paragraph
from lerobot_coda.critic.clusters import FailureCluster
from lerobot_coda.critic.model_critic import Model, NoAnswer, exhausted
from lerobot_coda.critic.prompt import Question
from lerobot_coda.critic.review import SIMULATOR, CriticUsage
from lerobot_coda.critic.settings import CriticSettings, open_model
from lerobot_coda.memory import Memory, ProposalRow, content_hash
from lerobot_coda.memory.precedents import Precedent, precedents
from lerobot_coda.potential import Names, StagedPotential, from_goal, from_text, to_text
from lerobot_coda.potential.refinement import Refinement
from lerobot_coda.potential.terms import SIGNATURES
from lerobot_coda.programs import compile_cluster, domain_of
from lerobot_coda.recipe import EvolveRecipe
from lerobot_coda.steps import write_json
from libero_pro import operations as ops
from libero_pro.programs import GenerationProgram
from libero_pro.record import Record, RecordError
from libero_pro.suites import get_task

if TYPE_CHECKING:
    from lerobot_coda.rounds import Round

MOST_TOLD = 4  # programs, and refusals, of a precedent that a model is told of
KEPT = 4000  # characters of a raw answer that are kept
SIMPLE = (0.25, 0.5, 0.75, 1.0)  # difficulties of the proposals that a model may choose among
_NOTHING_SPENT = CriticUsage()
_NOTHING = Known((), (), (), (), 0, False)  # what only claims are checked against
# Everything but resuming: joint positions are taken from episodes, never from a text.
Proposable = Annotated[
    ops.Resample | ops.Permute | ops.Offset | ops.Place | ops.Crowd | ops.Replace | ops.Retarget | ops.Rephrase
    | ops.Arm | ops.Camera | ops.Light | ops.Tint | ops.Texture,
    Field(discriminator="op"),
]  # fmt: skip
_KINDS = (
    ops.Resample, ops.Permute, ops.Offset, ops.Place, ops.Crowd, ops.Replace, ops.Retarget, ops.Rephrase, ops.Arm,
    ops.Camera, ops.Light, ops.Tint, ops.Texture,
)  # fmt: skip


class ProposedTraining(Record):
    """What a model may set of a training program; null: as the rule has it."""

    start: StartCurriculum | None = None
    sampling_weight: float | None = Field(default=None, ge=0.25, le=4.0)
    rephrase_share: float | None = Field(default=None, ge=0.0, le=0.5)
    replay_share: float | None = Field(default=None, ge=0.1, le=0.9)
    include_failures: bool | None = None
    corrections: bool | None = None
    noise: float | None = Field(default=None, ge=0.0, le=0.2)
    n_action_steps: int | None = Field(default=None, ge=1, le=16)
    advantage_temperature: float | None = Field(default=None, ge=0.02, le=1.0)


class Proposal(Record):
    """A model's answer.

    operations  what its scenes change, at a common `difficulty`;  `tasks` of the recipe's, all where it is empty
    potential   a plan in the potential language, in place of the goal's own; "" leaves it to the rule
    why         in one or two sentences
    """

    operations: tuple[Proposable, ...] = Field(min_length=1, max_length=MAX_OPERATIONS)
    difficulty: float = Field(ge=EASIEST, le=1.0)
    tasks: tuple[int, ...] = Field(default=(), max_length=10)
    training: ProposedTraining = ProposedTraining()
    potential: str = Field(default="", max_length=6000)
    why: str = Field(max_length=600)


class Proposed(Record):
    """What became of asking: a program, or why it was refused; `raw` is what the model wrote last, cut at `KEPT`."""

    cluster: str
    prompt: str  # hash
    program: CoProgram | None = None
    why: str = ""
    refused: str | None = None
    raw: str = ""
    precedents: tuple[str, ...] = ()  # hashes of the clusters that it was told of
    usage: CriticUsage = CriticUsage()


def written_programs(round_: "Round", clusters: Sequence[FailureCluster]) -> list[tuple[CoProgram, FailureCluster]]:
    """Programs that the recipe's critic writes for clusters, beside the rules'; a step of the round, asked once.

    None where the recipe does not ask for them, or has the simulator for its critic, which writes nothing. Every answer
    is filed in the memory, and in the round's `proposals.json`, with what became of it.
    """
    recipe, settings = round_.recipe, round_.recipe.critic
    if not (recipe.proposals and clusters) or settings.kind == SIMULATOR:
        return []

    def ask(tick: Tick) -> tuple[Any, Usage]:
        model, told, spent = open_model(settings), [], round_.asked
        for found in clusters:
            known = tried_before(round_.run.memory, found)
            one = propose(model, found, recipe, round_.number, known, limits=settings, spent=spent)
            spent = spent + one.usage
            told.append(one.model_dump(mode="json"))
            tick(len(told))
        return told, Usage()

    inputs = [[c.hash for c in clusters], settings.hash]
    found = [Proposed.parse(row) for row in round_.steps.run("propose", "propose", len(clusters), inputs, ask)]
    round_.asked = sum((one.usage for one in found), round_.asked)
    write_json(round_.steps.folder / "proposals.json", [one.model_dump(mode="json") for one in found])
    round_.remember([one.program for one in found if one.program])
    round_.run.memory.add(*proposal_rows(found, f"{settings.kind}:{settings.model}"))
    return [(one.program, c) for one, c in zip(found, clusters, strict=True) if one.program]


def tried_before(memory: Memory, cluster: FailureCluster, limit: int = 5) -> list[Precedent]:
    """What was tried for failures with the cluster's causes and stage, in any suite; most alike first."""
    found = precedents(memory, causes=cluster.causes, stage=str(cluster.stage), limit=limit + 1)
    return [precedent for precedent in found if precedent.cluster != cluster.hash][:limit]


def proposal_rows(proposed: Iterable[Proposed], author: str) -> tuple[type[ProposalRow], list[dict[str, Any]]]:
    """Rows of the memory: what a model proposed, what it became, and why it was refused."""
    return ProposalRow, [
        {
            "hash": content_hash(author, one.cluster, one.prompt, one.raw),
            "kind": "program",
            "author": author,
            "cluster": one.cluster,
            "program": one.program.hash if one.program else None,
            "refused": one.refused,
            "answer": None,
            "body": {
                "name": one.program.name if one.program else "",
                "explanation": one.why,
                "text": one.raw,
                "usage": one.usage.model_dump(mode="json"),
            },
        }
        for one in proposed
    ]


def propose(
    model: Model,
    cluster: FailureCluster,
    recipe: EvolveRecipe,
    number: int,
    known: Sequence[Precedent] = (),
    *,
    limits: CriticSettings,
    spent: CriticUsage = _NOTHING_SPENT,
) -> Proposed:
    """Asks a model for a program against a cluster, found in round `number`. A refusal is a result with its reason.

    After an answer that was refused it is asked again, with the reason, `limits.retries` times at most.

    spent  what the round used before; nobody is asked beyond its limits
    """
    prompt = written(cluster, recipe, known)
    told: dict[str, Any] = {
        "cluster": cluster.hash,
        "prompt": sha256(prompt.encode()).hexdigest()[:16],
        "precedents": tuple(p.cluster for p in known),
    }
    question = Question(prompt, (), Proposal.model_json_schema(), _NOTHING, choices=simple_proposals(recipe))
    current, refused, raw, usage = question, "", "", CriticUsage()
    for _ in range(1 + limits.retries):
        if stop := exhausted(limits, spent + usage):
            refused = f"{refused}; {stop}" if refused else stop
            break
        began = time.monotonic()
        try:
            answer = model.answer(current)
            raw, took = answer.text, answer.usage
            proposal = Proposal.parse(find_object(raw))
            program, why = checked(proposal, cluster, recipe, number), one_paragraph(proposal.why, 600)
            refused = ""
        except NoAnswer as none:
            refused, raw, took = f"no answer: {one_paragraph(str(none), 300)}", none.raw or "", none.usage
        except RecordError as error:
            refused = one_paragraph(str(error), 600)
            current = question.again(refused)
        usage = usage + took + CriticUsage(requests=1, seconds=round(time.monotonic() - began, 2))
        if not refused:
            return Proposed(**told, program=program, why=why, raw=raw[:KEPT], usage=usage)
    return Proposed(**told, refused=refused, raw=raw[:KEPT], usage=usage)


def simple_proposals(recipe: EvolveRecipe) -> tuple[str, ...]:
    """The proposals of one operation as it is by default, as JSON: what a model that writes none may choose among."""
    fitting = []
    for kind in _KINDS:
        operation = {"op": kind.model_fields["op"].default}
        try:
            GenerationProgram.parse({"suite": recipe.suite, "task_ids": recipe.task_ids, "operations": [operation]})
        except RecordError:  # it needs to be told of what, or a task has nothing for it
            continue
        fitting.append(operation)
    why = "chosen by likelihood among the simplest proposals"
    return tuple(
        json.dumps({"operations": [operation], "difficulty": difficulty, "why": why})
        for operation, difficulty in itertools.product(fitting, SIMPLE)
    )


def checked(proposal: Proposal, cluster: FailureCluster, recipe: EvolveRecipe, number: int) -> CoProgram:
    """The program of a proposal; RecordError naming what does not fit the recipe's tasks or their goals.

    Unlike a rule's, an operation that does not fit is not left out: it would not be what was proposed.
    """
    unknown = sorted(set(proposal.tasks) - set(recipe.task_ids))
    if unknown:
        raise RecordError(f"field 'tasks': {unknown} are not among the recipe's tasks {list(recipe.task_ids)}")
    rule = compile_cluster(cluster, recipe, number)
    name = f"{cluster.mode}-{number}-written"
    generation = GenerationProgram.parse(
        {
            **rule.generation.model_dump(),
            "task_ids": list(proposal.tasks or recipe.task_ids),
            "operations": [operation.model_dump() for operation in proposal.operations],
            "difficulty": proposal.difficulty,
            "domain": domain_of(recipe, number, name),
        }
    )
    asked = {field: getattr(proposal.training, field) for field in ProposedTraining.model_fields}
    training = {field: value for field, value in asked.items() if value is not None}
    if proposal.potential.strip() and recipe.potential.refine:
        training["refinement"] = _refinement(proposal.potential, cluster, recipe)
    return rule.model_copy(
        update={"name": name, "generation": generation, "training": rule.training.model_copy(update=training)}
    )


def written(cluster: FailureCluster, recipe: EvolveRecipe, known: Sequence[Precedent] = ()) -> str:
    """The prompt: the failures, what may be asked for, the rule's answer, and what was tried before."""
    rule = compile_cluster(cluster, recipe, 0)
    tasks = {task_id: get_task(recipe.suite, task_id) for task_id in recipe.task_ids}
    canonical, plan = _plan(cluster, recipe)
    causes = ", ".join(f"{cause} ({count})" for cause, count in cluster.causes.items())
    lines = [
        "A robot policy fails, and the failures below were grouped. Propose simulated scenes that re-create the "
        "difficulty, and how to train on them. Answer with one JSON object of the given schema and nothing else.",
        f"Failures: {cluster.size} in the stage '{cluster.stage}' ({cluster.mode}); causes: {causes}.",
        f"Objects: {', '.join(cluster.objects) or 'not told'}. Seen in tasks {list(cluster.tasks)}.",
        "Tasks that may be used (number: instruction):",
        *(f"- {task_id}: {task.prompt()}" for task_id, task in tasks.items()),
        "Operations on scenes, all scaled by the one difficulty in [0.15, 1]:",
        *(f"- {kind.model_fields['op'].default}: {_first_line(kind)}" for kind in _KINDS),
        "Training, null to keep what the rule has: start (demonstrations that begin at stage grasp, transport or "
        "place, and their share), sampling_weight, rephrase_share, replay_share of old demonstrations, "
        "include_failures, corrections by an expert, noise of demonstrations, n_action_steps of a chunk, "
        "advantage_temperature.",
        f"The rule's answer: {', '.join(o.op for o in rule.generation.operations)} at {rule.generation.difficulty:g}.",
    ]  # fmt: skip
    if known:
        lines += ["Tried for failures like these before:", *(line for one in known for line in _told(one))]
    lines += [
        'potential: "" or a plan of stages that is finer where it fails, one stage a line: '
        "'NAME WEIGHT: PROGRESS until CONDITION', terms joined by + in progress and by and/or in conditions. Terms: "
        + "; ".join(
            f"{kind}({', '.join(s.arguments)}{', number' if s.limit else ''})" for kind, s in SIGNATURES.items()
        )
        + ". Things: gripper, distractor, target, receptacle, region, handle (target2 ... of the second goal).",
        f"The present plan ({canonical}):",
        to_text(plan),
        "JSON schema of the answer:",
        json.dumps(Proposal.model_json_schema()),
    ]
    return "\n".join(lines)


def _refinement(text: str, cluster: FailureCluster, recipe: EvolveRecipe) -> Refinement:
    """The written plan as a refinement, checked in every task whose goal has the form that it is for."""
    canonical, _ = _plan(cluster, recipe)
    try:
        potential = from_text(text)
        for task_id in recipe.task_ids:
            task = get_task(recipe.suite, task_id)
            names = Names.of_task(task)
            if from_goal(task.goal(), task.objects(), parts=names.parts).hash == canonical:
                potential.check(names)
        return Refinement.parse(
            {
                "mode": cluster.mode,
                "objects": cluster.objects,
                "written": potential.model_dump(mode="json"),
                "instead_of": canonical,
            }
        )
    except RecordError as error:
        raise RecordError(f"field 'potential': {error}") from None


def _plan(cluster: FailureCluster, recipe: EvolveRecipe) -> tuple[str, StagedPotential]:
    """The canonical plan that most of the cluster's tasks have, and its hash."""
    plans = {}
    for task_id in [task for task in cluster.tasks if task in recipe.task_ids] or recipe.task_ids:
        task = get_task(recipe.suite, task_id)
        plans[task_id] = from_goal(task.goal(), task.objects(), parts=Names.of_task(task).parts)
    common = Counter(plan.hash for plan in plans.values()).most_common(1)[0][0]
    return common, next(plan for plan in plans.values() if plan.hash == common)


def _told(precedent: Precedent) -> list[str]:
    """What was tried for a cluster of failures, and what was refused, one a line."""
    causes = ", ".join(f"{cause} ({count})" for cause, count in precedent.causes.items())
    lines = [f"- {causes} in the stage '{precedent.stage}' of {precedent.suite}:"]
    for one in precedent.tried[:MOST_TOLD]:
        gain = "never measured" if one.progress is None else f"{one.before}/{one.n} to {one.after}/{one.n}"
        at = "" if one.difficulty is None else f" at {one.difficulty:.2f}"
        fate = ", ".join(filter(None, [one.outcome, gain, one.action]))
        lines.append(f"  {' + '.join(one.operations)}{at}: {fate}")
    return lines + [f"  refused: {one_paragraph(reason, 200)}" for reason in precedent.refused[:MOST_TOLD]]


def _first_line(kind: type) -> str:
    return (kind.__doc__ or "").strip().splitlines()[0]
