"""A finished bench set as a dataset on the Hub: the episodes, the truth and a card, one complete revision."""

import json
import time
from collections.abc import Callable
from pathlib import Path

from huggingface_hub import DatasetCardData

from lerobot_coda.critic.bench.build import FILE, BenchSet
from lerobot_coda.critic.diagnosis import CLASSES
from lerobot_coda.hub.access import check_name, check_repo, connect, create
from lerobot_coda.hub.errors import patiently
from lerobot_coda.hub.revisions import MARK, Published, Revision, publish

_NAME = "critic-bench"


def push_bench(
    folder: Path, repo: str, *, private: bool = True, wait: Callable[[float], None] = time.sleep
) -> Published:
    """Brings the set in `folder` to the dataset `repo` (NAMESPACE/NAME), made where it is missing.

    The same call after an interruption finishes what was begun. HubError where the Hub, or what the repository already
    holds, stands in the way; RecordError without a finished set.
    """
    bench = BenchSet.open(folder)
    revision = revision_of(bench, Path(folder), repo)
    api = connect(check_name(repo), wait)
    mark = {"name": _NAME, "recipe_hash": bench.hash}
    if not check_repo(api, "dataset", repo, private=private, run=mark, wait=wait):
        create(api, "dataset", repo, private=private, wait=wait)
    return patiently(lambda: publish(api, revision), f"pushing {revision.name}", wait)


def revision_of(bench: BenchSet, folder: Path, repo: str) -> Revision:
    """The files of a set as they stand in its repository."""
    tag = f"seed-{bench.seed}-{bench.hash[:8]}"
    mark = {"run": _NAME, "recipe_hash": bench.hash, "seed": bench.seed, "tag": tag}
    files: dict[str, Path | bytes] = {
        **{f"episodes/{item.name}.npz": folder / "episodes" / f"{item.name}.npz" for item in bench.items},
        FILE: folder / FILE,
        MARK: (json.dumps(mark, indent=1) + "\n").encode(),
        "README.md": card(bench),
    }
    return Revision("dataset", repo, tag, f"{_NAME}: {len(bench.items)} episodes", files)


def card(bench: BenchSet) -> bytes:
    """The dataset card: what was planted and how often, and how the files are read."""
    tags = ["robotics", "LIBERO", "failure-detection"]
    data = DatasetCardData(license="apache-2.0", tags=tags, pretty_name="Critic bench")
    counts = {cause: sum(item.cause == cause for item in bench.items) for cause in CLASSES}
    lines = [
        f"| {cause} | {count} | {CLASSES[cause].means} | {CLASSES[cause].example} |"
        for cause, count in counts.items()
        if count
    ]
    suites = ", ".join(sorted({item.suite for item in bench.items}))
    text = f"""# Critic bench

{sum(counts.values())} episodes that fail by a known cause and {sum(i.cause is None for i in bench.items)} that succeed,
made in the LIBERO-Pro simulator (suites {suites}; scene seed {bench.seed}) by a scripted expert whose hands a fault
takes over. `{FILE}` holds the truth about each file of `episodes/`: cause, stage, goal predicate, objects, first and
last instant (20 Hz control steps). `lerobot_coda.critic.bench.build.BenchSet.open(folder)` reads it,
`lerobot-coda critic-bench --data FOLDER --critic ...` scores a critic.

| cause | episodes | means | example |
|---|---|---|---|
{chr(10).join(lines)}
"""
    return f"---\n{data.to_yaml()}\n---\n\n{text}".encode()
