"""The run as a page, tables and videos: `build_report(run)`; as a table in the terminal: `print_summary(summary)`."""

from pathlib import Path

from lerobot_coda.report.loader import load_run
from lerobot_coda.report.rows import figure_rows
from lerobot_coda.report.summary import RunSummary
from lerobot_coda.report.terminal import print_summary

__all__ = ["RunSummary", "build_report", "figure_rows", "load_run", "print_summary", "write_report"]


def build_report(run: Path, videos: bool = True) -> Path:
    """Writes RUN/report with index.html, CSV files and, if `videos`, two mp4; returns the page's path.

    A run that is not finished gives the report of what it holds; RecordError if `run` is no run folder.
    """
    return write_report(load_run(Path(run)), Path(run) / "report", videos)


def write_report(summary: RunSummary, folder: Path, videos: bool = True) -> Path:
    """Renders a summary into `folder`. What could not be rendered is said on the page."""
    from dataclasses import replace

    from lerobot_coda.report.media import render_media
    from lerobot_coda.report.page import render_page
    from lerobot_coda.report.tables import write_tables
    from libero_pro.record import write_atomically

    write_tables(summary, folder)
    media = render_media(summary, folder, videos)
    page = folder / "index.html"
    summary = replace(summary, missing=summary.missing + media.problems)
    write_atomically(page, render_page(summary, media.clips, media.exhibits).encode())
    return page
