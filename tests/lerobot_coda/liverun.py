"""Run folders for tests of pages: made by the loop in a world without physics, with videos that nobody rendered."""

import io
import json
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


def _write(path: Path, data: object) -> None:
    path.write_text(json.dumps(data))
