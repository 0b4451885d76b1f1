"""Builds grounding sets: renders many static layouts in worker processes and labels what could be asked of each."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lerobot_coda.grounding import GroundingSet
from libero_pro.camera import project, projection
from libero_pro.record import RecordError
from libero_pro.render import Profile
from libero_pro.replacement import task_of
from libero_pro.scene import SceneSpec
from libero_pro.suites import Task
from libero_pro.workers import Ask, run_in_workers

SETTLE_STEPS = 3
HAND_SHARE = 0.6  # of the layouts show the hand at work over some object: what it hides must still be found
HAND_SPREAD, HAND_HEIGHT = 0.02, 0.18  # meters: of the hand beside the object, and its greatest height above it
HAND_TURN = 0.4  # radians
REACHED = 0.03  # meters, see `misses`: the arm stays at home where it cannot go
MOVED = 0.03  # metres: an object that moved further while settling was not where the layout said


# An image (H, W, 3), positions of the movable objects by name, and the camera's projection (3, 4).
Photograph = tuple[np.ndarray, dict[str, np.ndarray], np.ndarray]


class _Camera:
    """A task's simulator and renderer inside a worker."""

    def __init__(self, size: int, profile: Profile, task: Task):
        from libero_pro.expert.world import World
        from libero_pro.render import Renderer
        from libero_pro.simulator import Simulator

        self.simulator = Simulator(task)
        self.world = World(self.simulator.model, self.simulator.data)
        self.renderer = Renderer(self.simulator.model, cameras=("agentview",), size=size, profile=profile)

    def close(self) -> None:
        self.renderer.close()


def _photograph(camera: _Camera, scene: SceneSpec, ask: Ask) -> Photograph | None:
    """Image, object positions and projection of a settled layout; None when it did not stay where it was put."""
    simulator = camera.simulator
    simulator.reset(scene)
    before = simulator.reader.object_pos().copy()
    simulator.settle(SETTLE_STEPS)
    after = simulator.reader.object_pos().copy()
    if np.abs(after - before)[:, :2].max() > MOVED:
        return None
    frame = simulator.frame()
    rng = np.random.default_rng(int(scene.hash[:12], 16))
    if rng.random() < HAND_SHARE:
        frame = replace(frame, qpos=_hand_over(camera.world, frame.qpos, after, rng))
    image = camera.renderer.render(frame)["agentview"]
    return image, dict(zip(simulator.object_names, after, strict=True)), projection(simulator.model, simulator.frame())


def _hand_over(world: Any, qpos: np.ndarray, positions: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The layout's qpos (nq,) with the arm where it would work on one of the objects at `positions` (n, 3)."""
    from libero_pro.expert.geometry import turn_z
    from libero_pro.expert.reach import posture

    point = positions[rng.integers(len(positions))] + [*rng.normal(0.0, HAND_SPREAD, 2), rng.uniform(0.0, HAND_HEIGHT)]
    downwards = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, -1.0]])
    joints, miss = posture(world, point, turn_z(rng.normal(0.0, HAND_TURN)) @ downwards)
    posed = qpos.copy()
    if miss < REACHED:
        posed[: len(joints)] = joints
    return posed


def build_grounding_set(
    scenes: Sequence[SceneSpec],
    out: Path,
    *,
    questions: Callable[[SceneSpec], list[tuple[str, str, str]]],
    workers: int = 2,
    size: int = 128,
    profile: Profile = "fast",
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Renders the scenes and writes one grounding set to `out` (atomic); returns `out`.

    `questions(scene)` lists (instruction, target, receptacle) for everything that could be asked in the scene; names
    are those of its movable objects. Layouts that do not stay where they were put are left out. RecordError when fewer
    than half of them do, or when rendering fails.
    """
    jobs = list(scenes)
    rows: dict[int, Photograph] = {}
    make = partial(_Camera, size, profile)
    outcomes = run_in_workers(jobs, make_state=make, work=_photograph, workers=workers, key=task_of)
    for done, outcome in enumerate(outcomes, 1):
        if outcome.error is not None:
            raise RecordError(f"cannot render the layout of scene {outcome.job.hash}: {outcome.error}")
        if outcome.result is not None:
            rows[outcome.index] = outcome.result
        if progress:
            progress(done, len(jobs))
    if len(rows) * 2 < len(jobs):
        raise RecordError(f"only {len(rows)} of {len(jobs)} layouts stayed where they were put; lower the difficulty")
    label(jobs, rows, questions).save(out)
    return out


def label(
    scenes: Sequence[SceneSpec],
    rows: dict[int, Photograph],
    questions: Callable[[SceneSpec], list[tuple[str, str, str]]],
) -> GroundingSet:
    """The grounding set of rendered layouts (image, positions, projection by scene index)."""
    texts: dict[str, int] = {}
    asked = {i: questions(scenes[i]) for i in sorted(rows)}
    width = max(len(found) for found in asked.values())
    count = len(rows)
    text = np.zeros((count, width), np.int32)
    image_points = np.zeros((count, width, 2, 2), np.float32)
    world_points = np.zeros((count, width, 2, 3), np.float32)
    weight = np.zeros((count, width, 2), np.float32)
    for row, (i, found) in enumerate(asked.items()):
        _, positions, camera = rows[i]
        for q, (instruction, target, receptacle) in enumerate(found):
            world = np.stack([positions[target], positions[receptacle]])
            text[row, q] = texts.setdefault(instruction, len(texts))
            world_points[row, q], image_points[row, q] = world, project(camera, world)
            weight[row, q] = 1.0
    images = np.stack([rows[i][0] for i in asked])
    return GroundingSet(images, text, image_points, world_points, weight, tuple(texts))
