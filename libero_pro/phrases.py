"""An instruction in other words: verbs and the order of the sentence change, what it asks for and of what does not."""

import re
from difflib import SequenceMatcher
from functools import cache

from libero_pro.denylist import is_test_instruction

# Sentence patterns of the base suites' instructions, and what else can be said; \\1, \\2 are their noun phrases.
_TEMPLATES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        r"pick (?:up )?(the .+) and place it (in|on) (the .+)",
        (
            r"please pick up \1 and place it \2 \3",
            r"take \1 and put it \2 \3",
            r"lift \1, then set it down \2 \3",
            r"get \1 and leave it \2 \3",
            r"\2 \3 is where \1 should go",
        ),
    ),
    (
        r"put (both .+|the .+?) (in|on|on top of|to the right of) (the [^,]+?)",
        (
            r"please put \1 \2 \3",
            r"set \1 down \2 \3",
            r"move \1 so that it ends up \2 \3",
            r"I want \1 \2 \3",
        ),
    ),
    (
        r"push (the .+) to the front of (the .+)",
        (r"please push \1 to the front of \2", r"slide \1 over until it is in front of \2"),
    ),
    (
        r"open (the [^,]+?)",
        (r"please open \1", r"pull \1 open", r"\1 should be open"),
    ),
    (
        r"turn on (the .+?)",
        (r"please turn on \1", r"switch \1 on", r"\1 should be on"),
    ),
)
_JOINED = re.compile(r" and (?=(?:put|close|open|turn)\b)")
_PLURAL = (("both ", "it ends up", "they end up"),)


@cache
def paraphrases(instruction: str) -> tuple[str, ...]:
    """Other wordings of a base instruction, the nearest to it first; none that belongs to a LIBERO-Pro test.

    Empty if the instruction follows none of the known patterns.
    """
    parts = _JOINED.split(instruction)
    if len(parts) > 1 and not parts[0].startswith("pick"):
        first = _single(parts[0])
        rest = " and ".join(parts[1:])
        found = [f"{one}, then {rest}" for one in (parts[0], *filter(_commands, first))]
    else:
        found = list(_single(instruction))
    fresh = {text for text in found if text != instruction and not is_test_instruction(text)}
    return tuple(sorted(fresh, key=lambda text: (-SequenceMatcher(None, instruction, text).ratio(), text)))


def _single(sentence: str) -> list[str]:
    for pattern, templates in _TEMPLATES:
        match = re.fullmatch(pattern, sentence)
        if match:
            return [_agree(match.expand(template)) for template in templates]
    return []


def _commands(sentence: str) -> bool:
    """Whether "..., then close it" can follow."""
    return "should" not in sentence and not sentence.startswith("I ")


def _agree(sentence: str) -> str:
    """Plural where the sentence speaks of both."""
    for mark, singular, plural in _PLURAL:
        if mark in sentence:
            sentence = sentence.replace(singular, plural)
    return sentence
