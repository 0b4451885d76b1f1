"""From the raw text of a model to a typed claim, or to the reason why there is none.

Nothing in an answer is run or trusted: it is searched for one JSON object, which must fit the claim's fields and may
name only what the scenes hold. Text that is kept (the explanation) is freed of control characters; whoever shows it
escapes it.
"""

import json
import re
import unicodedata
from collections.abc import Mapping
from typing import Any, NamedTuple

from lerobot_coda.critic.review import Claim
from libero_pro.record import RecordError

LONGEST = 32_768  # characters of an answer that are looked at; a claim needs about five hundred
_STARTS = 64  # opening braces that are tried before an answer counts as noise
_DIFFICULTIES = 8


class AnswerError(RecordError):
    """An answer that is no claim; the message says why, and is what the model is told when it is asked again."""


class Known(NamedTuple):
    """What an answer may speak of.

    names       objects, parts and places of the shown scenes;  `targets` those that the goals ask to move
    predicates  their goals' predicates;  `operations` kinds of generation operations
    steps       control steps of the first clip;  `failed` whether the critic is told that the episodes failed
    """

    names: tuple[str, ...]
    targets: tuple[str, ...]
    predicates: tuple[tuple[str, ...], ...]
    operations: tuple[str, ...]
    steps: int
    failed: bool


def parse(raw: str, known: Known) -> Claim | None:
    """The claim of an answer; None for one that sees no failure. AnswerError says what makes it unusable."""
    data = find_object(raw)
    failed = data.pop("failed", True)
    if failed not in (True, False):
        raise AnswerError("field 'failed': it must be true or false")
    if not failed:
        if known.failed:
            raise AnswerError("it says that nothing failed, and the goal does not hold in these episodes")
        return None
    predicate = data.get("predicate")
    if isinstance(predicate, str):
        data["predicate"] = predicate.split()
    if isinstance(data.get("explanation"), str):
        data["explanation"] = one_paragraph(data["explanation"], 600)
    if isinstance(data.get("difficulty"), Mapping):
        data["difficulty"] = _asked_for(data["difficulty"])
    try:
        claim = Claim.parse(data)
    except RecordError as error:
        raise AnswerError(one_paragraph(str(error).removeprefix("Claim: "), 300)) from None
    _check(claim, known)
    return claim


def find_object(raw: str) -> dict[str, Any]:
    """The JSON object of an answer, alone or inside prose, if there is only one; AnswerError otherwise.

    What stands before the end of a "thinking" block is not part of the answer.
    """
    if len(raw) > LONGEST:
        raise AnswerError(f"it has {len(raw)} characters, more than {LONGEST}")
    text = raw.rpartition("</think>")[2]
    decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)
    found: list[dict[str, Any]] = []
    at = text.find("{")
    for _ in range(_STARTS):
        if at < 0:
            break
        try:
            value, end = decoder.raw_decode(text, at)
            found.append(value)
        except json.JSONDecodeError as error:
            end = max(error.pos, at + 1)  # not at + 1: an object inside a broken one is not the answer
        except RecursionError:
            raise AnswerError("its JSON is nested too deeply") from None
        except AnswerError:
            raise
        except ValueError:  # a number of thousands of digits
            raise AnswerError("its JSON holds a number that is none") from None
        at = text.find("{", end)
    else:
        raise AnswerError(f"more than {_STARTS} braces open in it; it must be one JSON object")
    if not found:
        raise AnswerError("it holds no JSON object")
    if any(other != found[0] for other in found[1:]):
        raise AnswerError(f"it holds {len(found)} different JSON objects; it must be one")
    return found[0]


def one_paragraph(text: str, longest: int) -> str:
    """Text for people on one line: without control, format and other invisible characters, cut where it is too long."""
    visible = "".join(" " if unicodedata.category(c)[0] in "CZ" else c for c in text[: 4 * longest])
    line = re.sub(" +", " ", visible).strip()
    return line if len(line) <= longest else line[: longest - 1] + "…"


def _check(claim: Claim, known: Known) -> None:
    for name in claim.objects:
        if name not in known.names:
            raise AnswerError(f"field 'objects': '{one_paragraph(name, 60)}' is not in these scenes")
    if claim.predicate and claim.predicate not in known.predicates:
        said = one_paragraph(" ".join(claim.predicate), 80)
        raise AnswerError(f"field 'predicate': '{said}' is not a goal of these scenes")
    if claim.span[1] > known.steps:
        raise AnswerError(f"field 'span': {list(claim.span)} ends after the episode's {known.steps} steps")
    for kind in claim.difficulty:
        if kind not in known.operations:
            raise AnswerError(f"field 'difficulty': '{one_paragraph(kind, 60)}' is not a kind of operation")


def _asked_for(difficulty: Mapping[str, Any]) -> dict[str, Any]:
    """The operations that an answer asks for, 0 being "not this one"; the hardest where there are too many."""
    wanted = {kind: level for kind, level in difficulty.items() if level}
    if len(wanted) <= _DIFFICULTIES or not all(isinstance(level, int | float) for level in wanted.values()):
        return wanted
    return dict(sorted(wanted.items(), key=lambda item: -item[1])[:_DIFFICULTIES])


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise AnswerError("a key stands twice in its JSON object")
    return made


def _refuse_constant(name: str) -> Any:
    raise AnswerError(f"its JSON holds {name}, which is not a number")
