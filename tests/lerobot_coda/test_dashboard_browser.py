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
from liverun import evolved, plant, reported

from lerobot_coda.console import Log
from lerobot_coda.runfolder import LOG

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
            "Budget",
            "of 48",
            "validated",
            "Last failures",
            "Success over rounds",
        ):
            assert shown in text
        assert overflow(page) <= 0


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
        for name, status in (("report/budget.csv", 200), ("memory.sqlite", 403), ("recipe.yaml", 403)):
            assert page.request.get(f"{address}/gradio_api/file={run / name}").status == status


def test_planted_scripts_never_run(chromium: Any, run: Path, address: str) -> None:
    """They come while the page is open, as a critic would write them."""
    with visit(chromium, address) as page:
        page.wait_for_selector("#failures video")
        plant(run)
        for section, where in (("progress", "name"), ("failures", "why"), ("decisions", "reason")):
            page.wait_for_selector(f"#{section} >> text={where} <script>")
