"""The open memory: append, read, blobs."""

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, collate, func, select
from sqlalchemy.dialects import postgresql, sqlite

from lerobot_coda.memory import connect, migrate
from lerobot_coda.memory.blobs import Blobs
from lerobot_coda.memory.lineage import lineage
from lerobot_coda.memory.tables import Base, BlobRow
from libero_pro.record import RecordError

Rows = tuple[type[Base], Iterable[Mapping[str, Any]]]


def content_hash(*parts: Any) -> str:
    """16 hex digits identifying JSON-serializable parts."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Memory:
    """An open memory. `target` is a file path (SQLite) or a SQLAlchemy URL; it is made, or brought up to date.

    `blobs` is the folder of big things: by default `<file>.blobs` beside a file; a memory by URL has none unless named.
    Adding a record again is a no-op; there is no call that changes or deletes one, and triggers refuse it.
    """

    def __init__(self, target: str | Path, *, blobs: Path | None = None):
        self.url = connect.address(target)
        if self.url.get_backend_name() == "sqlite" and self.url.database:
            Path(self.url.database).parent.mkdir(parents=True, exist_ok=True)
            blobs = blobs or Path(self.url.database).with_suffix(".blobs")
        self._blobs = Blobs(blobs) if blobs else None
        self._engine = connect.engine(self.url)
        try:
            with connect.told(self.url, "opened"):
                migrate.prepare(self.url, self._engine)
        except RecordError:
            self.close()
            raise

    def __str__(self) -> str:
        return connect.shown(self.url)

    @property
    def blobs(self) -> Blobs:
        """The folder of big things; RecordError if the memory has none."""
        if self._blobs is None:
            raise RecordError(f"memory {self} has no folder for big things; name one (--blobs FOLDER, or blobs=...)")
        return self._blobs

    def close(self) -> None:
        """Closes every connection."""
        self._engine.dispose()

    # Writing.

    def add(self, table: type[Base], rows: Iterable[Mapping[str, Any]]) -> int:
        """Appends rows (dicts of the table's columns) in one transaction; returns how many were new.

        A hash that is there already is left as it is, so replaying a step after a crash changes nothing.
        """
        return self.add_all([(table, rows)])

    def add_all(self, groups: Iterable[Rows]) -> int:
        """Appends rows of several tables, in the order given, in one transaction; returns how many were new.

        RecordError for a row that cannot be stored; IntegrityError for a link to a record that is not there.
        """
        ready = [(table, [_checked(table, row) for row in rows]) for table, rows in groups]

        def append() -> int:
            with connect.writing(self._engine) as connection:
                return sum(_insert(connection, table, rows) for table, rows in ready if rows)

        if not any(rows for _, rows in ready):
            return 0
        with connect.told(self.url, "written"):
            return connect.retried(append)

    def put(self, data: bytes, kind: str) -> str:
        """Stores bytes as a blob and returns their hash. The file comes first, so that no row lacks its file."""
        name = self.blobs.put(data)
        self.add(BlobRow, [{"hash": name, "kind": kind, "size": len(data), "body": {}}])
        return name

    # Reading.

    def get(self, table: type[Base], hash: str) -> dict[str, Any]:
        """One record's body; RecordError if the memory does not hold it."""
        found = self.rows(table, hash=hash)
        if not found:
            raise RecordError(f"memory holds no {table.__tablename__} with hash {hash}")
        return dict(found[0]["body"])

    def rows(self, table: type[Base], **equal: Any) -> list[dict[str, Any]]:
        """All rows whose columns equal the given values (or one of them, where a list is given), as dicts.

        They are sorted by hash: equal content is in equal order, whoever wrote it, when, and in which database.
        """
        with self.reading() as connection:
            return list(self.stream(connection, table, **equal))

    def stream(self, connection: Connection, table: type[Base], **equal: Any) -> Iterator[dict[str, Any]]:
        """As `rows`, one by one, as seen by a connection of `reading`."""
        columns = table.__table__.columns
        order: ColumnElement[Any] = columns["hash"]
        if connection.dialect.name == "postgresql":
            order = collate(order, "C")  # by bytes, as SQLite does
        query = select(table.__table__).where(*_conditions(table, equal)).order_by(order)
        for row in connection.execute(query):
            yield dict(zip(columns.keys(), row, strict=True))

    def count(self, table: type[Base], **equal: Any) -> int:
        """Number of rows whose columns equal the given values (or one of them)."""
        with self.reading() as connection:
            query = select(func.count()).select_from(table).where(*_conditions(table, equal))
            return connection.scalar(query) or 0

    def named(self, table: type[Base], prefix: str, limit: int = 9) -> list[str]:
        """Hashes that begin with `prefix`, sorted, at most `limit` of them."""
        with self.reading() as connection:
            query = select(table.hash).where(table.hash.startswith(prefix, autoescape=True))
            return list(connection.scalars(query.order_by(table.hash).limit(limit)))

    def lineage(self, scene: str) -> dict[str, Any]:
        """Everything linked to a scene; see `lineage.lineage`."""
        return lineage(self, scene)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection to read by: all its queries see one state of the memory."""
        with connect.told(self.url, "read"), connect.reading(self._engine) as connection:
            yield connection


def _insert(connection: Connection, table: type[Base], rows: Sequence[Mapping[str, Any]]) -> int:
    """Inserts what is new and returns how much that is, as the database itself tells: right with several writers."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(table).on_conflict_do_nothing(index_elements=["hash"]).returning(table.hash)
    return len(connection.execute(statement, rows).all())


def _conditions(table: type[Base], equal: Mapping[str, Any]) -> Iterator[ColumnElement[bool]]:
    for name, value in equal.items():
        column = table.__table__.columns[name]
        several = isinstance(value, Collection) and not isinstance(value, str)
        yield column.in_(list(value)) if several else column == value


def _checked(table: type[Base], row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with all of the table's columns; RecordError for what one of the databases could not hold."""
    columns = table.__table__.columns.keys()
    if unknown := sorted(row.keys() - set(columns)):
        raise RecordError(f"{table.__tablename__} has no column '{unknown[0]}'; it has {', '.join(columns)}")
    for name, value in row.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise RecordError(f"{table.__tablename__}: '{name}' is {value}, which is no number")
        if isinstance(value, str) and ("\0" in value or not _is_text(value)):
            raise RecordError(f"{table.__tablename__}: '{name}' holds characters that are no text; keep it as a blob")
    return {name: row.get(name) for name in columns}


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, as JSON can spell it
        return False
    return True
