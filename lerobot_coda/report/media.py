"""What the page shows beside its tables: videos of stored episodes, contact sheets, curves of the potential."""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markupsafe import Markup

from lerobot_coda.report.figures import fragment, potential_figure
from lerobot_coda.report.gallery import Exhibit
from lerobot_coda.report.summary import RunSummary
from lerobot_coda.report.videos import VideoJob, write_videos


@dataclass(frozen=True)
class Media:
    """clips: {"file", "caption"} of the scene at the top;  exhibits: the same, `sheet` and `curve` by anchor;
    problems: one sentence for each that could not be made."""

    clips: list[dict[str, str]]
    exhibits: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def render_media(summary: RunSummary, folder: Path, videos: bool) -> Media:
    """Renders into `folder` what the page of `summary` shows; without `videos` only what takes no rendering."""
    wanted: dict[str, list[tuple[VideoJob, str]]] = {"": []}
    if clip := summary.clip:
        wanted[""] = list(_pair(clip.before, clip.after, clip.success_after, folder, ""))
    for exhibit in summary.exhibits:
        wanted[exhibit.anchor] = list(
            _pair(exhibit.before, exhibit.after, exhibit.success_after, folder, f"{exhibit.anchor}-")
        )
    jobs = [job for some in wanted.values() for job, _ in some] if videos else []
    failed = write_videos(jobs) if jobs else {}
    problems = [f"{path.name} could not be rendered: {reason}" for path, reason in failed.items()]

    def shown(anchor: str) -> list[dict[str, str]]:
        made = [(job.video.name, text) for job, text in wanted[anchor] if job.video not in failed] if videos else []
        return [{"file": name, "caption": text} for name, text in made]

    exhibits = {}
    for exhibit in summary.exhibits:
        curve, problem = _curve(exhibit)
        problems += [problem] if problem else []
        sheet = None
        if exhibit.sheet is not None:
            sheet = f"{exhibit.anchor}.png"
            shutil.copyfile(exhibit.sheet, folder / sheet)
        exhibits[exhibit.anchor] = {"clips": shown(exhibit.anchor), "sheet": sheet, "curve": curve}
    return Media(shown(""), exhibits, tuple(problems))


def _pair(
    before: Path, after: Path | None, success: bool | None, folder: Path, prefix: str
) -> Iterable[tuple[VideoJob, str]]:
    """The videos of one scene, and what stands under each."""
    yield VideoJob(before, folder / f"{prefix}before.mp4"), "before: the policy fails"
    if after is not None:
        result = "succeeds" if success else "still fails"
        yield VideoJob(after, folder / f"{prefix}after.mp4"), f"after, same scene: the policy {result}"


def _curve(exhibit: Exhibit) -> tuple[Markup, str | None]:
    """The goal's own potential along the exhibit's episodes, and the sentence why there is none."""
    from lerobot_coda.potential.plans import plan_of
    from libero_pro.episode import Episode
    from libero_pro.record import RecordError

    curves = []
    try:
        for label, path in (("before", exhibit.before), ("after", exhibit.after)):
            if path is not None:
                episode = Episode.load(path)
                curves.append((label, plan_of(episode).run(episode).phi.tolist()))
    except RecordError as error:
        return Markup(""), f"No potential is drawn for {exhibit.anchor}: {error}"
    return Markup(fragment(potential_figure(curves), exhibit.anchor, height=220)), None
