"""The failure gallery: a failed episode of each cluster, what was claimed of it, and what came of the claim."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from libero_pro.record import RecordError

MOST = 8  # clusters shown, largest first: a video takes seconds to render


@dataclass(frozen=True)
class Exhibit:
    """One failure cluster and one of its episodes.

    before, after  stored episodes of the same scene by the round's policy and by the one it became; `after` is None
                   where the scene was trained on or not replayed
    sheet          contact sheet that a critic saw, if one was made
    verdict        outcome of the validation with its evidence in words
    program        what it was compiled to, one line each of generation and training
    """

    anchor: str
    round: int
    title: str
    failures: int
    instruction: str
    scene: str
    explanation: str
    verdict: str
    evidence: str
    program: tuple[tuple[str, str], ...]
    before: Path
    after: Path | None
    success_after: bool | None
    sheet: Path | None


def exhibits(run: Path, rounds: Iterable[Mapping[str, Any]], missing: list[str]) -> tuple[Exhibit, ...]:
    """The largest clusters of all rounds that left an episode behind; what cannot be shown is said in `missing`."""
    found = []
    for report in rounds:
        folder = run / "rounds" / f"{report['round']:03d}"
        diagnoses = _by_hash(folder / "diagnoses.json", missing)
        members = {row["hash"]: row["diagnoses"] for row in rows_of(folder / "clusters.json", missing)}
        for cluster in report["clusters"]:
            own = [diagnoses[name] for name in members.get(cluster["hash"], ()) if name in diagnoses]
            if shown := _exhibit(run, folder, report, cluster, own):
                found.append(shown)
    found.sort(key=lambda one: (-one.failures, one.round, one.anchor))
    if len(found) > MOST:
        missing.append(f"The gallery shows the {MOST} largest of {len(found)} failure clusters.")
    return tuple(sorted(found[:MOST], key=lambda one: (one.round, -one.failures)))


def _exhibit(
    run: Path, folder: Path, report: Mapping[str, Any], cluster: Mapping[str, Any], own: Sequence[Mapping[str, Any]]
) -> Exhibit | None:
    """The member whose episode tells most: one that was replayed after the training, best if it then went well."""
    at, then = (run / "rollouts" / report[f"checkpoint_{when}"] for when in ("before", "after"))
    succeeded = {pair["scene"]: bool(pair["after"]) for pair in report["frontier"].get("pairs", ())}
    best: tuple[tuple[bool, bool, str], Mapping[str, Any]] | None = None
    for diagnosis in own:
        scene = diagnosis["scene"]
        if not (at / f"{scene}.npz").is_file():
            continue
        replayed = scene in succeeded and (then / f"{scene}.npz").is_file()
        key = (not replayed, not succeeded.get(scene, False), scene)
        if best is None or key < best[0]:
            best = (key, diagnosis)
    if best is None:
        return None
    chosen = best[1]
    scene, replayed = chosen["scene"], not best[0][0]
    verdict = next((p for p in report["programs"] if p["verdict"] and p["verdict"]["cluster"] == cluster["hash"]), None)
    sheet = next(iter(sorted(folder.glob(f"critic/*/{scene}-*.png"))), None)
    return Exhibit(
        anchor=f"failure-{report['round']}-{cluster['hash']}",
        round=report["round"],
        title=f"{cluster['mode']}: " + ", ".join(f"{cause} {n}" for cause, n in cluster["causes"].items()),
        failures=cluster["size"],
        instruction=_quoted(chosen["explanation"]),
        scene=scene,
        explanation=chosen["explanation"],
        verdict=cluster["verdict"] or "not tested",
        evidence=verdict["verdict"]["reason"] if verdict else "",
        program=tuple(_program(folder, verdict)) if verdict else (),
        before=at / f"{scene}.npz",
        after=then / f"{scene}.npz" if replayed else None,
        success_after=succeeded[scene] if replayed else None,
        sheet=sheet,
    )


def _program(folder: Path, row: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """(generation or training setting, value) of the program compiled from a cluster."""
    for operation in row["operations"]:
        yield f"scenes: {operation['op']}", settings_of(operation) or "as it is"
    yield "difficulty", f"{row['difficulty']:.2f}"
    file = folder / "programs" / f"{row['hash']}.json"
    if file.is_file():
        training = json.loads(file.read_text(encoding="utf-8")).get("training", {})
        for name, value in training.items():
            if name != "schema_version" and value not in (None, 0, 0.0, False, {}, []):
                yield f"training: {name.replace('_', ' ')}", value if isinstance(value, str) else json.dumps(value)
    if decision := row.get("decision"):
        yield "decision", f"{decision['action']}: {decision['reason']}"


def settings_of(operation: Mapping[str, Any]) -> str:
    """The settings of a generation operation, as a person reads them; empty where it has none."""
    return ", ".join(f"{name} {value}" for name, value in operation.items() if name != "op" and value is not None)


def _quoted(explanation: str) -> str:
    """The instruction that an explanation begins with, in quotation marks; empty where it does not."""
    parts = explanation.split('"')
    return parts[1] if len(parts) > 2 and not parts[0] else ""


def _by_hash(path: Path, missing: list[str]) -> dict[str, Mapping[str, Any]]:
    from lerobot_coda.critic.diagnosis import Diagnosis

    found: dict[str, Mapping[str, Any]] = {}
    for row in rows_of(path, missing):
        try:
            found[Diagnosis.parse(row).hash] = row
        except RecordError as error:
            missing.append(f"{path.parent.name}/{path.name} holds a diagnosis of another version: {error}")
            break
    return found


def rows_of(path: Path, missing: list[str], lost: str = "its failures are not in the gallery") -> list[dict[str, Any]]:
    """A list of records in a round's JSON file; says in `missing` what is not there or damaged, and what is `lost`."""
    where = f"rounds/{path.parent.name}/{path.name}"
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        missing.append(f"{where} is missing: {lost}.")
        return []
    except (OSError, ValueError):
        missing.append(f"{where} is damaged: {lost}.")
        return []
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
