"""From a diagnosis to a potential: the plan made finer where the policy fails, by rules or by a language model.

A rule splits the stage in which a failure mode shows, gives the new stage a term that tells the failure from the
intention, and so moves weight to it: each part keeps the weight that the whole stage had.
"""

from collections.abc import Callable, Collection
from typing import Any

from lerobot_coda.critic.diagnosis import Diagnosis, Mode
from lerobot_coda.potential.names import GRIPPER, Names
from lerobot_coda.potential.plans import base_name, emphasized
from lerobot_coda.potential.staged import MAX_STAGES, Stage, StagedPotential
from lerobot_coda.potential.terms import SIGNATURES, Term
from lerobot_coda.potential.text import MAX_TEXT, to_text
from libero_pro.record import RecordError

Propose = Callable[[str, dict[str, Any]], str]  # (prompt, JSON schema) -> a model's answer, JSON of that schema

_CLEARANCE = 0.08  # metres: two objects whose middles are nearer can't both be outside the hand
_ATTEMPTS_QUOTE = 160  # characters of a refused answer that an error shows

# The stage a mode shows in, in a leg that picks and places and in one that moves a part.
_WHERE: dict[Mode, tuple[str, ...]] = {
    Mode.LOCALIZATION: ("reach",),
    Mode.GRASP: ("grasp", "touch"),
    Mode.TRANSPORT: ("carry", "move"),
    Mode.PLACEMENT: ("place", "move"),
    Mode.MOTION: ("reach",),
}


def refine(potential: StagedPotential, diagnosis: Diagnosis, names: Names) -> StagedPotential:
    """The potential with the stage split in which the diagnosis's mode shows, in the leg about its object."""
    return refined(potential, diagnosis.mode, diagnosis.objects[:1], names)


def refined(potential: StagedPotential, mode: Mode, objects: Collection[str], names: Names) -> StagedPotential:
    """The potential with the stage split in which a failure mode shows.

    Legs about one of the objects are refined, or all where none is; a plan without such a stage gets more weight where
    the mode points. RecordError if what comes out does not fit the scene.
    """
    about = [stage for stage in potential.stages if base_name(stage.name) in _WHERE[mode]]
    named = [stage for stage in about if set(_subject(stage, names)) & set(objects)]
    wanted = {stage.name for stage in named or about}
    stages: list[Stage] = []
    for stage in potential.stages:
        before = _before(mode, stage, {s.name for s in potential.stages}) if stage.name in wanted else None
        if before is not None and len(potential.stages) < MAX_STAGES:
            stages += [before, stage.model_copy(update={"link": "next"})]
        else:
            stages.append(stage)
    if len(stages) == len(potential.stages):
        finer = emphasized(potential, _WHERE[mode][0])
    else:
        finer = StagedPotential.parse({**potential.model_dump(mode="json"), "stages": _dumped(stages)})
    finer.check(names)
    return finer


def from_model(
    propose: Propose, names: Names, *, diagnosis: Diagnosis | None = None, base: StagedPotential | None = None
) -> StagedPotential:
    """A language model's potential for the scene, read as data and checked as anybody's would be.

    `base` is the plan to improve, `diagnosis` what goes wrong with it. RecordError with the reason and the offending
    text if the answer is not a potential, or speaks of what the scene does not have.
    """
    answer = propose(prompt(names, diagnosis, base), StagedPotential.model_json_schema())
    try:
        if len(answer) > MAX_TEXT:
            raise RecordError(f"it has {len(answer)} characters, more than {MAX_TEXT}")
        potential = StagedPotential.parse(answer)
        potential.check(names)
    except RecordError as error:
        quote = " ".join(answer[:_ATTEMPTS_QUOTE].split())
        raise RecordError(f"the model's potential is refused: {error}; it wrote: {quote!r}") from None
    return potential


def prompt(names: Names, diagnosis: Diagnosis | None = None, base: StagedPotential | None = None) -> str:
    """What a model is asked: the language, the scene's words, the plan to improve and what fails."""
    goal = "; ".join(" ".join(predicate) for predicate in names.goal)
    lines = [
        "Write a staged potential for a robot arm with a two-finger gripper: ordered stages, each with terms whose "
        "mean is its progress and a condition that ends it. Answer with JSON of the given schema and nothing else.",
        f"Goal predicates, numbered from 1: {goal}",
        f"Objects: {', '.join(names.objects)}",
        f"Regions and fixtures: {', '.join(names.regions) or 'none'}",
        f"Parts that open, close or turn (add .handle for where to take hold): {', '.join(names.parts) or 'none'}",
        "Other things: gripper, distractor (any object the goal does not speak of), and the roles target, receptacle, "
        "region, handle of the first goal predicate (target2 ... of the second).",
        "Kinds of terms, with their things and number:",
        *(f"- {kind}({', '.join(s.arguments)}{', number' if s.limit else ''}): {s.says}"
          for kind, s in SIGNATURES.items()),
        f"At most {MAX_STAGES} stages; weights up to 10; a stage's condition must be one that the next stages keep.",
    ]  # fmt: skip
    if base is not None:
        lines += ["The present plan:", to_text(base)]
    if diagnosis is not None:
        lines.append(f"What fails, in the stage '{diagnosis.stage}': {diagnosis.explanation}")
        lines.append("Make the plan finer there, so that progress towards overcoming it shows.")
    return "\n".join(lines)


def _before(mode: Mode, stage: Stage, taken: set[str]) -> Stage | None:
    """The stage that a rule puts before `stage`, or None where its terms leave nothing to put."""
    first = stage.progress[0]
    base = base_name(stage.name)

    def made(skill: str, progress: tuple[Term, ...], *until: tuple[Term, ...]) -> Stage | None:
        name = stage.name.replace(base, skill)
        if name in taken:  # refined before
            return None
        return Stage(name=name, link=stage.link, weight=stage.weight, progress=progress, until=until)

    def term(kind: str, *things: str, number: float | None = None, share: float = 1.0) -> Term:
        return Term.parse({"kind": kind, "things": list(things), "number": number, "share": share})

    if base == "reach" and first.kind == "near":
        thing = first.things[1]
        if mode is Mode.MOTION:
            return made(
                "approach", (term("near", GRIPPER, thing, number=0.8),), (term("near", GRIPPER, thing, number=0.2),)
            )
        apart = term("clear", GRIPPER, "distractor", number=_CLEARANCE, share=0.5)
        return made(
            "find", (term("over", GRIPPER, thing, number=0.3), apart), (term("over", GRIPPER, thing, number=0.06),)
        )
    if base == "grasp":
        held = next((t for clause in stage.until for t in clause if t.kind == "held"), None)
        if held is not None:
            return made(
                "contact", (term("near", GRIPPER, held.things[0], number=0.08),), (term("touching", *held.things),)
            )
    if base == "carry" and first.kind == "over":
        target, place = first.things
        level = term("raised", target, number=0.1, share=0.5)
        halfway = (term("held", target), term("over", target, place, number=0.15))
        return made("keep", (term("over", target, place, number=0.5), level), halfway)
    if base == "place" and first.kind == "lowered":
        target, place = first.things
        return made(
            "center",
            (term("over", target, place, number=0.06),),
            (term("held", target), term("over", target, place, number=0.025)),
        )
    if base == "move" and first.kind in ("opened", "closed"):
        return made(
            "start", (term(first.kind, *first.things, number=0.3),), (term(first.kind, *first.things, number=0.3),)
        )
    return None


def _subject(stage: Stage, names: Names) -> tuple[str, ...]:
    """What the stage's first term acts on."""
    things = [thing for thing in stage.progress[0].things if thing != GRIPPER]
    return names.bind(things[0]).names if things else ()


def _dumped(stages: list[Stage]) -> list[dict[str, Any]]:
    return [stage.model_dump(mode="json") for stage in stages]
