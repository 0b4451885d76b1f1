"""The two ends of a run: held-out suites before and after, and the frontier under the base and the final policy."""

from collections.abc import Mapping, Sequence
from typing import Any

from lerobot_coda import archive
from lerobot_coda.budget import Usage
from lerobot_coda.console import Tick
from lerobot_coda.rounds import Run, play
from lerobot_coda.state import State
from lerobot_coda.steps import Steps
from libero_pro.episode import Episode


def evaluate(run: Run, state: State, when: str, steps: Steps) -> dict[str, Any]:
    """Success by held-out suite, on released starts that nothing was generated from."""
    heldout, tasks = run.recipe.heldout, run.recipe.task_ids
    episodes = len(heldout.suites) * len(tasks) * heldout.episodes_per_task

    def work(tick: Tick) -> tuple[Any, Usage]:
        out = run.folder / "heldout" / when
        rows = run.engine.evaluate(run.folder / state.checkpoint, heldout, tasks, out, tick)
        return archive.success_by_suite(rows), Usage(steps={"evaluation": sum(int(row["steps"]) for row in rows)})

    return steps.run(when, "evaluate", episodes, [state.key, heldout.model_dump()], work)


def compare_frontier(
    run: Run, base: State, final: State, reports: Sequence[Mapping[str, Any]], steps: Steps
) -> dict[str, Any]:
    """Both policies on the scenes that the rounds measured on, at most `heldout.frontier` of them; paired."""
    measured = [pair for report in reports for pair in report["frontier"]["pairs"]]
    limit = run.recipe.heldout.frontier
    chosen = measured if len(measured) <= limit else [measured[i * len(measured) // limit] for i in range(limit)]
    scenes = [Episode.load(run.folder / pair["before_episode"]).scene for pair in chosen]
    played = []
    for state in (base, final):

        def work(tick: Tick, state: State = state) -> tuple[Any, Usage]:
            return None, Usage(steps={"evaluation": play(run, state, scenes, "frontier", tick)})

        if scenes:
            inputs = [state.key, [scene.hash for scene in scenes]]
            steps.run(f"frontier {state.actor}", "measure", len(scenes), inputs, work)
        played.append(archive.load_all(run.folder, state.actor, scenes))
    pairs = [
        (pair["program"], before, after)
        for pair, before, after in zip(chosen, *played, strict=True)
        if before.invalid is None and after.invalid is None
    ]
    return archive.comparison(pairs, (base.actor, final.actor))
