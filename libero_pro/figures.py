"""Figures: the rows in which every measurement is kept, in one JSON file a topic under `results/`.

A row is `{figure, value, unit, peer, ratio, n, low, high, command}`: what was measured, beside what (`peer`, `ratio`),
on how many (`n`), its 95 % interval, and the command that makes it again.
"""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from libero_pro.record import RecordError, write_atomically


def figure(
    name: str, value: float | None, unit: str, command: str, *, peer: str | None = None, ratio: float | None = None,
    n: int | None = None, low: float | None = None, high: float | None = None,
) -> dict[str, Any]:  # fmt: skip
    """One row."""
    return {"figure": name, "value": value, "unit": unit, "peer": peer, "ratio": ratio, "n": n, "low": low,
            "high": high, "command": command}  # fmt: skip


def keep(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Writes rows into `path`: in place of those of the same figures, beside those that other commands left there.

    Raises RecordError if the file holds something else.
    """
    path = Path(path)
    earlier: list[dict[str, Any]] = []
    if path.exists():
        try:
            earlier = json.loads(path.read_text(encoding="utf-8"))
            known = {row["figure"] for row in earlier}
        except (OSError, ValueError, TypeError, KeyError):
            raise RecordError(f"{path} holds no rows of figures; move it away or name another file") from None
        fresh = {row["figure"]: row for row in rows}
        rows = [fresh.get(row["figure"], row) for row in earlier] + [r for r in rows if r["figure"] not in known]
    write_atomically(path, (json.dumps(list(rows), indent=1) + "\n").encode())


def csv_of(rows: Sequence[dict[str, Any]]) -> bytes:
    """Rows, at least one, as a CSV file with the first one's keys for a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()
