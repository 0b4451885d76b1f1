"""Drawing scenes from programs through the validity gates, with every rejection counted and remembered."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lerobot_coda import archive
from lerobot_coda.budget import Usage
from lerobot_coda.engine import Engine, Gated
from lerobot_coda.memory import Memory, content_hash
from lerobot_coda.programs import CoProgram
from lerobot_coda.steps import Steps
from libero_pro.phrases import paraphrases
from libero_pro.scene import SceneSpec

SPARE = 1.4  # scenes drawn for each that is wanted, since gates reject some
BATCHES = 4  # then a program has to make do with what was accepted


@dataclass(frozen=True)
class Placed:
    """A scene and the name of the program it came from ("control" for an unperturbed one)."""

    program: str
    scene: SceneSpec


@dataclass
class Generator:
    """Draws for one round. `rejected` counts scenes per gate, `accepted` those that passed, both over all purposes.

    leaks  the denylist, asked once more of every scene that was let through: `leaked` must stay 0
    """

    engine: Engine
    memory: Memory
    steps: Steps
    round: int
    leaks: Callable[[SceneSpec], str | None]
    rejected: Counter[str] = field(default_factory=Counter)
    accepted: int = 0
    leaked: int = 0

    def scenes(
        self,
        step: str,
        wanted: Mapping[str, int],
        programs: Sequence[CoProgram],
        reworded: Mapping[str, float] | None = None,
    ) -> list[Placed]:
        """`wanted` scenes of each program (by name), or as many as the gates let through; a `Steps` step.

        reworded  share of a program's scenes (by name) whose instruction is given in other words
        """
        chosen = [p for p in programs if wanted.get(p.name, 0) > 0]
        total = sum(wanted[p.name] for p in chosen)
        if not total:
            return []
        seed = stream(step, self.round)
        shares = {p.name: share for p in chosen if (share := (reworded or {}).get(p.name, 0.0)) > 0}

        def work(tick: Callable[[int], None]) -> tuple[Any, Usage]:
            kept, rejected = self._draw(chosen, wanted, shares, seed, tick)
            return {"scenes": kept, "rejected": dict(rejected)}, Usage()

        inputs = [[p.hash, wanted[p.name]] for p in chosen]
        result = self.steps.run(step, "gate", total, [inputs, seed, *([shares] if shares else [])], work)
        placed = [Placed(row["program"], SceneSpec.parse(row["scene"])) for row in result["scenes"]]
        self.book(result["rejected"], [p.scene for p in placed])
        return placed

    def book(self, rejected: Mapping[str, int], scenes: Sequence[SceneSpec]) -> None:
        """Adds to the counts, and audits what was let through."""
        self.rejected.update(rejected)
        self.accepted += len(scenes)
        self.leaked += sum(self.leaks(scene) is not None for scene in scenes)

    def layouts(self, programs: Mapping[str, int], known: Sequence[CoProgram]) -> tuple[list[SceneSpec], Counter[str]]:
        """Static layouts of each program (by name) that may be shown, and how many were rejected per gate."""
        scenes: list[SceneSpec] = []
        rejected: Counter[str] = Counter()
        for program in known:
            count = programs.get(program.name, 0)
            drawn = self.engine.sample(program.generation, count, stream("layouts", self.round), 0)
            rejected["layout"] += count - len(drawn)
            gated = self.engine.gate(drawn, lambda done: None, static=True)
            rejected.update(g.gate for g in gated if not g.accepted)
            scenes += [g.scene for g in gated if g.accepted]
        return scenes, +rejected

    def _draw(
        self,
        programs: Sequence[CoProgram],
        wanted: Mapping[str, int],
        reworded: Mapping[str, float],
        seed: int,
        tick: Callable[[int], None],
    ) -> tuple[list[dict[str, Any]], Counter[str]]:
        """Batches for all programs at once, so that a worker builds each simulator once a batch."""
        kept: dict[str, list[SceneSpec]] = {p.name: [] for p in programs}
        drawn: Counter[str] = Counter()
        rejected: Counter[str] = Counter()
        known: set[str] = set()
        for _ in range(BATCHES):
            batch: list[tuple[CoProgram, SceneSpec]] = []
            for program in programs:
                missing = wanted[program.name] - len(kept[program.name])
                if missing > 0:
                    count = round(missing * SPARE) + 1
                    fresh = self.engine.sample(program.generation, count, seed, drawn[program.name])
                    drawn[program.name] += count
                    rejected["layout"] += count - len(fresh)  # no free place for every object
                    share = reworded.get(program.name, 0.0)
                    new = {scene.hash: scene for scene in fresh if scene.hash not in known}
                    known |= new.keys()  # what begins at stored instants is drawn again and again
                    batch += [(program, in_other_words(scene, share)) for scene in new.values()]
            if not batch:
                continue
            gated = self.engine.gate([scene for _, scene in batch], _offset(tick, sum(map(len, kept.values()))))
            for program in programs:
                own = [g for (p, _), g in zip(batch, gated, strict=True) if p is program]
                self._keep(program, own, kept[program.name], wanted[program.name], rejected)
        rows = [
            {"program": name, "scene": scene.model_dump(mode="json")} for name, found in kept.items() for scene in found
        ]
        return rows, +rejected

    def _keep(
        self,
        program: CoProgram,
        gated: Sequence[Gated],
        kept: list[SceneSpec],
        wanted: int,
        rejected: Counter[str],
    ) -> None:
        """Takes scenes in order until there are enough; what lies beyond was never needed and counts nowhere."""
        seen = []
        for one in gated:
            if len(kept) == wanted:
                break
            seen.append(one)
            if one.accepted:
                kept.append(one.scene)
            else:
                rejected[one.gate] += 1
        for rows in archive.scene_rows(seen, program):
            self.memory.add(*rows)


def in_other_words(scene: SceneSpec, share: float) -> SceneSpec:
    """The scene, or for a `share` of scenes (by their hash) the same with its instruction in other words.

    A scene stays as it is where no other wording is known; none is a LIBERO-Pro test's.
    """
    draw = int(scene.hash, 16)
    if draw % 1000 >= 1000 * share:
        return scene
    others = paraphrases(scene.instruction)
    if not others:
        return scene
    instruction = others[draw // 1000 % len(others)]
    return scene.model_copy(update={"instruction": instruction, "prompt_source": "generated"})


def _offset(tick: Callable[[int], None], base: int) -> Callable[[int], None]:
    return lambda done: tick(base + done)


def stream(purpose: str, number: int) -> int:
    """The random stream of a purpose in a round, so that no two share scenes."""
    return int(content_hash("stream", purpose, number), 16) % 2**31
