"""Clips to show a critic: hand-made episodes with hand-made diagnoses and a sheet without a picture."""

from pathlib import Path

import numpy as np
from synthetic import lost, scene

from lerobot_coda.critic.clusters import FailureCluster, cluster
from lerobot_coda.critic.diagnosis import Cause, Diagnosis, Stage, episode_key
from lerobot_coda.critic.review import Clip
from lerobot_coda.critic.sheet import compose
from libero_pro.episode import Episode


def diagnosed(episode: Episode, cause: Cause = Cause.MISSED_GRASP, stage: Stage = Stage.REACH) -> Diagnosis:
    """What the simulator critic could have said of it."""
    return Diagnosis(
        episode=episode_key(episode.actor, episode.scene.hash),
        scene=episode.scene.hash,
        suite=episode.scene.suite,
        task_id=episode.scene.task_id,
        stage=stage,
        cause=cause,
        objects=("milk_1", "basket_1"),
        explanation=f"as seen in scene {episode.scene.seed}",
        confidence=0.9,
    )


def clips(folder: Path, count: int = 3) -> list[Clip]:
    """Clips of one weakness, all with the same black sheet."""
    path = folder / "sheet.png"
    path.write_bytes(compose({"agentview": [np.zeros((64, 64, 3), np.uint8)] * 2}, (0, 9)))
    failures = [lost(scene(seed)) for seed in range(count)]
    return [Clip(episode, diagnosed(episode), path) for episode in failures]


def grouped(members: list[Clip]) -> FailureCluster:
    """The cluster of the clips."""
    return cluster([clip.diagnosis for clip in members])[0]
