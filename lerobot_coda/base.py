"""The base policy: expert demonstrations from fresh resets, then plain fine-tuning by `lerobot-train`.

Or a policy that is there already: then the demonstrations are made for later rounds to replay.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lerobot_coda import archive
from lerobot_coda import pretrained as shipped
from lerobot_coda.budget import Usage
from lerobot_coda.console import Tick
from lerobot_coda.demos import enough
from lerobot_coda.engine import Engine, Gated
from lerobot_coda.memory import Memory, content_hash
from lerobot_coda.recipe import EvolveRecipe
from lerobot_coda.state import Shard, State
from lerobot_coda.steps import Steps
from lerobot_coda.training import train_config
from libero_pro.episode import Episode
from libero_pro.record import RecordError
from libero_pro.suites import scene_for

WEIGHTS = "model.safetensors"
SHARD_EPISODES = 60  # demonstrations a shard holds, so that replay can take a share of them


def make_base(
    folder: Path, recipe: EvolveRecipe, train: Mapping[str, Any] | None, engine: Engine, memory: Memory, steps: Steps
) -> tuple[tuple[Shard, ...], State]:
    """Demonstrates (never from the released starts), writes shards, trains; returns the shards and the first state.

    train  the base policy's train recipe; None where the recipe names a policy
    """
    given = None if recipe.base.policy is None else pretrained(recipe.base.policy)
    scenes = [
        scene_for(recipe.suite, task_id, seed=1000 * recipe.seed + k, prompt_source=recipe.heldout.prompt_source)
        for k in range(recipe.base.demos_per_task)
        for task_id in recipe.task_ids
    ]
    for rows in archive.scene_rows([Gated(s) for s in scenes], None):
        memory.add(*rows)
    demos = folder / "demos" / "base"

    def act(tick: Tick) -> tuple[Any, Usage]:
        shown = engine.demonstrate(scenes, demos, recipe.base.noise, tick)
        memory.add(*archive.episode_rows(shown, "base", folder, demos, "expert"))
        return [e.scene.hash for e in enough(shown)], Usage(steps={"base": sum(map(len, shown))})

    key = [[s.hash for s in scenes], recipe.base.noise]
    solved: list[str] = steps.run("demonstrate", "demonstrate", len(scenes), key, act)
    count = max(1, len(solved) // SHARD_EPISODES)
    shards = []
    for index in range(count):
        part, root = solved[index::count], folder / "base" / "shards" / f"{index:03d}"

        def write(tick: Tick, part: list[str] = part, root: Path = root) -> tuple[Any, Usage]:
            engine.write_shard([Episode.load(demos / f"{name}.npz") for name in part], root, None, tick)
            return None, Usage()

        steps.run(f"shard {index + 1} of {count}", "dataset", len(part), part, write)
        shards.append(Shard(path=str(root.relative_to(folder)), episodes=len(part)))

    if given is not None:
        return tuple(shards), adopt(given, folder)
    assert train is not None  # the recipe's own check

    def join(tick: Tick) -> tuple[Any, Usage]:
        engine.merge([folder / s.path for s in shards], folder / "base" / "dataset")
        return None, Usage()

    steps.run("dataset", "merge", 1, [s.model_dump() for s in shards] + solved, join)
    config = train_config(
        train, dataset=folder / "base" / "dataset", output=folder / "base" / "train", steps=recipe.base.steps,
        seed=recipe.seed, repo_id=f"coda/{recipe.name}-base",
    )  # fmt: skip

    def fit(tick: Tick) -> tuple[Any, Usage]:
        checkpoint = engine.train(config, folder / "base" / "train.yaml", tick)
        return str(checkpoint.relative_to(folder)), Usage()

    inputs = [solved, recipe.base.steps, recipe.seed, {k: v for k, v in train.items() if k != "dataset"}]
    checkpoint = steps.run("train", "sft", recipe.base.steps, inputs, fit)
    return tuple(shards), State(checkpoint=checkpoint, actor="base", key=content_hash("base", inputs))


def pretrained(named: str) -> Path:
    """The checkpoint folder of a shipped policy's name or a path; RecordError if it holds no policy of type coda."""
    folder = shipped.folder(named) if named in shipped.names() else Path(named)
    try:
        kind = json.loads((folder / "config.json").read_text(encoding="utf-8"))["type"]
    except (OSError, ValueError, KeyError, TypeError):
        known = ", ".join(shipped.names())
        raise RecordError(
            f"base.policy '{named}' is no checkpoint folder, and none of the shipped ones: {known}"
        ) from None
    if kind != "coda" or not (folder / WEIGHTS).is_file():
        raise RecordError(
            f"base.policy '{named}' is no whole policy of type coda (it is '{kind}'); train around it with base.train"
        )
    return folder


def adopt(given: Path, folder: Path) -> State:
    """A copy of the checkpoint `given` in the run's folder, as the state that the run starts from."""
    digest, own = hashlib.sha256((given / WEIGHTS).read_bytes()).hexdigest()[:16], folder / "base" / "policy"
    if not own.exists():
        half = own.with_name("policy.part")
        shutil.rmtree(half, ignore_errors=True)
        shutil.copytree(given, half)
        half.rename(own)
    return State(checkpoint=str(own.relative_to(folder)), actor="base", key=content_hash("base", digest))
