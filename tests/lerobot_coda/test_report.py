"""The report of a small hand-made run: its numbers, its tables, its videos, and that it asks no server for anything."""

import csv
from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from lerobot_coda.progress import rate
from lerobot_coda.report import figure_rows, print_summary, write_report
from lerobot_coda.report.page import minutes
from lerobot_coda.report.summary import (
    BudgetRow,
    Clip,
    Comparison,
    CurvePoint,
    DiagnosisRow,
    ProgramRow,
    RejectionRow,
    RunSummary,
    show,
)
from lerobot_coda.report.videos import encode

SUMMARY = RunSummary(
    name="quickstart",
    status="finished after 2 rounds",
    comparisons=(
        Comparison("frontier", False, rate(6, 40), rate(25, 40), gained=21, lost=2, p_value=6.6e-05),
        Comparison("libero_object", True, rate(17, 20), rate(18, 20), gained=2, lost=1, p_value=1.0, invalid=1),
        Comparison("libero_object_swap", True, rate(0, 0), rate(3, 20), gained=0, lost=0, p_value=1.0),
    ),
    curve=(
        CurvePoint(0, "libero_object", rate(17, 20)),
        CurvePoint(1, "libero_object", rate(18, 20)),
        CurvePoint(0, "frontier <b>", rate(6, 40)),
        CurvePoint(1, "frontier <b>", rate(25, 40)),
    ),
    budget=(
        BudgetRow("generated environments", 96, "environments"),
        BudgetRow("probe", 23456, "steps"),
        BudgetRow("training", 312.4, "s"),
    ),
    diagnosed=12,
    diagnoses=(
        DiagnosisRow(1, "localization", "reach", "missed_grasp 7", "0, 3", 7, "validated", "p=0.002"),
        DiagnosisRow(1, "grasp", "grasp", "slipped 2", "3", 2, "undecided", "5/12 against 3/12"),
        DiagnosisRow(
            2, "placement", "place", "wrong_place 2", "1", 2, "refuted", "<script>alert('diagnosis')</script>"
        ),
    ),
    programs=(ProgramRow(1, "a1b2c3", "swap(all)", 0.5, 24, "promote", '20/24 after; "solved", p<0.01'),),
    rejections=(RejectionRow("leakage", 3), RejectionRow("penetration", 11)),
    accepted_scenes=96,
    leakage=0,
    card=(("prompt source", "bddl"), ("suites", "libero_object")),
    commands=("lerobot-coda evolve recipes/quickstart.yaml --output runs/quickstart",),
)


class _Resources(HTMLParser):
    """Collects what a browser would fetch or run, and the text that a person would read."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.scripts = 0
        self._in = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in = tag
        self.scripts += tag == "script"
        values = dict(attrs)
        for name in ("src", "srcset", "poster", "data", "action"):
            if values.get(name):
                self.fetched.append(str(values[name]))
        if tag == "link":
            self.fetched.append(str(values.get("href")))
        if tag == "a":
            self.links.append(str(values.get("href")))

    def handle_endtag(self, tag: str) -> None:
        self._in = ""

    def handle_data(self, data: str) -> None:
        if self._in not in ("script", "style"):
            self.text += data


def _parse(page: Path) -> _Resources:
    parser = _Resources()
    parser.feed(page.read_text())
    return parser


def _rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(path.read_text())))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(SUMMARY, tmp_path_factory.mktemp("report"))


def test_page_has_the_numbers(page: Path) -> None:
    text = " ".join(_parse(page).text.split())
    for shown in (
        "15% (6/40) [7%, 29%]",  # Wilson 95 %: 0.0706 to 0.2907
        "62% (25/40) [47%, 76%]",
        "not measured",
        "6.6e-05",
        "12 made, 7 validated, 2 refuted, 2 undecided, 1 not tested",
        "96 accepted, 14 rejected",
        "leakage): 0",
        "23,456 steps",
        "5 min 12 s",
        "prompt sourcebddl",
        "lerobot-coda evolve recipes/quickstart.yaml --output runs/quickstart",
    ):
        assert shown in text


def test_page_asks_no_server_for_anything(page: Path) -> None:
    parser = _parse(page)
    assert all(not address.startswith(("http:", "https:", "//")) for address in parser.fetched + parser.links)
    assert all((page.parent / address).is_file() for address in parser.links)
    assert "plotly.js v" in page.read_text()


def test_text_from_elsewhere_is_escaped(page: Path) -> None:
    text = page.read_text()
    assert "<script>alert('diagnosis')" not in text
    assert "&lt;script&gt;alert" in text
    assert "frontier <b>" not in text
    assert _parse(page).scripts == 4  # plotly.js, the table sorter, one a figure: nothing of the run's text became one


def test_tables_can_be_read_again(page: Path) -> None:
    frontier, held_out = _rows(page.parent / "frontier.csv"), _rows(page.parent / "heldout.csv")
    assert [row["name"] for row in frontier] == ["frontier"]
    assert (frontier[0]["before_successes"], frontier[0]["after_rate"], frontier[0]["gained"]) == ("6", "0.625", "21")
    assert [row["name"] for row in held_out] == ["libero_object", "libero_object_swap"]
    assert held_out[1]["before_rate"] == "", "what was not measured is no zero"
    assert held_out[0]["invalid_pairs"] == "1"
    assert len(_rows(page.parent / "curve.csv")) == 4
    assert _rows(page.parent / "programs.csv")[0]["reason"] == '20/24 after; "solved", p<0.01'
    assert {row["gate"]: row["scenes"] for row in _rows(page.parent / "rejections.csv")} == {
        "leakage": "3",
        "penetration": "11",
    }
    assert _rows(page.parent / "budget.csv")[1] == {"meter": "probe", "amount": "23456", "unit": "steps"}
    assert [row["verdict"] for row in _rows(page.parent / "diagnoses.csv")] == ["validated", "undecided", "refuted"]


def test_a_run_that_has_just_begun_is_shown(tmp_path: Path) -> None:
    summary = RunSummary(name="new", status="round 1 of 3 is under way", missing=("no round is finished yet",))
    text = _parse(write_report(summary, tmp_path)).text
    assert "round 1 of 3 is under way" in text and "no round is finished yet" in text and "not measured yet" in text
    assert (tmp_path / "curve.csv").read_text() == "round,name,segment,successes,episodes,rate,low,high\n"


def test_terminal_table(page: Path) -> None:
    console = Console(width=140, record=True, file=StringIO())
    print_summary(replace(SUMMARY, name="[bold]quick[/bold]"), console)
    text = console.export_text()
    for shown in (
        "[bold]quick[/bold]",
        "62% (25/40) [47%, 76%]",
        "+21 / -2",
        "6.6e-05",
        "0 leaked",
        "probe 23,456",
    ):
        assert shown in text
    assert "96 accepted, 3 rejected by leakage, 11 rejected by penetration" in text
    assert "1 compiled, 1 promote" in text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.6, "1 min 00 s"), (200, "3 min 20 s"), (3900, "1 h 05 min")]
)
def test_wall_time_for_people(seconds: float, text: str) -> None:
    assert minutes(seconds) == text


def test_a_rate_that_was_not_measured() -> None:
    assert show(rate(0, 0)) == "not measured"
    assert show(rate(0, 5)) == "0% (0/5) [0%, 43%]"


def test_video_keeps_its_frames(tmp_path: Path) -> None:
    """A bar that moves one column a frame, read back with another decoder pass."""
    av = pytest.importorskip("av")
    images = np.zeros((12, 64, 64, 3), np.uint8)
    for index in range(12):
        images[index, :, 4 * index : 4 * index + 8] = 255
    assert encode(iter(images), tmp_path / "deep" / "bar.mp4") == 12
    with av.open(str(tmp_path / "deep" / "bar.mp4")) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt, int(stream.average_rate)) == (
            "h264",
            "yuv420p",
            10,
        )
        decoded = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
    assert len(decoded) == 12
    for image, wanted in zip(decoded, images, strict=True):
        assert abs(image.astype(int) - wanted).mean() < 8
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["bar.mp4"]


def test_videos_that_cannot_be_made_are_said(tmp_path: Path) -> None:
    (tmp_path / "broken.npz").write_bytes(b"half an episode")
    clip = Clip("0123", "pick the milk", tmp_path / "broken.npz", None, None)
    text = _parse(write_report(replace(SUMMARY, clip=clip), tmp_path / "report")).text
    assert "before.mp4 could not be rendered" in text and "not a readable episode" in text
    assert "No failed scene was recorded" not in text


@pytest.mark.render
def test_videos_show_the_stored_episodes(tmp_path: Path) -> None:
    """Two short stored episodes of one scene become two playable videos that differ only where things moved."""
    av = pytest.importorskip("av")
    from libero_pro.recorder import EpisodeRecorder
    from libero_pro.simulator import Simulator
    from libero_pro.suites import get_task, scene_for

    scene = scene_for("libero_object", 0, seed=3)
    simulator = Simulator(get_task("libero_object", 0))
    for name, action in (("before", (1, 0, 0, 0, 0, 0, -1)), ("after", (0, 0, -1, 0, 0, 0, -1))):
        simulator.reset(scene)
        simulator.settle(10)
        recorder = EpisodeRecorder(simulator, scene, actor="policy:test")
        recorder.start()
        for _ in range(8):
            recorder.step(np.array(action, np.float32))
        recorder.finish(truncated=True).save(tmp_path / f"{name}.npz")
    clip = Clip(scene.hash, scene.instruction, tmp_path / "before.npz", tmp_path / "after.npz", True)
    page = write_report(replace(SUMMARY, clip=clip), tmp_path / "report")
    parser = _parse(page)
    assert [address for address in parser.fetched if address.endswith(".mp4")] == ["before.mp4", "after.mp4"]
    assert "after, same scene: the policy succeeds" in parser.text and scene.instruction in parser.text
    last = {}
    for name in ("before", "after"):
        with av.open(str(page.parent / f"{name}.mp4")) as container:
            frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        assert len(frames) == 15  # instants 0, 2, 4, 6, 8 and a second of the last
        assert frames[0].shape == (256, 256, 3) and 40 < frames[0].mean() < 220
        last[name] = frames[-1].astype(int)
    moved = abs(last["before"] - last["after"]).max(axis=2) > 40
    assert 0.002 < moved.mean() < 0.4


def test_rows_hold_every_number_with_its_interval() -> None:
    rows = {row["figure"]: row for row in figure_rows(SUMMARY)}
    after = rows["frontier after"]
    assert (after["value"], after["n"], after["peer"], after["ratio"]) == (0.625, 40, "frontier before", 4.167)
    assert 0 < after["low"] < 0.625 < after["high"] < 1
    assert rows["libero_object_swap after"]["ratio"] is None
    assert rows["rejected by leakage"]["value"] == 3 and rows["leaked"]["value"] == 0
    assert all(set(row) == set(after) and "recipes/quickstart.yaml" in row["command"] for row in rows.values())
