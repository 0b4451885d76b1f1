"""`lerobot-coda potential`: what a text or a goal means as a staged potential, and its curve over an episode."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lerobot_coda.potential import Names, StagedPotential
    from libero_pro.episode import Episode
    from libero_pro.scene import SceneSpec

_EXAMPLE = """examples:
  lerobot-coda potential --scene libero_goal:3
  lerobot-coda potential "first move above the bowl, then grasp it and put it on the plate" --scene libero_goal:8
  lerobot-coda potential @plan.txt --scene libero_object:0 --episode demo.npz --out curve.html

Without a text it is the canonical plan of the scene's goal. A text that begins with a stage or `scale` is read as the
potential language, one that begins with { as its JSON, anything else as plain words.
"""
_BLOCKS = " ▁▂▃▄▅▆▇█"
_WIDTH = 72  # columns of the curve in the terminal


def add(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "potential",
        help="show what a text or a goal means as a staged potential",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "text", nargs="?", help="plain words, the potential language, its JSON, or @FILE with one of them"
    )
    parser.add_argument("--scene", required=True, metavar="SUITE:TASK", help="e.g. libero_goal:3")
    parser.add_argument("--seed", type=int, default=0, help="of the scene that the expert solves (default 0)")
    parser.add_argument("--episode", type=Path, metavar="NPZ", help="a stored episode in place of the expert's")
    parser.add_argument("--no-episode", action="store_true", help="show the stages only; needs no simulator")
    parser.add_argument("--out", type=Path, metavar="HTML", help="also write the curve as a page")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the potential as JSON")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    from lerobot_coda.potential import Names, from_goal, to_text
    from libero_pro.record import RecordError
    from libero_pro.suites import get_task, scene_for

    suite, colon, task_id = arguments.scene.partition(":")
    if not colon or not task_id.isdigit():
        raise RecordError(f"--scene '{arguments.scene}' is not SUITE:TASK, e.g. libero_goal:3")
    if arguments.out and arguments.no_episode:
        raise RecordError("--out needs an episode to draw; leave --no-episode out")
    task = get_task(suite, int(task_id))
    names = Names.of_task(task)
    if arguments.text is None:
        potential = from_goal(task.goal(), task.objects(), parts=names.parts)
    else:
        potential = _understand(arguments.text, names)
    print(f'{suite} {task_id}: "{task.prompt()}"\n')
    print(to_text(potential))
    if potential.latched:
        print("latched: a later stage undoes an earlier one, so what was reached is kept; the value function must see")
        print("the stage (column observation.coda_stage).\n")
    if arguments.json:
        potential.save(arguments.json)
    if arguments.no_episode:
        return
    episode = _episode(arguments.episode, scene_for(suite, int(task_id), seed=arguments.seed))
    _show(potential, episode)
    if arguments.out:
        _draw(potential, episode, arguments.out)
        print(f"curve: {arguments.out}")


def _understand(text: str, names: "Names") -> "StagedPotential":
    """The potential that a text is or describes, checked against the scene's names."""
    from lerobot_coda.potential import StagedPotential, from_text
    from lerobot_coda.potential.phrases import from_phrases
    from lerobot_coda.potential.text import MAX_TEXT
    from libero_pro.record import RecordError

    if text.startswith("@"):
        path = Path(text[1:])
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RecordError(f"cannot read {path}: {error}") from None
    if len(text) > MAX_TEXT:
        raise RecordError(f"the text has {len(text)} characters; use at most {MAX_TEXT}")
    if text.lstrip().startswith("{"):
        potential = StagedPotential.parse(text)
    elif " until " in text or text.lstrip().startswith("scale "):
        potential = from_text(text)
    else:
        return from_phrases(text, names)
    potential.check(names)
    return potential


def _episode(path: Path | None, scene: "SceneSpec") -> "Episode":
    """A stored episode, or the expert's in the scene."""
    from libero_pro.episode import Episode
    from libero_pro.record import RecordError

    if path is not None:
        return Episode.load(path)
    from libero_pro.expert import solve
    from libero_pro.simulator import Simulator
    from libero_pro.suites import get_task

    try:
        episode = solve(Simulator(get_task(scene.suite, scene.task_id)), scene)
    except RecordError as error:
        raise RecordError(f"{error}; give an episode with --episode, or --no-episode") from None
    if episode.invalid:
        raise RecordError(f"the episode in this scene is invalid: {episode.invalid}; choose another --seed")
    return episode


def _show(potential: "StagedPotential", episode: "Episode") -> None:
    """The curve in the terminal: a line for the potential, and when each stage was first done."""
    import numpy as np

    from lerobot_coda.potential.acceptance import grade, rank_correlation

    phi = potential.run(episode).phi
    columns = np.array_split(phi, min(_WIDTH, len(phi)))
    heights = [
        min(len(_BLOCKS) - 1, int(np.ceil(part.mean() / potential.scale * (len(_BLOCKS) - 1)))) for part in columns
    ]
    came = grade(episode).replace("_", " ")
    print(f"{episode.actor} over {len(episode)} steps ({came}), Phi in [0, {potential.scale:g}]:")
    print(f"  {''.join(_BLOCKS[height] for height in heights)}")
    ended = "0 at the terminal" if episode.terminated else f"{phi[-1]:.3f} at the end"
    print(f"  starts at {phi[0]:.3f}, highest {phi.max():.3f}, {ended}")
    if episode.success:
        print(f"  rank correlation with time until the goal holds: {rank_correlation(potential, episode):.3f}")
    for name, done in potential.done(episode).items():
        first = np.flatnonzero(done)
        print(f"  {name:<16} {f'done first at step {first[0]}' if len(first) else 'never done'}")


def _draw(potential: "StagedPotential", episode: "Episode", path: Path) -> None:
    """A page with the curve and the stages, without anything from the network."""
    import plotly.graph_objects as go

    from libero_pro.record import write_atomically

    evaluated = potential.run(episode)
    steps = list(range(len(evaluated.phi)))
    figure = go.Figure()
    figure.add_scatter(x=steps, y=potential.evaluate(episode), name="Phi", mode="lines")
    figure.add_scatter(
        x=steps, y=evaluated.stage, name="share of stages done", mode="lines", line={"shape": "hv", "dash": "dot"}
    )
    figure.update_layout(
        title=f"{episode.scene.instruction} ({episode.actor})", xaxis_title="control step", yaxis_range=[0, 1.02],
        template="plotly_white",
    )  # fmt: skip
    write_atomically(path, figure.to_html(include_plotlyjs=True).encode())
