"""Scenes of a program that pass every gate, as files: resumable, and the same whatever interrupted it.

made = generate(program, 100, Path("scenes"), workers=2)   # scenes/scenes.jsonl
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from libero_pro.journal import Journal
from libero_pro.judge import Demonstrations, judge
from libero_pro.programs import GenerationProgram, LayoutError
from libero_pro.record import RecordError, write_atomically
from libero_pro.scene import SceneSpec
from libero_pro.workers import Workers

SCENES = "scenes.jsonl"
EPISODES = "episodes"
_SPARE = 1.25  # scenes drawn for each that is still missing, since gates reject some
_PATIENCE = 20  # scenes drawn for each that is wanted, before the program is given up
MAX_COUNT = 100_000


@dataclass(frozen=True)
class Generated:
    """What `generate` made: the accepted scenes in the program's order, and how many each gate rejected among them."""

    scenes: tuple[SceneSpec, ...]
    rejected: Counter[str]
    path: Path


def generate(
    program: GenerationProgram,
    count: int,
    out: Path,
    *,
    workers: Workers = 2,
    demonstrate: bool = False,
    noise: float = 0.0,
    progress: Callable[[int], None] | None = None,
) -> Generated:
    """The first `count` scenes of the program's own stream that pass every gate, in `out/scenes.jsonl`.

    demonstrate  also let the expert solve each, and keep its episode in `out/episodes`; what it cannot solve is
                 rejected by the gate "solved". `noise` is the probability per step that it is disturbed
    progress     called with the number of scenes accepted so far

    Every verdict is journaled in `out/verdicts.jsonl` as soon as it is known, so that a run that was killed goes on
    where it was; the result depends on the arguments alone. RecordError if `out` belongs to another program, if hardly
    any scene passes, or if a scene cannot be judged.
    """
    if not 1 <= count <= MAX_COUNT:
        raise RecordError(f"count must be 1 to {MAX_COUNT}, not {count}")
    if not 0.0 <= noise <= 1.0:
        raise RecordError(f"noise is a probability in [0, 1], not {noise}")
    out = Path(out)
    conditions = {"program": program.hash, "demonstrate": demonstrate, "noise": noise}
    journal = Journal(out / "verdicts.jsonl", conditions)
    program.save(out / "program.json")
    known: dict[int, dict[str, Any]] = {row["index"]: row for row in journal.rows}
    demonstrations = Demonstrations(out / EPISODES, noise) if demonstrate else None
    drawn = 0
    while True:
        accepted = [index for index in range(drawn) if known[index]["gate"] is None]
        if len(accepted) >= count:
            break
        if drawn >= _PATIENCE * count:
            raise RecordError(_hopeless(len(accepted), drawn, known))
        last = min(_PATIENCE * count, drawn + round(_SPARE * (count - len(accepted))) + 1)
        _judge_batch(program, range(drawn, last), known, journal, workers, demonstrations, progress)
        drawn = last
    chosen = accepted[:count]
    rejected: Counter[str] = Counter(known[i]["gate"] for i in range(chosen[-1] + 1) if known[i]["gate"] is not None)
    scenes = tuple(program.scene(index) for index in chosen)
    if demonstrate:
        _keep_only(out / EPISODES, {scene.hash for scene in scenes})
    write_atomically(out / SCENES, "".join(f"{scene.to_json()}\n" for scene in scenes).encode())
    return Generated(scenes, rejected, out / SCENES)


def _judge_batch(
    program: GenerationProgram,
    indices: range,
    known: dict[int, dict[str, Any]],
    journal: Journal,
    workers: Workers,
    demonstrations: Demonstrations | None,
    progress: Callable[[int], None] | None,
) -> None:
    """Fills `known` for the indices, from the journal or anew."""

    def note(index: int, gate: str | None, reason: str) -> None:
        known[index] = {"index": index, "gate": gate, "reason": reason}
        journal.append(known[index])
        tell()

    def tell() -> None:
        if progress is not None:
            progress(sum(row["gate"] is None for row in known.values()))

    missing, scenes = [], []
    for index in indices:
        if index in known:
            continue
        try:
            scene = program.scene(index)
        except LayoutError as error:
            note(index, "layout", str(error))
            continue
        missing.append(index)
        scenes.append(scene)
    tell()
    for position, verdict in judge(scenes, workers=workers, demonstrations=demonstrations):
        note(missing[position], verdict.gate, verdict.reason)


def _hopeless(accepted: int, drawn: int, known: dict[int, dict[str, Any]]) -> str:
    gates = Counter(row["gate"] for row in known.values() if row["gate"] is not None)
    gate, times = gates.most_common(1)[0]
    reason = next(row["reason"] for row in known.values() if row["gate"] == gate)
    return (
        f"only {accepted} of {drawn} scenes pass; '{gate}' rejects {times}, for example: {reason}; lower the "
        "difficulty or the amounts"
    )


def _keep_only(folder: Path, hashes: set[str]) -> None:
    """Removes episodes of scenes that were judged and then not needed."""
    for path in folder.glob("*.npz*"):
        if path.name.split(".")[0] not in hashes or path.suffix != ".npz":
            path.unlink()
