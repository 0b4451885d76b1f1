"""Does validation tell true diagnoses from false ones? Planted on the real failures of a policy, in the real simulator.

Each failure of the base policy, in a run's first probe and on its held-out `_swap` and `_task` suites, gets two
diagnoses: the simulator critic's (true), and a false one, by turns

    wrong object   the same failure, said of an object that nobody asked for, or blamed on one that had no part in it
    wrong stage    a failure that is typical of another stage
    nonsense       any other class of failure, told as fluently

Each is validated by itself, as the loop does: evidence, specificity, re-creation, intervention. A true one is tested by
the program that the loop compiles from its cluster, a false one by the program that it would itself be compiled to.
Diagnoses that have the same program share its pairs, and their interventions, which need generated scenes. Failures in
clusters that the recipe leaves alone (`validation.minimum`) are not planted on. What the run has stored is not played
again.

    lerobot-coda evolve recipes/quickstart.yaml
    python benchmarks/diagnoses.py runs/quickstart --json results/diagnoses.json
"""

import argparse
import json
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from lerobot_coda import archive
from lerobot_coda.console import Display
from lerobot_coda.critic.clusters import FailureCluster, cluster
from lerobot_coda.critic.diagnosis import Cause, Diagnosis, Stage
from lerobot_coda.critic.measure import goal_objects, unsatisfied
from lerobot_coda.critic.sequential import Pair, Trial, validate
from lerobot_coda.critic.simulator import diagnose
from lerobot_coda.engine import LiberoEngine
from lerobot_coda.generation import Generator
from lerobot_coda.memory import Memory
from lerobot_coda.programs import CoProgram, compile_cluster
from lerobot_coda.recipe import EvolveRecipe, parse_recipe, read_yaml
from lerobot_coda.rounds import Probed, Round, Run
from lerobot_coda.state import State
from lerobot_coda.steps import Steps
from lerobot_coda.validation import RoundPlayer
from libero_pro.denylist import leaks
from libero_pro.episode import Episode
from libero_pro.figures import keep
from libero_pro.policy_runner import checkpoint_id
from libero_pro.record import RecordError
from libero_pro.statistics import wilson

Kind = Literal["true", "wrong object", "wrong stage", "nonsense"]
FALSE: tuple[Kind, ...] = ("wrong object", "wrong stage", "nonsense")
TYPICAL = {
    Stage.REACH: Cause.MISSED_GRASP, Stage.GRASP: Cause.SLIPPED, Stage.TRANSPORT: Cause.DROPPED,
    Stage.PLACE: Cause.WRONG_PLACE,
}  # fmt: skip
CLASSES: dict[Stage, tuple[Cause, ...]] = {
    Stage.REACH: (
        Cause.WRONG_OBJECT, Cause.IGNORED_INSTRUCTION, Cause.MISSED_GRASP, Cause.OUT_OF_TIME, Cause.UNREACHABLE,
        Cause.STALLED, Cause.DRIFTED,
    ),
    Stage.GRASP: (Cause.MISSED_GRASP, Cause.PUSHED_AWAY, Cause.SLIPPED, Cause.UNREACHABLE, Cause.STALLED),
    Stage.TRANSPORT: (Cause.DROPPED, Cause.EARLY_RELEASE, Cause.OUT_OF_TIME, Cause.STALLED, Cause.DRIFTED),
    Stage.PLACE: (Cause.WRONG_PLACE, Cause.WRONG_RECEPTACLE, Cause.NOT_RELEASED, Cause.UNSATISFIED),
}  # fmt: skip
NAMES_ANOTHER = (Cause.WRONG_OBJECT, Cause.IGNORED_INSTRUCTION, Cause.WRONG_RECEPTACLE)


class Planted(NamedTuple):
    """A diagnosis, whether it is true, and its trial."""

    kind: Kind
    diagnosis: Diagnosis
    trial: Trial


def falsified(true: Diagnosis, episode: Episode, kind: Kind, rng: np.random.Generator) -> Diagnosis:
    """A false diagnosis of the same episode."""
    target, receptacle = goal_objects(unsatisfied(episode), episode.object_names)
    beside = [name for name in episode.object_names if name not in (target, receptacle, *true.objects)]
    other = str(rng.choice(beside))
    asked = true.objects[:1]
    if kind == "wrong object":
        blamed = len(true.objects) > 1 and true.cause in NAMES_ANOTHER and rng.random() < 0.5
        objects = (*asked, other) if blamed else (other, *true.objects[1:])
        return told(true, true.stage, true.cause, objects, () if objects[:1] != asked else true.predicate)
    if kind == "wrong stage":
        stage = Stage(str(rng.choice([stage for stage in TYPICAL if stage != true.stage])))
        return told(true, stage, TYPICAL[stage], asked, true.predicate)
    classes = [(stage, cause) for stage, causes in CLASSES.items() for cause in causes if cause != true.cause]
    stage, cause = classes[int(rng.integers(len(classes)))]
    return told(true, stage, cause, (*asked, other) if cause in NAMES_ANOTHER else asked, true.predicate)


def told(
    true: Diagnosis, stage: Stage, cause: Cause, objects: tuple[str, ...], predicate: tuple[str, ...]
) -> Diagnosis:
    """The diagnosis in other terms, with nothing in it that its critic had measured."""
    what = " and ".join(name.replace("_", " ") for name in objects)
    return Diagnosis(
        episode=true.episode,
        scene=true.scene,
        suite=true.suite,
        task_id=true.task_id,
        stage=stage,
        cause=cause,
        objects=objects,
        predicate=predicate,
        explanation=f"In the {stage} stage the robot shows {str(cause).replace('_', ' ')} with {what}.",
        confidence=0.9,
        critic="planted",
    )


class SharingPlayer(RoundPlayer):
    """Plays pairs once a program, and interventions once for all diagnoses of one kind that have the same program."""

    def __init__(self, round_: Round, probed: Probed, programs: dict[int, CoProgram], kinds: dict[int, Kind]):
        super().__init__(round_, probed, programs)
        self.kinds = kinds

    def contrasts(self, trials: Sequence[Trial], count: int, look: int) -> list[list[Pair]]:
        """Of the failures that the diagnoses of a group are about, `count` more."""
        groups: dict[tuple[str, Kind], list[Trial]] = {}
        for trial in trials:
            groups.setdefault((self.programs[id(trial)].name, self.kinds[id(trial)]), []).append(trial)
        pooled = []
        generated = {archive.key_of(e) for e in self.probed.episodes}
        for members in groups.values():
            first = members[0]
            about = [self.probed.diagnoses[name] for member in members for name in member.cluster.diagnoses]
            whole = cluster([d for d in about if d.episode in generated] or about)[0]
            joined = Trial(whole, first.program, pairs=first.pairs, tried=first.tried, contrasts=first.contrasts)
            self.programs[id(joined)] = self.programs[id(first)]
            pooled.append(joined)
        played = super().contrasts(pooled, count, look)
        found: dict[int, list[Pair]] = {}
        for members, joined, pairs in zip(groups.values(), pooled, played, strict=True):
            for member in members:
                member.tried, found[id(member)] = joined.tried, pairs
        return [found[id(trial)] for trial in trials]


def plant(
    clusters: Sequence[FailureCluster],
    diagnoses: Mapping[str, Diagnosis],
    episodes: Mapping[str, Episode],
    recipe: EvolveRecipe,
    seed: int,
) -> tuple[list[Planted], dict[int, CoProgram]]:
    """True and false diagnoses of the clusters' failures, and their programs by trial."""
    rng = np.random.default_rng(seed)
    planted, programs, turn = [], {}, 0
    for found in clusters:
        whole = compile_cluster(found, recipe, 1)
        for name in found.diagnoses:
            true, kind = diagnoses[name], FALSE[turn % len(FALSE)]
            turn += 1
            for said, diagnosis in (("true", true), (kind, falsified(true, episodes[true.episode], kind, rng))):
                alone = cluster([diagnosis])[0]
                program = whole if said == "true" else compile_cluster(alone, recipe, 1)
                # Programs of one mode bear one name, and false diagnoses of a mode may compile to several.
                program = program.model_copy(update={"name": f"{program.mode}-{program.generation.hash[:6]}"})
                trial = Trial(alone, program.generation.hash)
                programs[id(trial)] = program
                planted.append(Planted(said, diagnosis, trial))
    return planted, programs


def held_out(run_folder: Path) -> list[Episode]:
    """The base policy's episodes on the held-out suites."""
    return [Episode.load(path) for path in sorted((run_folder / "heldout/before").rglob("*.npz"))]


def examine(run_folder: Path, out: Path, options: argparse.Namespace) -> tuple[list[Planted], dict[str, Any]]:
    """Plants on a run's first probe and validates; returns the verdicts, and what it took."""
    recipe = parse_recipe(EvolveRecipe, read_yaml(run_folder / "recipe.yaml"), f"recipe {run_folder / 'recipe.yaml'}")
    if options.scenes:
        recipe = recipe.model_copy(update={"probe": recipe.probe.model_copy(update={"scenes": options.scenes})})
    if options.pairs:
        recipe = recipe.model_copy(update={"validation": recipe.validation.model_copy(update={"pairs": options.pairs})})
    checkpoint = (run_folder / "base/train/checkpoints/last/pretrained_model").absolute()
    if not checkpoint.is_dir():
        raise RecordError(f"{run_folder} holds no base policy; give the folder of an evolve run")
    if not (out / "rollouts").exists() and (run_folder / "rollouts/base").is_dir():
        shutil.copytree(run_folder / "rollouts/base", out / "rollouts/base")
    engine = LiberoEngine(options.workers, recipe.render, "coda/diagnoses")
    memory = Memory(out / "memory.sqlite")
    try:
        run = Run(out.absolute(), recipe, {}, engine, memory, ())
        state = State(checkpoint=str(checkpoint), actor="base", key=checkpoint_id(checkpoint))
        steps = Steps(out / "rounds/001", Display(), f"{run_folder.name} ")
        round_ = Round(
            run, 1, state, steps, Generator(engine, memory, steps, 1, leaks), recipe.budget.environments_per_round
        )
        probed = round_.probe()
        besides = held_out(run_folder)
        episodes = {archive.key_of(e): e for e in (*probed.episodes, *besides)}
        elsewhere = [d for e in besides if e.scene.suite != recipe.suite and (d := diagnose(e)) is not None]
        clusters = [*round_.cluster(probed), *cluster(elsewhere, minimum=recipe.validation.minimum)]
        diagnoses = {**probed.diagnoses, **{d.hash: d for d in elsewhere}}
        planted, programs = plant(clusters, diagnoses, episodes, recipe, options.seed)
        alone = len(diagnoses) - sum(c.size for c in clusters)
        probed = Probed(probed.placed, probed.episodes, {p.diagnosis.hash: p.diagnosis for p in planted})
        round_.remember(list({p.hash: p for p in programs.values()}.values()))
        player = SharingPlayer(round_, probed, programs, {id(p.trial): p.kind for p in planted})
        settings = recipe.validation
        validate(
            [p.trial for p in planted], player, probed.diagnoses, episodes, pairs=settings.pairs, alpha=settings.alpha
        )
        used = {"env_steps": steps.usage.steps.get("validation", 0), "left_alone": alone,
                "environments": steps.usage.validation_environments}  # fmt: skip
        return planted, used
    finally:
        memory.close()


def outcome(planted: Planted) -> str:
    return planted.trial.verdict.outcome if planted.trial.verdict else "undecided"


def rows_of(planted: Sequence[Planted], used: Counter[str], command: str) -> list[dict[str, Any]]:
    """The published rows."""

    def row(figure: str, value: float, unit: str, n: int | None = None, interval: tuple[float, float] | None = None):
        low, high = (round(bound, 4) for bound in interval) if interval else (None, None)
        return {"figure": figure, "value": value, "unit": unit, "peer": None, "ratio": None, "n": n,
                "low": low, "high": high, "command": command}  # fmt: skip

    def share(figure: str, some: Sequence[Planted], result: str = "validated") -> dict[str, Any]:
        hits = sum(outcome(p) == result for p in some)
        return row(figure, round(hits / len(some), 4), "share of diagnoses", len(some), wilson(hits, len(some)))

    true, false = [p for p in planted if p.kind == "true"], [p for p in planted if p.kind != "true"]
    rows = [share("true_validated", true), share("false_validated", false)]
    rows += [share("true_refuted", true, "refuted"), share("false_undecided", false, "undecided")]
    for mode in sorted({str(p.diagnosis.mode) for p in true}):
        rows.append(share(f"true_validated {mode}", [p for p in true if str(p.diagnosis.mode) == mode]))
    for suite in sorted({p.diagnosis.suite for p in true}):
        rows.append(share(f"true_validated {suite}", [p for p in true if p.diagnosis.suite == suite]))
    for kind in FALSE:
        if some := [p for p in false if p.kind == kind]:
            rows.append(share(f"false_validated {kind}", some))
    by_test = Counter(p.trial.verdict.decided_by for p in false if p.trial.verdict and outcome(p) == "refuted")
    rows += [row(f"false_refuted_by {test}", n, "diagnoses", len(false)) for test, n in by_test.most_common()]
    rows.append(row("validation_env_steps", used["env_steps"], "environment steps for all", len(planted)))
    rows.append(row("validation_env_steps_each", round(used["env_steps"] / len(planted), 1), "environment steps", 1))
    rows.append(row("left_alone", used["left_alone"], "failures in clusters below the recipe's minimum"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of evolve runs")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/diagnoses"), help="episodes; a run started again goes on"
    )
    parser.add_argument("--scenes", type=int, help="probe scenes, instead of the recipe's")
    parser.add_argument("--pairs", type=int, help="of scenes for each program at most, instead of the recipe's")
    parser.add_argument("--seed", type=int, default=0, help="of the false diagnoses")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    planted: list[Planted] = []
    used: Counter[str] = Counter()
    for folder in options.runs:
        found, spent = examine(folder, options.out / folder.name, options)
        planted += found
        used.update(spent)
    command = shlex.join(["python", *(arg for arg in sys.argv)])
    rows = rows_of(planted, used, command)
    told_of = [
        {"kind": p.kind, **p.diagnosis.model_dump(mode="json", include={"episode", "stage", "cause", "objects"}),
         "verdict": p.trial.verdict.model_dump(mode="json") if p.trial.verdict else None}
        for p in planted
    ]  # fmt: skip
    (options.out / "claims.json").write_text(json.dumps(told_of, indent=1))
    table = Table("figure", "value", "95 %", "n")
    for row in rows:
        interval = f"{row['low']:.3f} to {row['high']:.3f}" if row["low"] is not None else ""
        table.add_row(row["figure"], f"{row['value']:g}", interval, str(row["n"] or ""))
    Console().print(table)
    reasons = Counter((p.kind, outcome(p), p.trial.verdict.decided_by) for p in planted if p.trial.verdict)
    for (kind, result, test), n in sorted(reasons.items()):
        print(f"{n:4d} {kind}: {result} by {test}")
    if options.json:
        keep(options.json, rows)


if __name__ == "__main__":
    main()
