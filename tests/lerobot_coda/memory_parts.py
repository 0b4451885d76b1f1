"""Rows for tests of the memory: single ones, and a small world in which every table holds something."""

from typing import Any

from lerobot_coda import memory as m
from lerobot_coda.memory import Memory, content_hash


def program(name: str, parent: str | None = None, **more: Any) -> dict[str, Any]:
    generation = {"difficulty": 0.5, "operations": [{"op": "permute"}, {"op": "resample"}]}
    body = {"name": name, "generation": generation}
    return {"hash": content_hash(name), "name": name, "mode": "grasp", "parent": parent, "body": body, **more}


def scene(name: str, of: str | None) -> dict[str, Any]:
    return {
        "hash": content_hash("scene", name), "program": of, "suite": "libero_object", "task_id": 1,
        "instruction": "pick the milk", "body": {"seed": 1},
    }  # fmt: skip


def gate(scene: str, gate: str = "all", reason: str = "") -> dict[str, Any]:
    named = {"hash": content_hash(scene, gate), "scene": scene, "gate": gate, "accepted": gate == "all"}
    return {**named, "reason": reason, "body": {}}


def episode(scene: str, actor: str = "base", success: bool = False) -> dict[str, Any]:
    return {
        "hash": content_hash(actor, scene), "scene": scene, "actor": actor, "purpose": "probe", "success": success,
        "invalid": None, "steps": 90, "path": f"rollouts/{actor}/{scene}.npz", "body": {},
    }  # fmt: skip


def diagnosis(episode: str, cause: str, stage: str, explanation: str) -> dict[str, Any]:
    return {
        "hash": content_hash("diagnosis", episode), "episode": episode, "cause": cause, "stage": stage, "mode": stage,
        "critic": "simulator", "body": {"explanation": explanation},
    }  # fmt: skip


def cluster(cause: str, stage: str, objects: list[str], members: list[str], **more: Any) -> dict[str, Any]:
    body = {"causes": {cause: len(members)}, "stage": stage, "objects": objects, "diagnoses": sorted(members)}
    return {
        "hash": content_hash("cluster", cause, members, more), "mode": stage, "suite": "libero_object",
        "size": len(members), "body": body, **more,
    }  # fmt: skip


def review(cluster: str, invalid: str | None = None, explanation: str = "", **more: Any) -> dict[str, Any]:
    claim = {"explanation": explanation} if explanation else None
    return {
        "hash": content_hash("review", cluster), "cluster": cluster, "critic": "endpoint", "version": "1",
        "invalid": invalid, "answer": None, "tokens": 812, "cost": 0.0031, "seconds": 2.5, "body": {"claim": claim},
        **more,
    }  # fmt: skip


def verdict(cluster: str, program: str, outcome: str) -> dict[str, Any]:
    named = {"hash": content_hash("verdict", cluster, program), "cluster": cluster, "program": program}
    return {**named, "outcome": outcome, "p_value": 0.01, "body": {"reason": f"it is {outcome}"}}


def measurement(program: str, number: int, before: int, after: int, n: int = 10) -> dict[str, Any]:
    body = {"n": n, "before": {"successes": before}, "after": {"successes": after}}
    named = {"hash": content_hash("measurement", program, number), "program": program, "round": number}
    return {**named, "progress": (after - before) / (n + 2), "p_value": 0.02, "body": body}


def decision(program: str, number: int, action: str, successor: str | None = None) -> dict[str, Any]:
    named = {"hash": content_hash("decision", program, number), "program": program, "round": number}
    return {**named, "action": action, "reason": f"{action} it", "successor": successor, "body": {}}


def proposal(name: str, refused: str | None, **more: Any) -> dict[str, Any]:
    named = {"hash": content_hash("proposal", name), "kind": "program", "author": "endpoint", "refused": refused}
    return {**named, "cluster": None, "program": None, "answer": None, "body": {"name": name}, **more}


def fill(store: Memory) -> dict[str, str]:
    """Two failures: of the milk's grasp, answered by `easy` and its successor `hard`, and of a carried can, by `carry`
    which was refuted. Returns hashes by name.
    """
    easy, hard, carry = program("easy"), program("hard", content_hash("easy")), program("carry", mode="transport")
    scenes = [scene(name, easy["hash"]) for name in "abc"] + [scene("start", None)]
    shelf = "\u00e9tag\u00e8re"
    answer = store.put(b"I would say that \xff it slipped.", "text")
    episodes = [episode(row["hash"]) for row in scenes]
    missed = [
        diagnosis(row["hash"], "missed_grasp", "grasp", "the gripper closed 3 cm beside the milk carton")
        for row in episodes[:2]
    ]
    dropped = [
        diagnosis(episodes[2]["hash"], "dropped", "transport", f"the soup can fell from the hand at the {shelf}")
    ]
    first = cluster("missed_grasp", "grasp", ["milk_1"], [d["hash"] for d in missed])
    second = cluster("dropped", "transport", ["alphabet_soup_1"], [d["hash"] for d in dropped])
    members = [
        {"hash": content_hash(c["hash"], d), "cluster": c["hash"], "diagnosis": d, "body": {}}
        for c in (first, second)
        for d in c["body"]["diagnoses"]
    ]
    run = {"hash": "run", "name": "tiny", "arm": "coda", "seed": 0, "recipe": "r", "body": {"name": "tiny"}}
    used = {
        "hash": "usage", "run": "run", "round": 1, "step": "probe", "environments": 4, "env_steps": 360,
        "seconds": 1.5, "body": {"steps": {"probe": 360}},
    }  # fmt: skip
    store.add_all(
        [
            (m.RunRow, [run]),
            (m.Program, [easy, hard, carry]),
            (m.Scene, scenes),
            (m.SceneVerdict, [gate(scenes[0]["hash"]), gate(scenes[1]["hash"], "settles", "it falls over")]),
            (m.EpisodeRow, episodes),
            (m.DiagnosisRow, [*missed, *dropped]),
            (m.Cluster, [first, second]),
            (m.Member, members),
            (m.ReviewRow, [review(second["hash"], "it is prose", answer=answer)]),
            (
                m.ProposalRow,
                [
                    proposal("easy-too", None, cluster=first["hash"], program=easy["hash"]),
                    proposal("magnet", "no object 'magnet' in the scene", cluster=first["hash"], answer=answer),
                    proposal("phi", "its potential falls on the way to the goal", kind="potential"),
                ],
            ),
            (
                m.VerdictRow,
                [
                    verdict(first["hash"], easy["hash"], "validated"),
                    verdict(second["hash"], carry["hash"], "refuted"),
                ],
            ),
            (m.MeasurementRow, [measurement(easy["hash"], 1, 2, 8), measurement(hard["hash"], 2, 3, 5)]),
            (m.DecisionRow, [decision(easy["hash"], 1, "promote", hard["hash"]), decision(hard["hash"], 2, "keep")]),
            (m.RoundRow, [{"hash": "round1", "round": 1, "body": {"round": 1}}]),
            (m.UsageRow, [used]),
        ]
    )
    return {
        "easy": easy["hash"], "hard": hard["hash"], "carry": carry["hash"], "grasp": first["hash"],
        "transport": second["hash"], "answer": answer, **{name: content_hash("scene", name) for name in ("a", "start")},
    }  # fmt: skip
