"""What lies ahead of a run: its stages with their sizes and prices, and which of them are finished."""

import fcntl
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lerobot_coda.base import SHARD_EPISODES
from lerobot_coda.budget import Usage
from lerobot_coda.console import PRIOR_S, Planned
from lerobot_coda.recipe import EvolveRecipe
from libero_pro.record import RecordError

TRAINED = ("sft", "train")  # kinds that `lerobot-train` does in a process of its own


def plan(recipe: EvolveRecipe) -> list[Planned]:
    """The stages of a whole run with their expected sizes, for the estimate of the time left."""
    tasks, heldout = len(recipe.task_ids), recipe.heldout
    demos = recipe.base.demos_per_task * tasks
    shards = max(1, demos // SHARD_EPISODES)
    episodes = len(heldout.suites) * tasks * heldout.episodes_per_task
    stages = [
        Planned("demonstrate", "base demonstrate", demos),
        *(Planned("dataset", f"base shard {k + 1} of {shards}", demos // shards) for k in range(shards)),
        Planned("sft", "base train", recipe.base.steps),
        Planned("evaluate", "held-out before", episodes),
    ]
    probe, fresh = recipe.probe.scenes, recipe.budget.environments_per_round - recipe.probe.scenes
    for number in range(1, recipe.rounds + 1):
        name = f"round {number} "
        rules = recipe.rules
        tested = rules.validation and rules.source == "diagnoses" and number == 1
        trials = recipe.validation.pairs if tested else 0
        if rules.source != "none":
            stages += [
                Planned("gate", name + "probe scenes", probe),
                Planned("probe", name + "probe", probe),
                Planned("gate", name + "validation scenes", trials),
                Planned("validate", name + "validate", 2 * trials),
                Planned("gate", name + "contrast scenes", 2 * trials),
                Planned("validate", name + "contrast", 2 * trials),
                Planned("measure", name + "retention", recipe.retention.scenes),
                Planned("gate", name + "scenes", fresh),
                Planned("demonstrate", name + "demonstrate", fresh)
                if rules.experts
                else Planned("probe", name + "practice", fresh),
                Planned("dataset", name + "shard", fresh + probe // 4),
                Planned("ground", name + "ground", recipe.budget.layouts_per_round),
            ]
        stages.append(Planned("train", name + "train", recipe.training.steps))
        if rules.source != "none":
            stages.append(Planned("measure", name + "measure", probe // 2 + trials))
    stages.append(Planned("evaluate", "held-out after", episodes))
    if recipe.rounds > 1:
        both = min(heldout.frontier, recipe.rounds * probe // 2)
        stages += [Planned("measure", f"held-out frontier {who}", both) for who in ("base", f"r{recipe.rounds:03d}")]
    return [stage for stage in stages if stage.units]


@dataclass(frozen=True)
class Cost:
    """Stages of one kind: how many units they have together, and the seconds they are expected to take."""

    kind: str
    units: int
    seconds: float


def costs(stages: Sequence[Planned], workers: int = 2) -> list[Cost]:
    """The price of the stages by kind, in the order in which the kinds come; two quiet cores are assumed.

    workers  of the run: one alone takes twice as long for all but training, more than two gain nothing on two cores
    """
    units: dict[str, int] = {}
    for stage in stages:
        units[stage.kind] = units.get(stage.kind, 0) + stage.units
    alone = 2.0 if workers < 2 else 1.0
    return [Cost(kind, n, n * PRIOR_S[kind] * (1.0 if kind in TRAINED else alone)) for kind, n in units.items()]


@dataclass(frozen=True)
class Finished:
    """A step with its record: its label as `plan` names it, the wall seconds it took, and what it used."""

    label: str
    seconds: float
    usage: Usage


def finished(run: Path) -> list[Finished]:
    """The steps of a run that have a record, oldest first; a damaged record counts as not done."""
    folders = [("base ", run / "base"), ("held-out ", run / "heldout")]
    folders += [(f"round {int(path.name)} ", path) for path in sorted((run / "rounds").glob("[0-9]*"))]
    found = []
    for prefix, folder in folders:
        for path in (folder / "steps").glob("*.json"):
            try:
                record = json.loads(path.read_text(encoding="utf-8"))
                step = Finished(prefix + path.stem, float(record["seconds"]), Usage.parse(record["usage"]))
                found.append((path.stat().st_mtime, step))
            except (OSError, ValueError, KeyError, TypeError, RecordError):
                continue
    return [step for _, step in sorted(found, key=lambda item: item[0])]


def ahead(run: Path, recipe: EvolveRecipe, done: Sequence[Finished]) -> list[Planned]:
    """The planned stages that are left at most: not done, and of no round that is finished."""
    known = {step.label for step in done}
    over = tuple(f"round {int(path.parent.name)} " for path in (run / "rounds").glob("[0-9]*/round.json"))
    return [stage for stage in plan(recipe) if stage.label not in known and not stage.label.startswith(over)]


def at_work(run: Path) -> bool:
    """Whether a process holds the run's folder right now."""
    try:
        with (run / ".lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
