"""The words of the potential language: typed terms, each read as a progress in [0, 1] and as a condition.

A falling term (`near(gripper, target, 0.3)`) makes progress from 0 at the number to 1 at zero, and as a condition says
"less than". A rising term (`raised(target, 0.1)`) makes progress from 0 at zero to 1 at the number, and says "at
least". A flag (`held(target)`) is 0 or 1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from lerobot_coda.potential.names import DISTRACTOR, GRIPPER, Names
from lerobot_coda.potential.trace import Trace
from libero_pro.record import Record, RecordError

Kind = Literal[
    "near", "over", "lowered", "inside", "upright", "aligned", "raised", "above", "clear", "opened", "closed", "held",
    "free", "touching", "goal",
]  # fmt: skip
Reading = Literal["falling", "rising", "flag"]
Argument = Literal["any", "one", "object", "part", "contact", "posed"]

METRES, RADIANS, FRACTION = 3.0, 3.1416, 1.0  # largest numbers of terms


@dataclass(frozen=True)
class Signature:
    """A kind of term: what its arguments must be, how it is read, its number's limit and default, and what it says."""

    arguments: tuple[Argument, ...]
    reading: Reading
    limit: float | None
    default: float | None
    measure: Callable[[Trace, "Term"], np.ndarray]
    says: str


SIGNATURES: dict[str, Signature] = {
    "near": Signature(("any", "any"), "falling", METRES, None, lambda t, m: t.apart(*m.things),
                      "distance between two things, m"),
    "over": Signature(("any", "any"), "falling", METRES, None, lambda t, m: t.apart(*m.things, axes=slice(0, 2)),
                      "horizontal distance between two things, m"),
    "lowered": Signature(("one", "one"), "falling", METRES, None, lambda t, m: t.above(*m.things),
                         "how much higher the first is than the second, m"),
    "inside": Signature(("any", "one"), "falling", METRES, 0.01, lambda t, m: t.outside(*m.things),
                        "distance from the first to the region's box, m"),
    "upright": Signature(("posed",), "falling", RADIANS, None, lambda t, m: t.tilt(*m.things),
                         "tilt from how it stood at the start, rad"),
    "aligned": Signature(("posed", "posed"), "falling", RADIANS, None, lambda t, m: t.heading_gap(*m.things),
                         "angle between two things seen from above, rad"),
    "raised": Signature(("object",), "rising", METRES, None, lambda t, m: t.height(*m.things),
                        "rise over where it stood at the start, m"),
    "above": Signature(("one", "one"), "rising", METRES, None, lambda t, m: t.above(*m.things),
                       "how much higher the first is than the second, m"),
    "clear": Signature(("any", "any"), "rising", METRES, None, lambda t, m: t.apart(*m.things),
                       "clearance between two things, m"),
    "opened": Signature(("part",), "rising", FRACTION, 1.0, lambda t, m: t.openness(*m.things),
                        "share of the way to open or on"),
    "closed": Signature(("part",), "rising", FRACTION, 1.0, lambda t, m: 1.0 - t.openness(*m.things),
                        "share of the way to closed or off"),
    "held": Signature(("object",), "flag", None, None, lambda t, m: t.held(*m.things), "both fingers touch it"),
    "free": Signature(("object",), "flag", None, None, lambda t, m: ~t.held(*m.things), "it is not held"),
    "touching": Signature(("contact",), "flag", None, None, lambda t, m: t.touching(*m.things), "the gripper is on it"),
    "goal": Signature((), "flag", 6.0, None, lambda t, m: t.goal(int(m.number or 1)), "the goal's n-th part holds"),
}  # fmt: skip


class Term(Record):
    """One term: its kind, the things it is about (names or roles), its number, and its share of a stage's progress."""

    kind: Kind
    things: tuple[str, ...] = Field(default=(), max_length=8)
    number: float | None = Field(default=None, gt=0, le=6)
    share: float = Field(default=1.0, gt=0, le=10)

    @model_validator(mode="before")
    @classmethod
    def _default_number(cls, data: object) -> object:
        if isinstance(data, dict) and data.get("number") is None and isinstance(data.get("kind"), str):
            signature = SIGNATURES.get(data["kind"])
            if signature is not None and signature.default is not None:
                return {**data, "number": signature.default}
        return data

    @model_validator(mode="after")
    def _fits_its_kind(self) -> "Term":
        signature = self.signature
        if len(self.things) != len(signature.arguments):
            raise ValueError(f"{self.kind} is about {len(signature.arguments)} things, not {list(self.things)}")
        for thing in self.things:
            if not (0 < len(thing) <= 80 and thing.replace(".handle", "").replace("_", "").isalnum()):
                raise ValueError(f"{thing[:40]!r} is not a name: use letters, digits and underscores")
        if len(set(self.things)) < len(self.things):
            raise ValueError(f"{self.kind} compares '{self.things[0]}' with itself")
        if signature.limit is None:
            if self.number is not None:
                raise ValueError(f"{self.kind} takes no number")
        elif self.number is None:
            raise ValueError(f"{self.kind} needs a number: {signature.says}")
        elif self.number > signature.limit:
            raise ValueError(f"{self.kind}: {self.number:g} is more than {signature.limit:g}")
        if self.kind == "goal" and self.number is not None and self.number != int(self.number):
            raise ValueError(f"goal is numbered 1 to 6, not {self.number:g}")
        return self

    @property
    def signature(self) -> Signature:
        """What its kind takes and how it is read."""
        return SIGNATURES[self.kind]

    def check(self, names: Names) -> None:
        """RecordError if it speaks of what the scene does not have, or of a thing that it cannot be said of."""
        if self.kind == "goal" and int(self.number or 1) > len(names.goal):
            raise RecordError(f"goal({self.number:g}): the goal has {len(names.goal)} predicates")
        for argument, thing in zip(self.signature.arguments, self.things, strict=True):
            bound = names.bind(thing)
            if argument == "one" and thing == DISTRACTOR:
                raise RecordError(f"{self.kind}: '{thing}' may be many things; name one")
            if argument == "object" and bound.kind != "object":
                raise RecordError(f"{self.kind}: '{thing}' is not an object that can be moved")
            if argument == "posed" and (bound.kind not in ("object", "gripper") or thing == DISTRACTOR):
                raise RecordError(
                    f"{self.kind}: the orientation of '{thing}' is not known; use an object or the gripper"
                )
            if argument == "part" or (argument == "contact" and bound.kind != "object"):
                names.part(thing)

    def progress(self, trace: Trace) -> np.ndarray:
        """(T+1,) in [0, 1]."""
        if self.signature.reading == "flag":
            return self.holds(trace).astype(float)
        share = self.signature.measure(trace, self) / (self.number or 1.0)
        return np.clip(1.0 - share if self.signature.reading == "falling" else share, 0.0, 1.0)

    def holds(self, trace: Trace) -> np.ndarray:
        """(T+1,) bool: the condition."""
        value = self.signature.measure(trace, self)
        if self.signature.reading == "flag":
            return value
        number = self.number or 1.0
        return value < number if self.signature.reading == "falling" else value >= number

    def implies(self, other: "Term") -> bool:
        """Whether the condition can't hold without the other one, as far as the words show."""
        if self.kind == "held":
            if other.kind == "touching":
                return self.things == other.things
            if other.kind == "near" and set(other.things) == {GRIPPER, self.things[0]}:
                return True
        if self.kind != other.kind or self.things != other.things:
            return False
        mine, theirs = self.number or 0.0, other.number or 0.0
        reading = self.signature.reading
        return mine == theirs if reading == "flag" else mine <= theirs if reading == "falling" else mine >= theirs

    def excludes(self, other: "Term") -> bool:
        """Whether both conditions can't hold at once, as far as the words show."""
        kinds = {self.kind, other.kind}
        if kinds == {"held", "free"}:
            return self.things == other.things
        if kinds == {"held"}:  # two fingers hold one thing
            return self.things != other.things
        if kinds == {"opened", "closed"}:
            return self.things == other.things and (self.number or 1.0) + (other.number or 1.0) > 1.0
        if kinds == {"near", "clear"}:
            near, clear = (self, other) if self.kind == "near" else (other, self)
            return set(near.things) == set(clear.things) and (near.number or 0.0) <= (clear.number or 0.0)
        return False


Clause = tuple[Term, ...]


def contradiction(clause: Clause) -> tuple[Term, Term] | None:
    """Two terms of a conjunction that can't hold at once, or None."""
    return next(((a, b) for i, a in enumerate(clause) for b in clause[i + 1 :] if a.excludes(b)), None)


def entails(some: tuple[Clause, ...], others: tuple[Clause, ...]) -> bool:
    """Whether a condition in clauses (any of them, all terms of it) can't hold without another, as the words show."""
    return all(any(all(any(a.implies(b) for a in clause) for b in other) for other in others) for clause in some)
