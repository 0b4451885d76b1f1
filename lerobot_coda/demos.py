"""`lerobot-coda demos`: builds the dataset that a train recipe names, where it isn't there yet.

How to build it stands in `demos/<last part of dataset.repo_id>.yaml` beside the train recipe (`recipe.DemosRecipe`).
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from lerobot_coda.console import Display, Planned
from lerobot_coda.engine import Engine, LiberoEngine
from lerobot_coda.recipe import DemosRecipe, load_demos
from libero_pro.episode import Episode
from libero_pro.programs import GenerationProgram, Permute, Resample
from libero_pro.record import RecordError
from libero_pro.scene import SceneSpec
from libero_pro.suites import scene_for

SOLVED_SHARE = 0.5  # fewer solved scenes than this are no dataset to train a policy on


def build_demos(train_recipe: Path, *, engine: Engine | None = None, display: Display | None = None) -> Path:
    """The dataset's folder, with the grounding set that the recipe's policy names beside it if there is one.

    Demonstrations start from fresh resets, never from released starts. Episodes are kept in `<root>.episodes` until the
    dataset is whole, so that an interrupted build goes on. RecordError if the expert solves too few scenes.
    """
    recipe, train = load_demos(train_recipe)
    display = display or Display()
    root = Path(train["dataset"]["root"])
    named = (train.get("policy") or {}).get("grounding_path")
    grounding = Path(named) if named and not Path(named).exists() else None
    engine = engine or LiberoEngine(recipe.workers, recipe.render, str(train["dataset"]["repo_id"]))
    total = recipe.per_task * len(recipe.task_ids)
    ahead = [] if root.exists() else [Planned(kind, kind, total) for kind in ("demonstrate", "dataset")]
    display.plan([*ahead, *([Planned("ground", "ground", recipe.layouts)] if grounding else [])])
    if root.exists():
        display.say(f"{root} is there already")
    else:
        _demonstrate(recipe, root, engine, display)
    if grounding:
        _ground(recipe, grounding, engine, display)
    return root


def enough(episodes: Sequence[Episode], share: float = 0.0) -> list[Episode]:
    """The solved ones of the expert's episodes.

    RecordError if there are none, or fewer than `share` of all. It tells a simulator that failed from tasks that are
    too hard.
    """
    solved = [episode for episode in episodes if episode.success and episode.invalid is None]
    if solved and len(solved) >= share * len(episodes):
        return solved
    said = f"the expert solved {len(solved)} of {len(episodes)} scenes"
    if broken := [episode.invalid for episode in episodes if episode.invalid]:
        raise RecordError(f"{said}, and {len(broken)} broke off, the first as {broken[0]}; run the same again")
    raise RecordError(f"{said}; choose other task_ids")


def _demonstrate(recipe: DemosRecipe, root: Path, engine: Engine, display: Display) -> None:
    scenes = [
        scene_for(recipe.suite, task_id, seed=recipe.seed * 1000 + k)
        for k in range(recipe.per_task)
        for task_id in recipe.task_ids
    ]
    kept = root.with_name(root.name + ".episodes")
    with display.stage("demonstrate", "demonstrate", len(scenes)) as tick:
        episodes = engine.demonstrate(scenes, kept, recipe.noise, tick)
    solved = enough(episodes, SOLVED_SHARE)
    with display.stage("dataset", "dataset", len(solved)) as tick:
        engine.write_shard(solved, root, None, tick)
    shutil.rmtree(kept, ignore_errors=True)
    display.say(f"{len(solved)} of {len(scenes)} demonstrations are in {root}")


def _ground(recipe: DemosRecipe, out: Path, engine: Engine, display: Display) -> None:
    if not recipe.layouts:
        raise RecordError(f"the train recipe wants {out}, but its demonstration recipe has no 'layouts'; add the field")
    program = GenerationProgram(
        suite=recipe.suite,
        task_ids=recipe.task_ids,
        operations=(Permute(), Resample()),
        difficulty=recipe.difficulty,
        domain=recipe.seed,
    )
    scenes: list[SceneSpec] = []
    first = 0
    while len(scenes) < recipe.layouts and first < 4 * recipe.layouts:
        count = recipe.layouts - len(scenes)
        drawn = engine.sample(program, count, 0, first)
        scenes += [g.scene for g in engine.gate(drawn, lambda done: None, static=True) if g.accepted]
        first += count
    out.parent.mkdir(parents=True, exist_ok=True)
    with display.stage("ground", "ground", len(scenes)) as tick:
        engine.ground(scenes, out, None, tick)
    display.say(f"{len(scenes)} static layouts are in {out}")
