"""The memory on a real SQLite file: append-only, content-addressed, linked, safe under several writers and kill -9."""

import signal
import sqlite3
import subprocess
import sys
import time

import pytest
from sqlalchemy.exc import IntegrityError

from lerobot_coda import memory as m
from lerobot_coda.memory import Memory, content_hash
from libero_pro.record import RecordError


@pytest.fixture
def memory(tmp_path):
    store = Memory(tmp_path / "deep" / "memory.sqlite")
    yield store
    store.close()


def program(name: str, parent: str | None = None) -> dict:
    return {"hash": content_hash(name), "name": name, "mode": "grasp", "parent": parent, "body": {"name": name}}


def scene(name: str, of: str | None) -> dict:
    return {
        "hash": content_hash("scene", name), "program": of, "suite": "libero_object", "task_id": 1,
        "instruction": "pick the milk", "body": {"seed": 1},
    }  # fmt: skip


def test_adding_again_is_a_no_op(memory):
    assert memory.add(m.Program, [program("a"), program("b")]) == 2
    assert memory.add(m.Program, [program("b"), program("c")]) == 1
    assert [row["name"] for row in memory.rows(m.Program)] == ["a", "b", "c"]
    assert memory.get(m.Program, content_hash("a")) == {"name": "a"}
    assert memory.add(m.Program, []) == 0


def test_the_first_record_of_a_hash_stays(memory):
    memory.add(m.Program, [program("a")])
    memory.add(m.Program, [program("a") | {"mode": "changed"}])
    assert memory.rows(m.Program)[0]["mode"] == "grasp"


def test_nothing_can_be_changed_or_deleted(memory, tmp_path):
    memory.add(m.Program, [program("a")])
    raw = sqlite3.connect(tmp_path / "deep" / "memory.sqlite")
    for statement in ("UPDATE programs SET mode = 'x'", "DELETE FROM programs"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            raw.execute(statement)
    raw.close()
    assert memory.count(m.Program, mode="grasp") == 1


def test_links_are_enforced(memory):
    with pytest.raises(IntegrityError):
        memory.add(m.Scene, [scene("s", of="no such program")])
    assert memory.count(m.Scene) == 0


def test_a_batch_is_all_or_nothing(memory):
    memory.add(m.Program, [program("a")])
    with pytest.raises(IntegrityError):
        memory.add(m.Scene, [scene("s", of=content_hash("a")), scene("t", of="nowhere")])
    assert memory.count(m.Scene) == 0


def test_lineage_goes_from_a_scene_to_what_it_led_to(memory):
    a, b, s = content_hash("a"), content_hash("b"), content_hash("scene", "s")
    memory.add(m.Program, [program("a"), program("b")])
    memory.add(m.Scene, [scene("s", a), scene("other", a)])
    memory.add(m.SceneVerdict, [{"hash": "v", "scene": s, "gate": "all", "accepted": True, "reason": "", "body": {}}])
    episode = {
        "hash": "e", "scene": s, "actor": "base", "purpose": "probe", "success": False, "invalid": None, "steps": 9,
        "path": "x.npz", "body": {},
    }  # fmt: skip
    memory.add(m.EpisodeRow, [episode])
    found = {"hash": "d", "episode": "e", "cause": "dropped", "stage": "transport", "mode": "transport"}
    memory.add(m.DiagnosisRow, [found | {"critic": "simulator", "body": {}}])
    memory.add(m.Cluster, [{"hash": "c", "mode": "transport", "suite": "libero_object", "size": 1, "body": {}}])
    memory.add(m.Member, [{"hash": "m", "cluster": "c", "diagnosis": "d", "body": {}}])
    verdict = {"hash": "w", "cluster": "c", "program": b, "outcome": "validated", "p_value": 0.01, "body": {}}
    memory.add(m.VerdictRow, [verdict])
    lineage = memory.lineage(s)
    assert [p["name"] for p in lineage["made_by"]] == ["a"] and [p["name"] for p in lineage["led_to"]] == ["b"]
    assert [d["cause"] for d in lineage["diagnoses"]] == ["dropped"] and lineage["verdicts"][0][
        "outcome"
    ] == "validated"
    assert memory.lineage(content_hash("scene", "other"))["led_to"] == []
    with pytest.raises(RecordError, match="no scene with hash nothing"):
        memory.lineage("nothing")


def test_a_file_that_is_no_database_is_refused(tmp_path):
    path = tmp_path / "memory.sqlite"
    path.write_text("not a database, " * 100)
    with pytest.raises(RecordError, match="cannot be opened"):
        Memory(path)


WRITER = """
import sys
from lerobot_coda import memory as m
store = m.Memory(sys.argv[1])
for i in range(int(sys.argv[3])):
    name = f"{sys.argv[2]}-{i}"
    both = (name, f"shared-{i}")
    store.add(m.Program, [
        {"hash": m.content_hash(x), "name": x, "mode": "grasp", "parent": None, "body": {}} for x in both
    ])
"""


def test_several_writers_and_a_kill_lose_and_double_nothing(tmp_path):
    path = tmp_path / "memory.sqlite"
    Memory(path).close()
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(k), "60"]) for k in range(2)]
    victim = subprocess.Popen([sys.executable, "-c", WRITER, str(path), "victim", "100000"])
    store = Memory(path)
    deadline = time.monotonic() + 60
    while not any(r["name"].startswith("victim") for r in store.rows(m.Program)) and time.monotonic() < deadline:
        time.sleep(0.05)
    victim.send_signal(signal.SIGKILL)
    assert [w.wait(timeout=120) for w in writers] == [0, 0]
    victim.wait()
    names = [row["name"] for row in store.rows(m.Program)]
    assert len(names) == len(set(names))
    assert {f"{k}-{i}" for k in range(2) for i in range(60)} <= set(names)
    assert {f"shared-{i}" for i in range(60)} <= set(names)
    killed_at = sum(name.startswith("victim") for name in names)
    assert killed_at >= 1 and f"shared-{killed_at - 1}" in names  # both rows of a transaction, or neither
    store.close()
