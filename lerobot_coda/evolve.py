"""The loop: a data engine and a policy that improve each other, round by round.

    base policy -> held-out evaluation
    repeat: probe -> diagnose -> cluster -> compile -> validate -> generate, demonstrate, train -> measure -> decide
    held-out evaluation, frontier comparison, summary

Everything a run knows lies in its folder. Costly steps are done once (`Steps`), so a run that was killed anywhere goes
on when the same command is given again.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lerobot_coda import archive, runfolder
from lerobot_coda.base import make_base
from lerobot_coda.budget import Usage
from lerobot_coda.console import Display
from lerobot_coda.engine import Engine, LiberoEngine
from lerobot_coda.generation import Generator
from lerobot_coda.heldout import compare_frontier, evaluate
from lerobot_coda.learning import learn
from lerobot_coda.memory import Memory
from lerobot_coda.outlook import plan
from lerobot_coda.recipe import EvolveRecipe, load_evolve, read_yaml
from lerobot_coda.rounds import MINIMUM_ENVIRONMENTS, Round, Run
from lerobot_coda.state import State
from lerobot_coda.steps import Steps, write_json
from lerobot_coda.tracking import Track, heldout_numbers, round_numbers, tracking, training_numbers
from libero_pro.denylist import leaks

After = Callable[[Callable[[str], None]], None]


def evolve(
    recipe_path: Path, output: Path, *, changes: Mapping[str, Any] | None = None, engine: Engine | None = None,
    display: Display | None = None, after: After | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Runs a recipe, or goes on with it, in the folder `output`; returns the summary (summary.json).

    changes  keys of the recipe that are to be others, such as its arm or its seed
    after    called when a round is finished, with what says a line to the person who looks on
    """
    recipe, trains = read(recipe_path, changes)
    folder, display = Path(output).absolute(), display or Display()
    with runfolder.claimed(folder, recipe, trains):
        engine = engine or LiberoEngine.of(recipe)
        memory = Memory(recipe.memory or folder / "memory.sqlite", blobs=folder / "memory.blobs")
        display.plan(plan(recipe))
        try:
            identity = runfolder.identity(recipe, trains)
            archive.claim(memory, recipe, identity)
            with tracking(recipe.tracker, folder, recipe.name, identity, recipe.model_dump(mode="json")) as track:
                return _evolve(folder, recipe, trains, engine, memory, display, after, track)
        finally:
            memory.close()


def read(
    recipe_path: Path, changes: Mapping[str, Any] | None = None
) -> tuple[EvolveRecipe, dict[str, dict[str, Any]]]:  # fmt: skip
    """The evolve recipe and the train recipes it names: of the rounds, and of the base policy if it is trained."""
    recipe, beside = load_evolve(recipe_path, changes), Path(recipe_path).parent
    named = {"base": recipe.base.train, "round": recipe.training.train}
    return recipe, {key: read_yaml(beside / name) for key, name in named.items() if name is not None}


def _evolve(
    folder: Path, recipe: EvolveRecipe, trains: Mapping[str, Any], engine: Engine, memory: Memory, display: Display,
    after: After | None, track: Track,
) -> dict[str, Any]:  # fmt: skip
    made, ends = Steps(folder / "base", display, "base "), Steps(folder / "heldout", display, "held-out ")
    summary = runfolder.Summary(folder, recipe)
    shards, base = make_base(folder, recipe, trains.get("base"), engine, memory, made)
    run = Run(folder, recipe, trains["round"], engine, memory, shards)
    summary.heldout["before"] = evaluate(run, base, "before", ends)
    summary.write(made.usage + ends.usage, made.usage)
    track("held-out before", heldout_numbers(summary.heldout["before"]), 0)

    state, used = base, Usage()
    for number in range(1, recipe.rounds + 1):
        hours = sum((made.usage + ends.usage + used).seconds.values()) / 3600
        if stop := recipe.budget.spent(used, MINIMUM_ENVIRONMENTS, hours):
            summary.stopped = f"before round {number}: {stop}"
            display.say(f"[yellow]the budget ends the run {summary.stopped}[/yellow]")
            display.drop("round ")
            break
        steps = Steps(folder / "rounds" / f"{number:03d}", display, f"round {number} ")
        generator = Generator(engine, memory, steps, number, leaks)
        round_ = Round(run, number, state, steps, generator, recipe.budget.environments_left(used))
        state, report = play_round(round_)
        used = used + steps.usage
        display.drop(f"round {number} ")
        summary.rounds.append(report)
        summary.write(made.usage + ends.usage + used, made.usage)
        trained = training_numbers(steps.folder / "train.log")
        track(f"round {number}", {**trained, **round_numbers(report)}, number)
        for line in in_words(report):
            display.say(line)
        if after is not None:
            after(display.say)

    summary.heldout["after"] = evaluate(run, state, "after", ends)
    track("held-out after", heldout_numbers(summary.heldout["after"]), len(summary.rounds))
    summary.frontier = compare_frontier(run, base, state, summary.rounds, ends)
    return summary.write(made.usage + ends.usage + used, made.usage, finished=True)


def play_round(round_: Round) -> tuple[State, dict[str, Any]]:
    """One round, as the paper tells it; returns the next round's state and this one's report (round.json)."""
    probed = round_.probe()
    clusters = round_.cluster(probed)
    candidates = round_.compile(clusters)
    verdicts, trials = round_.validate(candidates, probed)
    programs = round_.active(candidates, verdicts)
    learned = learn(round_, programs, probed)
    measured, frontier = round_.measure(learned, programs, probed, trials)
    decisions, following = round_.decide(learned, programs, measured, probed)

    revived = [r.program for r in round_.state.retired if r.program.name in decisions]
    outcomes = {name: verdict.outcome for name, verdict in verdicts.items()}
    verdict_of = {found.hash: outcomes[p.name] for p, found in candidates if p.name in outcomes}
    told: Counter[str] = Counter()
    for found in clusters:
        told[verdict_of.get(found.hash, "untested")] += found.size
    generator, usage = round_.generator, round_.steps.usage
    report = {
        "round": round_.number,
        "checkpoint_before": round_.state.actor,
        "checkpoint_after": learned.actor,
        "programs": [
            {
                "name": name,
                "mode": program.mode,
                "hash": program.hash,
                "difficulty": program.generation.difficulty,
                "operations": [operation.model_dump(mode="json") for operation in program.generation.operations],
                "state": "active" if program in programs else outcomes.get(name, "untested"),
                "verdict": verdicts[name].model_dump(mode="json") if name in verdicts else None,
                "measurement": measured[name].model_dump(mode="json") if name in measured else None,
                "decision": vars(decisions[name]) if name in decisions else None,
            }
            for name, program in {p.name: p for p in (*(p for p, _ in candidates), *programs, *revived)}.items()
        ],
        "clusters": [
            {**c.model_dump(mode="json", exclude={"diagnoses"}), "hash": c.hash, "size": c.size,
             "verdict": verdict_of.get(c.hash)}
            for c in clusters
        ],
        "diagnoses": {"made": len(probed.diagnoses), **told},
        "measurements": [m.model_dump(mode="json") for m in measured.values()],
        "frontier": frontier,
        "critic": {"kind": round_.recipe.critic.kind, **round_.asked.model_dump(mode="json")},
        "rejected": dict(+generator.rejected),
        "accepted": generator.accepted,
        "leaked": generator.leaked,
        "usage": usage.model_dump(mode="json"),
        "seconds": round(sum(usage.seconds.values()), 1),
    }  # fmt: skip
    write_json(round_.steps.folder / "round.json", report)
    round_.run.memory.add_all([archive.round_row(report), archive.usage_row(round_.number, usage)])
    return following, report


def in_words(report: Mapping[str, Any]) -> list[str]:
    """A round in a few lines."""
    number, frontier = report["round"], report["frontier"]
    lines = [f"round {number}: {report['diagnoses']['made']} failures diagnosed"]
    for program in report["programs"]:
        verdict, decision = program["verdict"], program["decision"]
        if verdict:
            lines.append(f"  {program['name']}: {verdict['outcome']}, {verdict['reason']}")
        if decision:
            lines.append(f"  {program['name']}: {decision['action']}, {decision['reason']}")
    if frontier["n"]:
        before, after = frontier["before"], frontier["after"]
        lines.append(
            f"  frontier: {before['successes']}/{frontier['n']} before, {after['successes']}/{frontier['n']} after "
            f"(paired, p={frontier['p_value']:.3g})"
        )
    else:
        lines.append("  nothing was decided, so nothing was trained")
    return lines
