"""What the loop needs from the world: `Engine` is the seam, `LiberoEngine` is the real one.

The loop decides; the engine only does. Every method tolerates being called again after it was cut off: episodes found
on disk are not run again, datasets are written anew.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lerobot_coda.console import Tick
from lerobot_coda.potential.versions import Potentials
from lerobot_coda.recipe import EvolveRecipe, Heldout, Render
from libero_pro.episode import Episode
from libero_pro.goals import roles
from libero_pro.programs import GenerationProgram, LayoutError
from libero_pro.record import RecordError
from libero_pro.replacement import task_of
from libero_pro.scene import SceneSpec
from libero_pro.suites import Task, scene_for, tasks
from libero_pro.workers import Crew, Workers


@dataclass(frozen=True)
class Gated:
    """A scene and what the validity gates said: `gate` is the one that rejected it, "" if none did."""

    scene: SceneSpec
    gate: str = ""
    reason: str = ""

    @property
    def accepted(self) -> bool:
        """Whether every gate let it pass."""
        return not self.gate


class Engine(Protocol):
    """The world as the loop sees it. `tick` takes the number of units done so far; lists come in the order asked."""

    def sample(self, program: GenerationProgram, count: int, stream: int, first: int) -> list[SceneSpec]:
        """Scenes `first` to `first + count - 1` of a program's stream, without those that have no free layout."""

    def gate(self, scenes: Sequence[SceneSpec], tick: Tick, *, static: bool = False) -> list[Gated]:
        """The verdict on each scene. `static`: only what an image needs, no physics.

        RecordError where a scene could not be judged (a worker was lost twice): that is no verdict on it.
        """

    def demonstrate(self, scenes: Sequence[SceneSpec], out: Path, noise: float, tick: Tick) -> list[Episode]:
        """The expert's episode in each scene, stored as `out/<scene hash>.npz`."""

    def rollout(self, checkpoint: Path, scenes: Sequence[SceneSpec], out: Path, tick: Tick) -> list[Episode]:
        """The policy's episode in each scene, stored as `out/<scene hash>.npz`."""

    def correct(self, episodes: Sequence[Episode], tick: Tick) -> list[Episode]:
        """Episodes of the policy with the expert's actions in the states it visited."""

    def write_shard(self, episodes: Sequence[Episode], root: Path, potentials: Potentials | None, tick: Tick) -> None:
        """Writes a dataset shard, in place of one that is there; None labels it with the goals' own potentials."""

    def merge(
        self,
        shards: Sequence[Path],
        root: Path,
        potentials: Potentials | None = None,
        sources: Sequence[Path] = (),
    ) -> None:
        """Joins shards into one dataset, in place of one that is there, whose potential is of one version throughout.

        sources  files of the stored episodes, from which shards of another version are labeled anew
        """

    def ground(self, scenes: Sequence[SceneSpec], out: Path, earlier: Path | None, tick: Tick) -> None:
        """Writes a grounding set of the static layouts, joined with an earlier set."""

    def train(self, config: Mapping[str, Any], path: Path, tick: Tick) -> Path:
        """Writes the configuration to `path`, runs `lerobot-train` on it and returns the checkpoint's folder."""

    def evaluate(
        self, checkpoint: Path, heldout: Heldout, task_ids: Sequence[int], out: Path, tick: Tick
    ) -> list[dict[str, Any]]:
        """The benchmark on held-out suites: one row an episode with suite, task_id, success, invalid, steps."""


@dataclass(frozen=True)
class LiberoEngine:
    """The real world: LIBERO-Pro in `workers` processes, datasets by LeRobot, training by its command.

    crew  whatever has no images for a result happens there, if there is one; images are always drawn here
    """

    workers: int
    render: Render
    repo_id: str
    crew: Crew | None = None

    @classmethod
    def of(cls, recipe: EvolveRecipe) -> "LiberoEngine":
        """As the recipe has it; RecordError where its Ray cannot be reached."""
        crew, there = None, recipe.rollout
        if there.backend == "ray":
            from libero_pro.ray_workers import RayWorkers

            crew = RayWorkers.connect(there.workers or max(1, recipe.workers), there.address)
        return cls(recipe.workers, recipe.render, f"coda/{recipe.name}", crew)

    @property
    def _players(self) -> Workers:
        return self.workers if self.crew is None else self.crew

    def sample(self, program: GenerationProgram, count: int, stream: int, first: int) -> list[SceneSpec]:
        scenes = []
        for index in range(first, first + count):
            try:
                scenes.append(program.sample(np.random.default_rng((program.domain, stream, index))))
            except LayoutError:
                continue
        return scenes

    def gate(self, scenes: Sequence[SceneSpec], tick: Tick, *, static: bool = False) -> list[Gated]:
        from libero_pro.judge import judge

        gated = [Gated(scene) for scene in scenes]
        for done, (index, verdict) in enumerate(judge(scenes, workers=self._players, static=static), 1):
            gated[index] = Gated(scenes[index], verdict.gate or "", verdict.reason)
            tick(done)
        return gated

    def demonstrate(self, scenes: Sequence[SceneSpec], out: Path, noise: float, tick: Tick) -> list[Episode]:
        from libero_pro.demonstrate import demonstrate

        found = demonstrate(
            scenes, workers=self._players, noise=noise, out=out, progress=lambda done, total: tick(done)
        )
        by_scene = {episode.scene.hash: episode for episode in found}
        return [by_scene[scene.hash] for scene in scenes]

    def rollout(self, checkpoint: Path, scenes: Sequence[SceneSpec], out: Path, tick: Tick) -> list[Episode]:
        from libero_pro.rollout import run

        return list(
            run(
                _policy(checkpoint),
                scenes,
                workers=self._players,
                profile=self.render.profile,
                out=out,
                progress=lambda done, total: tick(done),
            )
        )

    def correct(self, episodes: Sequence[Episode], tick: Tick) -> list[Episode]:
        from libero_pro.demonstrate import correct

        return correct(episodes, workers=self._players, progress=lambda done, total: tick(done))

    def write_shard(self, episodes: Sequence[Episode], root: Path, potentials: Potentials | None, tick: Tick) -> None:
        from lerobot_coda.relabel import VERSION
        from libero_pro.dataset import write_dataset

        shutil.rmtree(root, ignore_errors=True)
        version = potentials or Potentials()
        write_dataset(
            episodes,
            root,
            repo_id=f"{self.repo_id}-{root.parent.name}-{root.name}",
            columns=partial(_columns, potentials=version, render_every=self.render.every),
            cameras=self.render.cameras,
            render_every=self.render.every,
            profile=self.render.profile,
            size=self.render.size,
            workers=self.workers,
            progress=lambda done, total: tick(done),
        )
        version.save(root / VERSION)

    def merge(
        self,
        shards: Sequence[Path],
        root: Path,
        potentials: Potentials | None = None,
        sources: Sequence[Path] = (),
    ) -> None:
        from lerobot_coda.relabel import VERSION, relabel, version_of
        from libero_pro.dataset import merge

        version, joined = potentials or Potentials(), root.with_name(root.name + ".joined")
        for folder in (root, joined):
            shutil.rmtree(folder, ignore_errors=True)
        merge(shards, joined, repo_id=f"{self.repo_id}-{root.parent.name}")
        if any(version_of(shard) != version.hash for shard in shards):
            relabel(joined, version, sources)
        version.save(joined / VERSION)
        joined.replace(root)

    def ground(self, scenes: Sequence[SceneSpec], out: Path, earlier: Path | None, tick: Tick) -> None:
        from lerobot_coda.grounding import GroundingSet
        from lerobot_coda.static_layouts import build_grounding_set

        fresh = out.with_suffix(".fresh")
        build_grounding_set(
            scenes,
            fresh,
            questions=questions,
            workers=self.workers,
            size=self.render.size,
            profile=self.render.profile,
            progress=lambda done, total: tick(done),
        )
        if earlier is not None:
            GroundingSet.concatenate([GroundingSet.load(earlier), GroundingSet.load(fresh)]).save(fresh)
        fresh.replace(out)

    def train(self, config: Mapping[str, Any], path: Path, tick: Tick) -> Path:
        from lerobot_coda.training import run_lerobot_train

        return run_lerobot_train(config, path, tick=tick)

    def evaluate(
        self, checkpoint: Path, heldout: Heldout, task_ids: Sequence[int], out: Path, tick: Tick
    ) -> list[dict[str, Any]]:
        from libero_pro.benchmark import run_benchmark

        return run_benchmark(
            _policy(checkpoint),
            heldout.suites,
            task_ids=task_ids,
            episodes=heldout.episodes_per_task,
            prompt_source=heldout.prompt_source,
            workers=self._players,
            profile=heldout.profile,
            out=out,
            progress=lambda done, total: tick(done),
        ).rows


def questions(scene: SceneSpec) -> list[tuple[str, str, str]]:
    """What may be asked of a layout: (instruction, target, receptacle) of the suite's goals about what is there.

    A question whose (objects, goal) or instruction belongs to a LIBERO-Pro test is left out, as a scene would be.
    """
    return list(_questions(task_of(scene), scene.prompt_source == "filename"))


@cache
def _questions(task: Task, by_filename: bool) -> tuple[tuple[str, str, str], ...]:
    from libero_pro.denylist import leaks

    source = "filename" if by_filename else "bddl"
    there = (*task.objects(), *task.fixtures(), *task.problem().regions)
    asked: dict[Any, tuple[str, str, str]] = {}
    for other in [task, *(t for t in tasks(task.suite) if t.task_id != task.task_id)]:
        goal, text = other.goal(), other.prompt(source)
        if not all(name in there for predicate in goal for name in predicate[1:]):
            continue
        changes = {"goal": goal, "instruction": text, "replaced": dict(task.replaced) or None}
        scene = scene_for(task.suite, task.task_id).model_copy(update=changes)
        try:
            found = roles(goal, task.objects())
        except RecordError:
            continue
        if leaks(scene) is None:
            asked.setdefault(goal, (text, found.target, found.receptacle))
    return tuple(asked.values())


def _columns(episode: Episode, potentials: Potentials, render_every: int) -> dict[str, np.ndarray]:
    """Label columns, with the potential in the version of the shard."""
    from lerobot_coda.columns import POTENTIAL, coda_columns

    potential = potentials.of(episode)
    columns = coda_columns(episode, potential, render_every=render_every)
    return columns if potential else {**columns, POTENTIAL: np.zeros_like(columns[POTENTIAL])}


def _policy(checkpoint: Path) -> Any:
    """The checkpoint's policy on the device that it was trained for."""
    from libero_pro.policy_runner import LeRobotChunkPolicy

    device = json.loads((checkpoint / "config.json").read_text(encoding="utf-8")).get("device") or "cpu"
    return LeRobotChunkPolicy.from_pretrained(checkpoint, device=device)
