"""How a round learns: generate scenes within the budget, demonstrate in them, ground, write the dataset, fine-tune."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from lerobot_coda import archive
from lerobot_coda.budget import Usage
from lerobot_coda.console import Tick
from lerobot_coda.generation import Placed
from lerobot_coda.memory import content_hash
from lerobot_coda.programs import CoProgram, TrainingProgram, combine
from lerobot_coda.progress import allocate
from lerobot_coda.rounds import Probed, Round, Shard, State, evenly
from lerobot_coda.steps import write_json
from lerobot_coda.training import train_config
from libero_pro.episode import Episode

MINIMUM_DEMONSTRATIONS = 4  # fewer are not worth a shard


def learn(round_: Round, programs: Sequence[CoProgram], probed: Probed) -> State:
    """Trains on what the programs generate; the state is unchanged where there is nothing to train on."""
    run, recipe, state = round_.run, round_.recipe, round_.state
    plain = recipe.arm == "sft"  # more of the same training, no generated environment
    if not programs and not plain:
        return state
    plan = combine([p.training for p in programs], recipe.training)
    shard = None if plain else demonstrate(round_, programs, probed, plan)
    grounding = None if plain else ground(round_, programs)
    if shard is None and grounding is None and not plain:
        return state
    shards = (*state.shards, *([shard] if shard else []))
    grounding = grounding or state.grounding
    training_on = [*_replay(run.base_shards, sum(s.episodes for s in shards), plan.replay_share), *shards]
    key = content_hash(state.key, [s.model_dump() for s in training_on], grounding, plan.hash, round_.number)
    folder = round_.steps.folder

    def join(tick: Tick) -> tuple[Any, Usage]:
        run.engine.merge([run.folder / s.path for s in training_on], folder / "dataset")
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


def demonstrate(round_: Round, programs: Sequence[CoProgram], probed: Probed, plan: TrainingProgram) -> Shard | None:
    """Expert episodes in fresh scenes of the programs, and failed probe episodes in their modes, as a dataset shard."""
    run, folder = round_.run, round_.steps.folder
    shares = allocate(round_.budget - len(probed.placed), round_.scores(programs))
    wanted = {p.name: min(shares[p.name], p.training.demonstrations or shares[p.name]) for p in programs}
    round_.remember(programs)
    placed = round_.generator.scenes("scenes", wanted, programs)
    write_json(folder / "scenes.json", [_described(p) for p in placed])
    demos = run.folder / "demos" / f"{round_.number:03d}"

    def act(tick: Tick) -> tuple[Any, Usage]:
        shown = run.engine.demonstrate([p.scene for p in placed], demos, plan.noise, tick)
        run.memory.add(*archive.episode_rows(shown, "demonstration", run.folder, demos, "expert"))
        solved = [e.scene.hash for e in shown if e.success and e.invalid is None]
        return solved, Usage(environments=len(shown), steps={"expert": sum(map(len, shown))})

    solved: list[str] = round_.steps.run(
        "demonstrate", "demonstrate", len(placed), [[p.scene.hash for p in placed], plan.noise], act
    )
    # The last gate: a scene that the expert cannot solve cost an environment and teaches nothing.
    round_.generator.rejected.update({"expert": len(placed) - len(solved)})
    round_.generator.accepted -= len(placed) - len(solved)
    if len(solved) < MINIMUM_DEMONSTRATIONS:
        return None
    failed = probed.failures({p.mode for p in programs}) if plan.include_failures else []
    emphasis = Counter(p.training.emphasis for p in programs).most_common(1)[0][0]

    def write(tick: Tick) -> tuple[Any, Usage]:
        shown = [Episode.load(demos / f"{name}.npz") for name in solved]
        visited = run.engine.correct(failed, lambda done: None) if plan.corrections else failed
        run.engine.write_shard([*shown, *visited], folder / "shard", emphasis, tick)
        return None, Usage()

    count = len(solved) + len(failed)
    round_.steps.run(
        "shard", "dataset", count, [solved, [e.scene.hash for e in failed], emphasis, plan.corrections], write
    )
    return Shard(path=str((folder / "shard").relative_to(run.folder)), episodes=count)


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
