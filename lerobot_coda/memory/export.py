"""A memory as a dataset folder, and back without loss.

One parquet file a table, rows sorted by hash, and the blobs beside them: equal memories give equal bytes, whichever
database they were in and in whatever order they were written. The folder is what a dataset on the Hugging Face Hub is:
`README.md` names each table as a configuration that `datasets.load_dataset` reads.
"""

import json
import shutil
from collections.abc import Iterable, Iterator
from graphlib import TopologicalSorter
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import Boolean, ColumnElement, Float, Integer

from lerobot_coda.memory.blobs import Blobs
from lerobot_coda.memory.connect import canonical
from lerobot_coda.memory.migrate import VERSIONS
from lerobot_coda.memory.store import Memory
from lerobot_coda.memory.tables import FAMILIES, TABLES, Base, BlobRow
from libero_pro.record import RecordError

BATCH = 5_000  # rows a row group, and rows an import adds in one transaction
_SCHEMA = b"lerobot_coda.memory"  # in each file's metadata: the schema version it was written with
_CARD = """---
pretty_name: lerobot-coda memory
tags:
- robotics
- LIBERO-Pro
- lerobot-coda
{configs}---

# The memory of a co-evolution

What lerobot-coda learned about building environments, about failing, and about progress. Each table is a parquet file:
`hash` identifies a record, `body` is the whole of it as JSON, the other columns are links (hashes of records in other
tables) and what is searched. Schema version {version}.

| family | table | records |
|---|---|---:|
{rows}

```
lerobot-coda memory import FOLDER memory.sqlite
lerobot-coda memory ls memory.sqlite
```
"""


def write(store: Memory, folder: Path) -> dict[str, int]:
    """Writes the memory as it is now into `folder`; returns the number of records by table.

    An earlier export in `folder` is replaced as a whole, at the end; RecordError if anything else is there.
    """
    folder = Path(folder)
    if folder.exists() and not _is_export(folder):
        raise RecordError(f"{folder} holds something else than an exported memory; name another folder")
    partial = folder.with_name(f".{folder.name}.{uuid4().hex}")
    try:
        partial.mkdir(parents=True)
        counts = _write(store, partial)
        earlier = partial.with_suffix(".earlier")
        if folder.exists():
            folder.rename(earlier)
        partial.rename(folder)
        shutil.rmtree(earlier, ignore_errors=True)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return counts


def read(folder: Path, store: Memory) -> dict[str, int]:
    """Adds an exported memory to `store`; returns how many records were new, by table.

    Every file is looked at before anything is added. Records that are there already stay as they are, so that several
    memories can be joined, and an import that was interrupted is finished by the same call.
    """
    files = {name: _opened(Path(folder) / "data" / f"{name}.parquet", table) for name, table in TABLES.items()}
    new = {}
    for table in Base.metadata.sorted_tables:  # what others link to comes first
        model, file = TABLES[table.name], files[table.name]
        if model is BlobRow and file is not None and file.metadata.num_rows:
            _copy(_rows(file, model), Blobs(Path(folder) / "blobs"), store.blobs)
        rows = _rows(file, model)
        if any(key.column.table is table for key in table.foreign_keys):
            rows = _parents_first(list(rows), model)
        new[table.name] = sum(store.add(model, batch) for batch in _batches(rows))
    return new


def _write(store: Memory, folder: Path) -> dict[str, int]:
    counts = {}
    (folder / "data").mkdir()
    with store.reading() as connection:
        connection.execution_options(yield_per=1000)
        for name, table in TABLES.items():
            schema, counts[name] = _schema(table), 0
            with pq.ParquetWriter(folder / "data" / f"{name}.parquet", schema, compression="zstd") as writer:
                for batch in _batches(store.stream(connection, table)):
                    writer.write_table(_table(batch, schema), row_group_size=BATCH)
                    counts[name] += len(batch)
                    if table is BlobRow:
                        _copy(batch, store.blobs, Blobs(folder / "blobs"))
    filled = [name for name, count in counts.items() if count]  # `datasets` does not read a table without rows
    configs = "".join(f"- config_name: {name}\n  data_files: data/{name}.parquet\n" for name in filled)
    rows = "\n".join(
        f"| {family} | {table.__tablename__} | {counts[table.__tablename__]} |"
        for family, tables in FAMILIES.items()
        for table in tables
    )
    card = _CARD.format(configs="configs:\n" + configs if filled else "", rows=rows, version=VERSIONS[-1])
    (folder / "README.md").write_text(card, encoding="utf-8")
    return counts


def _copy(rows: Iterable[dict[str, Any]], source: Blobs, target: Blobs) -> None:
    for row in rows:
        target.put(source.get(row["hash"]))


def _is_export(folder: Path) -> bool:
    """Whether a folder is empty or holds an export and nothing beside it."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else {"?"}
    return not names or ((folder / "data" / "programs.parquet").is_file() and names <= {"README.md", "data", "blobs"})


def _schema(table: type[Base]) -> pa.Schema:
    fields = [pa.field(c.name, _arrow(c), nullable=bool(c.nullable)) for c in table.__table__.columns]
    return pa.schema(fields, metadata={_SCHEMA: VERSIONS[-1].encode()})


def _arrow(column: ColumnElement[Any]) -> pa.DataType:
    for kind, arrow in ((Boolean, pa.bool_()), (Integer, pa.int64()), (Float, pa.float64())):
        if isinstance(column.type, kind):
            return arrow
    return pa.string()


def _table(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist([{**row, "body": canonical(row["body"])} for row in rows], schema)


def _opened(path: Path, table: type[Base]) -> pq.ParquetFile | None:
    """A table's file; None where an older version had no such table. RecordError if it is not one of ours."""
    if not path.parent.is_dir() or not (path.parent / "programs.parquet").is_file():
        raise RecordError(f"{path.parent.parent} is no exported memory: it has no data/programs.parquet")
    if not path.exists():
        return None
    try:
        file = pq.ParquetFile(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise RecordError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None
    found = file.schema_arrow
    version = (found.metadata or {}).get(_SCHEMA, b"").decode()
    if version > VERSIONS[-1]:
        raise RecordError(
            f"{path} was written by a newer version (schema {version}, this one knows up to {VERSIONS[-1]}); update "
            "with `pip install -U lerobot_policy_coda`"
        )
    wanted = _schema(table)
    for name in found.names:
        if name not in wanted.names or found.field(name).type != wanted.field(name).type:
            raise RecordError(f"{path}: column '{name}' is not one of an exported memory's")
    for field in wanted:
        if field.name not in found.names and not field.nullable:
            raise RecordError(f"{path} has no column '{field.name}'")
    return file


def _rows(file: pq.ParquetFile | None, table: type[Base]) -> Iterator[dict[str, Any]]:
    for batch in file.iter_batches(BATCH) if file else ():
        for row in batch.to_pylist():
            try:
                yield {**row, "body": json.loads(row["body"])}
            except ValueError:
                raise RecordError(f"{table.__tablename__} {row['hash']}: its body is not JSON") from None


def _parents_first(rows: list[dict[str, Any]], table: type[Base]) -> Iterator[dict[str, Any]]:
    """Rows of a table that links to itself, each after those it links to."""
    links = [c.name for c in table.__table__.columns if any(k.column.table is table.__table__ for k in c.foreign_keys)]
    own = {row["hash"]: row for row in rows}
    graph = {hash: {row[n] for n in links if row.get(n) in own} for hash, row in own.items()}
    return (own[hash] for hash in TopologicalSorter(graph).static_order())


def _batches(rows: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    while batch := list(islice(rows, BATCH)):
        yield batch
