"""The memory under several writers: eight processes, ten thousand records each, some of them killed in the middle.

A transaction writes five scenes and what the gates said of them; every tenth is one that all writers write, in opposite
orders. A writer acknowledges a transaction after its commit. When a third is written, two writers are killed (SIGKILL),
what is there is checked, and they start again from the beginning.

    python benchmarks/memory.py --json memory.json                                     # SQLite
    python scripts/with_postgres.py python benchmarks/memory.py --json memory.json     # and PostgreSQL
"""

import argparse
import multiprocessing
import os
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from uuid import uuid4

from rich.console import Console
from rich.table import Table
from sqlalchemy import create_engine, func, select, text

from lerobot_coda import memory as m
from lerobot_coda.memory import Memory, connect, content_hash
from libero_pro.figures import keep

SCENES = 5  # of a transaction; with their verdicts ten records
EVERY = 10  # one in so many transactions is written by all writers
KILLED = 2
_SPAWN = multiprocessing.get_context("spawn")


def names(writer: int, number: int) -> list[str]:
    """The scenes of a writer's transaction."""
    who = "all" if number % EVERY == 0 else str(writer)
    return [f"{who}/{number}/{k}" for k in range(SCENES)]


def rows(found: Sequence[str]) -> list[m.Rows]:
    """Scenes of the usual size, and their verdicts."""
    poses = {f"object_{k}": [0.1 * k, -0.2, 0.91, 1.0, 0.0, 0.0, 0.0] for k in range(8)}
    scenes = [
        {
            "hash": content_hash(name), "program": None, "suite": "libero_object", "task_id": 1,
            "instruction": "pick up the milk and place it in the basket", "body": {"name": name, "poses": poses},
        }
        for name in found
    ]  # fmt: skip
    verdicts = [
        {
            "hash": content_hash(s["hash"], "all"), "scene": s["hash"], "gate": "all", "accepted": True, "reason": "",
            "body": {"name": name},
        }
        for name, s in zip(found, scenes, strict=True)
    ]  # fmt: skip
    return [(m.Scene, scenes), (m.SceneVerdict, verdicts)]


def write(target: str, writer: int, transactions: int, journal: Path) -> None:
    """A writer's process. The journal gets a line for each transaction that was committed: its number, and when."""
    store = Memory(target)
    with journal.open("a", buffering=1) as file:
        for number in range(transactions):
            found = names(writer, number)
            store.add_all(rows(found if writer % 2 else found[::-1]))
            file.write(f"{number} {time.monotonic()}\n")
    store.close()


class Writers:
    """Writers on one memory, numbered from 0."""

    def __init__(self, target: str, count: int, transactions: int, folder: Path):
        self.target, self.count, self.transactions, self.folder = target, count, transactions, folder
        self.processes: dict[int, BaseProcess] = {}

    def start(self, numbers: Sequence[int]) -> None:
        """Starts these writers, from the beginning."""
        for k in numbers:
            arguments = (self.target, k, self.transactions, self.journal(k))
            self.processes[k] = _SPAWN.Process(target=write, args=arguments)
            self.processes[k].start()

    def kill(self, numbers: Sequence[int]) -> None:
        """kill -9, when the first of them has committed a third of its transactions."""
        while len(self.acknowledged(numbers[0])) < self.transactions // 3 and self.processes[numbers[0]].is_alive():
            time.sleep(0.05)
        for k in numbers:
            self.processes[k].kill()
            self.processes[k].join()

    def wait(self) -> None:
        """Until all are done."""
        for k, process in self.processes.items():
            process.join()
            if process.exitcode:
                raise RuntimeError(f"writer {k} ended with {process.exitcode}")

    def journal(self, writer: int) -> Path:
        """Where a writer acknowledges."""
        return self.folder / f"{writer}.txt"

    def acknowledged(self, writer: int) -> dict[int, float]:
        """Its transactions that it knows to be committed, with the times."""
        text = self.journal(writer).read_text() if self.journal(writer).exists() else ""
        lines = (line.split() for line in text.splitlines(keepends=True) if line.endswith("\n"))
        return {int(number): float(when) for number, when in lines}

    def rate(self) -> float:
        """Records a second from the first commit to the last."""
        times = [when for k in range(self.count) for when in self.acknowledged(k).values()]
        return 2 * SCENES * len(times) / (max(times) - min(times))


def check(writers: Writers) -> dict[str, int]:
    """What is wrong with the memory: acknowledged records that are not there, doubled ones, halves of transactions."""
    promised = {name for k in range(writers.count) for number in writers.acknowledged(k) for name in names(k, number)}
    store = Memory(writers.target)
    with store.reading() as connection:
        scenes = list(connection.execute(select(m.Scene.hash, m.Scene.body)))
        verdicts = list(connection.execute(select(m.SceneVerdict.scene, m.SceneVerdict.body)))
        sound = "ok"
        if connection.dialect.name == "sqlite":
            sound = connection.scalar(text("PRAGMA integrity_check"))
            loose = list(connection.execute(text("PRAGMA foreign_key_check")))
        else:
            loose = list(
                connection.execute(select(m.SceneVerdict.hash).outerjoin(m.Scene).where(m.Scene.hash.is_(None)))
            )
    store.close()
    there = [Counter(body["name"] for _, body in found) for found in (scenes, verdicts)]
    whole = {tuple(sorted(names(k, number))) for k in range(writers.count) for number in range(writers.transactions)}
    torn = sum(len({found[name] for found in there for name in group}) > 1 for group in whole)
    known = {name for group in whole for name in group}
    return {
        "records": len(scenes) + len(verdicts),
        "lost": sum(found[name] == 0 for found in there for name in promised),
        "doubled": sum(count - 1 for found in there for count in found.values() if count > 1),
        "torn": torn + len(loose) + (sound != "ok") + sum(name not in known for found in there for name in found),
    }


def trial(label: str, made: Callable[[], str], count: int, records: int, report: "Report") -> None:
    """All of it on one kind of database; `made` gives an empty one."""
    transactions = records // (2 * SCENES)
    with tempfile.TemporaryDirectory() as scratch:
        alone = Writers(made(), 1, transactions, _below(scratch, "alone"))
        Memory(alone.target).close()
        alone.start([0])
        alone.wait()
        writers = Writers(made(), count, transactions, _below(scratch, "all"))
        Memory(writers.target).close()
        writers.start(range(count))
        writers.kill(range(KILLED))
        rate, after_kill = writers.rate(), check(writers)
        writers.start(range(KILLED))
        writers.wait()
        found = check(writers)
        common = -(-transactions // EVERY)
        found["lost"] += (count * (transactions - common) + common) * 2 * SCENES - found["records"]
        for name in ("lost", "doubled", "torn"):
            report.add(f"records_{name}_{label}", found[name] + after_kill[name], "records", n=count * records)
        own = alone.rate()
        report.add(f"memory_writes_{label}", rate, "records/s", n=count, peer=f"one writer: {own:.0f}", of=own)
        growth(label, writers.target, report)


def growth(label: str, target: str, report: "Report", times: int = 50) -> None:
    """Ten records added to a filled memory, beside counting the tables before and after to tell what was new."""
    store = Memory(target)
    engine = connect.engine(store.url)

    def plain(number: int) -> int:
        return sum(store.add(*some) for some in rows([f"plain/{number}/{k}" for k in range(SCENES)]))

    def counting(number: int) -> int:
        total = 0
        for table, records in rows([f"counting/{number}/{k}" for k in range(SCENES)]):
            with engine.connect() as connection:
                before = connection.scalar(select(func.count()).select_from(table)) or 0
            store.add(table, records)
            with engine.connect() as connection:
                total += (connection.scalar(select(func.count()).select_from(table)) or 0) - before
        return total

    cost = {}
    for name, work in (("plain", plain), ("counting", counting)):
        work(-1)
        cost[name] = timed(lambda work=work: [work(number) for number in range(times)]) * 1000 / times
    scenes = store.count(m.Scene)
    report.add(
        f"memory_add_{label}", cost["plain"], f"ms in {scenes} scenes", n=times,
        peer=f"counting the tables: {cost['counting']:.2f} ms", of=cost["counting"],
    )  # fmt: skip
    lineage = content_hash(names(0, 0)[0])
    report.add(f"memory_lineage_{label}", timed(lambda: store.lineage(lineage)) * 1000, f"ms in {scenes} scenes", n=1)
    engine.dispose()
    store.close()


class Report:
    """Figures as they are found, in the form of `results/`."""

    def __init__(self, command: str):
        self.command, self.rows = command, list[dict[str, Any]]()

    def add(
        self, figure: str, value: float, unit: str, n: int, peer: str | None = None, of: float | None = None
    ) -> None:
        """`of` is the peer's value; the ratio says how many times better this is."""
        ratio = None if of is None else value / of if unit.endswith("/s") else of / value
        row = {
            "figure": figure,
            "value": round(value, 3),
            "unit": unit,
            "peer": peer,
            "ratio": ratio and round(ratio, 3),
        }
        self.rows.append({**row, "n": n, "low": None, "high": None, "command": self.command})

    def total(self, name: str) -> int:
        """Sum over the databases."""
        return int(sum(row["value"] for row in self.rows if row["figure"].startswith(f"{name}_")))

    def table(self) -> Table:
        """All figures."""
        columns = ("figure", "value", "unit", "ratio", "n", "peer")
        table = Table(*columns, title=self.command, title_justify="left")
        for row in self.rows:
            table.add_row(*("" if row[name] is None else str(row[name]) for name in columns))
        return table


def timed(work: Callable[[], Any]) -> float:
    """Seconds of wall time."""
    began = time.monotonic()
    work()
    return time.monotonic() - began


def _below(folder: str, name: str) -> Path:
    path = Path(folder) / name
    path.mkdir()
    return path


@contextmanager
def files() -> Iterator[Callable[[], str]]:
    """Makes empty places for SQLite files."""
    with tempfile.TemporaryDirectory() as folder:
        yield lambda: f"{folder}/{uuid4().hex}.sqlite"


@contextmanager
def databases(server: str) -> Iterator[Callable[[], str]]:
    """Makes empty databases on a PostgreSQL server, dropped in the end."""
    url = connect.address(server)
    admin, made = create_engine(url, isolation_level="AUTOCOMMIT"), list[str]()

    def make() -> str:
        made.append(f"memory_{uuid4().hex}")
        with admin.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {made[-1]}"))
        return url.set(database=made[-1]).render_as_string(hide_password=False)

    yield make
    with admin.connect() as connection:
        for name in made:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()


def main() -> int:
    """0 if nothing was lost, doubled or torn."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--records", type=int, default=10_000, help="of each writer")
    parser.add_argument(
        "--postgres", default=os.environ.get("CODA_POSTGRES"), metavar="URL", help="a server to use, too"
    )
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
    server = "python scripts/with_postgres.py " if os.environ.get("CODA_POSTGRES") else ""
    report = Report(server + shlex.join(["python", *sys.argv]))
    with files() as make:
        trial("sqlite", make, arguments.writers, arguments.records, report)
    if arguments.postgres:
        with databases(arguments.postgres) as make:
            trial("postgresql", make, arguments.writers, arguments.records, report)
    else:
        print("no PostgreSQL: give --postgres URL, or run this by scripts/with_postgres.py", file=sys.stderr)
    total = sum(row["n"] for row in report.rows if row["figure"].startswith("records_lost_"))
    wrong = {name: report.total(name) for name in ("records_lost", "records_doubled", "records_torn")}
    for name, count in wrong.items():
        report.add(name, count, "records", n=total)
    Console().print(report.table())
    if arguments.json:
        keep(arguments.json, report.rows)
    return int(any(wrong.values()))


if __name__ == "__main__":
    sys.exit(main())
