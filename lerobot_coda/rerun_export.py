"""A stored episode as a Rerun recording: cameras, state, actions, potential and predicates over its control steps.

The entities `action` and `state` are those of LeRobot's own `lerobot-dataset-viz`; the timelines are `step` (instants
0 to T) and `time` (seconds). Images are drawn again from the stored states. Needs the extra `rerun`.
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lerobot_coda.potential import StagedPotential
from libero_pro.episode import Episode
from libero_pro.footage import render_episodes, rendered_steps
from libero_pro.record import RecordError
from libero_pro.render import Profile

HZ = 20  # control steps a second
_JPEG_QUALITY = 90


def export(
    episode: Episode,
    out: Path,
    *,
    potential: StagedPotential | None = None,
    cameras: Sequence[str] = ("agentview", "wrist"),
    size: int = 256,
    every: int = 2,
    profile: Profile = "fast",
) -> None:
    """Writes the episode as `out` (.rrd), whole or not at all.

    potential  its Phi, and when each of its stages is done, are shown too
    every      control steps between two images, which are `size` pixels high and wide
    RecordError where rerun-sdk is missing, the episode is invalid, the potential speaks of what the episode does not
    hold, or no image can be drawn.
    """
    rr = _rerun()
    if episode.invalid is not None or len(episode) == 0:
        raise RecordError(f"the episode has nothing to show: {episode.invalid or 'it has no step'}")
    curves = _curves(episode, potential)  # before anything is written
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=out.name) as folder:
        partial = Path(folder) / out.name
        with rr.RecordingStream("lerobot-coda", recording_id=episode.scene.hash) as recording:
            recording.save(partial, default_blueprint=_blueprint(cameras, list(curves)))
            _describe(recording, rr, episode)
            for name, (labels, values) in curves.items():
                _plot(recording, rr, name, labels, values)
            for instant, text in _events(episode):
                _at(recording, instant)
                recording.log("events", rr.TextLog(text))
            look: dict[str, Any] = {"profile": profile, "size": size, "render_every": every, "workers": 1}
            [images] = render_episodes([episode], Path(folder), cameras=tuple(cameras), **look)
            for number, instant in enumerate(rendered_steps(len(episode), every)):
                _at(recording, int(instant))
                for camera in cameras:
                    image = rr.Image(images[camera][number]).compress(jpeg_quality=_JPEG_QUALITY)
                    recording.log(f"camera/{camera}", image)
        partial.replace(out)


def _rerun() -> Any:
    try:
        import rerun
    except ImportError:
        raise RecordError("rerun-sdk is not installed; run: pip install 'lerobot_policy_coda[rerun]'") from None
    return rerun


def _curves(episode: Episode, potential: StagedPotential | None) -> dict[str, tuple[list[str], np.ndarray]]:
    """Plot -> names of its lines and values (T+1, lines); actions stand at the instant that they were taken in."""
    from libero_pro.dataset import ACTION_NAMES, STATE_NAMES  # loads LeRobot

    goals = [" ".join(predicate) for predicate in episode.scene.goal]
    curves = {
        "state": (STATE_NAMES, episode.proprio),
        "action": (ACTION_NAMES, episode.actions),
        "goal": (goals, episode.goal_holds),
    }
    if potential is not None:
        done = potential.done(episode)
        curves["potential"] = (["Phi"], potential.evaluate(episode)[:, None])
        curves["stages"] = (list(done), np.stack(list(done.values()), axis=1))
    return curves


def _plot(recording: Any, rr: Any, name: str, labels: list[str], values: np.ndarray) -> None:
    rows, lines = values.shape
    recording.log(name, rr.SeriesLines(names=labels), static=True)
    steps = np.arange(rows)
    indexes = [rr.TimeColumn("step", sequence=steps), rr.TimeColumn("time", duration=steps / HZ)]
    scalars = rr.Scalars.columns(scalars=values.astype(float).reshape(-1)).partition([lines] * rows)
    recording.send_columns(name, indexes=indexes, columns=scalars)


def _at(recording: Any, instant: int) -> None:
    recording.set_time("step", sequence=instant)
    recording.set_time("time", duration=instant / HZ)


def _events(episode: Episode) -> Iterator[tuple[int, str]]:
    """(instant, what changed): what is held, and which predicates of the goal hold."""
    for instant in np.flatnonzero(np.diff(episode.held)) + 1:
        held = episode.held[instant]
        yield int(instant), f"holds {episode.object_names[held] if held >= 0 else 'nothing'}"
    for number, predicate in enumerate(episode.scene.goal):
        holds = episode.goal_holds[:, number]
        for instant in np.flatnonzero(np.diff(holds)) + 1:
            yield int(instant), f"{' '.join(predicate)} {'holds' if holds[instant] else 'no longer holds'}"


def _describe(recording: Any, rr: Any, episode: Episode) -> None:
    scene = episode.scene
    outcome = "success" if episode.success else "truncated" if episode.truncated else "failure"
    rows = {
        "instruction": scene.instruction,
        "task": f"{scene.suite} {scene.task_id}",
        "scene": scene.hash,
        "program": scene.program or "none",
        "actor": episode.actor,
        "outcome": f"{outcome} after {len(episode)} steps",
    }
    text = "\n".join(f"{name}: {value}" for name, value in rows.items())
    recording.log("episode", rr.TextDocument(text, media_type="text/plain"), static=True)


def _blueprint(cameras: Sequence[str], curves: Sequence[str]) -> Any:
    """Cameras above, curves below, what is known of the episode at the side."""
    import rerun.blueprint as rrb

    views = [rrb.Spatial2DView(origin=f"camera/{camera}", name=camera) for camera in cameras]
    plots = [rrb.TimeSeriesView(origin=name, name=name) for name in curves]
    told = [rrb.TextDocumentView(origin="episode", name="episode"), rrb.TextLogView(origin="events", name="events")]
    main = rrb.Vertical(rrb.Horizontal(*views), rrb.Grid(*plots))
    return rrb.Blueprint(rrb.Horizontal(main, rrb.Vertical(*told), column_shares=[4, 1]), collapse_panels=True)
