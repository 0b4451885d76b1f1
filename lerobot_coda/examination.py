"""Examination: what a policy's failures on test suites mean, without learning anything from them.

Each suite gets a round of the loop as far as its verdicts: the policy plays released starts, its failures are diagnosed
and clustered, and a program is compiled from the largest cluster of each mode and validated. Programs vary the recipe's
base suite, through the leakage gate, so a test is looked at and never generated from. Nothing is trained, and the
memory is one of its own: a run that began with it would have learned from a test.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lerobot_coda import archive
from lerobot_coda.budget import Usage
from lerobot_coda.console import Display
from lerobot_coda.critic.clusters import FailureCluster
from lerobot_coda.critic.simulator import diagnose
from lerobot_coda.critic.validate import Verdict
from lerobot_coda.engine import Engine, Gated
from lerobot_coda.generation import Generator, Placed
from lerobot_coda.memory import Memory
from lerobot_coda.programs import CoProgram
from lerobot_coda.recipe import EvolveRecipe
from lerobot_coda.rounds import Probed, Round, Run
from lerobot_coda.state import State
from lerobot_coda.steps import Steps, write_json
from libero_pro.benchmark import benchmark_scenes
from libero_pro.denylist import leaks
from libero_pro.policy_runner import checkpoint_id
from libero_pro.record import RecordError
from libero_pro.scene import SceneSpec
from libero_pro.suites import get_task

ACTOR = "policy"


@dataclass(frozen=True)
class Examined:
    """What was found on one suite: the episodes with their diagnoses, clusters as the critic has them, the programs
    compiled from them, and the verdicts by program name."""

    suite: str
    probed: Probed
    clusters: Sequence[FailureCluster]
    compiled: Sequence[tuple[CoProgram, FailureCluster]]
    verdicts: Mapping[str, Verdict]

    def failed_scenes(self, cluster: FailureCluster) -> list[str]:
        """Hashes of the scenes that a cluster's failures happened in."""
        return [self.probed.diagnoses[name].scene for name in cluster.diagnoses]


def examine(
    recipe: EvolveRecipe,
    checkpoint: Path,
    folder: Path,
    suites: Sequence[str],
    *,
    episodes: int,
    engine: Engine,
    display: Display,
) -> list[Examined]:
    """Examines the policy on `episodes` released starts of each of the recipe's tasks in each suite; resumable.

    Everything is kept in `folder`: memory.sqlite, rollouts, and a folder for each suite. RecordError before anything is
    played where a suite does not belong to the recipe's base suite, and where `folder` holds a run of the loop.
    """
    if (folder / "run.json").exists():
        raise RecordError(f"output {folder} holds a run that learns, which must not know of tests; give another folder")
    scenes = {suite: _starts(recipe, suite, episodes) for suite in dict.fromkeys(suites)}
    memory = Memory(folder / "memory.sqlite", blobs=folder / "memory.blobs")
    try:
        run = Run(folder.absolute(), recipe, {}, engine, memory, ())
        checkpoint = checkpoint.absolute()
        state = State(checkpoint=str(checkpoint), actor=ACTOR, key=checkpoint_id(checkpoint))
        found = []
        for number, (suite, starts) in enumerate(scenes.items(), 1):
            steps = Steps(folder / suite, display, f"{suite} ")
            generator = Generator(engine, memory, steps, number, leaks)
            round_ = Round(run, number, state, steps, generator, recipe.budget.environments_per_round)
            found.append(_round(round_, suite, starts))
        return found
    finally:
        memory.close()


def _starts(recipe: EvolveRecipe, suite: str, episodes: int) -> list[SceneSpec]:
    base = get_task(suite, recipe.task_ids[0]).base_suite
    if base != recipe.suite:
        raise RecordError(f"suite {suite} belongs to {base}, and the recipe's programs vary {recipe.suite}")
    source = recipe.heldout.prompt_source
    return benchmark_scenes([suite], task_ids=recipe.task_ids, episodes=episodes, prompt_source=source)


def _round(round_: Round, suite: str, starts: Sequence[SceneSpec]) -> Examined:
    """The first half of a round, whose probe is a test."""
    scenes, _ = archive.scene_rows([Gated(scene) for scene in starts], None)  # no gate was asked about released starts
    round_.run.memory.add(*scenes)
    placed = [Placed("test", scene) for scene in starts]
    played = round_.rollout("play", "evaluation", placed, Usage(), kind="evaluate")
    diagnosed = [diagnosis for episode in played if (diagnosis := diagnose(episode)) is not None]
    write_json(round_.steps.folder / "diagnoses.json", [d.model_dump(mode="json") for d in diagnosed])
    probed = Probed(tuple(placed), tuple(played), {d.hash: d for d in diagnosed})
    clusters = round_.cluster(probed)
    compiled = round_.compile(clusters)
    verdicts, _ = round_.validate(compiled, probed)
    return Examined(suite, probed, clusters, compiled, verdicts)
