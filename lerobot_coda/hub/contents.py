"""What a run folder has for the Hub: a revision for each finished state, the same ones whenever it is asked."""

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from lerobot_coda.hub import cards
from lerobot_coda.hub.errors import HubError
from lerobot_coda.hub.portable import checkpoint_files
from lerobot_coda.hub.revisions import MARK, Kind, Revision
from lerobot_coda.memory import Memory
from lerobot_coda.memory.export import write
from lerobot_coda.recipe import read_yaml

What = Literal["datasets", "checkpoints", "memory", "report"]
WHAT: tuple[What, ...] = get_args(What)
KINDS: dict[What, Kind] = {"datasets": "dataset", "checkpoints": "model", "memory": "dataset", "report": "space"}
SUFFIX: dict[What, str] = {"datasets": "", "checkpoints": "", "memory": "-memory", "report": "-report"}
_MEASURED = "episodes.parquet"  # of a finished benchmark folder
_SKIPPED = {".cache", "images", "__pycache__"}  # scratch of libraries, never part of a dataset


@dataclass(frozen=True)
class RunFolder:
    """A run folder as it is read: `about` run.json, `recipe` recipe.yaml, `rounds` the reports of finished rounds."""

    folder: Path
    about: dict[str, Any]
    recipe: dict[str, Any]
    rounds: tuple[dict[str, Any], ...]
    finished: bool

    @classmethod
    def read(cls, folder: Path) -> "RunFolder":
        """HubError if it is no run folder, or a damaged one."""
        try:
            about = json.loads((folder / "run.json").read_text(encoding="utf-8"))
            found = sorted((folder / "rounds").glob("*/round.json"))
            rounds = tuple(json.loads(path.read_text(encoding="utf-8")) for path in found)
            summary = folder / "summary.json"
            finished = summary.is_file() and bool(json.loads(summary.read_text(encoding="utf-8")).get("finished"))
            return cls(folder, about, read_yaml(folder / "recipe.yaml"), rounds, finished)
        except OSError as error:
            raise HubError(
                f"{folder} is not a run folder: {Path(error.filename or folder).name} is missing; give one that "
                "`lerobot-coda evolve` wrote"
            ) from None
        except ValueError as error:
            raise HubError(f"{folder} cannot be read as a run: {error}") from None

    def states(self) -> Iterator[tuple[str, Path, dict[str, Any] | None]]:
        """Tag, folder and report (None: the base policy's) of what is finished, oldest first."""
        if (self.folder / "base" / "steps" / "train.json").is_file():
            yield "base", self.folder / "base", None
        for report in self.rounds:
            tag = f"round-{report['round']:03d}"
            yield tag, self.folder / "rounds" / f"{report['round']:03d}", report

    def program_names(self) -> dict[str, str]:
        """Name of each co-program by the hash of its generation program, which is what episodes know it by."""
        records = [_json(path) for path in sorted((self.folder / "rounds").glob("*/programs/*.json"))]
        texts = [
            json.dumps(r.get("generation"), sort_keys=True, separators=(",", ":"), ensure_ascii=False) for r in records
        ]
        hashes = [hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts]  # as a Record's
        return {hash: str(record["name"]) for hash, record in zip(hashes, records, strict=True)}

    def result(self, state: Path, step: str) -> Any:
        """What a step of a state left; None if it was not done."""
        path = state / "steps" / f"{step}.json"
        return json.loads(path.read_text(encoding="utf-8"))["result"] if path.is_file() else None


@dataclass(frozen=True)
class Place:
    """Where things go: `repo` NAMESPACE/NAME, to which kinds of content add suffixes; `license` of the cards; `base` as
    in `checkpoint_files`."""

    repo: str
    license: str = "apache-2.0"
    base: str | None = None

    def of(self, what: What) -> str:
        """The repository of a kind of content."""
        return self.repo + SUFFIX[what]


def revisions(run: RunFolder, place: Place, what: What, scratch: Path) -> list[Revision]:
    """The revisions of one kind of content, oldest first; empty where the run has none (yet).

    scratch  an empty folder for files that are made here; it must last until they are pushed
    """
    if what == "memory":
        return list(_memory(run, place, scratch))
    return list({"datasets": _datasets, "checkpoints": _checkpoints, "report": _report}[what](run, place))


def _datasets(run: RunFolder, place: Place) -> Iterator[Revision]:
    repo = place.of("datasets")
    for tag, folder, report in run.states():
        root = folder / "dataset"
        if not (root / "libero_pro.json").is_file():
            continue  # nothing was demonstrated in this round
        summary, info = _json(root / "libero_pro.json"), _json(root / "meta" / "info.json")
        names = {"none": "fresh resets of the base tasks", **run.program_names()}
        made = {f"{names.get(hash, 'unknown')} `{hash}`": count for hash, count in summary["programs"].items()}
        card = cards.dataset_card(run, repo, tag, report, {**summary, "programs": made}, info, place.license)
        files = {**_below(root), **_programs(folder), "README.md": card, MARK: _mark(run, tag)}
        title = f"{run.about['name']}, {tag}: {summary['episodes']} episodes"
        yield Revision("dataset", repo, tag, title, files, moving=(str(info["codebase_version"]),))


def _checkpoints(run: RunFolder, place: Place) -> Iterator[Revision]:
    """The base policy once it is measured, each round's, and in the end the last one with what it was measured at."""
    heldout = run.folder / "heldout"
    newest: tuple[Path, dict[str, Any] | None] | None = None
    for tag, folder, report in run.states():
        trained = run.result(folder, "train")
        if trained is None or (report is None and run.result(heldout, "before") is None):
            continue
        newest = run.folder / trained, report
        yield _checkpoint(run, place, tag, *newest, heldout / "before" if report is None else None)
    if run.finished and newest is not None and (heldout / "after" / _MEASURED).is_file():
        yield _checkpoint(run, place, "final", *newest, heldout / "after")


def _checkpoint(
    run: RunFolder, place: Place, tag: str, checkpoint: Path, report: dict[str, Any] | None, measured: Path | None
) -> Revision:
    repo, dataset = place.of("checkpoints"), place.of("datasets")
    data = "base" if report is None else f"round-{report['round']:03d}"
    files, base = checkpoint_files(checkpoint, dataset=dataset, revision=data, base=place.base)
    if not any(name.endswith(".safetensors") for name in files):
        raise HubError(f"{checkpoint} holds no weights; the run folder is damaged")
    shown = measured if measured is not None and (measured / _MEASURED).is_file() else None
    card = cards.model_card(run, repo, tag, report, base, (dataset, data), place.license, shown)
    return Revision(
        "model", repo, tag, f"{run.about['name']}, {tag}", {**files, "README.md": card, MARK: _mark(run, tag)}
    )


def _memory(run: RunFolder, place: Place, scratch: Path) -> Iterator[Revision]:
    """Of the memory in the run's own folder; one that several runs share is not one run's to publish."""
    database = run.folder / "memory.sqlite"
    if not database.is_file():
        return
    copy = scratch / database.name  # opening a memory may bring its tables up to date
    source = sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)
    with closing(source), closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    store = Memory(copy, blobs=database.with_suffix(".blobs"))
    try:
        write(store, scratch / "memory")
    finally:
        store.close()
    yield _snapshot(run, place, "memory", _below(scratch / "memory"))


def _report(run: RunFolder, place: Place) -> Iterator[Revision]:
    root = run.folder / "report"
    if (root / "index.html").is_file():
        card = cards.report_card(run, place.of("report"))
        yield _snapshot(run, place, "report", {**_below(root), "README.md": card})


def _snapshot(run: RunFolder, place: Place, what: What, files: dict[str, Path | bytes]) -> Revision:
    """Of what grows while a run goes on: its tag names the state and the content."""
    digest = hashlib.sha256()
    for path, file in sorted(files.items()):
        data = file if isinstance(file, bytes) else file.read_bytes()
        digest.update(f"{path} {hashlib.sha256(data).hexdigest()}\n".encode())
    state = "final" if run.finished else f"round-{len(run.rounds):03d}"
    tag = f"{state}-{digest.hexdigest()[:8]}"
    marked = {**files, MARK: _mark(run, tag)}
    return Revision(KINDS[what], place.of(what), tag, f"{run.about['name']}: {what}, {state}", marked)


def _below(root: Path) -> dict[str, Path | bytes]:
    """Every file of a folder that belongs to it, by path with slashes."""
    found: dict[str, Path | bytes] = {}
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if path.is_file() and not any(part in _SKIPPED or part.startswith(".") for part in parts):
            found["/".join(parts)] = path
    return found


def _programs(folder: Path) -> dict[str, Path | bytes]:
    """The records of the programs that made a round's scenes."""
    return {f"programs/{path.name}": path for path in sorted((folder / "programs").glob("*.json"))}


def _mark(run: RunFolder, tag: str) -> bytes:
    """Which run and state a revision belongs to."""
    told = {"run": run.about["name"], "recipe_hash": run.about["recipe_hash"], "seed": run.about["seed"], "tag": tag}
    return (json.dumps(told, indent=1) + "\n").encode()


def _json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise HubError(f"{path} cannot be read ({error}); the run folder is damaged") from None
