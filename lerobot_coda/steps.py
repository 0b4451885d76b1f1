"""Steps that are done once: a finished step leaves a record keyed by its inputs, and a rerun takes it from there."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lerobot_coda.budget import Usage
from lerobot_coda.console import Display, Tick
from lerobot_coda.memory import content_hash
from libero_pro.record import RecordError, write_atomically

Work = Callable[[Tick], tuple[Any, Usage]]


class Steps:
    """The steps of one folder (the base, or a round).

    A step is `folder/steps/<name>.json`: {key, seconds, usage, result}. It is skipped where that file exists with the
    same key, the hash of the step's name and inputs; it is run again where they differ. What a step writes beside its
    record must tolerate being half there (episodes are files of their own, datasets are rewritten).
    """

    def __init__(self, folder: Path, display: Display, prefix: str = ""):
        self.folder = folder
        self.usage = Usage()
        self._display = display
        self._prefix = prefix

    def run(self, name: str, kind: str, units: int, inputs: Any, work: Work) -> Any:
        """The step's result (JSON values), from its record or by doing the work.

        `work(tick)` returns (result, usage); its wall time is added to the usage under `name`.
        """
        path = self.folder / "steps" / f"{name}.json"
        label = self._prefix + name
        key = content_hash(name, inputs)
        record = _read(path)
        if record is None or record["key"] != key:
            began = time.monotonic()
            with self._display.stage(kind, label, units) as tick:
                result, usage = work(tick)
            seconds = round(time.monotonic() - began, 2)
            usage = usage + Usage(seconds={name: seconds})
            record = {"key": key, "seconds": seconds, "usage": usage.model_dump(mode="json"), "result": result}
            write_json(path, record)
        else:
            self._display.skip(label)
        self.usage = self.usage + Usage.parse(record["usage"])
        return record["result"]


def write_json(path: Path, data: Any) -> None:
    """Readable JSON, atomically; RecordError where the disk does not take it."""
    try:
        write_atomically(path, json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False).encode())
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error.strerror}; make room and run the same command again") from None


def _read(path: Path) -> dict[str, Any] | None:
    """A step's record; None if it is missing or damaged, so that the step is done again."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return record if {"key", "usage", "result"} <= record.keys() else None
    except (OSError, ValueError, AttributeError):
        return None
