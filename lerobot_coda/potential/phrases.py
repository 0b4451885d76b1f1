"""Plain words -> potential: "first move above the bowl, then grasp it and put it on the plate".

A small fixed grammar, no model: clauses begin with a verb, things are found among the scene's names, and each skill
becomes stages of the potential language. What is not understood is refused with the words that were not.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

from lerobot_coda.potential import plans
from lerobot_coda.potential.names import GRIPPER, HANDLE, Names
from lerobot_coda.potential.staged import MAX_STAGES, Link, Stage, StagedPotential
from lerobot_coda.potential.terms import Clause, Term, entails
from lerobot_coda.potential.vocabulary import Role, find, find_all, is_one
from libero_pro.record import RecordError

MAX_WORDS = 200
_AVOID, _UPRIGHT = 0.08, 0.5  # metres of clearance, radians of tilt where the text names no number
_BREAK = re.compile(
    r"(?:[;,\n]|\.(?!\d))+|\bthen\b|\bafter that\b|\bafterwards\b|\bfinally\b|\bfirst\b|\bnext\b(?!\s+to\b)"
)
_ADVERBS = re.compile(r"^(?:and|please|now|slowly|carefully|gently|lastly|at last)\s+")
_LENGTH = re.compile(r"\s*\b(?:by|at least|to)?\s*(\d+(?:\.\d+)?)\s*(mm|cm|m|centimet(?:er|re)s?|met(?:er|re)s?)\b")
_HAND = r"(?:the |your )?(?:gripper|hand|arm|robot|fingers)"
_ABOVE = r"(?:directly |right )?(?:above|over|on top of)"
_NEAR = r"(?:close to|next to|near to|near|towards?|to|for|at|up to)"
_INTO, _ONTO = r"(?:into|inside|in)", r"(?:on top of|onto|upon|on|to)"


def from_phrases(text: str, names: Names, scale: float = 0.5) -> StagedPotential:
    """The potential that a text describes, for a scene with these names.

    Where the order that is asked for undoes what was done before (open, put in, close), the potential is latched.
    RecordError with the offending words if something is not understood, or does not exist.
    """
    if len(text.split()) > MAX_WORDS:
        raise RecordError(f"the text has {len(text.split())} words; use at most {MAX_WORDS}")
    plan = _Plan(names)
    clauses = _clauses(text)
    if not clauses:
        raise RecordError("the text is empty; write for example 'move above the bowl, then grasp it'")
    for clause in clauses:
        _read(clause, plan)
    if not plan.stages:
        raise RecordError(f"{text[:80]!r} names nothing to do; begin with a verb such as move, grasp, put, open")
    data: dict[str, Any] = {"scale": scale, "stages": [stage.model_dump(mode="json") for stage in plan.finished()]}
    try:
        potential = StagedPotential.parse(data)
    except RecordError as error:
        if "undoes" not in str(error):
            raise
        potential = StagedPotential.parse({**data, "latched": True})
    potential.check(names)
    return potential


def _clauses(text: str) -> list[str]:
    """Pieces that begin with a verb each, lower case."""
    found = []
    for piece in _BREAK.split(text.lower()):
        for part in re.split(rf"\band\b(?=\s+(?:{_VERBS})\b)", " ".join(piece.split())):
            clause = part.strip()
            while match := _ADVERBS.match(clause):
                clause = clause[match.end() :]
            if clause and clause != "and":
                found.append(clause)
    return found


@dataclass
class _Plan:
    """Stages so far, what was spoken of, and the terms that every stage gets in the end."""

    names: Names
    stages: list[Stage] = field(default_factory=list)
    subject: str | None = None  # what the present leg acts on
    spoken: list[str] = field(default_factory=list)
    always: list[Term] = field(default_factory=list)
    while_held: list[Term] = field(default_factory=list)

    def thing(self, words: str, role: Role) -> str:
        """The name that words mean; `it` is what the leg acts on, or for a destination what was spoken of before."""
        if words in ("it", "this", "that"):
            meant = [name for name in map(partial(self._as, role=role), self.spoken) if name is not None]
            if not meant:
                raise RecordError(f"'{words}': nothing was spoken of that it could mean")
            return meant[-1]
        name = find(words, self.names, role)
        self.spoken.append(name)
        return name

    def act_on(self, thing: str) -> bool:
        """Turns to a thing; whether a new leg begins with it."""
        fresh = self.subject is not None and thing != self.subject
        self.subject = thing
        return fresh

    def add(self, name: str, progress: Term, *until: Clause, new: bool = False, implied: bool = False) -> bool:
        """Adds a stage, an `implied` one only where the leg lacks it; returns whether `new` is left over."""
        if implied and not new and any(entails(stage.until, until) for stage in self._leg()):
            return new
        if len(self.stages) == MAX_STAGES:
            raise RecordError(f"the text describes more than {MAX_STAGES} stages; leave some out")
        count = sum(re.fullmatch(rf"{name}(_\d+)?", stage.name) is not None for stage in self.stages)
        called = name if count == 0 else f"{name}_{count + 1}"
        link: Link = "then" if new and self.stages else "next"
        self.stages.append(Stage(name=called, link=link, progress=(progress,), until=until))
        return False

    def finished(self) -> list[Stage]:
        """The stages with the terms that hold throughout."""
        done = []
        for stage in self.stages:
            held = any(term.kind == "held" for clause in stage.until for term in clause)
            extra = [*self.always, *(self.while_held if held else [])]
            done.append(stage.model_copy(update={"progress": (*stage.progress, *extra)}))
        return done

    def asked(self, thing: str, place: str) -> int | None:
        """Number of the goal's predicate that asks for the thing in that place, or None."""
        for number, predicate in enumerate(self.names.goal, 1):
            if len(predicate) == 3 and predicate[1] == thing:
                places = {self.names.bind(predicate[2]).names, self.names.bind(f"receptacle{number}").names}
                if self.names.bind(place).names in places:
                    return number
        return None

    def moved(self, handle: str) -> bool:
        """Whether the present leg opens or closes the part already: what it does next is another leg."""
        terms = [term for stage in self._leg() for term in stage.progress]
        return any(term.kind in ("opened", "closed") and term.things == (handle,) for term in terms)

    def _as(self, spoken: str, role: Role) -> str | None:
        """What was spoken of, where it can play the role."""
        if role == "object":
            return spoken if spoken in self.names.objects else None
        if role == "part":
            return self.names.handle_of(spoken)
        return spoken if role == "any" or spoken != self.subject else None

    def _leg(self) -> list[Stage]:
        start = max((i for i, stage in enumerate(self.stages) if stage.link == "then"), default=0)
        return self.stages[start:]


def _term(kind: str, *things: str, number: float | None = None, share: float = 1.0) -> Term:
    return Term.parse({"kind": kind, "things": list(things), "number": number, "share": share})


def _to(thing: str, within: float) -> Term:
    return _term("near", GRIPPER, thing, number=within)


def _over(thing: str, place: str, within: float) -> Term:
    return _term("over", thing, place, number=within)


def _hover(plan: _Plan, words: str) -> None:
    thing = plan.thing(words, "any")
    until = (_over(GRIPPER, thing, plans.REACHED),)
    plan.add("above", _over(GRIPPER, thing, plans.CARRY), until, new=plan.act_on(thing))


def _reach(plan: _Plan, words: str) -> None:
    thing = plan.thing(words, "any")
    plan.add("reach", _to(thing, plans.REACH), (_to(thing, plans.HANDLED),), new=plan.act_on(thing))


def _grasp(plan: _Plan, words: str, *, implied: bool = False) -> str:
    """Reaches and grasps an object, whose name is returned."""
    thing = plan.thing(words, "object")
    new = plan.add("reach", _to(thing, plans.REACH), (_to(thing, plans.HANDLED),), new=plan.act_on(thing), implied=True)
    plan.add("grasp", _to(thing, plans.REACHED), (_term("held", thing),), new=new, implied=implied)
    return thing


def _pick(plan: _Plan, words: str) -> str:
    """Reaches, grasps and lifts an object as far as the leg did not, and returns its name."""
    thing = _grasp(plan, words, implied=True)
    high = _term("raised", thing, number=plans.LIFTED)
    plan.add("lift", _term("raised", thing, number=plans.LIFT), (_term("held", thing), high), implied=True)
    return thing


def _lift(plan: _Plan, words: str, height: float = plans.LIFT) -> None:
    thing = _grasp(plan, words, implied=True)
    high = _term("raised", thing, number=height)
    plan.add("lift", high, (_term("held", thing), high))


def _carry(plan: _Plan, words: str, where: str) -> None:
    thing = _pick(plan, words)
    _bring(plan, thing, plan.thing(where, "destination"))


def _bring(plan: _Plan, thing: str, place: str, *, implied: bool = False) -> None:
    plan.add("carry", _over(thing, place, plans.CARRY), *plans.carried(thing, place), implied=implied)
    plan.spoken.append(thing)


def _put(plan: _Plan, words: str, where: str = "it", *, into: bool) -> None:
    several = words.removeprefix("both ")
    first, _, second = several.partition(" and ")
    if second and (several != words or not is_one(words, plan.names)):
        targets = [first, second]
    else:  # one, or both of a kind
        targets = [words] if several == words else find_all(several, plan.names)
    for target in targets:
        _put_one(plan, target, where, into=into)


def _put_one(plan: _Plan, words: str, where: str, *, into: bool) -> None:
    thing = _pick(plan, words)
    place = plan.thing(where, "inside" if into else "destination")
    _bring(plan, thing, place, implied=True)
    if number := plan.asked(thing, place):
        until: Clause = (_term("goal", number=number),)
    elif into:
        until = (_term("inside", thing, place),)
    else:
        until = (_term("free", thing), _over(thing, place, 0.03), _term("lowered", thing, place, number=0.1))
    plan.add("place", _term("lowered", thing, place, number=plans.PLACE), until)


def _lower(plan: _Plan, words: str, where: str) -> None:
    thing = plan.thing(words, "object")
    place = plan.thing(where, "destination")
    low = _term("lowered", thing, place, number=0.05)
    new = plan.act_on(thing)
    plan.add("lower", _term("lowered", thing, place, number=plans.PLACE), (_over(thing, place, 0.05), low), new=new)
    plan.spoken.append(thing)


def _release(plan: _Plan, words: str) -> None:
    thing = plan.thing(words, "object")
    plan.add("release", _term("free", thing), (_term("free", thing),), new=plan.act_on(thing))


def _move_part(plan: _Plan, words: str, kind: str, name: str) -> None:
    part = plan.thing(words, "part")
    handle = part + HANDLE
    new = plan.act_on(part) or plan.moved(handle)
    touched, moved = _term("touching", handle), _term(kind, handle, number=plans.MOVED)
    at = _to(handle, plans.HANDLED)
    new = plan.add("reach", _to(handle, plans.REACH), (at,), (touched,), new=new, implied=True)
    new = plan.add("touch", at, (touched,), (moved,), new=new, implied=True)
    plan.add(name, _term(kind, handle), (_term(kind, handle),), new=new)


def _push(plan: _Plan, words: str, where: str) -> None:
    thing = plan.thing(words, "object")
    new = plan.add("reach", _to(thing, plans.REACH), (_to(thing, plans.HANDLED),), new=plan.act_on(thing), implied=True)
    place = plan.thing(where, "destination")
    plan.add("push", _over(thing, place, plans.CARRY), (_over(thing, place, plans.CARRIED),), new=new)
    plan.spoken.append(thing)


def _avoid(plan: _Plan, words: str, distance: float = _AVOID) -> None:
    plan.always.append(_term("clear", GRIPPER, plan.thing(words, "any"), number=distance, share=0.5))


def _upright(plan: _Plan, words: str) -> None:
    plan.while_held.append(_term("upright", plan.thing(words, "object"), number=_UPRIGHT, share=0.5))


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text.replace("THING", "(.+?)").replace("PLACE", "(.+)"))


_MOVE = r"(?:move|go|come|travel|bring|position|hover|return|approach|reach|descend|rise)"
_PUT = r"(?:put|place|set|lay|drop|insert|stack)"
_ANYWHERE = rf"(?:{_ABOVE}|{_NEAR}|{_ONTO}|{_INTO})"
_RULES: tuple[tuple[re.Pattern[str], Callable[..., Any]], ...] = (
    (_pattern(r"(?:avoid|stay (?:away|clear) (?:from|of)|steer clear of|don't touch|do not touch) THING"), _avoid),
    (_pattern(rf"keep (?:{_HAND} )?(?:away|clear) (?:from|of) THING"), _avoid),
    (_pattern(r"(?:keep|hold) THING (?:upright|level|straight)"), _upright),
    (_pattern(r"(?:turn|switch) (?:on THING|THING on)"), partial(_move_part, kind="opened", name="turn_on")),
    (_pattern(r"(?:turn|switch) (?:off THING|THING off)"), partial(_move_part, kind="closed", name="turn_off")),
    (_pattern(r"(?:open|pull open|slide open|pull out|pull) THING"), partial(_move_part, kind="opened", name="open")),
    (_pattern(r"(?:close|shut|push shut|push in) THING"), partial(_move_part, kind="closed", name="close")),
    (_pattern(rf"{_MOVE} (?:{_HAND} )?(?:to )?{_ABOVE} THING"), _hover),
    (_pattern(rf"(?:approach|reach|touch)(?: {_NEAR})? THING"), _reach),
    (_pattern(rf"{_MOVE} (?:{_HAND} )?{_NEAR} THING"), _reach),
    (_pattern(rf"(?:carry|bring|move|transport|transfer|take) THING {_ANYWHERE} PLACE"), _carry),
    (_pattern(rf"(?:push|slide|nudge) THING {_ANYWHERE} PLACE"), _push),
    (_pattern(rf"{_PUT}(?: down)? {_INTO} PLACE"), lambda plan, where: _put(plan, "it", where, into=True)),
    (_pattern(rf"{_PUT}(?: down)? {_ONTO} PLACE"), lambda plan, where: _put(plan, "it", where, into=False)),
    (_pattern(rf"{_PUT}(?: down)? THING(?: down)? {_INTO} PLACE"), partial(_put, into=True)),
    (_pattern(rf"{_PUT}(?: down)? THING(?: down)? {_ONTO} PLACE"), partial(_put, into=False)),
    (_pattern(rf"{_PUT} THING inside"), partial(_put, into=True)),
    (_pattern(rf"lower THING {_ANYWHERE} PLACE"), _lower),
    (_pattern(r"(?:pick up|pick|take|fetch|get) THING(?: up)?"), _pick),
    (_pattern(r"(?:grasp|grab|grip|seize|hold|pinch) THING"), _grasp),
    (_pattern(r"(?:lift|raise) THING(?: up)?"), _lift),
    (_pattern(r"(?:release|let go of|drop) THING"), _release),
)
_VERBS = (
    "move|go|come|travel|bring|position|hover|return|approach|reach|touch|descend|rise|avoid|stay|steer|don't|do not|"
    "keep|turn|switch|open|pull|close|shut|push|pick|take|fetch|get|grasp|grab|grip|seize|hold|pinch|lift|raise|put|place|"
    "set|lay|drop|insert|stack|lower|carry|transport|transfer|slide|nudge|release|let"
)


def _read(clause: str, plan: _Plan) -> None:
    """Adds what one clause says; RecordError quotes it."""
    length = _LENGTH.search(clause)
    spoken = (clause[: length.start()] + clause[length.end() :]).strip() if length else clause
    metres = None if length is None else float(length[1]) * {"mm": 1e-3, "cm": 1e-2, "ce": 1e-2}.get(length[2][:2], 1.0)
    for pattern, rule in _RULES:
        match = pattern.fullmatch(spoken)
        if match is None:
            continue
        words = [word for word in match.groups() if word]
        try:
            if metres is None:
                rule(plan, *words)
            elif rule in (_lift, _avoid):
                rule(plan, *words, metres)
            else:
                raise RecordError("a length is understood after lift and avoid only")
        except RecordError as error:
            raise RecordError(f"in '{clause[:80]}': {error}") from None
        return
    _refuse(clause)


def _refuse(clause: str) -> NoReturn:
    raise RecordError(
        f"'{clause[:80]}' is not understood; say for example 'move above X', 'grasp X', 'lift X by 10 cm', "
        "'put X in Y', 'open X', 'turn on X', 'avoid X', 'keep X upright'"
    )
