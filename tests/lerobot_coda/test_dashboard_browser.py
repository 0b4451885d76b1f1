"""The live page in a real browser: it follows a run, plays failures, and asks no other server for anything."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import browser, overflow, visit
from liverun import at_work, evolved, plant, reported

from lerobot_coda.console import Log
from lerobot_coda.runfolder import LOG

_PLANTED = (("progress", "name"), ("failures", "why"), ("decisions", "reason"), ("lineage", "remembered mode"))
pytestmark = pytest.mark.e2e
pytest.importorskip("gradio", reason="no gradio: pip install 'lerobot_policy_coda[dashboard]'")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = evolved(tmp_path_factory.mktemp("live"))
    reported(made)
    return made


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as made:
        yield made


@pytest.fixture(scope="module")
def address(run: Path, chromium: Any) -> Iterator[str]:
    """Where the command serves the page, on a port that was free."""
    command = [sys.executable, "-m", "lerobot_coda.cli", "dashboard", str(run), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ}) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith(f"dashboard of {run}: http://127.0.0.1:"), line
            yield line.split(": ")[1].split()[0]
        finally:
            process.terminate()


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_shows_the_run_and_fits_its_window(chromium: Any, address: str, width: int) -> None:
    with visit(chromium, address, width) as page:
        page.wait_for_selector("#curve .js-plotly-plot svg")
        text = page.inner_text("body")
        for shown in (
            "finished after 2 rounds",
            "Workers",
            "Budget",
            "of 48",
            "validated",
            "Last failures",
            "Lineage",
            "Success over rounds",
        ):
            assert shown in text
        assert overflow(page) <= 0
        page.locator("#lineage svg a").last.click()
        page.wait_for_selector("#lineage .node:visible")
        assert overflow(page) <= 0


def test_the_processes_at_work_come_and_go(chromium: Any, run: Path, address: str) -> None:
    with visit(chromium, address, 390) as page:
        page.wait_for_selector("#workers >> text=no process is at work")
        with at_work(run) as pid:
            page.wait_for_selector("#workers >> text=simulation worker")
            shown = page.inner_text("#workers")
            assert "the run itself" in shown and "lerobot-train" in shown and str(pid) in shown
            assert overflow(page) <= 0
        page.wait_for_selector("#workers >> text=no process is at work")


def test_the_lineage_opens_what_is_chosen_and_keeps_it_open(chromium: Any, run: Path, address: str) -> None:
    with visit(chromium, address) as page:
        page.wait_for_selector("#lineage svg a")
        boxes, open_ = page.locator("#lineage svg a"), page.locator("#lineage .node:visible")
        assert boxes.count() > 2 and open_.count() == 0
        boxes.first.click()
        assert f"#{open_.get_attribute('id')}" == boxes.first.get_attribute("href")
        boxes.last.focus()
        page.keyboard.press("Enter")
        page.wait_for_function("href => location.hash === href", arg=boxes.last.get_attribute("href"))
        assert f"#{open_.get_attribute('id')}" == boxes.last.get_attribute("href")
        with at_work(run):  # the page goes on beside it
            page.wait_for_selector("#workers >> text=simulation worker")
        assert f"#{open_.get_attribute('id')}" == boxes.last.get_attribute("href")


def test_the_report_is_a_click_away_and_plays(chromium: Any, address: str) -> None:
    with visit(chromium, address) as page:
        page.wait_for_selector("#progress a")
        with page.expect_popup() as opened:
            page.click("#progress a")
        there = opened.value.url
        assert there == f"{address}/report/index.html"
    with visit(chromium, there) as report:
        report.wait_for_selector("#figure-curve svg")
        report.evaluate("for (const video of document.querySelectorAll('video')) { video.muted = true; video.play() }")
        report.wait_for_function("[...document.querySelectorAll('video')].every(video => video.currentTime > 0.3)")


def test_it_follows_the_run_and_lets_its_videos_play_on(chromium: Any, run: Path, address: str) -> None:
    """Nobody reloads: the step at work moves, and what has not changed stays as it is."""
    with (run / ".lock").open("a") as lock, visit(chromium, address) as page:
        fcntl.flock(lock, fcntl.LOCK_EX)
        page.wait_for_function("document.querySelector('#failures video')?.currentTime > 0.2")
        page.evaluate("document.querySelector('#failures video').same = true")
        for done in (7, 9):
            Log(run / LOG).event("0:10 elapsed, about 1:00 left", "round 2 probe", done, 12)
            page.wait_for_selector(f"text=round 2 probe, {done} of 12")
        assert page.evaluate("document.querySelector('#failures video').same")
    (run / LOG).unlink()


def test_files_of_the_run_beside_the_report_are_not_served(run: Path, chromium: Any, address: str) -> None:
    with visit(chromium, address) as page:
        for name in ("report/budget.csv", "memory.sqlite", "recipe.yaml"):
            assert page.request.get(f"{address}/gradio_api/file={run / name}").status == 403
        (run / "report" / "out.yaml").symlink_to(run / "recipe.yaml")
        served = {"budget.csv": 200, "": 404, "%2e%2e/recipe.yaml": 404, "..%2frecipe.yaml": 404, "out.yaml": 404}
        assert {name: page.request.get(f"{address}/report/{name}").status for name in served} == served
        assert page.request.post(f"{address}/report/budget.csv").status == 405


def test_planted_scripts_never_run(chromium: Any, run: Path, address: str) -> None:
    """They come while the page is open, as a critic would write them."""
    with visit(chromium, address) as page:
        page.wait_for_selector("#failures video")
        plant(run)
        for section, where in _PLANTED:
            page.wait_for_selector(f"#{section} >> text={where} <script>", state="attached")
