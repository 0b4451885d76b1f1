"""Bring your own perturbation: a function that makes scenes, judged by the same gates as everything else.

    python examples/own_perturbation.py scenes/mirrored
    lerobot-coda validate scenes/mirrored

Most perturbations need no code: `examples/own_program.json` composes the operations that there are.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from libero_pro.judge import judge
from libero_pro.placement import arrangement
from libero_pro.record import write_atomically
from libero_pro.scene import SceneSpec
from libero_pro.suites import scene_for


def mirrored(suite: str, task_id: int, seed: int) -> SceneSpec:
    """A fresh scene of a base task with left and right exchanged: what stood at y stands at -y, as seen by the robot.

    A scene is a record, so a perturbation is a function from a record to another. The container stays.
    """
    plan = arrangement(suite, task_id)
    xy = plan.draw(np.random.default_rng(seed), 1)[0]
    for row in plan.movable:
        xy[row, 1] = -xy[row, 1]
    return scene_for(suite, task_id, seed=seed).model_copy(update={"objects": plan.poses(xy)})


def accepted(scenes: list[SceneSpec], workers: int = 0) -> Iterator[SceneSpec]:
    """The scenes that pass every gate; says why the others do not."""
    for index, verdict in judge(scenes, workers=workers):
        if verdict.accepted:
            yield scenes[index]
        else:
            print(f"scene {scenes[index].hash}: {verdict.gate}: {verdict.reason}")


def main(out: Path, count: int = 4) -> list[SceneSpec]:
    """Writes the accepted scenes in the form that `validate`, `generate` and `libero_pro.rollout.run` share."""
    scenes = [mirrored("libero_object", seed % 10, seed) for seed in range(count)]
    good = list(accepted(scenes))
    write_atomically(out / "scenes.jsonl", "".join(scene.to_json() + "\n" for scene in good).encode())
    print(f"{len(good)} of {count} scenes pass every gate: {out / 'scenes.jsonl'}")
    return good


if __name__ == "__main__":
    main(Path(sys.argv[1]))
