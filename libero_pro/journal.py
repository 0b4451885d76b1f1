"""Journal: results of a long run as JSON lines, kept through any crash; what is there is not computed again."""

import json
from pathlib import Path
from typing import Any

from libero_pro.record import RecordError


class Journal:
    """Rows of one run in one file. The first line holds the conditions under which all others were found.

    A line that a crash cut off is dropped. RecordError if the file was written under other conditions, or is damaged
    anywhere but at its end.
    """

    def __init__(self, path: Path, conditions: dict[str, Any]) -> None:
        self.path = Path(path)
        self.rows: list[dict[str, Any]] = []
        lines = self.path.read_bytes().split(b"\n") if self.path.exists() else [b""]
        whole = lines[:-1]  # what follows the last newline was cut off
        if not whole:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_bytes(b"")
            self.append(conditions)
            self.rows.clear()
            return
        try:
            rows = [json.loads(line) for line in whole]
        except ValueError:
            raise RecordError(f"{self.path} is damaged; remove it or choose another folder") from None
        for name, value in conditions.items():
            if rows[0].get(name) != value:
                raise RecordError(
                    f"{self.path.parent} holds results for {name} = {rows[0].get(name)!r}, not {value!r}; choose "
                    "another folder"
                )
        self.rows = rows[1:]
        if lines[-1]:
            with self.path.open("r+b") as file:
                file.truncate(sum(len(line) + 1 for line in whole))

    def append(self, row: dict[str, Any]) -> None:
        """Adds a row; a crash of this process afterwards does not lose it."""
        self.rows.append(row)
        with self.path.open("ab") as file:
            file.write(json.dumps(row, sort_keys=True, separators=(",", ":")).encode() + b"\n")
