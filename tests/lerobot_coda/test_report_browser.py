"""The report in a real browser: what a reader clicks and sees, and that it asks no server for anything."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import browser, overflow, visit
from liverun import evolved, plant, reported

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return evolved(tmp_path_factory.mktemp("browser"))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as made:
        yield made


@pytest.fixture(scope="module")
def address(run: Path, chromium: Any) -> str:
    return reported(run).as_uri()


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
    plant(tmp_path / "run")
    with visit(chromium, reported(tmp_path / "run").as_uri()) as page:
        page.wait_for_selector("#figure-curve svg")
        text = page.inner_text("body")
        for where in ("name", "why", "reason", "mode", "program", "instruction", "suite", "command"):
            assert f"{where} <script>" in text, f"{where} is shown as it was written"
