"""How a round learns: generate scenes within the budget, demonstrate in them, ground, settle the potential, fine-tune.

The episodes that a round gathers are stored before anything is made of them, so the potential is judged on them first
and then labels all that is trained on, earlier shards as well: a training set has one version of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lerobot_coda import archive
from lerobot_coda.baselines import shares
from lerobot_coda.budget import Usage
from lerobot_coda.console import Tick
from lerobot_coda.coprograms import specialize
from lerobot_coda.generation import Placed
from lerobot_coda.memory import content_hash
from lerobot_coda.potential.versions import Potentials, Settled, settle
from lerobot_coda.programs import CoProgram, TrainingProgram, combine
from lerobot_coda.progress import replay_share
from lerobot_coda.retention import retained
from lerobot_coda.rounds import Probed, Round, evenly
from lerobot_coda.starts import late_start
from lerobot_coda.state import Shard, State
from lerobot_coda.steps import write_json
from lerobot_coda.training import train_config
from libero_pro.episode import Episode

MINIMUM_DEMONSTRATIONS = 4  # fewer are not worth a shard


@dataclass(frozen=True)
class Gathered:
    """Stored episodes to learn from: files of those in fresh scenes, and failed probe episodes."""

    shown: tuple[Path, ...]
    failed: tuple[Episode, ...]

    def __len__(self) -> int:
        return len(self.shown) + len(self.failed)


def learn(round_: Round, programs: Sequence[CoProgram], probed: Probed) -> State:
    """Trains on what the programs generate; the state is unchanged where there is nothing to train on."""
    run, recipe, state = round_.run, round_.recipe, round_.state
    plain = recipe.rules.source == "none"  # more of the same training, no generated environment
    if not programs and not plain:
        return state
    plan, kept = plan_training(round_, programs)
    gathered = None if plain else gather(round_, programs, probed, plan)
    grounding = None if plain else ground(round_, programs)
    if gathered is None and grounding is None and not plain:
        return state
    settled = settle_potential(round_, programs, gathered, probed, plan)
    told = {"training": plan, "potential": settled}
    write_json(
        round_.steps.folder / "training.json",
        {**{name: record.model_dump(mode="json") for name, record in told.items()}, "replay": kept},
    )
    shard = write_shard(round_, gathered, settled.potentials, plan) if gathered else None
    shards = (*state.shards, *([shard] if shard else []))
    grounding = grounding or state.grounding
    training_on = [*_replay(run.base_shards, sum(s.episodes for s in shards), plan.replay_share), *shards]
    version = settled.potentials
    key = content_hash(
        state.key, [s.model_dump() for s in training_on], grounding, plan.hash, version.hash, round_.number
    )
    folder = round_.steps.folder

    def join(tick: Tick) -> tuple[Any, Usage]:
        run.engine.merge([run.folder / s.path for s in training_on], folder / "dataset", version, stored(run.folder))
        return None, Usage()

    round_.steps.run("dataset", "merge", 1, key, join)
    config = train_config(
        run.train_recipe,
        dataset=folder / "dataset",
        output=folder / "train",
        steps=plan.steps,
        seed=recipe.seed + round_.number,
        start=run.folder / state.checkpoint,
        repo_id=f"coda/{recipe.name}-round-{round_.number}",
        policy=plan.policy_overrides(run.folder / grounding if grounding else None),
    )

    def train(tick: Tick) -> tuple[Any, Usage]:
        checkpoint = run.engine.train(config, folder / "train.yaml", tick)
        return str(checkpoint.relative_to(run.folder)), Usage()

    checkpoint = round_.steps.run("train", "train", plan.steps, key, train)
    learned = {"checkpoint": checkpoint, "actor": f"r{round_.number:03d}", "key": key}
    return state.model_copy(update={**learned, "shards": shards, "grounding": grounding})


def plan_training(round_: Round, programs: Sequence[CoProgram]) -> tuple[TrainingProgram, str]:
    """One training for the programs within what the arm allows, and why it replays as much as it does."""
    recipe = round_.recipe
    plan = combine([p.training for p in programs], recipe.training)
    share, why = replay_share(retained(round_), plan.replay_share)
    changed: dict[str, Any] = {"replay_share": share}
    if not recipe.rules.experts:
        changed |= {"corrections": False, "include_failures": True, "noise": 0.0}
    if (round_.run.train_recipe.get("policy") or {}).get("value_q"):
        changed["n_action_steps"] = None  # Q heads take chunks of the length that they were made for
    return plan.model_copy(update=changed), why


def gather(round_: Round, programs: Sequence[CoProgram], probed: Probed, plan: TrainingProgram) -> Gathered | None:
    """Episodes in fresh scenes of the programs, by the expert or else the policy itself, and failed probe episodes."""
    placed = fresh_scenes(round_, programs, probed)
    write_json(round_.steps.folder / "scenes.json", [_described(p) for p in placed])
    shown = demonstrate(round_, placed, plan.noise) if round_.recipe.rules.experts else practice(round_, placed)
    if len(shown) < MINIMUM_DEMONSTRATIONS:
        return None
    failed = probed.failures({p.mode for p in programs}) if plan.include_failures else []
    return Gathered(tuple(shown), tuple(failed))


def fresh_scenes(round_: Round, programs: Sequence[CoProgram], probed: Probed) -> list[Placed]:
    """A round's scenes to learn in, as many as the probe left of its budget.

    Split by the arm's rule over the programs; some of a program's begin late, or are worded otherwise, where its
    training program asks for it. The failure-replay arm's begin with the failed scenes of the probe.
    """
    again = _failed_scenes(probed) if round_.recipe.rules.source == "failures" else []
    again = again[: round_.budget - len(probed.placed)]
    if again:
        tasks = {p.scene.task_id for p in again}
        programs = [specialize(p, tasks, round_.number) for p in programs]
        round_.generator.book({}, [p.scene for p in again])
    share = shares(
        round_.recipe.rules,
        round_.budget - len(probed.placed) - len(again),
        round_.scores(programs),
        waited={name: round_.number - m.round for name, m in round_.state.measured.items()},
        weights={p.name: p.training.sampling_weight for p in programs},
    )
    wanted = {p.name: min(share[p.name], p.training.demonstrations or share[p.name]) for p in programs}
    late: list[CoProgram] = []
    for program in programs:
        begun, start = late_start(program, probed.episodes[1::2]), program.training.start
        if begun is not None and start is not None:
            count = min(begun.scenes, round(start.share * wanted[program.name]))
            wanted |= {program.name: wanted[program.name] - count, begun.program.name: count}
            late.append(begun.program)
    round_.remember([*programs, *late])
    words = {p.name: p.training.rephrase_share for p in programs}
    return [*again, *round_.generator.scenes("scenes", wanted, [*programs, *late], words)]


def demonstrate(round_: Round, placed: Sequence[Placed], noise: float) -> list[Path]:
    """The expert's episodes in the scenes; files of those that it solved."""
    run, demos = round_.run, round_.run.folder / "demos" / f"{round_.number:03d}"

    def act(tick: Tick) -> tuple[Any, Usage]:
        shown = run.engine.demonstrate([p.scene for p in placed], demos, noise, tick)
        run.memory.add(*archive.episode_rows(shown, "demonstration", run.folder, demos, "expert"))
        solved = [e.scene.hash for e in shown if e.success and e.invalid is None]
        return solved, Usage(environments=len(shown), steps={"expert": sum(map(len, shown))})

    solved: list[str] = round_.steps.run(
        "demonstrate", "demonstrate", len(placed), [[p.scene.hash for p in placed], noise], act
    )
    # The last gate: a scene that the expert cannot solve cost an environment and teaches nothing.
    round_.generator.rejected.update({"expert": len(placed) - len(solved)})
    round_.generator.accepted -= len(placed) - len(solved)
    return [demos / f"{name}.npz" for name in solved]


def practice(round_: Round, placed: Sequence[Placed]) -> list[Path]:
    """The policy's own episodes in the scenes, failed ones as well: what it learns from without an expert."""
    played = round_.rollout("practice", "probe", placed, Usage(environments=len(placed)))
    folder, actor = round_.run.folder, round_.state.actor
    return [folder / archive.episode_path(actor, e.scene.hash) for e in played if e.invalid is None and len(e)]


def settle_potential(
    round_: Round, programs: Sequence[CoProgram], gathered: Gathered | None, probed: Probed, plan: TrainingProgram
) -> Settled:
    """The version of the potential that this round's training set gets, judged on the round's stored episodes."""
    recipe = round_.recipe
    if not recipe.rules.potential:
        return Settled(potentials=Potentials(form="none"))
    asked = [(p.name, p.training.refinement) for p in programs if p.training.refinement is not None]
    if not asked or plan.value_weight == 0:
        return Settled(potentials=Potentials())
    shown = gathered.shown if gathered else ()

    def judge(tick: Tick) -> tuple[Any, Usage]:
        episodes = [*(Episode.load(path) for path in shown), *probed.episodes]
        return settle(asked, episodes, recipe.potential.accept).model_dump(mode="json"), Usage()

    inputs = [
        [[name, refinement.hash] for name, refinement in asked],
        [path.stem for path in shown],
        [archive.key_of(e) for e in probed.episodes],
        recipe.potential.accept.hash,
    ]
    return Settled.parse(round_.steps.run("potential", "potential", len(asked), inputs, judge))


def write_shard(round_: Round, gathered: Gathered, potentials: Potentials, plan: TrainingProgram) -> Shard:
    """The gathered episodes as a dataset shard, failed ones with the expert's corrections where the plan says so."""
    run, root = round_.run, round_.steps.folder / "shard"

    def write(tick: Tick) -> tuple[Any, Usage]:
        shown = [Episode.load(path) for path in gathered.shown]
        failed = list(gathered.failed)
        visited = run.engine.correct(failed, lambda done: None) if plan.corrections else failed
        run.engine.write_shard([*shown, *visited], root, potentials, tick)
        return None, Usage()

    names, failed = [path.stem for path in gathered.shown], [e.scene.hash for e in gathered.failed]
    round_.steps.run("shard", "dataset", len(gathered), [names, failed, potentials.hash, plan.corrections], write)
    return Shard(path=str(root.relative_to(run.folder)), episodes=len(gathered))


def ground(round_: Round, programs: Sequence[CoProgram]) -> str | None:
    """Static layouts for the programs that ask for grounding, joined with the earlier set; its path in the run."""
    run = round_.run
    asking = [p for p in programs if p.training.grounding_layouts]
    shares = evenly(asking, round_.recipe.budget.layouts_per_round)
    wanted = {p.name: min(shares[p.name], p.training.grounding_layouts) for p in asking}
    if not sum(wanted.values()):
        return None
    out = round_.steps.folder / "grounding.safetensors"
    earlier = run.folder / round_.state.grounding if round_.state.grounding else None

    def work(tick: Tick) -> tuple[Any, Usage]:
        scenes, rejected = round_.generator.layouts(wanted, asking)
        run.engine.ground(scenes, out, earlier, tick)
        leaked = sum(round_.generator.leaks(scene) is not None for scene in scenes)
        return {"rejected": dict(rejected), "leaked": leaked}, Usage(layouts=len(scenes))

    inputs = [[[p.hash, wanted[p.name]] for p in asking], round_.state.grounding]
    result = round_.steps.run("ground", "ground", sum(wanted.values()), inputs, work)
    round_.generator.rejected.update(result["rejected"])
    round_.generator.leaked += result["leaked"]
    return str(out.relative_to(run.folder))


def stored(run: Path) -> list[Path]:
    """Files of all episodes that a run's shards may have been written from."""
    return sorted([*(run / "demos").glob("*/*.npz"), *(run / "rollouts").glob("*/*.npz")])


def _failed_scenes(probed: Probed) -> list[Placed]:
    """The scenes that the policy failed in, out of the half of the probe that may be trained on."""
    half = list(zip(probed.placed, probed.episodes, strict=True))[1::2]
    return [placed for placed, episode in half if episode.invalid is None and not episode.success]


def _replay(base: Sequence[Shard], fresh: int, share: float) -> list[Shard]:
    """The first base shards that make up at least `share` of all episodes; all of them where that is not enough."""
    taken: list[Shard] = []
    for shard in base:
        have = sum(s.episodes for s in taken)
        if have and have >= share * (have + fresh):
            break
        taken.append(shard)
    return taken if share > 0 or not fresh else []


def _described(placed: Placed) -> dict[str, Any]:
    return {"program": placed.program, "hash": placed.scene.hash, "scene": placed.scene.model_dump(mode="json")}
