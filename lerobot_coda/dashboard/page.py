"""The live page: sections that are drawn again only where what they show has changed, so that videos play on."""

import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from lerobot_coda.dashboard.look import Failure, look, summary_of
from lerobot_coda.dashboard.workers import Roster, Work
from lerobot_coda.report import RunSummary, lineage
from lerobot_coda.report.figures import curve_figure, styled
from lerobot_coda.report.gallery import rows_of
from lerobot_coda.report.page import minutes
from libero_pro.record import RecordError

REFRESH_S = 5.0
SECTIONS = ("progress", "workers", "budget", "failures", "decisions", "lineage")  # as they stand on the page
REMEMBERED = ("clusters.json", "verdicts.json", "progress.json")  # of a round: written as its memory is
FONTS = ("system-ui", "sans-serif")
MONOSPACE = ("ui-monospace", "monospace")
STYLE = """
.gradio-container { width: 100%; max-width: 64rem !important; margin: 0 auto; }
.gradio-container .column, .gradio-container .wrap, .gradio-container main { min-width: 0; }
.live h1 { font-size: 1.6rem; } .live h2 { font-size: 1.2rem; margin-top: 1rem; border-bottom: 1px solid currentColor; }
.live p, .live td, .live th, .live li { font-size: .95rem; line-height: 1.5; } .live .note { opacity: .8; }
.live progress { width: 100%; height: .9rem; appearance: none; border: 1px solid currentColor; background: none; }
.live progress::-webkit-progress-bar { background: none; } .live .meter { margin: .4rem 0; }
.live progress::-webkit-progress-value { background: #0072B2; }
.live progress::-moz-progress-bar { background: #0072B2; }
.live .missing { border-left: 4px solid currentColor; padding-left: .8rem; margin: .6rem 0; overflow-wrap: anywhere; }
.live .failures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(16rem, 100%), 1fr)); gap: 1rem; }
.live figure { margin: 0; } .live figure > * { width: 100%; } .live .plan { max-height: 16rem; }
.live .wide { overflow-x: auto; } .live table { border-collapse: collapse; width: 100%; }
.live td, .live th { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #8888; vertical-align: top; }
.live .tree { padding-left: calc(.6rem + 1.2rem * var(--depth)); }
@media (max-width: 40rem) {
  .live thead { display: none; } .live tr { display: block; padding: .4rem .6rem; border-bottom: 1px solid #8888; }
  .live td { display: inline; padding: 0 .3rem 0 0; border: 0 !important; } .live td:last-child { display: block; }
  .live td[data-of]::before { content: attr(data-of) " "; }
  .live .tree { display: block; padding-left: calc(1.2rem * var(--depth)); }
}
"""


class Watch:
    """A run, read again when its folder has changed; several browsers share one reading."""

    def __init__(self, run: Path):
        self.run = run
        self._lock = threading.Lock()
        self._stamp: tuple[int, ...] | None = None
        self._summary = RunSummary(name=run.name, status="")
        self._linked: tuple[tuple[Path, int], ...] = ()
        self._graph = lineage.Lineage()
        self._unlinked: tuple[str, ...] = ()
        self._roster = Roster(run)
        self._shown: tuple[tuple[Failure, ...], str] | None = None
        environment = Environment(
            loader=PackageLoader("lerobot_coda.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
        )
        self._template: Any = environment.get_template("dashboard.html").module
        self._drawn: Any = environment.get_template("lineage.html").module

    def sections(self) -> tuple[dict[str, str], tuple[int, ...]]:
        """The HTML of each of SECTIONS, and a stamp of what the curve is of."""
        with self._lock:
            self._read()
            summary, draw = self._summary, self._template
            found = look(self.run, replace(summary, missing=(*summary.missing, *self._unlinked)))
            work = self._roster.look(found.backend) if found.at_work else Work()
            parts = {
                "progress": draw.head(found, minutes),
                "workers": draw.workers(work, minutes),
                "budget": draw.budget(found, minutes),
                "failures": self._failures(found.failures),
                "decisions": draw.decisions(found),
                "lineage": self._drawn.lineage(self._graph),
            }
            return {name: str(parts[name]) for name in SECTIONS}, self._stamp or ()

    def curve(self) -> Any:
        """Success over rounds as a plotly figure, None before anything was measured."""
        return styled(curve_figure(self._summary.curve)) if self._summary.curve else None

    def _read(self) -> None:
        files = (self.run / name for name in ("run.json", "summary.json", "report/index.html"))
        stamp = tuple(path.stat().st_mtime_ns if path.is_file() else 0 for path in files)
        if stamp != self._stamp:
            self._stamp, self._summary = stamp, summary_of(self.run)
        written = sorted(path for name in REMEMBERED for path in self.run.glob(f"rounds/[0-9]*/{name}"))
        linked = tuple((path, path.stat().st_mtime_ns) for path in written)
        if linked != self._linked:
            missing: list[str] = []
            rounds = [
                {"round": int(path.parent.name), "clusters": rows_of(path, missing, "its failures are not linked")}
                for path in written
                if path.name == "clusters.json"
            ]
            self._graph = lineage.load_lineage(self.run, rounds, missing)
            self._linked, self._unlinked = linked, tuple(missing)

    def _failures(self, failures: tuple[Failure, ...]) -> str:
        if self._shown is None or self._shown[0] != failures:
            views = [(one, _view(one)) for one in failures]
            self._shown = failures, str(self._template.failures(views))
        return self._shown[1]


def build_page(run: Path) -> Any:
    """The page of a run as `gradio.Blocks`, which refreshes itself; it reads the folder and writes nothing."""
    import gradio as gr

    watch = Watch(run)
    with gr.Blocks(title=f"{run.name} · lerobot-coda", analytics_enabled=False) as page:
        shown = {name: gr.HTML(elem_classes="live", elem_id=name, js_on_load=None) for name in SECTIONS}
        gr.HTML("<h2>Success over rounds</h2>", elem_classes="live", js_on_load=None)
        curve = gr.Plot(show_label=False, container=False, elem_id="curve")
        seen = gr.State({})

        def refresh(before: Mapping[str, Any]) -> list[Any]:
            parts, stamp = watch.sections()
            sent = [text if before.get(name) != text else gr.skip() for name, text in parts.items()]
            return [*sent, watch.curve() if before.get("curve") != stamp else gr.skip(), {**parts, "curve": stamp}]

        outputs = [*shown.values(), curve, seen]
        quietly: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        page.load(refresh, seen, outputs, **quietly)
        gr.Timer(REFRESH_S).tick(refresh, seen, outputs, **quietly)
    return page


def _view(failure: Failure) -> Markup:
    """What is shown of a failure that no video was rendered of."""
    from base64 import b64encode

    from lerobot_coda.report.planview import plan_view
    from libero_pro.episode import Episode

    if failure.video is not None:
        return Markup("")
    if failure.sheet is not None:
        picture = b64encode(failure.sheet.read_bytes()).decode()
        return Markup('<img alt="frames of the episode that the critic saw" src="data:image/png;base64,{}">').format(
            picture
        )
    try:
        return plan_view(Episode.load(failure.episode))
    except RecordError as error:
        return Markup("<p>{}</p>").format(str(error))
