"""How the memory looks in a terminal. What models and people wrote is shown as text, never as markup or commands."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rich.pretty import pretty_repr
from rich.table import Table
from rich.text import Text
from rich.tree import Tree


def plain(text: str) -> str:
    """Text without control characters: what a model wrote must not move the cursor."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def text(value: Any) -> str:
    """A value in a cell, on one line."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else plain(str(value)).replace("\n", " ")


def body(record: Mapping[str, Any], width: int) -> str:
    """A record's body, what fits on a line on one line."""
    return pretty_repr(dict(record), max_width=width)


def grid(title: str, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Table:
    """Rows as a table; a column of numbers stands to the right."""
    table = Table(title=Text(title), title_justify="left")
    for name in columns:
        number = bool(rows) and isinstance(rows[0].get(name), int | float) and not isinstance(rows[0].get(name), bool)
        side: Literal["left", "right"] = "right" if number else "left"
        table.add_column(name, justify=side, overflow="fold", no_wrap=name in ("hash", "record"))
    for row in rows:
        table.add_row(*(Text(text(row.get(name))) for name in columns))
    return table


def programs(tried: Sequence[Mapping[str, Any]], title: str) -> Table:
    """Programs with what they brought: successes before and after in the last round, progress, verdict, decision."""
    columns = ("program", "hash", "progress", "before", "after", "rounds", "scenes", "verdict", "last decision")
    rows = [
        {
            "program": p["name"], "hash": p["program"], "progress": f"{p['progress']:+.2f}" if p["rounds"] else "",
            "before": f"{p['before']}/{p['n']}" if p["rounds"] else "",
            "after": f"{p['after']}/{p['n']}" if p["rounds"] else "", "rounds": p["rounds"],
            "scenes": f"{p['accepted']} of {p['scenes']}", "verdict": p["outcome"], "last decision": p["action"],
        }
        for p in tried
    ]  # fmt: skip
    return grid(title, columns, rows)


def tree(found: Mapping[str, Any]) -> Tree:
    """A lineage as a tree: what made the scene, what happened there, and what that led to."""

    def branch(under: Tree, text: str) -> Tree:
        return under.add(Text(plain(text)))

    scene = found["scene"]
    tree = Tree(Text(plain(f"scene {scene['hash']}: {scene['suite']} {scene['task_id']}, {scene['instruction']}")))
    made = branch(tree, "made by" if found["made_by"] else "made by no program: a start of the task itself")
    for program in (*found["made_by"], *found["ancestors"]):
        made = branch(made, f"{program['name']} ({program['hash']})")
    gates = branch(tree, "gates" if found["gates"] else "put through no gate")
    for gate in found["gates"]:
        branch(gates, "accepted" if gate["accepted"] else f"rejected by {gate['gate']}: {gate['reason']}")
    happened = branch(tree, _count(found["episodes"], "episode"))
    for episode in found["episodes"]:
        outcome = "success" if episode["success"] else episode["invalid"] or "failure"
        told = branch(happened, f"{episode['purpose']} by {episode['actor']}: {outcome}, {episode['steps']} steps")
        for diagnosis in (d for d in found["diagnoses"] if d["episode"] == episode["hash"]):
            said = diagnosis["body"].get("explanation", "")
            branch(told, f"{diagnosis['critic']}: {diagnosis['cause']} in {diagnosis['stage']}. {said}")
    led = branch(tree, _count(found["clusters"], "cluster") if found["clusters"] else "led to nothing")
    for cluster in found["clusters"]:
        name = cluster["hash"]
        causes = ", ".join(f"{cause} {count}" for cause, count in cluster["body"].get("causes", {}).items())
        own = branch(led, f"cluster {name}: {cluster['mode']} in {cluster['suite']} ({causes})")
        for review in (r for r in found["reviews"] if r["cluster"] == name):
            branch(own, f"reviewed by {review['critic']}: {review['invalid'] or 'a usable answer'}")
        for proposal in (p for p in found["proposals"] if p["cluster"] == name):
            branch(own, f"{proposal['kind']} by {proposal['author']}: {proposal['refused'] or 'accepted'}")
        for verdict in (v for v in found["verdicts"] if v["cluster"] == name):
            branch(own, f"{verdict['outcome']}, for {verdict['program']}: {verdict['body'].get('reason', '')}")
    for program in found["led_to"]:
        own = branch(led, f"program {program['name']} ({program['hash']}): {_changes(program['body'])}")
        for measured in (m for m in found["measurements"] if m["program"] == program["hash"]):
            branch(own, f"round {measured['round']}: progress {measured['progress']:+.2f}, p={measured['p_value']:.2g}")
        for decision in (d for d in found["decisions"] if d["program"] == program["hash"]):
            branch(own, f"round {decision['round']}: {decision['action']}, {decision['reason']}")
    return tree


def _changes(program: Mapping[str, Any]) -> str:
    """What a program's scenes change: "permute + resample at difficulty 0.50"."""
    generation = program.get("generation", {})
    kinds = " + ".join(operation["op"] for operation in generation.get("operations", ()))
    return f"{kinds or 'nothing'} at difficulty {generation.get('difficulty', 0.0):.2f}"


def _count(things: Sequence[Any], name: str) -> str:
    return f"{len(things)} {name}{'s' if len(things) != 1 else ''}"
