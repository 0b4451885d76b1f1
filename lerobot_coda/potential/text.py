"""The readable form of a potential, one line a stage; parser and printer are each other's inverse.

    scale 0.5
    reach 1: near(gripper, target, 0.3) until near(gripper, target, 0.04)
    grasp 2: near(gripper, target, 0.04) + 0.5*clear(gripper, distractor, 0.08) until held(target)
    then close 1: closed(drawer_1.handle, 1) until goal(2) or closed(drawer_1.handle, 1)

The first line is optional; `scale 0.5 latched` latches. A stage is `[then|also] NAME WEIGHT: PROGRESS until CONDITION`.
"""

import re
from typing import Any, NoReturn

from lerobot_coda.potential.staged import MAX_STAGES, Stage, StagedPotential
from lerobot_coda.potential.terms import SIGNATURES, Term
from libero_pro.record import RecordError

MAX_TEXT = 20_000  # characters
_NUMBER = r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
_HEADER = re.compile(rf"scale\s+({_NUMBER})(\s+latched)?")
_LINE = re.compile(rf"(?:(then|also)\s+)?(\w+)\s+({_NUMBER})\s*:\s*(.+?)\s+until\s+(.+)")
_TERM = re.compile(rf"(?:({_NUMBER})\s*\*\s*)?([a-z]+)\s*\(([^()]*)\)")


def to_text(potential: StagedPotential) -> str:
    """The potential as text, ending in a line break."""
    lines = [f"scale {_number(potential.scale)}{' latched' if potential.latched else ''}"]
    for stage in potential.stages:
        link = "" if stage.link == "next" else f"{stage.link} "
        until = " or ".join(" and ".join(map(_term, clause)) for clause in stage.until)
        progress = " + ".join(map(_term, stage.progress))
        lines.append(f"{link}{stage.name} {_number(stage.weight)}: {progress} until {until}")
    return "\n".join(lines) + "\n"


def from_text(text: str) -> StagedPotential:
    """Reads the text form; RecordError names the line and the words that are not of the language."""
    if len(text) > MAX_TEXT:
        raise RecordError(f"a potential has at most {MAX_TEXT} characters, not {len(text)}")
    data: dict[str, Any] = {}
    stages: list[dict[str, Any]] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("#", 1)[0].strip()
        if not line:
            continue
        header = _HEADER.fullmatch(line)
        if header and not data and not stages:
            data = {"scale": float(header[1]), "latched": bool(header[2])}
            continue
        if len(stages) == MAX_STAGES:
            raise RecordError(f"line {number}: a potential has at most {MAX_STAGES} stages")
        try:
            stages.append(_stage(line))
        except RecordError as error:
            raise RecordError(f"line {number}, {_excerpt(line)}: {error}") from None
    return StagedPotential.parse({**data, "stages": stages})


def _stage(line: str) -> dict[str, Any]:
    match = _LINE.fullmatch(line)
    if match is None:
        raise RecordError("it is not understood; a stage is written 'NAME WEIGHT: PROGRESS until CONDITION'")
    link, name, weight, progress, until = match.groups()
    stage = {
        "name": name,
        "link": link or "next",
        "weight": float(weight),
        "progress": [_read(part) for part in re.split(r"\s*\+\s*(?![^()]*\))", progress)],
        "until": [[_read(term) for term in re.split(r"\s+and\s+", part)] for part in re.split(r"\s+or\s+", until)],
    }
    return Stage.parse(stage).model_dump(mode="json")


def _read(text: str) -> dict[str, Any]:
    match = _TERM.fullmatch(text.strip())
    if match is None or match[2] not in SIGNATURES:
        _refuse(text, f"a term is written 'near(gripper, target, 0.3)', with one of {', '.join(SIGNATURES)}")
    share, kind, inside = match.groups()
    words = [word.strip() for word in inside.split(",")]
    if re.fullmatch(r"[+-].*|nan|inf(inity)?", words[-1].lower()):
        _refuse(text, f"'{words[-1]}' is not a positive, finite number")
    number = float(words.pop()) if words and re.fullmatch(_NUMBER, words[-1]) else None
    term = {"kind": kind, "things": [word for word in words if word], "number": number, "share": float(share or 1.0)}
    return Term.parse(term).model_dump(mode="json")


def _term(term: Term) -> str:
    share = "" if term.share == 1.0 else f"{_number(term.share)}*"
    words = [*term.things, *([] if term.number is None else [_number(term.number)])]
    return f"{share}{term.kind}({', '.join(words)})"


def _number(value: float) -> str:
    """The shortest text that reads back as the same number."""
    return str(int(value)) if value == int(value) else repr(value)


def _refuse(text: str, why: str) -> NoReturn:
    raise RecordError(f"{_excerpt(text)} is not understood: {why}")


def _excerpt(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
