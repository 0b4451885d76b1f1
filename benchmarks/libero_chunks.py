"""Stored rollouts of LIBERO as chunks to learn from, and one task's released starts to roll a state-based clone out on.

The scripted expert is asked at the start of every chunk what it would do: chunks that began alike are good ones, and a
clone's answers in episodes that it has not seen can be compared with the expert's. Nobody learns from its answers.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lerobot_coda.potential import from_goal
from libero_pro.episode import Episode
from libero_pro.expert import relabel
from libero_pro.goals import roles
from libero_pro.record import RecordError
from libero_pro.replacement import task_of
from libero_pro.simulator import SimulationError, Simulator
from libero_pro.suites import get_task, scene_for

Act = Callable[[np.ndarray], np.ndarray]  # features (B, 15) -> chunks (B, h, 7)


class Stored(NamedTuple):
    """One row a chunk that a policy executed open loop, of all stored episodes.

    columns   as in `ChunkTransition`, float32
    episode   (n,) which episode the chunk is of;  `success` (number of episodes,) whether that solved its task
    answer    (n, 7) the expert's action at the chunk's start, not a number where it has none
    """

    columns: dict[str, np.ndarray]
    episode: np.ndarray
    success: np.ndarray
    answer: np.ndarray

    @property
    def apart(self) -> np.ndarray:
        """Mean difference of the first action from the expert's, (n,)."""
        return np.abs(self.columns["chunk"][:, 0] - self.answer).mean(1)


def read(folder: Path) -> Stored:
    """The chunks of all episodes below `folder`; RecordError where there are none."""
    found = [episode for episode in map(Episode.load, sorted(folder.rglob("*.npz"))) if episode.invalid is None]
    episodes = sorted((episode for episode in found if len(episode)), key=lambda episode: str(task_of(episode.scene)))
    if not episodes:
        raise RecordError(f"{folder} holds no episodes; --episodes names a folder of rollouts")
    length = int(max(episode.executed.max() for episode in episodes))
    parts = [episode_chunks(episode, length) for episode in episodes]
    columns = {name: np.concatenate([part[name] for part in parts]).astype("f4") for name in parts[0]}
    number = np.repeat(np.arange(len(episodes)), [len(part["phi"]) for part in parts])
    success = np.array([episode.success for episode in episodes])
    return Stored(columns, number, success, np.concatenate(list(answers(episodes))))


def answers(episodes: Sequence[Episode]) -> Iterator[np.ndarray]:
    """The expert's actions at the starts of each episode's chunks, (number of chunks, 7)."""
    for task, group in groupby(episodes, key=lambda episode: task_of(episode.scene)):
        simulator = Simulator(task)
        for episode in group:
            starts = np.cumsum(episode.executed) - episode.executed
            thin = {name: getattr(episode, name)[starts] for name in ("actions", "qpos", "goal_holds")}
            yield relabel(simulator, replace(episode, **thin))


def privileged(
    target: np.ndarray, receptacle: np.ndarray, eef: np.ndarray, proprio: np.ndarray, held: np.ndarray
) -> np.ndarray:
    """Relative positions (units of 0.1 m), heights, hand pose, finger gap, held; (..., 15) float32."""
    gap = (proprio[..., 6] - proprio[..., 7])[..., None] * 20
    parts = [target - eef, receptacle - target, eef[..., 2:] - 1.0, target[..., 2:] - 1.0]
    turn = np.stack([np.abs(proprio[..., 3]) - np.pi, proprio[..., 4], proprio[..., 5]], -1)
    return np.concatenate([np.concatenate(parts, -1) * 10, turn, gap, held[..., None] * 1.0], -1).astype("f4")


def episode_chunks(episode: Episode, horizon: int) -> dict[str, np.ndarray]:
    """The columns of `Stored` for one episode."""
    role = roles(episode.scene.goal, episode.object_names)
    target, receptacle = (episode.object_names.index(name) for name in (role.target, role.receptacle))
    features = privileged(
        episode.object_pos[:, target], episode.object_pos[:, receptacle], episode.eef_pos, episode.proprio,
        episode.held == target,
    )  # fmt: skip
    phi = from_goal(episode.scene.goal, episode.object_names).evaluate(episode)
    ends = np.cumsum(episode.executed)
    starts = ends - episode.executed
    chunk, valid = np.zeros((len(ends), horizon, 7)), np.zeros((len(ends), horizon))
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        chunk[row, : end - start], valid[row, : end - start] = episode.actions[start:end], 1.0
    reward, terminated = np.zeros_like(valid), np.zeros(len(ends))
    if episode.success:
        reward[-1, episode.executed[-1] - 1] = terminated[-1] = 1.0
    return {
        "features": features[starts], "later_features": features[ends], "chunk": chunk, "valid": valid,
        "reward": reward, "terminated": terminated, "phi": phi[starts], "later_phi": phi[ends],
    }  # fmt: skip


class Starts:
    """One task, started as released."""

    COUNT = 50  # released starts of a task

    def __init__(self, suite: str, task_id: int, horizon: int):
        self.simulator, self.horizon = Simulator(get_task(suite, task_id)), horizon

    def solved(self, act: Act, init_state_id: int) -> bool:
        """Whether chunks that are given for the visited states solve the task within the horizon."""
        simulator, task = self.simulator, self.simulator.task
        simulator.reset(scene_for(task.suite, task.task_id, init_state_id=init_state_id))
        simulator.settle()
        step = 0
        while step < self.horizon and not simulator.success():
            state = simulator.state()
            role = roles(state.goal, state.object_names)
            target, receptacle = (state.object_names.index(name) for name in (role.target, role.receptacle))
            features = privileged(
                state.object_pos[target], state.object_pos[receptacle], state.eef_pos, simulator.proprio(),
                np.array(state.held == target),
            )  # fmt: skip
            try:
                step += simulator.step_chunk(act(features[None])[0][: self.horizon - step])
            except SimulationError as error:
                raise SystemExit(f"start {init_state_id}: {error}; the comparison would count it as failed") from None
        return simulator.success()
