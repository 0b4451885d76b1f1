"""An experiment: arms at the same budget from the same base policy, compared on suites that nothing is generated from.

    for each recipe, arm and seed: evolve, then the held-out benchmark of the policy that it ends with
    before the arms: the same benchmark of the base policy

Each part is done once: what is missing is made by the same command, so arms may be added later, or run elsewhere: a
finished run leaves a small file (`finished.FinishedRun`), and these can be brought together.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from lerobot_coda import runfolder
from lerobot_coda.baselines import ArmName
from lerobot_coda.comparison import Arm, arm_of
from lerobot_coda.console import Display
from lerobot_coda.engine import Engine
from lerobot_coda.evolve import evolve, read
from lerobot_coda.finished import FinishedRun
from lerobot_coda.memory import content_hash
from lerobot_coda.recipe import EvolveRecipe, load_evolve, parse_recipe, read_yaml
from lerobot_coda.training import CHECKPOINT
from libero_pro.benchmark import run_benchmark
from libero_pro.policy_runner import checkpoint_id
from libero_pro.record import Record, RecordError
from libero_pro.render import Profile
from libero_pro.scene import PromptSource
from libero_pro.suites import AXES, get_task, suite_of

KEY = ("suite", "task_id", "init_state_id", "seed")
Outcomes = dict[tuple[Any, ...], bool]  # success by KEY


class Experiment(Record):
    """Evolve recipes, each run with all of `arms` and `seeds` in place of its own, and measured on `axes`.

    axes               name -> held-out suites, whose episodes are pooled; each perturbs the suite of one recipe
    episodes_per_task  released starts of each task, from the first on
    curve              the same for the policies between the first and the last round, whose success is only shown
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")
    recipes: tuple[str, ...] = Field(min_length=1)
    arms: tuple[ArmName, ...] = Field(min_length=1)
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    axes: dict[str, tuple[str, ...]] = Field(min_length=1)
    episodes_per_task: int = Field(ge=1, le=50)
    curve: int = Field(default=0, ge=0, le=50)
    prompt_source: PromptSource = "bddl"
    profile: Profile = "fast"

    @model_validator(mode="after")
    def _suites_exist(self) -> Self:
        for suites in self.axes.values():
            for suite in suites:
                get_task(suite, 0)
        return self

    def suites(self, recipe: EvolveRecipe) -> list[str]:
        """The held-out suites that perturb the recipe's own."""
        own = {suite_of(recipe.suite, axis) for axis in AXES}
        return list(dict.fromkeys(s for suites in self.axes.values() for s in suites if s in own))

    def held_out(self, recipe: EvolveRecipe) -> dict[str, Any]:
        """What the recipe's policies are measured on."""
        named = {"episodes_per_task", "curve", "prompt_source", "profile"}
        return {"suites": self.suites(recipe), **self.model_dump(mode="json", include=named)}


def load_experiment(path: Path) -> tuple[Experiment, dict[Path, EvolveRecipe]]:
    """The experiment and its evolve recipes by path; RecordError names what is wrong in either."""
    experiment = parse_recipe(Experiment, read_yaml(path), f"experiment {path}")
    recipes = {p: load_evolve(p) for p in (Path(path).parent / name for name in experiment.recipes)}
    covered = {suite for recipe in recipes.values() for suite in experiment.suites(recipe)}
    for axis, suites in experiment.axes.items():
        if lost := [suite for suite in suites if suite not in covered]:
            raise RecordError(
                f"experiment {path}: field 'axes.{axis}' has {lost[0]}, whose base suite no recipe evolves"
            )
    return experiment, recipes


def run_arms(
    experiment: Experiment, recipes: Mapping[Path, EvolveRecipe], output: Path, wanted: Sequence[str], *,
    display: Display, records: Path, engine: Engine | None = None, measured: "Measured | None" = None,
) -> list[Arm]:  # fmt: skip
    """Runs what is missing of the `wanted` arms; returns all arms of which every run is finished.

    records   folder of finished runs' files, of which those are read whose run is not in `output`
    measured  evaluates a checkpoint; None: `measure`
    """
    arms = []
    for name in experiment.arms:
        runs = []
        for path, recipe in recipes.items():
            for seed in experiment.seeds:
                called = f"{recipe.suite}-{name}-{seed}"
                folder, record = output / called, records / f"{called}.json"
                changes = {"arm": name, "seed": seed}
                asked, trains = read(path, changes)
                key = content_hash(runfolder.identity(asked, trains), experiment.held_out(recipe))
                summary = _finished(folder)
                if summary is None and record.exists():
                    runs.append(FinishedRun.load_as(record, key))
                    continue
                if summary is not None:  # as it was made, also where the code has changed since
                    runfolder.check(folder, asked, trains)
                elif name in wanted:
                    display.say(f"{recipe.suite}, arm {name}, seed {seed}")
                    with display.logged(folder / runfolder.LOG):
                        summary = evolve(path, folder, changes=changes, engine=engine, display=display)
                else:
                    continue
                outcomes = _outcomes(experiment, recipe, folder, summary, measured or measure, display)
                runs.append(_record(recipe, key, summary, outcomes))
                runs[-1].save(record)
        if len(runs) == len(recipes) * len(experiment.seeds):
            arms.append(arm_of(name, runs))
    return arms


def _record(
    recipe: EvolveRecipe, key: str, summary: Mapping[str, Any], outcomes: Mapping[int, Outcomes]
) -> FinishedRun:  # fmt: skip
    episodes = {n: [(*episode, solved) for episode, solved in found.items()] for n, found in outcomes.items()}
    told = {name: summary[name] for name in ("arm", "seed", "command", "started", "versions", "usage", "leaked")}
    return FinishedRun.model_validate({"key": key, "suite": recipe.suite, "outcomes": episodes, **told})


def _outcomes(
    experiment: Experiment, recipe: EvolveRecipe, folder: Path, summary: Mapping[str, Any], measured: "Measured",
    display: Display,
) -> dict[int, Outcomes]:  # fmt: skip
    """Held-out outcomes by round: of the base policy (0), of the last one, at `curve` episodes of those between."""
    base, last = checkpoint_of(folder, "base"), last_actor(summary)
    shared = folder.parent / "before" / f"{recipe.suite}-{checkpoint_id(base)}"
    found = {0: measured(experiment, recipe, base, shared, display)}
    fewer = experiment.model_copy(update={"episodes_per_task": experiment.curve})
    for report in summary["rounds"] if experiment.curve else ():
        number, actor = report["round"], str(report["checkpoint_after"])
        if actor not in ("base", last):
            out = folder / f"experiment-{actor}"
            found[number] = measured(fewer, recipe, checkpoint_of(folder, actor), out, display)
    rounds = len(summary["rounds"])
    found[rounds] = measured(experiment, recipe, checkpoint_of(folder, last), folder / "experiment", display)
    return found


def _finished(run: Path) -> dict[str, Any] | None:
    """The summary of a run that is finished."""
    try:
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
        return summary if summary["finished"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def last_actor(summary: Mapping[str, Any]) -> str:
    """The short name of the policy that a run ended with: that of its last round, or `base` without rounds."""
    return ([str(report["checkpoint_after"]) for report in summary["rounds"]] or ["base"])[-1]


def checkpoint_of(run: Path, actor: str) -> Path:
    """The checkpoint folder of one of a run's policies, by its short name (base, r001, ...)."""
    if actor != "base":
        return run / "rounds" / actor.removeprefix("r") / "train" / CHECKPOINT
    own = run / "base" / "policy"
    return own if own.exists() else run / "base" / "train" / CHECKPOINT


def measure(experiment: Experiment, recipe: EvolveRecipe, checkpoint: Path, out: Path, display: Display) -> Outcomes:
    """Success of a checkpoint by held-out episode, without the run's seed; goes on where an earlier call stopped."""
    from libero_pro.policy_runner import LeRobotChunkPolicy

    suites = experiment.suites(recipe)
    episodes = len(suites) * len(recipe.task_ids) * experiment.episodes_per_task
    with display.stage("evaluate", f"held-out {out.name}", episodes) as tick:
        result = run_benchmark(
            LeRobotChunkPolicy.from_pretrained(checkpoint), suites, out=out, task_ids=recipe.task_ids,
            episodes=experiment.episodes_per_task, prompt_source=experiment.prompt_source, profile=experiment.profile,
            workers=recipe.workers, progress=lambda done, total: tick(done),
        )  # fmt: skip
    return {tuple(row[name] for name in KEY): bool(row["success"]) for row in result.rows if not row["invalid"]}


Measured = Callable[[Experiment, EvolveRecipe, Path, Path, Display], Outcomes]
