"""A world without physics: an engine whose policy gets better by training, and that can be killed at any call."""

from collections import Counter
from pathlib import Path

import numpy as np
import yaml
from synthetic import lost, scene, solved

from lerobot_coda.engine import Gated
from lerobot_coda.potential.versions import Potentials
from libero_pro.episode import Episode
from libero_pro.layouts import layout
from libero_pro.record import write_atomically
from libero_pro.scene import Pose, SceneSpec
from libero_pro.suites import get_task

RECIPE = {
    "name": "tiny",
    "suite": "libero_object",
    "task_ids": [2, 5, 9],
    "rounds": 2,
    "base": {"train": "train.yaml", "demos_per_task": 2, "steps": 5},
    "probe": {"scenes": 12, "difficulty": 0.6},
    "validation": {"pairs": 8, "programs": 1},
    "training": {"train": "train.yaml", "steps": 7},
    "heldout": {"suites": ["libero_object", "libero_object_swap"], "episodes_per_task": 2},
    "budget": {"environments_per_round": 24, "layouts_per_round": 10},
}
TRAIN = {"dataset": {"repo_id": "x/y", "root": "z"}, "policy": {"type": "coda"}, "steps": 100}


def write_recipes(folder: Path, **changes) -> Path:
    """The evolve recipe and the train recipe it names; `changes` replace or, as mappings, update sections."""
    data = {
        key: {**value, **changes.pop(key, {})} if isinstance(value, dict) else value for key, value in RECIPE.items()
    }
    (folder / "train.yaml").write_text(yaml.safe_dump(TRAIN))
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(data | changes))
    return path


class Killed(BaseException):
    """Stands for kill -9: nothing catches it."""


class FakeEngine:
    """Base scenes are solved; generated ones only by a policy whose training had demonstrations in them.

    The untrained policy goes where the task's own target stands unperturbed, and so finds what has been put there.
    `skill` of a checkpoint is how many rounds' shards it was trained on; a generated scene is solved if a draw by its
    hash lies under it. `calls` counts, `kill_at` raises Killed at that call.
    """

    def __init__(self, kill_at: int | None = None, learns: bool = True):
        self.calls: Counter[str] = Counter()
        self.log: list[str] = []
        self.kill_at, self.learns = kill_at, learns
        self.configs: list[dict] = []

    def _call(self, name: str) -> None:
        self.log.append(name)
        self.calls[name] += 1
        if self.kill_at is not None and len(self.log) == self.kill_at:
            raise Killed

    def sample(self, program, count, stream, first):
        seed = stream % 10_000 * 100 + program.domain % 1000 * 1_000_000
        return [
            scene(seed + index, program.task_ids[index % len(program.task_ids)], program=program.hash)
            .model_copy(update={"objects": {"milk_1": Pose(position=(0.1, index * 1e-3, program.difficulty))}})
            for index in range(first, first + count)
        ]  # fmt: skip

    def gate(self, scenes, tick, *, static=False):
        self._call("gate static" if static else "gate")
        return [Gated(s, "settles", "it tips over") if s.seed % 7 == 0 else Gated(s) for s in scenes]

    def demonstrate(self, scenes, out, noise, tick):
        self._call("demonstrate")
        return [self._keep(solved(s, "expert"), out) for s in scenes]

    def rollout(self, checkpoint, scenes, out, tick):
        self._call("rollout")
        skill = int((Path(checkpoint) / "skill").read_text())
        played = []
        for index, where in enumerate(scenes):
            played_out = solved if self.wins(where, skill) else lost
            played.append(self._keep(played_out(where, f"policy:{checkpoint.parent.name}"), out))
            tick(index + 1)
        return played

    def wins(self, where, skill):
        return not where.objects or memorized(where) or int(where.hash, 16) % 100 < 40 * skill

    def correct(self, episodes, tick):
        self._call("correct")
        return list(episodes)

    def write_shard(self, episodes, root, potentials, tick):
        self._call("shard")
        write_atomically(root / "shard", "\n".join(e.scene.hash for e in episodes).encode())

    def merge(self, shards, root, potentials=None, sources=()):
        self._call("merge")
        write_atomically(root / "dataset", "\n".join(str(s) for s in shards).encode())
        (potentials or Potentials()).save(root / "potential.json")

    def ground(self, scenes, out, earlier, tick):
        self._call("ground")
        write_atomically(out, f"{len(scenes)} after {earlier}".encode())

    def train(self, config, path, tick):
        self._call("train")
        self.configs.append(dict(config))
        write_atomically(path, yaml.safe_dump(dict(config)).encode())
        trained_on = (Path(config["dataset"]["root"]) / "dataset").read_text()
        checkpoint = Path(config["output_dir"]) / "checkpoints" / "last" / "pretrained_model"
        write_atomically(checkpoint / "skill", str(trained_on.count("rounds/") if self.learns else 0).encode())
        return checkpoint

    def evaluate(self, checkpoint, heldout, task_ids, out, tick):
        self._call("evaluate")
        skill = int((checkpoint / "skill").read_text())
        return [
            {"suite": suite, "task_id": t, "success": suite == "libero_object" or k < skill, "invalid": "", "steps": 10}
            for suite in heldout.suites
            for t in task_ids
            for k in range(heldout.episodes_per_task)
        ]

    def _keep(self, episode: Episode, out: Path) -> Episode:
        path = Path(out) / f"{episode.scene.hash}.npz"
        if not path.exists():
            episode.save(path)
        return episode


def memorized(where: SceneSpec) -> bool:
    """Whether the instructed object stands where the base task's own target does."""
    target, found = where.goal[0][1], layout(where.suite, where.task_id)
    place = found.objects[get_task(where.suite, where.task_id).goal()[0][1]].position
    return bool(np.allclose(where.objects[target].position[:2], place[:2], atol=1e-3))


def numbers(summary: dict) -> dict:
    """What a run must give again after a kill: everything but times and versions."""

    def clean(value):
        if isinstance(value, dict):
            return {k: clean(v) for k, v in value.items() if k not in ("seconds", "started", "command", "versions")}
        if isinstance(value, list):
            return [clean(v) for v in value]
        return np.round(value, 9) if isinstance(value, float) else value

    return clean(summary)
