"""An episode read as trajectories of things: what potentials measure, (T+1, ...) at once."""

import numpy as np
from scipy.spatial.transform import Rotation

from lerobot_coda.potential.names import Names, Thing
from libero_pro.episode import Episode
from libero_pro.record import RecordError


class Trace:
    """Trajectories of an episode's things by name or role; RecordError for what the episode does not hold."""

    def __init__(self, episode: Episode) -> None:
        self.episode = episode
        self.names = Names.of_episode(episode)
        self._rest = episode.object_pos[0, :, 2]

    def positions(self, thing: str) -> np.ndarray:
        """(T+1, k, 3) world metres; k is 1 but for distractors."""
        e, bound = self.episode, self.names.bind(thing)
        if bound.kind == "gripper":
            return e.eef_pos[:, None]
        if bound.kind == "object":
            return e.object_pos[:, self._objects(bound)]
        if bound.kind == "part":
            return self._array("part_point")[:, [e.part_names.index(bound.names[0])]]
        return self._array("region_pos")[:, [e.region_names.index(bound.names[0])]]

    def apart(self, a: str, b: str, *, axes: slice = slice(0, 3)) -> np.ndarray:
        """(T+1,) smallest distance between two things along the axes, m; infinite where there is none to measure."""
        gaps = self.positions(a)[:, :, None, axes] - self.positions(b)[:, None, :, axes]
        return np.sqrt((gaps**2).sum(-1)).reshape(len(gaps), -1).min(axis=1, initial=np.inf)

    def height(self, thing: str) -> np.ndarray:
        """(T+1,) the highest rise of an object over where it stood at instant 0, m."""
        objects = self._objects(self.names.bind(thing))
        return (self.episode.object_pos[:, objects, 2] - self._rest[objects]).max(axis=1, initial=-np.inf)

    def above(self, a: str, b: str) -> np.ndarray:
        """(T+1,) how much higher a is than b, m."""
        return self.positions(a)[:, 0, 2] - self.positions(b)[:, 0, 2]

    def outside(self, a: str, region: str) -> np.ndarray:
        """(T+1,) distance from a to the box of a region, m; 0 inside. Things without extent are points."""
        bound = self.names.bind(region)
        half = np.zeros(3)
        if bound.kind == "region":
            half = self._array("region_half")[self.episode.region_names.index(bound.names[0])]
        beyond = np.abs(self.positions(a) - self.positions(region)) - half
        return np.sqrt((np.maximum(beyond, 0.0) ** 2).sum(-1)).min(axis=1, initial=np.inf)

    def held(self, thing: str) -> np.ndarray:
        """(T+1,) bool: both finger pads touch it."""
        objects = self._objects(self.names.bind(thing))
        return np.logical_or.reduce(self.episode.held[:, None] == objects, axis=1)

    def touching(self, thing: str) -> np.ndarray:
        """(T+1,) bool: the gripper touches it."""
        bound, touched = self.names.bind(thing), self._array("touched")
        if bound.kind == "object":
            return np.logical_or.reduce(touched[:, self._objects(bound)], axis=1)
        return touched[:, len(self.episode.object_names) + self.episode.part_names.index(self.names.part(thing))]

    def openness(self, thing: str) -> np.ndarray:
        """(T+1,) 0 where a part counts as closed or off, 1 where it counts as open or on, beyond either outside."""
        index = self.episode.part_names.index(self.names.part(thing))
        closed, opened = self._array("part_range")[index]
        return (self._array("part_pos")[:, index] - closed) / (opened - closed)

    def tilt(self, thing: str) -> np.ndarray:
        """(T+1,) angle between the vertical and an object's axis that was vertical at instant 0, rad."""
        turned = self._rotation(thing) * self._rotation(thing)[0].inv()
        return np.arccos(np.clip(turned.as_matrix()[:, 2, 2], -1.0, 1.0))

    def heading_gap(self, a: str, b: str) -> np.ndarray:
        """(T+1,) angle in the plane between the axes of two things, in [0, pi/2]; half turns count as none."""
        gap = np.abs(self._heading(a) - self._heading(b)) % np.pi
        return np.minimum(gap, np.pi - gap)

    def goal(self, number: int) -> np.ndarray:
        """(T+1,) bool: the goal's predicate of that number (from 1) holds."""
        return self.episode.goal_holds[:, number - 1]

    def _array(self, name: str) -> np.ndarray:
        values = getattr(self.episode, name)
        if values is None:
            raise RecordError(f"the episode was recorded without '{name}'; record it again")
        return values

    def _objects(self, bound: Thing) -> np.ndarray:
        return np.array([self.episode.object_names.index(name) for name in bound.names], int)

    def _rotation(self, thing: str) -> Rotation:
        bound = self.names.bind(thing)
        if bound.kind == "gripper":
            return Rotation.from_rotvec(self.episode.proprio[:, 3:6].astype(float))
        wxyz = self.episode.object_quat[:, self._objects(bound)[0]]
        return Rotation.from_quat(wxyz, scalar_first=True)

    def _heading(self, thing: str) -> np.ndarray:
        axes = self._rotation(thing).as_matrix()
        flattest = int(np.argmin(np.abs(axes[0, 2])))
        return np.arctan2(axes[:, 1, flattest], axes[:, 0, flattest])
