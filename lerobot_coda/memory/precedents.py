"""Failures like this one, what was tried for them, and how much it helped: a round starts from what was learned."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from lerobot_coda.memory.lineage import descendants
from lerobot_coda.memory.queries import Row, Tried, by_progress, outcomes
from lerobot_coda.memory.store import Memory
from lerobot_coda.memory.tables import Cluster, DiagnosisRow, ProposalRow, ReviewRow, VerdictRow
from libero_pro.record import Record, RecordError

Embed = Callable[[Sequence[str]], Any]  # texts -> (len(texts), d) vectors
SHORTLIST = 64  # clusters whose texts are embedded, where other criteria can choose them first


class Precedent(Record):
    """A cluster of earlier failures, how alike it is in [0, 1], and what was tried for it, best first.

    refused  why proposals for it were turned down
    """

    cluster: str
    likeness: float
    mode: str
    stage: str
    suite: str
    causes: dict[str, int]
    objects: tuple[str, ...]
    size: int
    explanation: str
    tried: tuple[Tried, ...]
    refused: tuple[str, ...]


def precedents(
    store: Memory,
    *,
    causes: Iterable[str] = (),
    objects: Iterable[str] = (),
    stage: str | None = None,
    suite: str | None = None,
    text: str = "",
    limit: int = 5,
    embed: Embed | None = None,
) -> list[Precedent]:
    """The clusters most like a failure, with what was tried for them; those of another `suite` are left out.

    Likeness is the mean over the criteria that are given: the share of the cluster's failures with one of `causes`; the
    Jaccard index of `objects`; whether the stage is the same; the cosine between the embeddings of `text` and of what
    critics said of the cluster (0 where it is negative). Clusters like it in no way are left out.
    `embed` defaults to the offline MiniLM.
    """
    wanted_causes, wanted_objects = set(causes), set(objects)
    structured = bool(wanted_causes or wanted_objects or stage)
    if not structured and not text.strip():
        raise RecordError("say which failures are meant: by cause, objects, stage or in words")
    clusters = store.rows(Cluster, **({"suite": suite} if suite else {}))
    reviewed = {row["parent"] for row in clusters}
    clusters = [row for row in clusters if row["hash"] not in reviewed]  # a review took their place
    scores: dict[str, list[float]] = defaultdict(list)
    for row in clusters:
        body, score = row["body"], scores[row["hash"]]
        if wanted_causes:
            told = body.get("causes", {})
            score.append(sum(told.get(c, 0) for c in wanted_causes) / max(1, sum(told.values())))
        if wanted_objects:
            own = set(body.get("objects", ()))
            score.append(len(own & wanted_objects) / len(own | wanted_objects))
        if stage:
            score.append(float(body.get("stage") == stage))
    if structured:
        alike = [c for c in clusters if any(scores[c["hash"]])]
        clusters = sorted(alike, key=lambda c: -sum(scores[c["hash"]]))[: SHORTLIST if text.strip() else None]
    if text.strip():
        said = explanations(store, clusters)
        for row, cosine in zip(clusters, _cosines(text, [said[c["hash"]] for c in clusters], embed), strict=True):
            scores[row["hash"]].append(max(0.0, cosine))
    likeness = {row["hash"]: sum(scores[row["hash"]]) / len(scores[row["hash"]]) for row in clusters}
    best = sorted((c for c in clusters if likeness[c["hash"]] > 0), key=lambda c: (-likeness[c["hash"]], c["hash"]))
    return _told(store, best[:limit], likeness)


def explanations(store: Memory, clusters: Sequence[Row]) -> dict[str, str]:
    """What was said of each cluster: the claim of its last review, else its most typical diagnosis."""
    asked_as = {row["hash"]: row["hash"] for row in clusters} | {row["parent"]: row["hash"] for row in clusters}
    typical = {row["hash"]: hash for row in clusters if (hash := _typical(row["body"]))}
    diagnoses = store.rows(DiagnosisRow, hash=sorted(set(typical.values())))
    told = {row["hash"]: row["body"].get("explanation", "") for row in diagnoses}
    said = {row["hash"]: told.get(typical.get(row["hash"], ""), "") for row in clusters}
    for review in store.rows(ReviewRow, cluster=[hash for hash in asked_as if hash]):
        claim = review["body"].get("claim") or {}
        if claim.get("explanation"):
            said[asked_as[review["cluster"]]] = claim["explanation"]
    return said


def _typical(cluster: Mapping[str, Any]) -> str | None:
    return next(iter((*cluster.get("exemplars", ()), *cluster.get("diagnoses", ()))), None)


def _told(store: Memory, clusters: Sequence[Row], likeness: Mapping[str, float]) -> list[Precedent]:
    hashes = [row["hash"] for row in clusters]
    said, proposals = explanations(store, clusters), store.rows(ProposalRow, cluster=hashes)
    verdicts = store.rows(VerdictRow, cluster=hashes)
    found = []
    for row in clusters:
        own = [p for p in proposals if p["cluster"] == row["hash"]]
        roots = {v["program"] for v in verdicts if v["cluster"] == row["hash"]}
        roots |= {p["program"] for p in own if p["program"]}
        programs = {p["hash"]: p for root in sorted(roots) for p in descendants(store, root)}
        body = row["body"]
        found.append(
            Precedent(
                cluster=row["hash"],
                likeness=round(likeness[row["hash"]], 4),
                mode=row["mode"],
                stage=body.get("stage", ""),
                suite=row["suite"],
                causes=body.get("causes", {}),
                objects=tuple(body.get("objects", ())),
                size=row["size"],
                explanation=said[row["hash"]],
                tried=tuple(by_progress(outcomes(store, list(programs.values())))),
                refused=tuple(f"{p['kind']}: {p['refused']}" for p in own if p["refused"] is not None),
            )
        )
    return found


def _cosines(text: str, others: Sequence[str], embed: Embed | None) -> list[float]:
    if embed is None:
        from lerobot_coda.backbones.language import embed
    assert embed is not None
    vectors = np.asarray(embed([text, *others]), dtype=np.float64)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return [float(value) for value in vectors[1:] @ vectors[0]]
