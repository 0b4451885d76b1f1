"""Words for things: which of a scene's names a person means by "the middle drawer" or "the bowl"."""

import re
from typing import Literal

from lerobot_coda.potential.names import DISTRACTOR, GRIPPER, HANDLE, Names
from libero_pro.goals import owner
from libero_pro.record import RecordError
from libero_pro.suites import nearest

Role = Literal["any", "object", "part", "destination", "inside"]

_FILLER = {
    "the", "a", "an", "its", "your", "of", "in", "on", "at", "from", "and", "to", "top", "box", "layer", "compartment",
    "part", "one", "side", "handle", "region", "that", "is", "s",
}  # fmt: skip
_KEPT = {"top"}  # tells drawers apart, so it counts where a name has it
# Other words that a word of a name answers to.
_ALSO = {
    "cabinet": {"cupboard"}, "stove": {"burner", "knob", "hob", "cooker"}, "microwave": {"door"}, "mug": {"cup"},
    "pot": {"pan"}, "plate": {"dish"}, "rack": {"shelf"}, "porcelain": {"white"}, "box": {"cookie"},
}  # fmt: skip
_ROLES = re.compile(r"(target|receptacle|region|handle)[1-6]?")
# What of a fixture one means by "in" and "on" it, in order of preference.
_INSIDE = ("contain_region", "heating_region", "top_region")
_ON = ("cook_region", "top_side", "top_region", "contain_region")


def find(words: str, names: Names, role: Role) -> str:
    """The one name that words mean in a role; RecordError if there is none, or more than one.

    object: can be moved;  part: opens, closes or turns;  destination, inside: where a thing goes;  any: all of them
    """
    said = [word for word in _words(words) if word not in ("the", "a", "an")]
    if len(said) == 1 and (said[0] in (GRIPPER, DISTRACTOR) or _ROLES.fullmatch(said[0]) or _known(said[0], names)):
        return _placed(said[0], names, role)
    candidates = _candidates(names, role)
    found = _matching(words, candidates, names, role)
    if len(found) > 1:
        found = _preferred(found, names)
    if len(found) == 1:
        return _placed(found[0], names, role)
    if found:
        raise RecordError(f"'{words}' may be {' or '.join(sorted(found))}; say which")
    if elsewhere := _matching(words, _candidates(names, "any"), names, "any"):
        what = {"object": "cannot be moved", "part": "does not open, close or turn"}.get(role, "is no place")
        raise RecordError(f"'{words}' is {_preferred(elsewhere, names)[0]}, which {what}{_list(candidates)}")
    raise RecordError(f"there is no '{words}' in the scene{nearest('_'.join(said), candidates) or _list(candidates)}")


def find_all(words: str, names: Names) -> list[str]:
    """Every object that words fit, for "both moka pots"; RecordError unless there are two."""
    found = _matching(words, list(names.objects), names, "object")
    if len(found) != 2:
        raise RecordError(f"'both {words}' are {len(found)} objects{_list(list(names.objects))}")
    return found


def is_one(words: str, names: Names) -> bool:
    """Whether the words, an "and" among them, fit one object, as in "the yellow and white mug"."""
    return bool(_matching(words, list(names.objects), names, "object"))


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9_.]+", text.lower())


def _matching(words: str, candidates: list[str], names: Names, role: Role) -> list[str]:
    """Candidates that answer to every word that counts, if need be with the place where they stand at the start."""
    spoken = _words(words)
    kept = _KEPT if "drawer" in spoken or role == "inside" else set()
    wanted = {_singular(word) for word in spoken if word not in _FILLER - kept}
    if not wanted:
        raise RecordError(f"'{words}' names nothing{_list(candidates)}")
    found = [name for name in candidates if wanted <= _tokens(name, names)]
    if found:
        return found
    places = dict(names.places)
    return [name for name in candidates if wanted <= _tokens(name, names) | _tokens(places.get(name, ""), names)]


def _list(candidates: list[str]) -> str:
    return f"; there are {', '.join(candidates) or 'none'}"


def _known(word: str, names: Names) -> bool:
    return word.removesuffix(HANDLE) in (*names.objects, *names.regions, *names.parts)


def _candidates(names: Names, role: Role) -> list[str]:
    if role == "object":
        return list(names.objects)
    if role == "part":
        return list(names.parts)
    return list(dict.fromkeys([*names.objects, *names.regions]))


def _tokens(name: str, names: Names) -> set[str]:
    """Words that a name answers to."""
    tokens = {_singular(word) for word in name.split("_")}
    if name in names.parts and name.endswith("_region"):
        tokens.add("drawer")
    return tokens.union(*(_ALSO.get(word, set()) for word in tokens))


def _preferred(found: list[str], names: Names) -> list[str]:
    """The plainest reading: what the goal is about, else an object, else a fixture, and last a spot on the table."""
    in_goal = [name for name in found if any(name in predicate[1:] for predicate in names.goal)]
    if len(in_goal) == 1:
        return in_goal
    everything = [*names.objects, *names.regions]
    of = {name: owner(name, [other for other in everything if other != name]) for name in found}
    owners = {owner(region, [name]) for region in names.regions for name in found if region != name}
    objects = [name for name in found if name in names.objects]
    fixtures = [name for name in found if name in owners or (name in names.parts and of[name] is None)]
    owned = [name for name in found if of[name] is not None]
    plain = objects or fixtures or owned or found
    return plain if len(plain) == 1 or not in_goal else in_goal


def _placed(name: str, names: Names, role: Role) -> str:
    """For a place, the region of a thing that one means by it; the name itself where it has none."""
    if role not in ("destination", "inside") or name not in (*names.objects, *names.regions):
        return name
    regions = [region for region in names.regions if region != name and owner(region, [name]) == name]
    named = [predicate[2] for predicate in names.goal if len(predicate) == 3 and predicate[2] in regions]
    if len(named) == 1:
        return named[0]
    for end in _INSIDE if role == "inside" else _ON:
        fitting = [region for region in regions if region.endswith(end)]
        if len(fitting) == 1 and (role == "inside" or name not in names.objects):
            return fitting[0]
    return name


def _singular(word: str) -> str:
    return word[:-1] if word.endswith("s") and word not in ("this", "its") and len(word) > 3 else word
