"""EpisodeRecorder: steps a simulator and writes down everything an Episode holds."""

import time

import numpy as np

from libero_pro.camera import projection
from libero_pro.episode import Episode
from libero_pro.record import RecordError
from libero_pro.scene import SceneSpec
from libero_pro.simulator import Simulator


class EpisodeRecorder:
    """Records one episode; the caller has reset and settled the simulator, `start()` takes instant 0.

    `step` and `chunk` act and record; after a SimulationError, `finish(invalid=str(error))` keeps what there is.
    """

    def __init__(self, sim: Simulator, scene: SceneSpec, actor: str) -> None:
        self._sim, self._scene, self._actor = sim, scene, actor
        self._rows: list[tuple] = []

    def start(self) -> None:
        """Takes the simulator's present state as instant 0."""
        if self._sim.scene != self._scene:
            raise RecordError("the simulator is not in the recorder's scene; call sim.reset(scene) before start()")
        self._rows = [self._row()]
        self._region_half = self._sim.reader.region_half()
        self._actions: list[np.ndarray] = []
        self._expert_actions: list[np.ndarray] = []
        self._executed: list[int] = []
        self._began = time.perf_counter()

    @property
    def steps(self) -> int:
        """Control steps recorded so far."""
        return len(self._actions)

    def step(self, action: np.ndarray, expert_action: np.ndarray | None = None) -> bool:
        """One control step as a chunk of its own; `expert_action` is the label where the action is disturbed."""
        success = self._act(action, expert_action)
        self._executed.append(1)
        return success

    def chunk(self, actions: np.ndarray, limit: int | None = None) -> int:
        """Executes a chunk (k, 7) until it ends, the goal holds, or `limit` steps of it ran; returns how many ran."""
        count = 0
        self._executed.append(0)
        for action in actions[:limit]:
            success = self._act(action, None)
            count += 1
            self._executed[-1] = count
            if success:
                break
        return count

    def finish(self, *, truncated: bool = False, invalid: str | None = None, **tags: str) -> Episode:
        """The episode so far; `truncated` if a horizon ended it, `invalid` with the reason if it must not count."""
        columns = zip(*self._rows, strict=True)
        qpos, frame_qpos, rgba, proprio, object_pos, object_quat, eef_pos, held, holds, *privileged = columns
        part_pos, part_point, region_pos, touched = map(np.array, privileged)
        reader = self._sim.reader
        success = bool(holds[-1].all()) and invalid is None
        site_rgba = np.array(rgba, np.float32)
        if (site_rgba == site_rgba[0]).all():
            site_rgba = site_rgba[:1]
        actions = np.array(self._actions, np.float32).reshape(-1, 7)
        return Episode(
            scene=self._scene,
            actor=self._actor,
            success=success,
            terminated=success,
            truncated=truncated and not success and invalid is None,
            object_names=self._sim.object_names,
            actions=actions,
            expert_actions=np.array(self._expert_actions, np.float32).reshape(-1, 7),
            qpos=np.array(qpos),
            frame_qpos=np.array(frame_qpos),
            site_rgba=site_rgba,
            body_pos=self._sim.model.body_pos.copy(),
            body_quat=self._sim.model.body_quat.copy(),
            proprio=np.array(proprio),
            object_pos=np.array(object_pos),
            object_quat=np.array(object_quat),
            eef_pos=np.array(eef_pos),
            held=np.array(held, np.int16),
            goal_holds=np.array(holds),
            executed=np.array([count for count in self._executed if count], np.int16),
            camera=projection(self._sim.model, self._sim.frame()),
            invalid=invalid,
            wall_s=time.perf_counter() - self._began,
            tags=dict(tags),
            part_names=reader.part_names,
            part_pos=part_pos,
            part_range=reader.part_range.copy(),
            part_point=part_point,
            region_names=reader.region_names,
            region_pos=region_pos,
            region_half=self._region_half,
            touched=touched,
        )

    def _act(self, action: np.ndarray, expert_action: np.ndarray | None) -> bool:
        success = self._sim.step(action)
        self._actions.append(np.array(action, np.float32))
        self._expert_actions.append(np.array(action if expert_action is None else expert_action, np.float32))
        self._rows.append(self._row())
        return success

    def _row(self) -> tuple:
        sim, reader = self._sim, self._sim.reader
        seen = sim.frame_arrays()
        return (
            sim.data.qpos.copy(),
            *seen,
            sim.proprio(),
            reader.object_pos(),
            reader.object_quat(),
            reader.eef_pos(),
            reader.held(),
            sim.goal_holds(),
            reader.part_pos(),
            reader.part_point(),
            reader.region_pos(),
            reader.touched(),
        )
