"""`lerobot-coda memory`: look into what was learned, and take it elsewhere."""

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lerobot_coda.memory import Memory
    from libero_pro.record import Record

FILE = "memory.sqlite"  # in a run's folder
EXPORT = "memory"
_EXAMPLE = """MEMORY is a run's folder, a file or postgresql://USER@HOST/DATABASE; a HASH may be cut short.

examples:
  lerobot-coda memory ls runs/quickstart                        what is there
  lerobot-coda memory ls runs/quickstart programs               programs by the progress they brought
  lerobot-coda memory ls runs/quickstart rejected               what was turned down, and why
  lerobot-coda memory show runs/quickstart 3fab6b
  lerobot-coda memory lineage runs/quickstart 3fab6b            from a scene to the programs it led to
  lerobot-coda memory search runs/quickstart --cause missed_grasp --text "it closes beside the carton"
  lerobot-coda memory export runs/quickstart                    a dataset folder, runs/quickstart/memory
  hf upload USER/NAME runs/quickstart/memory --repo-type dataset
  lerobot-coda memory import runs/quickstart/memory postgresql://me@db/coda --blobs /data/blobs
"""


def add(commands: Any) -> None:
    """Adds the command and its own commands to the subparsers."""
    parser = commands.add_parser(
        "memory",
        help="list, show, search, export and import what was learned",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    def verb(name: str, help: str, run: Any) -> argparse.ArgumentParser:
        own = [line for line in _EXAMPLE.splitlines() if line.startswith(f"  lerobot-coda memory {name} ")]
        made = verbs.add_parser(
            name,
            help=help,
            epilog="\n".join(["example:", *own]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        made.set_defaults(run=run)
        if name == "import":
            made.add_argument("folder", type=Path, metavar="FOLDER", help="what `memory export` wrote")
        made.add_argument("memory", metavar="MEMORY", help="run folder, file, or database URL")
        made.add_argument("--blobs", type=Path, metavar="FOLDER", help="folder of big things (default: beside a file)")
        made.add_argument("--json", action="store_true", help="print JSON")
        return made

    ls = verb("ls", "list tables, programs by progress, what was rejected, or a table", _ls)
    ls.add_argument("what", nargs="?", metavar="WHAT", help="programs, rejected, or a table (default: all tables)")
    ls.add_argument("--limit", type=int, default=50, metavar="N", help="rows at most (default 50)")
    verb("show", "show a record and what it is linked to", _show).add_argument("hash", metavar="HASH")
    verb("lineage", "from a scene to what it led to", _lineage).add_argument("hash", metavar="HASH")
    search = verb("search", "what was tried for failures like these, and how much it helped", _search)
    search.add_argument("--text", default="", metavar="WORDS", help="what happened, in words")
    search.add_argument("--cause", action="append", default=[], help="a cause, such as missed_grasp; may be repeated")
    search.add_argument("--object", action="append", default=[], help="an object, such as milk_1; may be repeated")
    search.add_argument("--stage", help="reach, grasp, transport, place or done")
    search.add_argument("--suite", help="in this suite only")
    search.add_argument("--limit", type=int, default=5, metavar="N", help="clusters at most (default 5)")
    export = verb("export", "write a dataset folder of parquet files", _export)
    export.add_argument("folder", nargs="?", type=Path, metavar="FOLDER", help=f"default: RUN/{EXPORT}")
    verb("import", "add an exported memory to another, or to a new one", _import)


def _ls(arguments: argparse.Namespace) -> None:
    from lerobot_coda.memory import queries, view
    from lerobot_coda.memory.tables import FAMILIES, TABLES
    from libero_pro.record import RecordError

    what, limit = arguments.what, max(0, arguments.limit)
    if what not in (None, "rejected", *TABLES):
        raise RecordError(f"'{what}' is no table; give one of rejected, {', '.join(TABLES)}")
    with _opened(arguments) as store:
        if what is None:
            rows: list[Any] = [
                {"family": family, "table": table.__tablename__, "records": store.count(table)}
                for family, tables in FAMILIES.items()
                for table in tables
            ]
            count = limit = len(rows)
        elif what in ("rejected", "programs"):
            found: Sequence[Record] = queries.refusals(store) if what == "rejected" else queries.ranked(store)
            rows, count = [record.model_dump(mode="json") for record in found], len(found)
        else:
            with store.reading() as connection:
                rows = list(islice(store.stream(connection, TABLES[what]), limit))
            count = store.count(TABLES[what])
    rows = rows[:limit]
    if arguments.json:
        return _print_json(rows)
    title = f"{what or arguments.memory}" + (f" ({limit} of {count})" if count > limit else "")
    if what == "programs":
        return _print(view.programs(rows, title))
    columns: Sequence[str] = {
        None: ("family", "table", "records"),
        "rejected": ("record", "kind", "author", "what", "why"),
    }.get(what) or [column.name for column in TABLES[what].__table__.columns if column.name != "body"]
    _print(view.grid(title, columns, rows))


def _show(arguments: argparse.Namespace) -> None:
    from lerobot_coda.memory import queries, view
    from lerobot_coda.memory.tables import TABLES

    with _opened(arguments) as store:
        table, full = queries.resolve(store, arguments.hash)
        row = store.rows(TABLES[table], hash=full)[0]
        linked = queries.links(store, table, full)
    if arguments.json:
        return _print_json({"table": table, **row, "linked_from": linked})
    lines = [f"{table} {full}"]
    lines += [f"  {name}: {view.text(value)}" for name, value in row.items() if name not in ("hash", "body")]
    if table == "blobs":
        lines.append(f"  file: {full[:2]}/{full} in the folder of blobs")
    lines += [f"  linked from {where}: {_several(hashes)}" for where, hashes in linked.items()]
    _print("\n".join([*lines, view.body(row["body"], width=100)]))


def _lineage(arguments: argparse.Namespace) -> None:
    from lerobot_coda.memory import queries, view

    with _opened(arguments) as store:
        found = store.lineage(queries.resolve(store, arguments.hash, ("scenes",))[1])
    if arguments.json:
        return _print_json(found)
    _print(view.tree(found))


def _search(arguments: argparse.Namespace) -> None:
    from lerobot_coda.memory import view
    from lerobot_coda.memory.precedents import precedents

    with _opened(arguments) as store:
        found = precedents(
            store,
            causes=arguments.cause,
            objects=arguments.object,
            stage=arguments.stage,
            suite=arguments.suite,
            text=arguments.text,
            limit=max(0, arguments.limit),
        )
    if arguments.json:
        return _print_json([record.model_dump(mode="json") for record in found])
    if not found:
        return _print("no failures like these")
    for one in found:
        causes = ", ".join(f"{cause} {count}" for cause, count in one.causes.items())
        title = f"{one.likeness:.2f} alike: {one.suite}, {one.mode} in {one.stage} ({causes}), cluster {one.cluster}"
        said = [f"  {one.explanation}"] if one.explanation else []
        _print("\n".join([title, *said, *(f"  refused: {why}" for why in one.refused)]))
        tried = [program.model_dump(mode="json") for program in one.tried]
        _print(view.programs(tried, "tried") if tried else "  nothing was tried for them")


def _export(arguments: argparse.Namespace) -> None:
    from lerobot_coda.memory import export
    from libero_pro.record import RecordError

    folder = arguments.folder
    if folder is None:
        if not Path(arguments.memory).is_dir():
            raise RecordError(f"name the folder to export to: lerobot-coda memory export {arguments.memory} FOLDER")
        folder = Path(arguments.memory) / EXPORT
    with _opened(arguments) as store:
        counts = export.write(store, folder)
    if arguments.json:
        return _print_json({"folder": str(folder), "records": counts})
    _print(f"{folder}: {sum(counts.values())} records in {sum(map(bool, counts.values()))} tables")


def _import(arguments: argparse.Namespace) -> None:
    from lerobot_coda.memory import export

    with _opened(arguments, make=True) as store:
        new = export.read(arguments.folder, store)
    if arguments.json:
        return _print_json({"new": new})
    _print(f"{arguments.memory}: {sum(new.values())} records are new")


@contextmanager
def _opened(arguments: argparse.Namespace, *, make: bool = False) -> "Iterator[Memory]":
    """The memory that a command names; RecordError if it is a file that is not there and is not to be made."""
    from lerobot_coda.memory import Memory
    from libero_pro.record import RecordError

    target = arguments.memory
    if "://" not in target:
        path = Path(target) / FILE if Path(target).is_dir() else Path(target)
        if not make and not path.is_file():
            raise RecordError(f"{path} is not there; give a folder that `lerobot-coda evolve` wrote, a file or a URL")
        target = str(path)
    store = Memory(target, blobs=arguments.blobs)
    try:
        yield store
    finally:
        store.close()


def _print(what: Any) -> None:
    from rich.console import Console

    from lerobot_coda.memory import view

    text = view.plain(what) if isinstance(what, str) else what
    Console(highlight=False).print(text, markup=False, soft_wrap=isinstance(what, str))


def _print_json(data: Any) -> None:
    print(json.dumps(data, indent=1, ensure_ascii=False))


def _several(hashes: Sequence[str]) -> str:
    return ", ".join(hashes[:8]) + (f", ... ({len(hashes)})" if len(hashes) > 8 else "")
