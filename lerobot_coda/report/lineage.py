"""The memory's lineage as a graph: failures led to programs, programs to scenes, scenes to failures.

Clusters and programs are nodes, in one column each a round. An edge is a verdict (cluster to program), a failure met in
a program's scenes (program to cluster) or a refinement (program to its successor). Every node is a link to what the
memory holds of it, so the drawing needs no script.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lerobot_coda import memory as m
from lerobot_coda.coprograms import EXPLORATION

COLUMN, ROW, WIDTH, HEIGHT = 230, 64, 190, 44  # pixels of the drawing
STYLE = """
.lineage svg text { font: 13px system-ui, sans-serif; } .lineage rect { stroke: currentColor; }
.lineage a { color: inherit; text-decoration: none; } .lineage a:hover rect, .lineage a:focus rect { stroke-width: 3; }
.lineage .node { display: none; border: 1px solid currentColor; padding: .2rem .8rem; margin: .6rem 0; }
.lineage .node:target { display: block; } .lineage .drawing { max-height: 34rem; overflow: auto; }
"""  # of templates/lineage.html, in the report and on the live page


@dataclass(frozen=True)
class Node:
    """A cluster or a program: where it is drawn, and what the memory says of it, as (name, value)."""

    id: str
    kind: str
    title: str
    subtitle: str
    x: int
    y: int
    facts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Edge:
    """From one node to another; `label` says what joins them, `kind` how the line is drawn."""

    x1: int
    y1: int
    x2: int
    y2: int
    label: str
    kind: str


@dataclass(frozen=True)
class Lineage:
    """The drawing, its size and that of a node's box, in pixels."""

    nodes: tuple[Node, ...] = ()
    edges: tuple[Edge, ...] = ()
    width: int = 0
    height: int = 0
    box: tuple[int, int] = (WIDTH, HEIGHT)


@dataclass
class _Columns:
    """Nodes by column, in the order they come."""

    found: dict[int, list[str]] = field(default_factory=dict)

    def place(self, column: int, id: str) -> tuple[int, int]:
        rows = self.found.setdefault(column, [])
        if id not in rows:
            rows.append(id)
        return 10 + column * COLUMN, 10 + rows.index(id) * ROW


def lineage(memory: m.Memory, clusters: Mapping[str, int]) -> Lineage:
    """The graph of a memory; `clusters` gives the round of each cluster hash, others are left out."""
    programs = {row["hash"]: row for row in memory.rows(m.Program)}
    verdicts = [row for row in memory.rows(m.VerdictRow) if row["cluster"] in clusters]
    decisions = memory.rows(m.DecisionRow)
    scenes = Counter(row["program"] for row in memory.rows(m.Scene))
    met = _met(memory)
    shown = {row["program"] for row in verdicts} | {row["program"] for row in decisions}
    shown |= {row["successor"] for row in decisions if row["successor"]} | {a for a, b in met if b in clusters}
    columns, at, nodes = _Columns(), {}, []
    for row in memory.rows(m.Cluster):
        if row["hash"] not in clusters:
            continue
        number = clusters[row["hash"]]
        at[row["hash"]] = x, y = columns.place(2 * number - 1, row["hash"])
        own = [v for v in verdicts if v["cluster"] == row["hash"]]
        facts = [("round", str(number)), ("failures", str(row["size"])), ("suite", row["suite"])]
        facts += [("causes", ", ".join(f"{cause} {n}" for cause, n in row["body"].get("causes", {}).items()))]
        facts += [("verdict", f"{v['outcome']}: {v['body'].get('reason', '')}") for v in own]
        nodes.append(
            Node(row["hash"], "failure", f"{row['mode']} ({row['size']})", f"round {number}", x, y, tuple(facts))
        )
    for id, row in programs.items():
        if id not in shown:
            continue
        born = int(row["body"].get("born", 0))
        # What a round's failures are met in stands before them, what they are compiled to behind.
        at[id] = x, y = columns.place(2 * born - (2 if row["mode"] == EXPLORATION else 0), id)
        facts = [("name", row["name"]), ("hash", id), ("generated scenes", str(scenes.get(id, 0)))]
        facts += [("operations", ", ".join(op["op"] for op in row["body"]["generation"]["operations"]))]
        facts += [("difficulty", str(row["body"]["generation"]["difficulty"]))]
        facts += [(f"round {d['round']}", f"{d['action']}: {d['reason']}") for d in decisions if d["program"] == id]
        nodes.append(Node(id, "program", row["name"], f"{scenes.get(id, 0)} scenes", x, y, tuple(facts)))
    edges = [_edge(at, v["cluster"], v["program"], v["outcome"], v["outcome"]) for v in verdicts]
    edges += [_edge(at, a, b, f"{n} failed", "met") for (a, b), n in sorted(met.items()) if b in clusters]
    for row in decisions:
        if row["successor"] and row["successor"] != row["program"]:
            edges.append(_edge(at, row["program"], row["successor"], row["action"], "refined"))
    width = 20 + COLUMN * (1 + max(columns.found, default=0))
    height = 20 + ROW * max(map(len, columns.found.values()), default=0)
    return Lineage(tuple(nodes), tuple(edge for edge in edges if edge), width, height)


def load_lineage(run: Path, rounds: Iterable[Mapping[str, Any]], missing: list[str]) -> Lineage:
    """The lineage of a run's memory; says in `missing` why there is none."""
    from libero_pro.record import RecordError

    path = run / "memory.sqlite"
    if not path.is_file():
        missing.append("memory.sqlite is missing: no lineage is drawn.")
        return Lineage()
    clusters = {cluster["hash"]: report["round"] for report in rounds for cluster in report["clusters"]}
    try:
        memory = m.Memory(path)
    except RecordError as error:
        missing.append(f"No lineage is drawn: {error}")
        return Lineage()
    try:
        return lineage(memory, clusters)
    finally:
        memory.close()


def _met(memory: m.Memory) -> Counter[tuple[str, str]]:
    """How many failures of a cluster were met in a program's scenes, by (program, cluster)."""
    program = {row["hash"]: row["program"] for row in memory.rows(m.Scene)}
    scene = {row["hash"]: row["scene"] for row in memory.rows(m.EpisodeRow)}
    episode = {row["hash"]: row["episode"] for row in memory.rows(m.DiagnosisRow)}
    met: Counter[tuple[str, str]] = Counter()
    for row in memory.rows(m.Member):
        made_by = program.get(scene.get(episode.get(row["diagnosis"], ""), ""))
        if made_by:
            met[made_by, row["cluster"]] += 1
    return met


def _edge(at: Mapping[str, tuple[int, int]], start: str, end: str, label: str, kind: str) -> Edge | None:
    """A line from the right side of one box to the left side of another, or from below where they share a column."""
    if start not in at or end not in at:
        return None
    (x1, y1), (x2, y2) = at[start], at[end]
    return Edge(x1 + WIDTH, y1 + HEIGHT // 2, x2 if x2 > x1 else x2 + WIDTH, y2 + HEIGHT // 2, label, kind)
