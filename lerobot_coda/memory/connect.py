"""From a path or URL to a database: SQLite in WAL mode by default, PostgreSQL by URL, the same promises on both.

Every write is one transaction that is there as a whole or not at all; every read sees one state of the database,
whatever others write meanwhile.
"""

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, StatementError

from libero_pro.record import RecordError

BUSY_MS = 60_000  # how long a writer waits for the others before it gives up
CONNECT_S = 10
TRIES = 20
_WRITES = "memory_writes"
_COLLISIONS = ("40P01", "40001")  # deadlock, serialization failure


def address(target: str | Path) -> URL:
    """The URL of a file path (SQLite) or of a SQLAlchemy URL; RecordError for any other database."""
    text = str(target)
    if "://" not in text:
        return URL.create("sqlite", database=text)
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise RecordError(f"memory '{text.split('://')[0]}://...' is no database URL; see {_FORMS}") from None
    if url.drivername in ("postgres", "postgresql"):
        url = url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise RecordError(f"memory {shown(url)}: '{url.drivername}' is not supported; see {_FORMS}")
    return url


_FORMS = "a file path, or postgresql://USER@HOST/DATABASE"


def shown(url: URL) -> str:
    """What messages call the database: its path, or its URL without the password."""
    if url.get_backend_name() == "sqlite":
        return url.database or "sqlite://"
    return url.set(drivername=url.get_backend_name()).render_as_string(hide_password=True)


def canonical(body: Any) -> str:
    """A record's body as JSON with sorted keys and without spaces: equal bodies are equal text.

    RecordError for what JSON or UTF-8 cannot say: numbers that are none, half of a surrogate pair.
    """
    try:
        text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        text.encode()
    except (ValueError, TypeError) as error:
        raise RecordError(f"a record's body cannot be stored: {error}") from None
    return text


def engine(url: URL, *, links: bool = True) -> Engine:
    """An engine for `url`. `links=False` leaves foreign keys unchecked on SQLite, as changing its tables needs."""
    if url.get_backend_name() == "sqlite":
        made = create_engine(url, json_serializer=canonical)
        event.listen(made, "connect", lambda connection, _record: _configure(connection, links))
        event.listen(made, "begin", _begin)
        return made
    options = {} if "connect_timeout" in url.query else {"connect_timeout": CONNECT_S}
    try:
        return create_engine(url, connect_args=options, json_serializer=canonical, pool_pre_ping=True)
    except ModuleNotFoundError as error:
        raise RecordError(
            f"a memory on PostgreSQL needs {error.name}: pip install 'lerobot_policy_coda[postgres]'"
        ) from None


@contextmanager
def writing(made: Engine) -> Iterator[Connection]:
    """A transaction that writes, committed at the end; waits for other writers on SQLite."""
    with made.connect() as connection:
        connection.execution_options(**{_WRITES: True})
        with connection.begin():
            yield connection


@contextmanager
def reading(made: Engine) -> Iterator[Connection]:
    """A transaction that reads: everything in it is seen as it was at its first query."""
    with made.connect() as connection:
        if made.dialect.name == "postgresql":
            connection.execution_options(isolation_level="REPEATABLE READ")
        with connection.begin():
            yield connection


@contextmanager
def told(url: URL, doing: str) -> Iterator[None]:
    """Turns what the database says into one sentence; a broken link (IntegrityError) is the caller's mistake."""
    try:
        yield
    except IntegrityError:
        raise
    except StatementError as error:
        reason = (str(error.orig).strip() or type(error.orig).__name__).splitlines()[0]
        raise RecordError(f"memory {shown(url)} cannot be {doing}: {reason}") from None


def retried(write: Callable[[], int]) -> int:
    """Does a write, again where PostgreSQL ended it in favor of another's (a deadlock): one of the two always wins."""
    for wait in range(1, TRIES):
        try:
            return write()
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) not in _COLLISIONS:
                raise
            time.sleep(0.01 * wait)
    return write()


def _begin(connection: Connection) -> None:
    """Writers queue up at the beginning: one that upgraded from reading would be refused at once, not waited for."""
    writes = connection.get_execution_options().get(_WRITES)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _configure(connection: Any, links: bool) -> None:
    """Several readers beside a writer, links enforced, and patience instead of `database is locked`."""
    connection.isolation_level = None  # transactions are begun by `_begin`, also around changes of tables
    connection.execute(f"PRAGMA busy_timeout={BUSY_MS}")
    connection.execute(f"PRAGMA foreign_keys={'ON' if links else 'OFF'}")
    connection.execute("PRAGMA synchronous=NORMAL")
    _write_ahead(connection)


def _write_ahead(connection: Any) -> None:
    """WAL is a property of the file. The one change to it is refused, not waited for, while others open it too."""
    deadline = time.monotonic() + BUSY_MS / 1000
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return  # a file system without shared memory keeps its own journal, which is as safe and slower
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
