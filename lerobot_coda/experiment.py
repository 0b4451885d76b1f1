"""An experiment: arms at the same budget from the same base policy, compared on suites that nothing is generated from.

    for each recipe, arm and seed: evolve, then the held-out benchmark of the policy that it ends with
    before the arms: the same benchmark of the base policy

Outcomes are paired by the run's seed, suite, task, released start and the episode's seed. Each part is done once: what
is missing is made by the same command, so arms may be added later.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from lerobot_coda import runfolder
from lerobot_coda.baselines import ArmName
from lerobot_coda.console import Display
from lerobot_coda.engine import Engine
from lerobot_coda.evolve import evolve, read
from lerobot_coda.progress import Rate, rate
from lerobot_coda.recipe import EvolveRecipe, load_evolve, parse_recipe, read_yaml
from lerobot_coda.training import CHECKPOINT
from libero_pro.benchmark import run_benchmark
from libero_pro.figures import figure
from libero_pro.policy_runner import checkpoint_id
from libero_pro.record import Record, RecordError
from libero_pro.render import Profile
from libero_pro.scene import PromptSource
from libero_pro.statistics import mcnemar
from libero_pro.suites import AXES, get_task, suite_of

HEADLINE: ArmName = "coda"
CLOSED_LOOP: tuple[ArmName, ...] = (
    "failure-replay",
    "plr",
    "sfl",
)  # look at what the policy does, and diagnose nothing
KEY = ("suite", "task_id", "init_state_id", "seed")
Outcomes = dict[tuple[Any, ...], bool]  # success by the run's seed and KEY


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
    display: Display, engine: Engine | None = None, measured: "Measured | None" = None,
) -> list["Arm"]:  # fmt: skip
    """Runs what is missing of the `wanted` arms; returns all arms of which every run is finished.

    measured  evaluates a checkpoint; None: `measure`
    """
    measured, arms = measured or measure, []
    for name in experiment.arms:
        runs = []
        for path, recipe in recipes.items():
            for seed in experiment.seeds:
                run = output / f"{recipe.suite}-{name}-{seed}"
                changes = {"arm": name, "seed": seed}
                summary = _finished(run)
                if summary is not None:  # as it was made, also where the code has changed since
                    runfolder.check(run, *read(path, changes))
                elif name in wanted:
                    display.say(f"{recipe.suite}, arm {name}, seed {seed}")
                    with display.logged(run / runfolder.LOG):
                        summary = evolve(path, run, changes=changes, engine=engine, display=display)
                else:
                    continue
                base, last = checkpoint_of(run, "base"), checkpoint_of(run, last_actor(summary))
                shared = output / "before" / f"{recipe.suite}-{checkpoint_id(base)}"
                before = measured(experiment, recipe, base, shared, display)
                after = measured(experiment, recipe, last, run / "experiment", display)
                runs.append((summary, before, after, _between(experiment, recipe, run, summary, measured, display)))
        if len(runs) == len(recipes) * len(experiment.seeds):
            arms.append(arm_of(name, runs))
    return arms


def _between(
    experiment: Experiment, recipe: EvolveRecipe, run: Path, summary: Mapping[str, Any], measured: "Measured",
    display: Display,
) -> dict[int, Outcomes]:  # fmt: skip
    """Outcomes by round of the policies that came before the last one, at `curve` episodes a task."""
    if not experiment.curve:
        return {}
    fewer = experiment.model_copy(update={"episodes_per_task": experiment.curve})
    actors = {report["round"]: str(report["checkpoint_after"]) for report in summary["rounds"]}
    return {
        number: measured(fewer, recipe, checkpoint_of(run, actor), run / f"experiment-{actor}", display)
        for number, actor in actors.items()
        if actor not in ("base", last_actor(summary))
    }


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


@dataclass(frozen=True)
class Arm:
    """An arm's finished runs: success of the base policy and of theirs on the same episodes, and what they used.

    curve  outcomes by round, the base policy's as round 0, on the episodes that all rounds were measured on
    """

    name: str
    runs: int
    before: Outcomes
    after: Outcomes
    curve: Mapping[int, Outcomes]
    environments: int
    validation_environments: int
    layouts: int
    steps: Mapping[str, int]
    leaked: int
    hours: float


def arm_of(
    name: str, runs: Iterable[tuple[Mapping[str, Any], Outcomes, Outcomes, Mapping[int, Outcomes]]]
) -> Arm:  # fmt: skip
    """An arm from its runs' summaries and outcomes before, after and between."""
    found = list(runs)
    summaries = [run[0] for run in found]
    before: Outcomes = {}
    after: Outcomes = {}
    curve: dict[int, Outcomes] = {}
    for summary, first, last, between in found:
        before |= _of_run(summary, first)
        after |= _of_run(summary, last)
        for number, outcomes in {0: first, **between, len(summary["rounds"]): last}.items():
            curve[number] = curve.get(number, {}) | _of_run(summary, outcomes)
    everywhere = set.intersection(*(set(outcomes) for outcomes in curve.values()))
    curve = {n: {key: outcomes[key] for key in sorted(everywhere)} for n, outcomes in sorted(curve.items())}
    usages = [summary["usage"] for summary in summaries]
    total = {key: sum(usage[key] for usage in usages) for key in ("environments", "validation_environments", "layouts")}
    steps: Counter[str] = Counter()
    for usage in usages:
        steps.update(usage["steps"])
    hours = sum(sum(usage["seconds"].values()) for usage in usages) / 3600
    leaked = sum(summary["leaked"] for summary in summaries)
    return Arm(
        name=name, runs=len(found), before=before, after=after, curve=curve, steps=steps, leaked=leaked, hours=hours,
        **total,
    )  # fmt: skip


def _of_run(summary: Mapping[str, Any], outcomes: Outcomes) -> Outcomes:
    return {(summary["seed"], *key): solved for key, solved in outcomes.items()}


def curve_rows(axes: Mapping[str, Sequence[str]], arms: Sequence[Arm]) -> list[dict[str, Any]]:
    """Success over rounds, one row an axis, arm and round, with Wilson intervals."""
    rows = []
    for axis, suites in axes.items():
        for arm in arms:
            for number, outcomes in arm.curve.items():
                found = _success({key: won for key, won in outcomes.items() if key[1] in suites})
                told = {"n": found.n, "success_rate": found.rate, "low": found.low, "high": found.high}
                rows.append({"axis": axis, "arm": arm.name, "round": number, **told})
    return rows


def axis_rows(suites: Sequence[str], arms: Sequence[Arm], command: str) -> list[dict[str, Any]]:
    """One axis as figures: the base policy, each arm against it, and `coda` against the best closed-loop arm."""

    def on(outcomes: Outcomes) -> Outcomes:
        return {key: solved for key, solved in outcomes.items() if key[1] in suites}

    before = {key[1:]: solved for arm in arms for key, solved in on(arm.before).items()}
    after = {arm.name: on(arm.after) for arm in arms}
    rows = [_rate("before", before, command)]
    rows += [_rate(arm.name, after[arm.name], command, against=("before", on(arm.before))) for arm in arms]
    rows.append(figure("leaked", sum(arm.leaked for arm in arms), "scenes of all arms", command, n=len(arms)))
    own = next((arm for arm in arms if arm.name == HEADLINE), None)
    if own is None:
        return rows
    rows.append(_rate("after", after[HEADLINE], command, against=("before", on(own.before))))
    rows.append(figure("hours", round(own.hours / own.runs, 3), "h a run of coda", command, n=own.runs))
    rivals = [arm.name for arm in arms if arm.name in CLOSED_LOOP]
    if rivals:
        best = max(rivals, key=lambda name: _success(after[name]).rate)
        common = [key for key in after[best] if key in after[HEADLINE]]
        theirs, ours = ([after[name][key] for key in common] for name in (best, HEADLINE))
        test, points = mcnemar(theirs, ours), 100 * (sum(ours) - sum(theirs)) / len(common)
        peer = f"{best}: +{test.only_after} -{test.only_before}"
        rows.append(figure("over_best_closed_loop", round(points, 2), "points", command, peer=peer, n=len(common)))
        rows.append(figure("p_value", test.p_two_sided, "exact McNemar, two-sided", command, peer=peer, n=len(common)))
    return rows


def _rate(name: str, solved: Outcomes, command: str, *, against: tuple[str, Outcomes] | None = None) -> dict[str, Any]:
    """A success rate with its Wilson interval and, against other outcomes of the same episodes, what flipped."""
    found, peer = _success(solved), None
    if against:
        common = [key for key in against[1] if key in solved]
        test = mcnemar([against[1][key] for key in common], [solved[key] for key in common])
        peer = f"{against[0]}: +{test.only_after} -{test.only_before}, p={test.p_two_sided:.2g}"
    return figure(name, found.rate, "success rate", command, peer=peer, n=found.n, low=found.low, high=found.high)


def _success(outcomes: Outcomes) -> Rate:
    """Their rate and its Wilson interval, to four decimals."""
    found = rate(sum(outcomes.values()), len(outcomes))
    return found.model_copy(update={name: round(getattr(found, name), 4) for name in ("rate", "low", "high")})


def budget_rows(arms: Sequence[Arm]) -> list[dict[str, Any]]:
    """What each arm used, over all of its runs."""
    return [
        {
            "arm": arm.name, "runs": arm.runs, "environments": arm.environments,
            "validation_environments": arm.validation_environments, "layouts": arm.layouts,
            **{f"{purpose}_steps": arm.steps.get(purpose, 0) for purpose in ("probe", "expert", "validation")},
            "leaked": arm.leaked, "hours": round(arm.hours, 3),
        }
        for arm in arms
    ]  # fmt: skip
