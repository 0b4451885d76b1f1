"""Co-programs: a generation and a training program under one name, and the operators that change them between rounds.

harder, easier   a larger or smaller perturbation, and a start earlier or later in the task
specialize       only the tasks in which it still fails
joined           two programs' perturbations in one
revived          a retired program again, where what it taught was forgotten

Operators are pure: they give a new program that names its parent, or the same one where there is nothing to change.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from lerobot_coda.critic.diagnosis import Stage
from lerobot_coda.potential.refinement import Refinement
from lerobot_coda.progress import Action
from libero_pro.operations import Operation
from libero_pro.programs import GenerationProgram
from libero_pro.record import Record, RecordError

EXPLORATION = "exploration"  # the mode of broad programs, which answer no failure
STEP = 0.25  # how much harder or easier one decision makes a program
EASIEST = 0.15
MAX_OPERATIONS = 8  # of a generation program
LADDER = (Stage.GRASP, Stage.TRANSPORT, Stage.PLACE)  # stages that a demonstration may start at, early ones first


class StartCurriculum(Record):
    """Demonstrations that begin late: `share` of a program's scenes start where the policy once was as `stage` began.

    The later the stage, the easier: less is left to do. Made harder, it goes to the stage before, and in the end away.
    """

    stage: Literal[Stage.GRASP, Stage.TRANSPORT, Stage.PLACE]
    share: float = Field(default=0.25, gt=0.0, le=0.75)

    def earlier(self) -> "StartCurriculum | None":
        """From the stage before on; None: from the start of the task."""
        index = LADDER.index(self.stage)
        return self.model_copy(update={"stage": LADDER[index - 1]}) if index else None

    def later(self) -> "StartCurriculum":
        """From the stage after on, if there is one."""
        return self.model_copy(update={"stage": LADDER[min(len(LADDER) - 1, LADDER.index(self.stage) + 1)]})


class TrainingProgram(Record):
    """How to learn to overcome a difficulty. What it asks for is cut to the budget.

    demonstrations     expert episodes in fresh scenes of the program (0: as many as the budget gives it)
    sampling_weight    factor on its share of a round's scenes
    start              demonstrations that begin late in the task
    rephrase_share     share of the demonstrations whose instruction is given in other words
    grounding_layouts  static layouts on which the policy learns where the named object is; 0: none
    replay_share       share of the base demonstrations among the episodes trained on, against forgetting
    include_failures   whether failed probe episodes enter the dataset
    corrections        whether they do so with the expert's actions in the states that the policy visited; else with
                       their own actions, weighed by their advantages
    refinement         how the goal's potential is made finer where it fails; None: as it is
    noise              strength of the disturbances under which the expert demonstrates recoveries
    n_action_steps     steps of a chunk that are executed;  advantage_temperature: of the weights, the lower the
                       greedier. None: as the train recipe has them, or else the checkpoint that training starts from
    """

    schema_version: Literal[2] = 2
    demonstrations: int = Field(default=0, ge=0)
    sampling_weight: float = Field(default=1.0, ge=0.1, le=10.0)
    start: StartCurriculum | None = None
    rephrase_share: float = Field(default=0.0, ge=0.0, le=1.0)
    grounding_layouts: int = Field(default=0, ge=0)
    grounding_weight: float = Field(default=0.0, ge=0.0)
    value_weight: float = Field(default=0.0, ge=0.0)
    replay_share: float = Field(default=0.3, ge=0.0, le=0.9)
    steps: int = Field(ge=1)
    include_failures: bool = False
    corrections: bool = True
    refinement: Refinement | None = None
    noise: float = Field(default=0.0, ge=0.0, le=1.0)
    n_action_steps: int | None = Field(default=None, ge=1, le=64)
    advantage_temperature: float | None = Field(default=None, ge=0.01, le=10.0)

    def policy_overrides(self, grounding: Path | None) -> dict[str, Any]:
        """What it sets in a train recipe's policy block; a None takes the recipe's own value away."""
        asked = {"n_action_steps": self.n_action_steps, "advantage_temperature": self.advantage_temperature}
        given = {name: value for name, value in asked.items() if value is not None}
        if self.grounding_weight > 0:
            given["grounding_weight"] = self.grounding_weight
        return {"grounding_path": str(grounding) if grounding else None, "value_weight": self.value_weight, **given}


class CoProgram(Record):
    """A generation and its training program under one name.

    mode    the failure mode it answers, or EXPLORATION
    parent  hash of the program that it was made from;  other: of the second one, where two were joined
    """

    schema_version: Literal[1] = 1
    name: str
    mode: str
    born: int
    parent: str | None = None
    other: str | None = None
    generation: GenerationProgram
    training: TrainingProgram

    def after(self, action: Action, number: int, tasks: Collection[int] = ()) -> "CoProgram | None":
        """The program that follows it after round `number`'s decision; None where it is retired.

        Promotion makes it harder and retires what is solved at its hardest; `tasks` are those to specialize in.
        """
        match action:
            case "retire":
                return None
            case "promote":
                return harder(self, number)
            case "refine":
                return easier(self, number)
            case "specialize":
                return specialize(self, tasks, number)
        return self


def harder(program: CoProgram, number: int) -> CoProgram | None:
    """A larger perturbation and an earlier start; None where both are at their end: there is nothing left to teach."""
    difficulty, start = program.generation.difficulty, program.training.start
    if difficulty >= 1.0 and start is None:
        return None
    return _changed(program, number, min(1.0, difficulty + STEP), start.earlier() if start else None)


def easier(program: CoProgram, number: int) -> CoProgram:
    """A smaller perturbation, no less than `EASIEST`, and a later start; the same program where neither can be."""
    difficulty, start = program.generation.difficulty, program.training.start
    lower = min(difficulty, max(EASIEST, difficulty - STEP))
    return _changed(program, number, lower, start.later() if start else None)


def specialize(program: CoProgram, tasks: Collection[int], number: int) -> CoProgram:
    """Only these of its tasks; RecordError where it has none of them."""
    kept = [task for task in program.generation.task_ids if task in set(tasks)]
    if not kept:
        raise RecordError(f"program {program.name} has none of the tasks {sorted(tasks)} to specialize in")
    if len(kept) == len(program.generation.task_ids):
        return program
    generation = GenerationProgram.parse({**program.generation.model_dump(), "task_ids": kept})
    return program.model_copy(update={"generation": generation, "born": number, "parent": program.hash, "other": None})


def joined(first: CoProgram, second: CoProgram, number: int) -> CoProgram:
    """Both programs' perturbations in one scene, at the lower of their difficulties, on the tasks of both.

    It trains as the first does. An operation that both have is taken from the first. RecordError where they are of
    different suites or share no task.
    """
    a, b = first.generation, second.generation
    shared = [task for task in a.task_ids if task in b.task_ids]
    if a.suite != b.suite or not shared:
        raise RecordError(f"programs {first.name} and {second.name} share no task, so they cannot be joined")
    operations: list[Operation] = list(a.operations)
    operations += [operation for operation in b.operations if operation.op not in {o.op for o in a.operations}]
    merged = {
        **a.model_dump(),
        "task_ids": shared,
        "operations": [operation.model_dump() for operation in operations[:MAX_OPERATIONS]],
        "difficulty": min(a.difficulty, b.difficulty),
        "domain": (a.domain * 31 + b.domain) % 2**31,
    }
    changed = {
        "name": f"{first.name}+{second.name}",
        "generation": GenerationProgram.parse(merged),
        "born": number,
        "parent": first.hash,
        "other": second.hash,
    }
    return first.model_copy(update=changed)


def revived(program: CoProgram, number: int) -> CoProgram:
    """A retired program once more: as it was when it was retired, born again."""
    return program.model_copy(update={"born": number, "parent": program.hash, "other": None})


def _changed(program: CoProgram, number: int, difficulty: float, start: StartCurriculum | None) -> CoProgram:
    """The program at another difficulty and start; itself where both are as they were."""
    same = difficulty == program.generation.difficulty
    if same and start == program.training.start:
        return program
    return program.model_copy(
        update={
            "generation": program.generation if same else program.generation.at(round(difficulty, 4)),
            "training": program.training.model_copy(update={"start": start}),
            "born": number,
            "parent": program.hash,
            "other": None,
        }
    )
