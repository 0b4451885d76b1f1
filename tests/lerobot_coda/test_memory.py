"""The memory on real databases, SQLite and PostgreSQL: append-only, linked, whole under several writers and kill -9."""

import os
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest
from memory_parts import fill, program, scene, verdict
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from lerobot_coda import memory as m
from lerobot_coda.memory import Memory, connect, content_hash, export, migrate
from lerobot_coda.memory.tables import FAMILIES, TABLES
from libero_pro.record import RecordError
from scripts.with_postgres import VARIABLE, NoPostgres, postgres


@pytest.fixture(scope="module")
def server():
    """URL of a PostgreSQL server: the one that this session was given, or one of its own."""
    pytest.importorskip("psycopg", reason="PostgreSQL needs psycopg: pip install 'lerobot_policy_coda[postgres]'")
    with ExitStack() as stack:
        try:
            url = os.environ.get(VARIABLE) or stack.enter_context(postgres())
        except NoPostgres as problem:
            pytest.skip(str(problem))
        yield url


@pytest.fixture
def database(server):
    """URL of an empty PostgreSQL database."""
    url, name = connect.address(server), f"memory_{uuid4().hex}"
    admin = create_engine(url, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield url.set(database=name).render_as_string(hide_password=False)
    with admin.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def target(request, tmp_path):
    """Where a new memory may be made: a file, then a database."""
    return str(tmp_path / "memory.sqlite") if request.param == "sqlite" else request.getfixturevalue("database")


@pytest.fixture
def memory(target, tmp_path):
    store = Memory(target, blobs=tmp_path / "blobs")
    yield store
    store.close()


def test_adding_again_is_a_no_op(memory):
    assert memory.add(m.Program, [program("a"), program("b")]) == 2
    assert memory.add(m.Program, [program("b"), program("c"), program("c")]) == 1
    assert {row["name"] for row in memory.rows(m.Program)} == {"a", "b", "c"}
    assert memory.get(m.Program, content_hash("a"))["name"] == "a"
    assert memory.add(m.Program, []) == 0


def test_rows_are_in_the_order_of_their_hashes_however_they_came(memory):
    memory.add(m.Program, [program(name, hash=hash) for name, hash in (("x", "Zz"), ("y", "a1"), ("z", "0f"))])
    assert [row["hash"] for row in memory.rows(m.Program)] == ["0f", "Zz", "a1"]


def test_the_first_record_of_a_hash_stays(memory):
    memory.add(m.Program, [program("a")])
    memory.add(m.Program, [program("a") | {"mode": "changed"}])
    assert memory.rows(m.Program)[0]["mode"] == "grasp"


def test_nothing_can_be_changed_or_deleted(memory):
    fill(memory)
    raw = connect.engine(memory.url)
    statements = [s for t in TABLES for s in (f"UPDATE {t} SET hash = 'x'", f"DELETE FROM {t}")]
    if raw.dialect.name == "postgresql":
        statements += [f"TRUNCATE {name} CASCADE" for name in TABLES]
    for statement in statements:
        with pytest.raises(DBAPIError, match="append-only"), raw.begin() as connection:
            connection.execute(text(statement))
    raw.dispose()
    assert memory.count(m.Program, mode="grasp") == 2


def test_links_are_enforced_and_a_batch_is_all_or_nothing(memory):
    memory.add(m.Program, [program("a")])
    with pytest.raises(IntegrityError):
        memory.add(m.Scene, [scene("s", of=content_hash("a")), scene("t", of="nowhere")])
    assert memory.count(m.Scene) == 0
    with pytest.raises(IntegrityError):
        memory.add_all([(m.Program, [program("b")]), (m.Scene, [scene("t", of="nowhere")])])
    assert memory.count(m.Program) == 1


def test_what_cannot_be_stored_is_refused_in_a_sentence(memory):
    for change, says in (
        ({"colour": "red"}, "programs has no column 'colour'"),
        ({"name": "a\0b"}, "'name' holds characters that are no text"),
        ({"name": "\ud800"}, "'name' holds characters that are no text"),
        ({"body": {"x": float("nan")}}, "body cannot be stored"),
        ({"body": {"x": "\ud800"}}, "body cannot be stored"),
    ):
        with pytest.raises(RecordError, match=says):
            memory.add(m.Program, [program("a") | change])
    with pytest.raises(RecordError, match="'p_value' is nan, which is no number"):
        memory.add(m.VerdictRow, [verdict("c", "p", "undecided") | {"p_value": float("nan")}])
    assert memory.count(m.Program) == 0


def test_a_body_comes_back_as_it_was(memory):
    body = {"text": "\u00e9\u4e2d\U0001f600 \0 \\ \" '", "n": [1, 1.0, -0.0, 1e300, 2**53, True, None], "": {}}
    memory.add(m.Program, [program("a", body=body)])
    found = memory.get(m.Program, content_hash("a"))
    assert found == body and list(map(type, found["n"])) == list(map(type, body["n"]))


def test_rows_are_found_by_one_value_or_several(memory):
    memory.add(m.Program, [program("a"), program("b"), program("c", mode="motion")])
    assert memory.count(m.Program, parent=None) == 3 and memory.count(m.Program, mode="grasp") == 2
    assert len(memory.rows(m.Program, name=["a", "c", "no"])) == 2 and memory.rows(m.Program, name=[]) == []
    with pytest.raises(RecordError, match="no programs with hash nothing"):
        memory.get(m.Program, "nothing")


def test_blobs_are_kept_by_their_content(memory, tmp_path):
    name = memory.put(b"raw answer", "text")
    assert memory.put(b"raw answer", "text") == name and memory.blobs.get(name) == b"raw answer"
    assert memory.rows(m.BlobRow) == [{"hash": name, "body": {}, "kind": "text", "size": 10}]
    memory.blobs.path(name).write_bytes(b"raw answeR")
    with pytest.raises(RecordError, match="damaged"):
        memory.blobs.get(name)
    with pytest.raises(RecordError, match="cannot be read"):
        memory.blobs.get("0" * 64)


def round_trip(source: Memory, copy: Memory, folder) -> None:
    """Exports, imports and exports again; every file must be the same, byte for byte."""
    counts = export.write(source, folder / "first")
    assert set(counts) == set(TABLES) and all(counts.values())
    assert export.read(folder / "first", copy) == counts and set(export.read(folder / "first", copy).values()) == {0}
    assert export.write(copy, folder / "second") == counts
    both = [{f.relative_to(folder / side): f for f in (folder / side).rglob("*.*")} for side in ("first", "second")]
    assert both[0].keys() == both[1].keys() and len(both[0]) == len(TABLES) + 1
    assert [name for name in both[0] if both[0][name].read_bytes() != both[1][name].read_bytes()] == []


def test_export_import_export_is_byte_identical(memory, tmp_path):
    names = fill(memory)
    copy = Memory(tmp_path / "copy.sqlite")
    round_trip(memory, copy, tmp_path)
    assert copy.blobs.get(names["answer"]) == memory.blobs.get(names["answer"])
    copy.close()


def test_what_is_exported_does_not_tell_which_database_it_was_in(database, tmp_path):
    file, server = Memory(tmp_path / "memory.sqlite"), Memory(database, blobs=tmp_path / "blobs")
    fill(file)
    round_trip(file, server, tmp_path)
    file.close()
    server.close()


def test_tables_are_what_the_migrations_make(target):
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext
    from alembic.script import ScriptDirectory

    Memory(target).close()
    engine = connect.engine(connect.address(target))
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": migrate.VERSION_TABLE})
        assert compare_metadata(context, m.Base.metadata) == []
        assert context.get_current_revision() == migrate.VERSIONS[-1]
    engine.dispose()
    script = ScriptDirectory(str(Path(migrate.__file__).parent / "migrations"))
    assert tuple(r.revision for r in script.walk_revisions())[::-1] == migrate.VERSIONS
    assert set(TABLES) == set(m.Base.metadata.tables) and sum(map(len, FAMILIES.values())) == len(TABLES)


FIRST_SCHEMA = {
    "programs": "name VARCHAR NOT NULL, mode VARCHAR NOT NULL, parent VARCHAR REFERENCES programs (hash)",
    "scenes": "program VARCHAR REFERENCES programs (hash), suite VARCHAR NOT NULL, task_id INTEGER NOT NULL, "
    "instruction VARCHAR NOT NULL",
    "rounds": "round INTEGER NOT NULL",
}


def first_memory(url) -> None:
    """A memory as the first version left it when it was killed while making its tables."""
    engine = connect.engine(url)
    with connect.writing(engine) as connection:
        for name, columns in FIRST_SCHEMA.items():
            connection.execute(text(f"CREATE TABLE {name} (hash VARCHAR PRIMARY KEY, body JSON NOT NULL, {columns})"))
        connection.execute(text("CREATE INDEX ix_programs_name ON programs (name)"))
        connection.execute(text("INSERT INTO programs VALUES ('p', '{\"old\": 1}', 'old', 'grasp', NULL)"))
        connection.execute(text("INSERT INTO scenes VALUES ('s', '{}', 'p', 'libero_object', 1, 'pick the milk')"))
    engine.dispose()


def test_an_older_memory_is_brought_up_to_date_when_it_is_opened(target):
    first_memory(connect.address(target))
    store = Memory(target)
    assert store.get(m.Program, "p") == {"old": 1} and store.rows(m.Program)[0]["other"] is None
    assert store.lineage("s")["made_by"][0]["name"] == "old"
    store.add(m.Program, [program("new", parent="p", other="p")])
    with pytest.raises(IntegrityError):
        store.add(m.Program, [program("newer", other="nowhere")])
    store.close()
    engine = connect.engine(connect.address(target))
    with pytest.raises(DBAPIError, match="append-only"), engine.begin() as connection:
        connection.execute(text("DELETE FROM scenes"))
    assert set(inspect(engine).get_table_names()) == {*TABLES, migrate.VERSION_TABLE}
    engine.dispose()


def test_a_migration_that_fails_leaves_everything_as_it_was(target, monkeypatch):
    first_memory(connect.address(target))
    engine = connect.engine(connect.address(target))
    before = sorted(inspect(engine).get_table_names())
    real = migrate._upgrade

    def broken(connection):
        real(connection)
        raise KeyboardInterrupt

    monkeypatch.setattr(migrate, "_upgrade", broken)
    with pytest.raises(KeyboardInterrupt):
        Memory(target)
    assert sorted(inspect(engine).get_table_names()) == before
    engine.dispose()


def test_a_newer_memory_is_refused(target):
    Memory(target).close()
    engine = connect.engine(connect.address(target))
    with connect.writing(engine) as connection:
        connection.execute(text(f"UPDATE {migrate.VERSION_TABLE} SET version_num = '0009'"))
    engine.dispose()
    with pytest.raises(RecordError, match=r"newer version \(schema 0009, .*pip install -U"):
        Memory(target)


OPENER = "import sys; from lerobot_coda import memory as m; m.Memory(sys.argv[1]).close()"


def test_several_processes_may_make_the_same_memory_at_once(target):
    openers = [subprocess.Popen([sys.executable, "-c", OPENER, target]) for _ in range(4)]
    assert [opener.wait(timeout=120) for opener in openers] == [0, 0, 0, 0]
    store = Memory(target)
    assert store.count(m.Program) == 0
    store.close()


WRITER = """
import sys
from lerobot_coda import memory as m
from memory_parts import gate, program, scene
store = m.Memory(sys.argv[1])
order = 1 if sys.argv[2] in "02" else -1  # every other writer inserts the other way round, so that they collide
for i in range(int(sys.argv[3])):
    names = [f"{sys.argv[2]}-{i}", f"shared-{i // 2}", f"shared-{i // 2 + 1}"]
    scenes = [scene(name, None) for name in names][::order]
    store.add_all([(m.Scene, scenes), (m.SceneVerdict, [gate(s["hash"]) for s in scenes])])
    print(i, flush=True)
"""


def test_several_writers_and_a_kill_lose_and_double_nothing(target, repository):
    """The acknowledged is there, and each transaction as a whole: scenes beside their verdicts."""
    Memory(target).close()
    path = os.pathsep.join([str(repository / "tests" / "lerobot_coda"), str(repository)])

    def start(name: str, count: int) -> subprocess.Popen:
        command = [sys.executable, "-c", WRITER, target, name, str(count)]
        return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True)

    victim = start("victim", 100_000)
    assert victim.stdout is not None and victim.stdout.readline() == "0\n"
    writers = [start(str(k), 40) for k in range(3)]
    assert writers[0].stdout is not None and writers[0].stdout.readline() == "0\n"
    victim.send_signal(signal.SIGKILL)
    acknowledged = 1 + len(victim.stdout.read().split())
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0, 0]
    victim.wait()
    store = Memory(target)
    scenes = {row["hash"] for row in store.rows(m.Scene)}
    assert store.count(m.Scene) == len(scenes) == store.count(m.SceneVerdict)
    assert scenes == {row["scene"] for row in store.rows(m.SceneVerdict)}
    expected = {content_hash("scene", f"{k}-{i}") for k in range(3) for i in range(40)}
    expected |= {content_hash("scene", f"victim-{i}") for i in range(acknowledged)}
    expected |= {content_hash("scene", f"shared-{i}") for i in range(21)}
    assert expected <= scenes
    of_victim = [i for i in range(acknowledged + 2) if content_hash("scene", f"victim-{i}") in scenes]
    assert of_victim in (list(range(acknowledged)), list(range(acknowledged + 1)))  # one may have died after its commit
    store.close()


def test_a_write_that_a_deadlock_ended_is_done_again(database, monkeypatch):
    """Two transactions add the same programs in opposite orders; the server ends the memory's, which waited first."""
    store, engine = Memory(database), create_engine(connect.address(database), isolation_level="AUTOCOMMIT")
    waited = []
    monkeypatch.setattr(connect.time, "sleep", waited.append)
    with engine.connect() as other, ThreadPoolExecutor() as pool:
        name = other.scalar(text("SELECT current_database()"))
        other.execute(text(f"ALTER DATABASE {name} SET deadlock_timeout = '3s'"))
        store.close()  # so that new connections have it
        insert = "INSERT INTO programs (hash, body, name, mode) VALUES ('{0}', '{{}}', '{0}', 'grasp')"
        for statement in ("SET deadlock_timeout = '60s'", "BEGIN", insert.format("a")):
            other.exec_driver_sql(statement)
        added = pool.submit(store.add, m.Program, [program("b", hash="b"), program("a", hash="a")])
        while not other.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")):
            assert not added.done()
        other.exec_driver_sql(insert.format("b"))
        other.exec_driver_sql("COMMIT")
        assert added.result(timeout=60) == 0 and waited
    assert store.count(m.Program) == 2
    engine.dispose()
    store.close()


def test_how_many_were_new_is_right_beside_another_writer(target):
    first, second = Memory(target), Memory(target)
    assert first.add(m.Program, [program("a")]) == 1
    assert second.add(m.Program, [program("a"), program("b")]) == 1
    assert first.add(m.Program, [program("b"), program("c"), program("d")]) == 2
    first.close()
    second.close()


def test_a_reader_sees_one_state_while_others_write(memory, target):
    memory.add(m.Program, [program("a")])
    other = Memory(target)
    with memory.reading() as connection:
        assert len(list(memory.stream(connection, m.Program))) == 1
        other.add_all([(m.Program, [program("b")]), (m.Scene, [scene("s", content_hash("b"))])])
        assert list(memory.stream(connection, m.Scene)) == [] and len(list(memory.stream(connection, m.Program))) == 1
    assert memory.count(m.Scene) == 1
    other.close()


def test_a_file_that_is_no_memory_is_refused(tmp_path):
    path = tmp_path / "deep" / "memory.sqlite"
    path.parent.mkdir()
    path.write_text("not a database, " * 100)
    with pytest.raises(RecordError, match="cannot be opened"):
        Memory(path)
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as raw:
        raw.execute("CREATE TABLE photos (name TEXT)")
    with pytest.raises(RecordError, match="a database of something else"):
        Memory(other)
    with pytest.raises(RecordError, match="'mysql' is not supported"):
        Memory("mysql://me:secret@host/db")


def test_a_server_that_is_not_there_is_told_without_the_password():
    pytest.importorskip("psycopg")
    with pytest.raises(RecordError, match="cannot be opened") as told:
        Memory("postgresql://me:secret@localhost:1/db")
    assert "secret" not in str(told.value) and "\n" not in str(told.value)
