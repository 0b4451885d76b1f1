"""Where a scene came from, what happened there, and what that led to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lerobot_coda.memory.tables import (
    Base,
    Cluster,
    DecisionRow,
    DiagnosisRow,
    EpisodeRow,
    MeasurementRow,
    Member,
    Program,
    ProposalRow,
    ReviewRow,
    Scene,
    SceneVerdict,
    VerdictRow,
)
from libero_pro.record import RecordError

if TYPE_CHECKING:
    from lerobot_coda.memory.store import Memory

Row = dict[str, Any]


def lineage(store: Memory, scene: str) -> dict[str, Any]:
    """Everything linked to a scene, as rows of the tables; RecordError if the memory does not hold it.

    scene         the scene;  `made_by` its program (none or one);  `ancestors` what that was made from, nearest first
    gates         what the validity gates said;  `episodes` and `diagnoses` what happened there
    clusters      that these belong to;  `reviews` and `verdicts` what was said of the clusters
    proposals     what was proposed for the clusters, accepted or not
    led_to        programs compiled from the clusters and what was made from those, with their
                  `measurements` and `decisions`
    """
    found = store.rows(Scene, hash=scene)
    if not found:
        raise RecordError(f"memory holds no scene with hash {scene}")
    made_by = store.rows(Program, hash=found[0]["program"]) if found[0]["program"] else []
    episodes = store.rows(EpisodeRow, scene=scene)
    diagnoses = _linked(store, DiagnosisRow, "episode", [row["hash"] for row in episodes])
    members = _linked(store, Member, "diagnosis", [row["hash"] for row in diagnoses])
    clusters = _linked(store, Cluster, "hash", sorted({row["cluster"] for row in members}))
    grouped = [row["hash"] for row in clusters]
    verdicts = _linked(store, VerdictRow, "cluster", grouped)
    proposals = _linked(store, ProposalRow, "cluster", grouped)
    compiled = sorted({row["program"] for row in (*verdicts, *proposals) if row["program"]})
    led_to = [program for root in compiled for program in descendants(store, root)]
    programs = list({program["hash"]: program for program in led_to}.values())
    hashes = [program["hash"] for program in programs]
    return {
        "scene": found[0],
        "made_by": made_by,
        "ancestors": ancestors(store, made_by[0]) if made_by else [],
        "gates": store.rows(SceneVerdict, scene=scene),
        "episodes": episodes,
        "diagnoses": diagnoses,
        "clusters": clusters,
        "reviews": _linked(store, ReviewRow, "cluster", grouped),
        "proposals": proposals,
        "verdicts": verdicts,
        "led_to": programs,
        "measurements": _by_round(_linked(store, MeasurementRow, "program", hashes)),
        "decisions": _by_round(_linked(store, DecisionRow, "program", hashes)),
    }


def ancestors(store: Memory, program: Row) -> list[Row]:
    """The programs that one was made from, nearest first."""
    found: dict[str, Row] = {}
    generation = [program]
    while parents := sorted(
        {row[link] for row in generation for link in ("parent", "other") if row[link]} - set(found)
    ):
        generation = store.rows(Program, hash=parents)
        found.update((row["hash"], row) for row in generation)
    return list(found.values())


def descendants(store: Memory, program: str) -> list[Row]:
    """A program and all that was made from it, generation by generation."""
    generation = store.rows(Program, hash=program)
    found = {row["hash"]: row for row in generation}
    while generation:
        hashes = [row["hash"] for row in generation]
        made = [row for link in ("parent", "other") for row in _linked(store, Program, link, hashes)]
        generation = [row for row in {row["hash"]: row for row in made}.values() if row["hash"] not in found]
        found.update((row["hash"], row) for row in generation)
    return list(found.values())


def _linked(store: Memory, table: type[Base], column: str, hashes: list[str]) -> list[Row]:
    return store.rows(table, **{column: hashes}) if hashes else []


def _by_round(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["round"], row["hash"]))
