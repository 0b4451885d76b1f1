"""The report in a real browser: what a reader clicks and sees, and that it asks no server for anything."""

import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import PLANTED, browser, overflow, visit
from fakeworld import FakeEngine, write_recipes
from rich.console import Console

from lerobot_coda.console import Display
from lerobot_coda.critic.diagnosis import Diagnosis
from lerobot_coda.evolve import evolve
from lerobot_coda.report import build_report, media
from lerobot_coda.report.videos import encode

pytestmark = pytest.mark.e2e


def _film(jobs: list[Any]) -> dict[Path, str]:
    """In place of a renderer: each video a bar that moves for two seconds."""
    images = np.zeros((20, 64, 64, 3), np.uint8)
    for index, image in enumerate(images):
        image[:, 2 * index : 2 * index + 8] = 255
    for job in jobs:
        encode(iter(images), job.video)
    return {}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    display = Display(Console(file=io.StringIO()))
    evolve(write_recipes(folder), folder / "run", engine=FakeEngine(), display=display)
    return folder / "run"


def _report(run: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(media, "write_videos", _film)
        return build_report(run)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as made:
        yield made


@pytest.fixture(scope="module")
def address(run: Path, chromium: Any) -> str:
    return _report(run).as_uri()


def test_videos_play(chromium: Any, address: str) -> None:
    with visit(chromium, address) as page:
        if not page.evaluate("document.createElement('video').canPlayType('video/mp4; codecs=\"avc1.42E01E\"')"):
            pytest.skip("this Chromium has no H.264: apt install chromium, or Google Chrome")
        videos = page.locator("video")
        assert videos.count() >= 4, "before and after, of the scene at the top and of a failure"
        for index in range(videos.count()):
            videos.nth(index).evaluate("video => video.play()")
        page.wait_for_function("[...document.querySelectorAll('video')].every(video => video.currentTime > 0.3)")
        assert page.evaluate("[...document.querySelectorAll('video')].every(video => video.videoWidth === 64)")


def test_the_lineage_opens_what_is_chosen(chromium: Any, address: str) -> None:
    with visit(chromium, address) as page:
        boxes, open_ = page.locator("svg a[href^='#node-']"), page.locator(".node:visible")
        assert boxes.count() > 2 and open_.count() == 0
        for index in (0, boxes.count() - 1):
            boxes.nth(index).click()
            chosen = boxes.nth(index).get_attribute("href")
            assert open_.count() == 1 and f"#{open_.first.get_attribute('id')}" == chosen
            assert "hash" in open_.inner_text() or "failures" in open_.inner_text()


def test_tables_sort_by_the_chosen_column(chromium: Any, address: str) -> None:
    with visit(chromium, address) as page:
        table = page.locator("table", has=page.locator("th", has_text="ability")).first
        head = table.locator("th", has_text="failures")
        column = head.evaluate("head => head.cellIndex")

        def shown() -> list[int]:
            return [int(text) for text in table.locator(f"tbody td:nth-child({column + 1})").all_inner_texts()]

        assert len(shown()) > 1
        head.click()
        assert shown() == sorted(shown()) and head.get_attribute("aria-sort") == "ascending"
        head.press("Enter")
        assert shown() == sorted(shown(), reverse=True) and head.get_attribute("aria-sort") == "descending"


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_its_window(chromium: Any, address: str, width: int) -> None:
    with visit(chromium, address, width) as page:
        page.wait_for_selector("#figure-curve svg")
        assert overflow(page) <= 0
        page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        assert overflow(page) <= 0


def test_planted_scripts_never_run(chromium: Any, run: Path, tmp_path: Path) -> None:
    """Whatever a model, a dataset or a recipe wrote: explanations, names, reasons, instructions, commands."""
    shutil.copytree(run, tmp_path / "run")
    folder = tmp_path / "run"
    summary = json.loads((folder / "summary.json").read_text())
    for report in summary["rounds"]:
        for program in report["programs"]:
            program["name"] = f"program {PLANTED}"
            if program["verdict"]:
                program["verdict"]["reason"] = f"reason {PLANTED}"
        for cluster in report["clusters"]:
            cluster["mode"] = f"mode {PLANTED}"
    for pair in summary["frontier"]["pairs"]:
        pair["program"], pair["instruction"] = f"pair {PLANTED}", f"instruction {PLANTED}"
    summary["heldout"] = {when: {f"suite {PLANTED}": rate} for when, rates in summary["heldout"].items()
                          for rate in rates.values()}  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(summary))
    about = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**about, "name": f"name {PLANTED}", "command": f"command {PLANTED}"}))
    for number in ("001", "002"):
        place = folder / "rounds" / number
        rows = [row | {"explanation": f"why {PLANTED}"} for row in json.loads((place / "diagnoses.json").read_text())]
        (place / "diagnoses.json").write_text(json.dumps(rows))
        known = json.loads((place / "clusters.json").read_text())
        hashes = [Diagnosis.parse(row).hash for row in rows]
        (place / "clusters.json").write_text(json.dumps([cluster | {"diagnoses": hashes} for cluster in known]))
    with visit(chromium, _report(folder).as_uri()) as page:
        page.wait_for_selector("#figure-curve svg")
        text = page.inner_text("body")
        for where in ("name", "why", "reason", "mode", "program", "instruction", "suite", "command"):
            assert f"{where} <script>" in text, f"{where} is shown as it was written"
