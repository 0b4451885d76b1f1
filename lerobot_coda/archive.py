"""From records to memory rows and report entries: how a run files what it found."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lerobot_coda import memory as m
from lerobot_coda.budget import Usage
from lerobot_coda.critic.clusters import FailureCluster
from lerobot_coda.critic.diagnosis import Diagnosis, episode_key
from lerobot_coda.critic.review import Review
from lerobot_coda.critic.validate import Verdict
from lerobot_coda.engine import Gated
from lerobot_coda.programs import CoProgram
from lerobot_coda.progress import Decision, Measurement, rate
from lerobot_coda.recipe import EvolveRecipe
from libero_pro.episode import Episode
from libero_pro.record import RecordError
from libero_pro.scene import SceneSpec
from libero_pro.statistics import mcnemar

Rows = tuple[type[m.Base], list[dict[str, Any]]]


def program_rows(programs: Iterable[CoProgram]) -> Rows:
    """Programs, by the hash of the whole program."""
    return m.Program, [
        {
            "hash": p.hash, "name": p.name, "mode": p.mode, "parent": p.parent, "other": p.other,
            "body": p.model_dump(mode="json"),
        }
        for p in programs
    ]  # fmt: skip


def scene_rows(gated: Iterable[Gated], program: CoProgram | None) -> Iterator[Rows]:
    """Scenes and what the gates said of them."""
    gated = list(gated)
    yield (
        m.Scene,
        [
            {
                "hash": g.scene.hash, "program": program.hash if program else None, "suite": g.scene.suite,
                "task_id": g.scene.task_id, "instruction": g.scene.instruction,
                "body": g.scene.model_dump(mode="json"),
            }
            for g in gated
        ],
    )  # fmt: skip
    yield (
        m.SceneVerdict,
        [
            {
                "hash": m.content_hash(g.scene.hash, g.gate, g.reason), "scene": g.scene.hash,
                "gate": g.gate or "all", "accepted": g.accepted, "reason": g.reason, "body": {},
            }
            for g in gated
        ],
    )  # fmt: skip


def episode_rows(episodes: Iterable[Episode], purpose: str, run: Path, folder: Path, actor: str) -> Rows:
    """Episodes of one actor, stored in `folder` of the run."""
    return m.EpisodeRow, [
        {
            "hash": m.content_hash(actor, e.scene.hash), "scene": e.scene.hash, "actor": actor, "purpose": purpose,
            "success": e.success, "invalid": e.invalid, "steps": len(e), "body": {"policy": e.actor},
            "path": str((folder / f"{e.scene.hash}.npz").relative_to(run)),
        }
        for e in episodes
    ]  # fmt: skip


def failure_rows(
    diagnoses: Sequence[Diagnosis],
    clusters: Sequence[FailureCluster],
    actor: str,
    before: Mapping[str, str] | None = None,
) -> Iterator[Rows]:
    """Diagnoses of an actor's episodes, clusters, and who belongs to which.

    before  hash of a cluster that a critic's claim changed -> hash of what it was
    """
    yield (
        m.DiagnosisRow,
        [
            {
                "hash": d.hash, "episode": m.content_hash(actor, d.scene), "cause": str(d.cause),
                "stage": str(d.stage), "mode": str(d.mode), "critic": d.critic, "body": d.model_dump(mode="json"),
            }
            for d in diagnoses
        ],
    )  # fmt: skip
    yield (
        m.Cluster,
        [
            {
                "hash": c.hash,
                "mode": str(c.mode),
                "suite": c.suite,
                "size": c.size,
                "parent": (before or {}).get(c.hash),
                "body": c.model_dump(mode="json"),
            }
            for c in clusters
        ],
    )
    yield (
        m.Member,
        [
            {"hash": m.content_hash(c.hash, d), "cluster": c.hash, "diagnosis": d, "body": {}}
            for c in clusters
            for d in c.diagnoses
        ],
    )


def review_rows(reviews: Iterable[Review], folder: Path, memory: m.Memory) -> Rows:
    """What critics answered on clusters; the raw answer, if one was kept in `folder`, goes to the memory's blobs."""
    return m.ReviewRow, [
        {
            "hash": m.content_hash(r.cluster, r.critic, r.version, r.question), "cluster": r.cluster,
            "critic": r.critic, "version": r.version, "invalid": r.invalid,
            "answer": memory.put((folder / r.raw).read_bytes(), "answer") if r.raw else None,
            "tokens": r.usage.prompt_tokens + r.usage.completion_tokens, "cost": r.usage.cost,
            "seconds": r.usage.seconds, "body": r.model_dump(mode="json"),
        }
        for r in reviews
    ]  # fmt: skip


def verdict_rows(verdicts: Iterable[tuple[Verdict, CoProgram]]) -> Rows:
    """Verdicts, linked to the whole program that the cluster was compiled to."""
    return m.VerdictRow, [
        {
            "hash": v.hash, "cluster": v.cluster, "program": p.hash, "outcome": v.outcome, "p_value": v.p_value,
            "body": v.model_dump(mode="json"),
        }
        for v, p in verdicts
    ]  # fmt: skip


def progress_rows(
    program: CoProgram, measured: Measurement | None, made: Decision, successor: CoProgram | None, number: int
) -> Iterator[Rows]:
    """A program's measurement, if it was measured, and the decision it led to."""
    if measured is not None:
        body = measured.model_dump(mode="json")
        yield (
            m.MeasurementRow,
            [
                {
                    "hash": m.content_hash(program.hash, body), "program": program.hash, "round": number,
                    "progress": measured.progress, "p_value": measured.p_value, "body": body,
                }
            ],
        )  # fmt: skip
    yield (
        m.DecisionRow,
        [
            {
                "hash": m.content_hash(program.hash, number, made.action), "program": program.hash, "round": number,
                "action": made.action, "reason": made.reason, "body": {},
                "successor": successor.hash if successor else None,
            }
        ],
    )  # fmt: skip


def claim(memory: m.Memory, recipe: EvolveRecipe, identity: str) -> None:
    """Files the run in its memory; RecordError if that holds another run, whose records would pass for its own."""
    about = {"name": recipe.name, "arm": recipe.arm, "seed": recipe.seed, "recipe": identity}
    other = next((row for row in memory.rows(m.RunRow) if row["hash"] != identity), None)
    if other is not None:
        raise RecordError(
            f"memory {memory} holds the run '{other['name']}' of another recipe; name a database of this run's own in "
            "the recipe's key 'memory', or leave it out"
        )
    memory.add(m.RunRow, [{"hash": identity, **about, "body": {}}])


def usage_row(number: int, usage: Usage) -> Rows:
    """What a round used; wall time does not belong to its identity."""
    counted = {"environments": usage.environments, "env_steps": sum(usage.steps.values())}
    return m.UsageRow, [
        {
            "hash": m.content_hash(number, counted), "run": None, "round": number, "step": "round", **counted,
            "seconds": sum(usage.seconds.values()), "body": usage.model_dump(mode="json"),
        }
    ]  # fmt: skip


def round_row(summary: Mapping[str, Any]) -> Rows:
    """A round's summary; its wall times do not belong to its identity."""
    body = {key: value for key, value in summary.items() if key not in ("seconds", "usage", "critic")}
    return m.RoundRow, [{"hash": m.content_hash(body), "round": summary["round"], "body": dict(summary)}]


def episode_path(actor: str, scene: str) -> Path:
    """Where a policy's episode lies within the run."""
    return Path("rollouts") / actor / f"{scene}.npz"


def load_all(run: Path, actor: str, scenes: Sequence[SceneSpec]) -> list[Episode]:
    """A policy's stored episodes in the given scenes; RecordError where one is missing."""
    return [Episode.load(run / episode_path(actor, scene.hash)) for scene in scenes]


def key_of(episode: Episode) -> str:
    """The episode's identity as diagnoses name it."""
    return episode_key(episode.actor, episode.scene.hash)


def comparison(pairs: Sequence[tuple[str, Episode, Episode]], actors: tuple[str, str]) -> dict[str, Any]:
    """Paired success on (program, before, after), with exact tests and where each episode lies."""
    before, after = [b.success for _, b, _ in pairs], [a.success for _, _, a in pairs]
    test = mcnemar(before, after)
    return {
        "n": len(pairs),
        "before": rate(sum(before), len(pairs)).model_dump(),
        "after": rate(sum(after), len(pairs)).model_dump(),
        "only_before": test.only_before,
        "only_after": test.only_after,
        "p_value": test.p_value,
        "p_two_sided": test.p_two_sided,
        "pairs": [
            {
                "scene": b.scene.hash, "program": name, "suite": b.scene.suite, "task": b.scene.task_id,
                "instruction": b.scene.instruction, "before": b.success, "after": a.success,
                "before_episode": str(episode_path(actors[0], b.scene.hash)),
                "after_episode": str(episode_path(actors[1], a.scene.hash)),
            }
            for name, b, a in pairs
        ],
    }  # fmt: skip


def success_by_suite(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Rate with interval per suite from benchmark rows; invalid episodes count nowhere."""
    counts: dict[str, list[int]] = {}
    for row in rows:
        if not row.get("invalid"):
            counts.setdefault(str(row["suite"]), []).append(int(bool(row["success"])))
    if not counts:
        raise RecordError("the held-out evaluation has no valid episode; look at heldout/*/episodes.csv")
    return {suite: rate(sum(found), len(found)).model_dump() for suite, found in counts.items()}
