"""What a run folder tells while its run is under way: a look is taken again and again, and never touches the run."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lerobot_coda import outlook, runfolder
from lerobot_coda.budget import Usage
from lerobot_coda.recipe import EvolveRecipe, parse_recipe, read_yaml
from lerobot_coda.report import RunSummary, load_run
from lerobot_coda.report.gallery import rows_of
from libero_pro.record import RecordError

TAIL = 65536  # bytes of the log that are read: its last events
FAILURES = 4  # the last ones that are shown


@dataclass(frozen=True)
class Now:
    """The step at work, how far it has come, and what its log says of the time left."""

    step: str
    done: int
    total: int
    message: str


@dataclass(frozen=True)
class Meter:
    """What the run may use of one thing and has used; `limit` None: no limit."""

    name: str
    used: float
    limit: float | None
    unit: str


@dataclass(frozen=True)
class Fallen:
    """Something that was decided: `kind` is cluster (of failures, found), verdict (on one) or decision (on a program).

    `at` is UTC.
    """

    at: str
    round: int
    kind: str
    what: str
    outcome: str
    reason: str


@dataclass(frozen=True)
class Failure:
    """A failed episode, and what the run has to show of it: a rendered video, a critic's contact sheet, its states."""

    round: int
    title: str
    explanation: str
    episode: Path
    video: Path | None
    sheet: Path | None


@dataclass(frozen=True)
class Look:
    """A run at one moment. `missing` says what cannot be shown and why, one sentence each.

    done, left  seconds of the finished steps, and expected of those ahead
    backend     of the recipe's rollouts
    reported    when the report beside it was written (UTC), if there is one
    """

    name: str
    arm: str = ""
    status: str = ""
    at_work: bool = False
    finished: bool = False
    now: Now | None = None
    steps: int = 0
    done: float = 0.0
    left: float = 0.0
    meters: tuple[Meter, ...] = ()
    fallen: tuple[Fallen, ...] = ()
    failures: tuple[Failure, ...] = ()
    backend: str = "local"
    reported: str = ""
    missing: tuple[str, ...] = ()


def summary_of(run: Path) -> RunSummary:
    """The report's summary of the run, an empty one that says why where it cannot be read."""
    try:
        return load_run(run)
    except RecordError as error:
        return RunSummary(name=run.name, status="not readable", missing=(str(error),))


def look(run: Path, summary: RunSummary) -> Look:
    """A look at the run; `summary` is that of its finished rounds."""
    missing = list(summary.missing)
    try:
        recipe = parse_recipe(EvolveRecipe, read_yaml(run / "recipe.yaml"), f"recipe {run / 'recipe.yaml'}")
    except RecordError as error:
        recipe = None
        missing.append(f"What lies ahead and what the budget allows cannot be shown: {error}")
    done = outlook.finished(run)
    at_work, report = outlook.at_work(run), run / "report" / "index.html"
    found = Look(
        name=summary.name,
        status=summary.status,
        at_work=at_work,
        finished=summary.finished,
        now=_now(run) if at_work else None,
        steps=len(done),
        done=sum(step.seconds for step in done),
        fallen=tuple(_fallen(run, missing)),
        failures=tuple(_failures(run, summary, missing)),
        reported=_at(report, "%Y-%m-%d %H:%M") if report.is_file() else "",
    )
    if recipe is not None:
        ahead = [] if summary.finished else outlook.ahead(run, recipe, done)
        now = found.now
        if at_work and now is None and ahead:
            now = Now(ahead[0].label, 0, ahead[0].units, "")
        found = replace(
            found,
            arm=recipe.arm,
            backend=recipe.rollout.backend,
            now=now,
            left=sum(cost.seconds for cost in outlook.costs(ahead, recipe.workers)),
            meters=tuple(_meters(recipe, done)),
        )
    return replace(found, missing=tuple(dict.fromkeys(missing)))


def _now(run: Path) -> Now | None:
    """The step that the log's last events tell of; None where it tells of none, or of a finished one."""
    try:
        with (run / runfolder.LOG).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            event = json.loads(line)
            if event["step"] is None:
                continue
            done, total, message = int(event["done"]), int(event["total"]), str(event["message"])
            return None if message.startswith("done ") else Now(str(event["step"]), done, total, message)
        except (ValueError, KeyError, TypeError):
            continue  # half a line, or not an event of ours
    return None


def _meters(recipe: EvolveRecipe, done: Sequence[outlook.Finished]) -> Iterable[Meter]:
    """What the rounds used of the budget, then what has none."""
    budget, everything, rounds = recipe.budget, Usage(), Usage()
    for step in done:
        everything = everything + step.usage
        if step.label.startswith("round "):
            rounds = rounds + step.usage
    most = budget.environments_per_round * recipe.rounds
    yield Meter("generated environments", rounds.environments, min(budget.environments or most, most), "")
    if budget.layouts_per_round:
        yield Meter("static layouts", rounds.layouts, budget.layouts_per_round * recipe.rounds, "")
    hours = None if budget.hours is None else budget.hours * 3600
    yield Meter("wall time", sum(everything.seconds.values()), hours, "s")
    yield Meter("environments of validation", rounds.validation_environments, None, "")
    for purpose, steps in sorted(everything.steps.items()):
        yield Meter(f"environment steps: {purpose}", steps, None, "")


def _fallen(run: Path, missing: list[str]) -> Iterable[Fallen]:
    """Clusters, verdicts and decisions, the newest first."""
    for folder in _rounds(run):
        number = int(folder.name)
        decided, verdicts, clusters = (folder / f"{name}.json" for name in ("progress", "verdicts", "clusters"))
        if decided.is_file():
            for row in _decisions(decided, missing):
                program, action, reason = (str(row.get(key)) for key in ("program", "action", "reason"))
                yield Fallen(_at(decided), number, "decision", program, action, reason)
        found = rows_of(clusters, missing, "what was found is not shown") if clusters.is_file() else []
        modes = {str(row.get("hash")): str(row.get("mode")) for row in found}
        if verdicts.is_file():
            for row in rows_of(verdicts, missing, "its verdicts are not shown"):
                mode = modes.get(str(row.get("cluster")), "a cluster that is lost")
                yield Fallen(_at(verdicts), number, "verdict", mode, str(row.get("outcome")), str(row.get("reason")))
        for row in found:
            causes, members = row.get("causes"), row.get("diagnoses")
            told = ", ".join(f"{cause} {n}" for cause, n in causes.items()) if isinstance(causes, dict) else ""
            size = f"{len(members)} failures" if isinstance(members, list) else ""
            yield Fallen(_at(clusters), number, "cluster", str(row.get("mode")), size, told)


def _decisions(path: Path, missing: list[str]) -> list[dict[str, Any]]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["decisions"]
        return [row for row in rows if isinstance(row, dict)]
    except (OSError, ValueError, KeyError, TypeError):
        missing.append(f"rounds/{path.parent.name}/{path.name} is damaged: its decisions are not shown.")
        return []


def _failures(run: Path, summary: RunSummary, missing: list[str]) -> Iterable[Failure]:
    """The last round's failures: a finished round's as its report chose them, else the first of each kind."""
    newest = next((folder for folder in _rounds(run) if (folder / "diagnoses.json").is_file()), None)
    if newest is None:
        return
    number = int(newest.name)
    for one in [one for one in summary.exhibits if one.round == number][:FAILURES]:
        video = run / "report" / f"{one.anchor}-before.mp4"
        yield Failure(number, one.title, one.explanation, one.before, video if video.is_file() else None, one.sheet)
    if any(one.round == number for one in summary.exhibits):
        return
    kinds: dict[tuple[str, str], Failure] = {}
    for row in rows_of(newest / "diagnoses.json", missing):
        kind, scene = (str(row.get("stage")), str(row.get("cause"))), str(row.get("scene"))
        if kind in kinds or not scene.isalnum():
            continue
        # The round's own policy played it first; what came of it may have played it again.
        played = sorted((run / "rollouts").glob(f"*/{scene}.npz"), key=lambda path: path.stat().st_mtime)
        if played:
            sheet = next(iter(sorted(newest.glob(f"critic/*/{scene}-*.png"))), None)
            title = f"{kind[0]}: {kind[1]}"
            kinds[kind] = Failure(number, title, str(row.get("explanation")), played[0], None, sheet)
    yield from list(kinds.values())[:FAILURES]


def _rounds(run: Path) -> list[Path]:
    """The rounds' folders, the newest first."""
    return sorted((path for path in (run / "rounds").glob("[0-9]*") if path.name.isdigit()), reverse=True)


def _at(path: Path, shown: str = "%H:%M:%S") -> str:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC).strftime(shown)
