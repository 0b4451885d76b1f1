"""What a potential may speak of: the objects, regions and articulated parts of a scene, by name or by role.

Roles follow the goal: `target`, `receptacle`, `region` and `handle` are those of its first predicate, `target2` that of
its second. So one potential fits every scene with a goal of the same form.
"""

import re
from dataclasses import dataclass
from typing import Literal

from libero_pro.episode import Episode
from libero_pro.goals import owner
from libero_pro.record import RecordError
from libero_pro.scene import Goal
from libero_pro.suites import Task, nearest

GRIPPER, DISTRACTOR = "gripper", "distractor"
HANDLE = ".handle"  # `NAME.handle`: where the part is taken hold of, not the middle of what it encloses
_ROLE = re.compile(r"(target|receptacle|region|handle)([1-6]?)")
_DRAWERS = ("top_region", "middle_region", "bottom_region")

ThingKind = Literal["gripper", "object", "region", "part"]


@dataclass(frozen=True)
class Thing:
    """A bound thing: `names` is one name, or all distractors of the scene (possibly none)."""

    kind: ThingKind
    names: tuple[str, ...]


@dataclass(frozen=True)
class Names:
    """The vocabulary of one scene: its goal, movable objects, regions with fixtures, and articulated parts.

    places    where objects stand at the start, as (object, place) pairs of the BDDL file
    recorded  whether `regions` and `parts` are known; episodes of earlier versions don't hold them
    """

    goal: Goal
    objects: tuple[str, ...]
    regions: tuple[str, ...]
    parts: tuple[str, ...]
    places: tuple[tuple[str, str], ...] = ()
    recorded: bool = True

    @classmethod
    def of_episode(cls, episode: Episode) -> "Names":
        """What an episode's arrays tell of."""
        recorded = episode.region_pos is not None
        e = episode
        return cls(e.scene.goal, e.object_names, e.region_names, e.part_names, recorded=recorded)

    @classmethod
    def of_task(cls, task: Task, goal: Goal | None = None) -> "Names":
        """What a BDDL file tells of, without a simulator; `goal` in place of the file's own."""
        problem = task.problem()
        arenas = {region.target for region in problem.regions.values() if region.ranges}
        fixtures = {name: kind for name, kind in problem.fixtures.items() if name not in arenas}
        there = (*problem.objects, *problem.fixtures)
        regions = [name for name, region in problem.regions.items() if region.target in there]
        parts = [name for name, kind in fixtures.items() if kind == "microwave" or kind.endswith("stove")]
        drawers = [f"{name}_{end}" for name, kind in fixtures.items() if kind.endswith("cabinet") for end in _DRAWERS]
        known = tuple(dict.fromkeys([*regions, *drawers, *fixtures]))
        places = tuple((fact[1], fact[2]) for fact in problem.init if fact[0] in ("on", "in") and len(fact) == 3)
        return cls(goal or task.goal(), tuple(problem.objects), known, (*parts, *drawers), places)

    def bind(self, thing: str) -> Thing:
        """The thing that a name or role means here; RecordError names what does not exist."""
        if thing == GRIPPER:
            return Thing("gripper", ())
        if thing == DISTRACTOR:
            return Thing("object", self._distractors())
        role = _ROLE.fullmatch(thing)
        if role:
            return self._role(role[1], int(role[2] or 1), thing)
        name = thing.removesuffix(HANDLE)
        kinds: list[tuple[ThingKind, tuple[str, ...]]] = (
            [("part", self.parts)]
            if thing.endswith(HANDLE)
            else [("object", self.objects), ("region", self.regions), ("part", self.parts)]
        )
        for kind, known in kinds:
            if name in known:
                return Thing(kind, (name,))
        known_names = sorted({name for _, names in kinds for name in names})
        raise RecordError(f"'{thing}' is not in the scene{self._hint(name, known_names)}")

    def part(self, thing: str) -> str:
        """The articulated part that a name or role means; RecordError if it has no joint."""
        bound = self.bind(thing)
        if bound.kind == "object" or not bound.names or bound.names[0] not in self.parts:
            raise RecordError(
                f"'{thing}' is not a part that opens, closes or turns{self._hint(thing, list(self.parts))}"
            )
        return bound.names[0]

    def handle_of(self, region: str) -> str | None:
        """The part that must be open to put something in a region: a drawer itself, or a microwave's door."""
        return region if region in self.parts else owner(region, self.parts)

    def _role(self, role: str, number: int, written: str) -> Thing:
        if number > len(self.goal):
            raise RecordError(f"'{written}': the goal has {len(self.goal)} predicates, not {number}")
        predicate = self.goal[number - 1]
        if len(predicate) < 3:  # open, close, turnon, turnoff
            if role in ("target", "handle"):
                return self.bind(predicate[1] + HANDLE)
            raise RecordError(f"'{written}': the goal {predicate} places nothing, so it has no {role}; use 'handle'")
        if role == "target":
            return self.bind(predicate[1])
        if role == "region":
            return self.bind(predicate[2])
        if role == "receptacle":
            return self.bind(owner(predicate[2], self.objects) or predicate[2])
        part = self.handle_of(predicate[2])
        if part is None:
            raise RecordError(f"'{written}': nothing of '{predicate[2]}' opens{self._hint('', list(self.parts))}")
        return self.bind(part + HANDLE)

    def _distractors(self) -> tuple[str, ...]:
        """Objects that the goal does not speak of."""
        spoken = {predicate[1] for predicate in self.goal}
        spoken |= {owner(name, self.objects) or name for predicate in self.goal for name in predicate[2:]}
        return tuple(name for name in self.objects if name not in spoken)

    def _hint(self, name: str, known: list[str]) -> str:
        if not self.recorded:
            return "; the episode was recorded without regions and parts, record it again"
        return nearest(name, known) or f"; there are: {', '.join(sorted(known)) or 'none'}"
