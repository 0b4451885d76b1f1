"""A real browser for tests of pages: any Chromium on PATH, else the one that Playwright installs."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--autoplay-policy=no-user-gesture-required")
ABORTED = "net::ERR_ABORTED"  # by the browser itself: enough of a video is loaded, or the page is closed
PATIENCE_MS = 120_000  # a busy machine draws a page late
LOCAL = ("127.0.0.1", "localhost")


@contextmanager
def browser() -> Iterator[Any]:
    """A headless browser; skips, with how to get one, where there is none."""
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        pytest.skip("no playwright: pip install -e '.[dev]'")
    with sync_playwright() as playwright:
        found = next((path for name in NAMES if (path := shutil.which(name))), playwright.chromium.executable_path)
        if not Path(found).is_file():
            pytest.skip("no Chromium: apt install chromium, or .venv/bin/playwright install chromium")
        made = playwright.chromium.launch(executable_path=found, args=list(FLAGS))
        try:
            yield made
        finally:
            made.close()


@contextmanager
def visit(made: Any, address: str, width: int = 1280) -> Iterator[Any]:
    """The page at an address; at the end, fails for an error in its console, a lost request or one to elsewhere."""
    page = made.new_page(viewport={"width": width, "height": 900})
    page.set_default_timeout(PATIENCE_MS)
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "requestfailed", lambda request: None if request.failure == ABORTED else wrong.append(f"lost: {request.url}")
    )
    page.on("request", lambda request: None if _is_local(request.url) else wrong.append(f"elsewhere: {request.url}"))
    try:
        page.goto(address, timeout=PATIENCE_MS)
        yield page
        assert page.evaluate("window.planted") is None, "text of a run was run"
        assert wrong == []
    finally:
        page.close()


def overflow(page: Any) -> int:
    """Pixels by which the page is wider than its window."""
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


def _is_local(address: str) -> bool:
    parts = urlsplit(address)
    return parts.scheme in ("file", "data", "blob", "about") or parts.hostname in LOCAL
