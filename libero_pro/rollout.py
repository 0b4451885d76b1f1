"""Runs a policy that emits action chunks over many scenes: physics and rendering in worker processes, inference here.

    for episode in run(policy, scenes, workers=2, out=folder):   # in the order of `scenes`
        ...

The episodes are the same whatever `workers` is: every worker starts each scene from a clean reset, an observation
carries the seed for whatever the policy draws, and a policy answers each observation by itself (on a CPU bit for bit).
Images are rendered only where the policy looks, at the start of a chunk.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from libero_pro.episode import Episode
from libero_pro.record import RecordError, write_atomically
from libero_pro.render import Profile
from libero_pro.replacement import task_of
from libero_pro.scene import SceneSpec
from libero_pro.suites import Task
from libero_pro.workers import Ask, Workers, run_in_workers

SETTLE_STEPS = 10  # LIBERO's protocol: no-op steps after a reset, neither counted nor recorded
CAMERAS = ("agentview", "wrist")
_HOPELESS = 3  # scenes that fail, with none before them that ran, end the run: the machine is at fault, not a scene


@dataclass(frozen=True)
class Observation:
    """What a policy sees at the start of a chunk.

    images  camera -> (H, W, 3) uint8 in LeRobot's orientation
    state   (8,) float32: end-effector position (3), axis-angle (3), gripper joints (2)
    seed    for whatever the policy draws; a function of the scene and the control step alone
    """

    images: dict[str, np.ndarray]
    state: np.ndarray
    prompt: str
    seed: int


class ChunkPolicy(Protocol):
    """Acts in chunks. Observations of different episodes arrive interleaved, so `act` keeps no memory between calls."""

    @property
    def actor(self) -> str:
        """Who acts, as episodes record it: "policy:<id>"."""

    @property
    def cameras(self) -> tuple[str, ...]:
        """The cameras it looks at, out of "agentview" and "wrist"."""

    @property
    def n_action_steps(self) -> int:
        """Control steps executed of each chunk."""

    def reset(self) -> None:
        """Called once before a run."""

    def act(self, observations: list[Observation]) -> np.ndarray:
        """Actions (B, n_action_steps, 7) in [-1, 1]."""


@dataclass(frozen=True)
class Conditions:
    """All that, beside scene and weights, determines an episode; stored with saved episodes."""

    actor: str
    cameras: tuple[str, ...]
    n_action_steps: int
    profile: Profile
    size: int
    horizon: int | None  # None: the base suite's own
    settle_steps: int = SETTLE_STEPS


def run(
    policy: ChunkPolicy,
    scenes: Sequence[SceneSpec],
    *,
    workers: Workers = 2,
    profile: Profile = "faithful",
    size: int | None = None,
    horizon: int | None = None,
    out: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
    timeout_s: float = 900.0,
) -> Iterator[Episode]:
    """Yields one episode a scene, in the order of `scenes` (a scene listed twice is run once).

    workers   processes, 0 runs everything in this one; or a crew elsewhere (`libero_pro.ray_workers`)
    size      image side in pixels; None: what the policy was trained on (`policy.image_size`), else 128
    horizon   control steps before an episode is truncated; None: the protocol's, by suite
    out       folder that keeps each episode as `<scene hash>.npz`; episodes already there are loaded, not run again.
              RecordError if they were recorded under other conditions (policy, horizon, cameras, ...)
    progress  called with (done, total)

    Physics errors and lost workers give an episode with `invalid` set. RecordError if no scene at all can be run (no
    OpenGL, say); an error of the policy ends the run as it is.
    """
    conditions = Conditions(
        actor=policy.actor,
        cameras=tuple(policy.cameras),
        n_action_steps=policy.n_action_steps,
        profile=profile,
        size=size or getattr(policy, "image_size", None) or 128,
        horizon=horizon,
    )
    _check(conditions, scenes)
    if out is not None:
        _claim(Path(out), conditions)
    distinct = list({scene.hash: scene for scene in scenes}.values())
    uses = Counter(scene.hash for scene in scenes)
    finished: dict[str, Episode] = {}
    done = position = 0

    def deliver() -> Iterator[Episode]:
        """What can be yielded in order; an episode is dropped from memory after its last use."""
        nonlocal position
        while position < len(scenes) and scenes[position].hash in finished:
            name = scenes[position].hash
            uses[name] -= 1
            position += 1
            yield finished[name] if uses[name] else finished.pop(name)

    def finish(episode: Episode) -> None:
        nonlocal done
        finished[episode.scene.hash] = episode
        done += 1
        if progress is not None:
            progress(done, len(distinct))

    remaining = []
    for scene in distinct:
        episode = None if out is None else _stored(Path(out), scene)
        if episode is None:
            remaining.append(scene)
        else:
            finish(episode)
            yield from deliver()
    if not remaining:
        return

    policy.reset()
    answers = _Answers(policy)
    outcomes = run_in_workers(
        remaining,
        make_state=partial(_Station, conditions),
        work=_play,
        workers=workers,
        key=task_of,
        respond=answers,
        timeout_s=timeout_s,
    )
    errors = 0  # before the first episode
    for outcome in outcomes:
        if answers.error is not None:  # without processes the pool takes it for the job's own error
            raise answers.error
        errors = errors + 1 if outcome.error and errors >= 0 else -1
        if errors >= min(_HOPELESS, len(remaining)):
            raise RecordError(f"no scene can be run, the first {errors} failed; the last error: {outcome.error}")
        episode = outcome.result
        if episode is None:  # an episode without a step is falsy, yet has its reason
            episode = Episode.unrun(outcome.job, conditions.actor, outcome.error or "no result")
        episode = replace(episode, wall_s=round(outcome.wall_s, 3))
        if out is not None:
            episode.save(Path(out) / f"{episode.scene.hash}.npz")
        finish(episode)
        yield from deliver()


class _Answers:
    """Answers waiting observations with checked chunks, and remembers an error of the policy."""

    def __init__(self, policy: ChunkPolicy):
        self._policy = policy
        self.error: Exception | None = None

    def __call__(self, observations: list[Observation]) -> list[np.ndarray]:
        try:
            chunks = np.asarray(self._policy.act(observations), np.float32)
            expected = (len(observations), self._policy.n_action_steps, 7)
            if chunks.shape != expected:
                raise RecordError(f"{self._policy.actor}: act() returned shape {chunks.shape}, expected {expected}")
            if not np.isfinite(chunks).all():
                raise RecordError(f"{self._policy.actor}: act() returned actions that are not finite numbers")
        except Exception as error:
            self.error = error
            raise
        return list(chunks)


class _Station:
    """One task's simulator and renderer inside a worker."""

    def __init__(self, conditions: Conditions, task: Task):
        from libero_pro.simulator import Simulator

        self.conditions = conditions
        self.sim = Simulator(task)
        self.renderer: Any = None
        if conditions.cameras:
            from libero_pro.render import Renderer

            self.renderer = Renderer(
                self.sim.model, cameras=conditions.cameras, size=conditions.size, profile=conditions.profile
            )

    def observe(self, scene: SceneSpec, step: int) -> Observation:
        images = self.renderer.render(self.sim.frame()) if self.renderer is not None else {}
        return Observation(images, self.sim.proprio(), scene.instruction, observation_seed(scene, step))

    def close(self) -> None:
        if self.renderer is not None:
            self.renderer.close()


def observation_seed(scene: SceneSpec, step: int) -> int:
    """31-bit seed of the policy's draws at a control step: equal for every policy, so comparisons are paired."""
    return int.from_bytes(hashlib.sha256(f"{scene.hash}:{step}".encode()).digest()[:4], "big") >> 1


def _play(station: _Station, scene: SceneSpec, ask: Ask) -> Episode:
    """One episode: reset, settle, then observe and execute a chunk until success or the horizon."""
    from libero_pro.recorder import EpisodeRecorder
    from libero_pro.simulator import SimulationError

    sim, conditions = station.sim, station.conditions
    horizon = conditions.horizon or sim.horizon
    try:
        sim.reset(scene)
        sim.settle(conditions.settle_steps)
    except SimulationError as error:
        return Episode.unrun(scene, conditions.actor, str(error))
    recorder = EpisodeRecorder(sim, scene, conditions.actor)
    recorder.start()
    step, success, invalid = 0, False, None
    while step < horizon and not success:
        chunk = ask(station.observe(scene, step))
        try:
            step += recorder.chunk(chunk, limit=horizon - step)
        except SimulationError as error:
            invalid = str(error)
            break
        success = sim.success()
    return recorder.finish(truncated=not success and invalid is None, invalid=invalid)


def _check(conditions: Conditions, scenes: Sequence[SceneSpec]) -> None:
    unknown = sorted(set(conditions.cameras) - set(CAMERAS))
    if unknown:
        raise RecordError(f"cameras: '{unknown[0]}' is unknown; there are: {', '.join(CAMERAS)}")
    if conditions.profile not in ("faithful", "fast"):
        raise RecordError(f"profile '{conditions.profile}' is unknown; use 'faithful' or 'fast'")
    if conditions.n_action_steps < 1:
        raise RecordError(f"n_action_steps must be at least 1, not {conditions.n_action_steps}")
    if conditions.horizon is not None and conditions.horizon < 1:
        raise RecordError(f"horizon must be at least 1 control step, not {conditions.horizon}")
    for scene in scenes:
        task_of(scene)


def _claim(out: Path, conditions: Conditions) -> None:
    """Notes the conditions in a fresh folder, or refuses one whose episodes were recorded under others."""
    path = out / "conditions.json"
    mine = json.loads(json.dumps(asdict(conditions)))
    if not path.exists():
        write_atomically(path, json.dumps(mine, indent=2).encode())
        return
    try:
        theirs = json.loads(path.read_text())
    except ValueError as error:
        raise RecordError(f"{path} is damaged ({error}); remove the folder or choose another one") from None
    for name, value in mine.items():
        if theirs.get(name) != value:
            raise RecordError(
                f"{out} holds episodes recorded with {name} = {theirs.get(name)!r}, not {value!r}; use another folder"
            )


def _stored(out: Path, scene: SceneSpec) -> Episode | None:
    """A saved episode, unless it is missing, damaged or invalid: then the scene is run again."""
    try:
        episode = Episode.load(out / f"{scene.hash}.npz")
    except RecordError:
        return None
    return None if episode.invalid else episode
