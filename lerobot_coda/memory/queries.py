"""What a person and the loop ask the memory: pure functions of what it holds.

ranked      programs by the progress they brought;  outcomes: what became of programs
refusals    what was proposed or claimed and turned down, and why
resolve     a short hash to the record it means;  links: what links to that

`lineage` and `precedents` are modules of their own.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import case, func, select

from lerobot_coda.memory.store import Memory
from lerobot_coda.memory.tables import (
    TABLES,
    DecisionRow,
    MeasurementRow,
    Program,
    ProposalRow,
    ReviewRow,
    Scene,
    SceneVerdict,
    VerdictRow,
)
from libero_pro.record import Record, RecordError

Row = dict[str, Any]


class Tried(Record):
    """A program that was tried, and how much it helped in the last round it was measured in.

    outcome, reason   the verdict on it, None for one that was refined from a validated one
    rounds            in how many rounds it was measured;  `before`, `after` successes of `n` in the last of them
    progress          difference of the success posteriors' means in that round, None if it was never measured
    action            the last decision on it
    scenes, accepted  scenes drawn from it, and those that passed the gates
    """

    program: str
    name: str
    mode: str
    parent: str | None
    difficulty: float | None
    operations: tuple[str, ...]
    outcome: str | None
    reason: str | None
    rounds: int
    n: int
    before: int
    after: int
    progress: float | None
    p_value: float | None
    action: str | None
    action_reason: str | None
    scenes: int
    accepted: int


class Refusal(Record):
    """Something that was turned down: `what` by `author`, of which kind, and `why`; `record` is its hash.

    kind  "program", "potential", "diagnosis" for a proposal; "answer" for a critic's answer that could not be used;
          "verdict" for a diagnosis that validation refuted
    """

    record: str
    kind: str
    author: str
    what: str
    why: str
    cluster: str | None
    answer: str | None = None


def ranked(store: Memory, *, mode: str | None = None, limit: int | None = None) -> list[Tried]:
    """Programs by the progress they brought when they were last measured, those never measured last."""
    programs = store.rows(Program, **({"mode": mode} if mode else {}))
    return by_progress(outcomes(store, programs))[:limit]


def refusals(store: Memory, *, kind: str | None = None) -> list[Refusal]:
    """What was turned down and why, sorted by kind."""
    found = [
        Refusal(
            record=row["hash"], kind=row["kind"], author=row["author"], what=_title(row["body"]), why=row["refused"],
            cluster=row["cluster"], answer=row["answer"],
        )
        for row in store.rows(ProposalRow)
        if row["refused"] is not None
    ]  # fmt: skip
    found += [
        Refusal(
            record=row["hash"], kind="answer", author=row["critic"], what="answer on a cluster", why=row["invalid"],
            cluster=row["cluster"], answer=row["answer"],
        )
        for row in store.rows(ReviewRow)
        if row["invalid"] is not None
    ]  # fmt: skip
    refuted = store.rows(VerdictRow, outcome="refuted")
    names = {row["hash"]: row["name"] for row in store.rows(Program, hash=[row["program"] for row in refuted])}
    found += [
        Refusal(
            record=row["hash"], kind="verdict", author="validation", what=f"{names[row['program']]} ({row['program']})",
            why=row["body"].get("reason", "refuted"), cluster=row["cluster"],
        )
        for row in refuted
    ]  # fmt: skip
    return sorted((r for r in found if kind in (None, r.kind)), key=lambda r: (r.kind, r.record))


def resolve(store: Memory, prefix: str, tables: Iterable[str] = tuple(TABLES)) -> tuple[str, str]:
    """The table and full hash that a whole or short hash means; RecordError if it means none, or several."""
    found = [(name, hash) for name in tables for hash in store.named(TABLES[name], prefix)] if prefix else []
    exact = [pair for pair in found if pair[1] == prefix]
    found = exact or found
    if not found:
        raise RecordError(f"memory {store} holds no {' or '.join(tables)} with a hash that begins with '{prefix}'")
    if len(found) > 1:
        several = ", ".join(f"{hash} ({name})" for name, hash in found[:4])
        raise RecordError(f"'{prefix}' is ambiguous: {several}{', ...' if len(found) > 4 else ''}; give more of it")
    return found[0]


def links(store: Memory, table: str, hash: str) -> dict[str, list[str]]:
    """What links to a record: hashes by "table.column"."""
    found: dict[str, list[str]] = {}
    for name, other in TABLES.items():
        for key in other.__table__.foreign_keys:
            if key.column.table.name == table:
                rows = store.rows(other, **{key.parent.name: hash})
                found[f"{name}.{key.parent.name}"] = [row["hash"] for row in rows]
    return {where: hashes for where, hashes in sorted(found.items()) if hashes}


def outcomes(store: Memory, programs: Sequence[Row]) -> list[Tried]:
    """What became of programs (rows of their table), in the order given."""
    hashes = [row["hash"] for row in programs]
    verdicts = {row["program"]: row for row in store.rows(VerdictRow, program=hashes)}
    decisions = _last(store.rows(DecisionRow, program=hashes))
    measured: dict[str, list[Row]] = defaultdict(list)
    for row in store.rows(MeasurementRow, program=hashes):
        measured[row["program"]].append(row)
    drawn = _drawn(store, hashes)
    found = []
    for row in programs:
        name, generation = row["hash"], row["body"].get("generation", {})
        verdict, decision, rounds = verdicts.get(name), decisions.get(name), measured[name]
        last = max(rounds, key=lambda m: (m["round"], m["hash"]), default=None)
        counts = last["body"] if last else {}
        found.append(
            Tried(
                program=name,
                name=row["name"],
                mode=row["mode"],
                parent=row["parent"],
                difficulty=generation.get("difficulty"),
                operations=tuple(operation.get("op", "") for operation in generation.get("operations", ())),
                outcome=verdict["outcome"] if verdict else None,
                reason=verdict["body"].get("reason") if verdict else None,
                rounds=len({(m["run"], m["round"]) for m in rounds}),
                n=counts.get("n", 0),
                before=counts.get("before", {}).get("successes", 0),
                after=counts.get("after", {}).get("successes", 0),
                progress=last["progress"] if last else None,
                p_value=last["p_value"] if last else None,
                action=decision["action"] if decision else None,
                action_reason=decision["reason"] if decision else None,
                scenes=drawn.get(name, (0, 0))[0],
                accepted=drawn.get(name, (0, 0))[1],
            )
        )
    return found


def _drawn(store: Memory, programs: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Scenes drawn from each program, and how many of them passed the gates."""
    passed = func.count(func.distinct(case((SceneVerdict.accepted, Scene.hash))))
    query = (
        select(Scene.program, func.count(func.distinct(Scene.hash)), passed)
        .outerjoin(SceneVerdict, SceneVerdict.scene == Scene.hash)
        .where(Scene.program.in_(programs))
        .group_by(Scene.program)
    )
    with store.reading() as connection:
        return {str(program): (scenes, accepted) for program, scenes, accepted in connection.execute(query)}


def by_progress(tried: Iterable[Tried]) -> list[Tried]:
    """The most progress first, programs that were never measured last."""
    return sorted(tried, key=lambda t: (t.progress is None, -(t.progress or 0.0), t.name, t.program))


def _last(rows: Iterable[Row]) -> dict[str, Row]:
    return {row["program"]: row for row in sorted(rows, key=lambda row: (row["round"], row["hash"]))}


def _title(body: Mapping[str, Any]) -> str:
    """A proposal's name where it has one, else the beginning of its text."""
    for key in ("name", "title", "explanation", "text"):
        if isinstance(body.get(key), str) and body[key].strip():
            return " ".join(body[key].split())[:80]
    return ", ".join(sorted(body))[:80]
