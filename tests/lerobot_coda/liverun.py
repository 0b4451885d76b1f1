"""Run folders for tests of pages: made by the loop in a world without physics, with videos that nobody rendered."""

import io
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakeworld import FakeEngine, write_recipes
from rich.console import Console

from lerobot_coda import rounds
from lerobot_coda.console import Display, Log
from lerobot_coda.critic.diagnosis import Diagnosis
from lerobot_coda.evolve import evolve
from lerobot_coda.report import build_report, media
from lerobot_coda.report.videos import encode
from lerobot_coda.runfolder import LOG
from lerobot_coda.training import COMMAND

PLANTED = "<script>window.planted = 1</script><img src=x onerror='window.planted = 2'>${window.planted = 3}{{value}}"


def evolved(folder: Path, engine: FakeEngine | None = None, **changes: Any) -> Path:
    """A run of the recipe with `changes` in `folder`/run; explanations are all alike: no language model is loaded."""
    display = Display(Console(file=io.StringIO()), log=Log(folder / "run" / LOG))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "_sentences", lambda texts: np.ones((len(texts), 1)))
        evolve(write_recipes(folder, **changes), folder / "run", engine=engine or FakeEngine(), display=display)
    return folder / "run"


def reported(run: Path) -> Path:
    """The run's report, in which each video is a bar that moves for two seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(media, "write_videos", _film)
        return build_report(run)


def _film(jobs: list[Any]) -> dict[Path, str]:
    images = np.zeros((20, 64, 64, 3), np.uint8)
    for index, image in enumerate(images):
        image[:, 2 * index : 2 * index + 8] = 255
    for job in jobs:
        encode(iter(images), job.video)
    return {}


def plant(run: Path) -> None:
    """Puts scripts where a model, a critic, a dataset or a recipe writes text, into a finished run."""
    about = json.loads((run / "run.json").read_text())
    _write(run / "run.json", {**about, "name": f"name {PLANTED}", "command": f"command {PLANTED}"})
    summary = json.loads((run / "summary.json").read_text())
    for report in summary["rounds"]:
        for program in report["programs"]:
            program["name"] = f"program {PLANTED}"
            if program["verdict"]:
                program["verdict"]["reason"] = f"reason {PLANTED}"
        for cluster in report["clusters"]:
            cluster["mode"] = f"mode {PLANTED}"
    for pair in summary["frontier"]["pairs"]:
        pair["program"], pair["instruction"] = f"pair {PLANTED}", f"instruction {PLANTED}"
    summary["heldout"] = {
        when: {f"suite {PLANTED}": rate for rate in rates.values()} for when, rates in summary["heldout"].items()
    }
    _write(run / "summary.json", summary)
    for folder in (run / "rounds").iterdir():
        rows = [row | {"explanation": f"why {PLANTED}"} for row in json.loads((folder / "diagnoses.json").read_text())]
        _write(folder / "diagnoses.json", rows)
        hashes = [Diagnosis.parse(row).hash for row in rows]
        clusters = json.loads((folder / "clusters.json").read_text())
        _write(folder / "clusters.json", [row | {"diagnoses": hashes, "mode": f"mode {PLANTED}"} for row in clusters])
        if (verdicts := folder / "verdicts.json").is_file():
            rows = json.loads(verdicts.read_text())
            _write(verdicts, [row | {"reason": f"reason {PLANTED}"} for row in rows])
    with closing(sqlite3.connect(run / "memory.sqlite")) as memory, memory:
        for table, column in (
            ("clusters", "mode"),
            ("clusters", "suite"),
            ("programs", "name"),
            ("decisions", "reason"),
        ):
            memory.execute(f"DROP TRIGGER IF EXISTS no_update_{table}")
            memory.execute(f"UPDATE {table} SET {column} = ?", (f"remembered {column} {PLANTED}",))


@contextmanager
def at_work(run: Path) -> Iterator[int]:
    """A process that holds the run's lock, with a worker and a trainer below it; its number."""
    command = [sys.executable, "-c", _HOLDER, str(run / ".lock"), " ".join(COMMAND[1:])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield process.pid
        finally:
            process.stdin.close()  # it ends, and ends those below it


_HOLDER = """
import fcntl, subprocess, sys, time
from multiprocessing import get_context
with open(sys.argv[1], "a") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    get_context("spawn").Process(target=time.sleep, args=(600,), daemon=True).start()
    with subprocess.Popen([sys.executable, "-c", "input()", *sys.argv[2].split()], stdin=subprocess.PIPE) as trainer:
        print("ready", flush=True)
        sys.stdin.read()
        trainer.kill()
"""


def _write(path: Path, data: object) -> None:
    path.write_text(json.dumps(data))
