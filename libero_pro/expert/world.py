"""What the expert knows of a live simulator: where things are, what they are made of, what the fingers touch."""

from typing import Any

import mujoco
import numpy as np

from libero_pro.expert.geometry import Boxes, overlaps
from libero_pro.record import RecordError

_BOX = int(mujoco.mjtGeom.mjGEOM_BOX)
_WRIST_BEHIND, _WRIST_ABOVE = 0.0775, 0.207  # wrist of the upright hand, from its grip point
_ROBOT_ROOTS = ("robot0_base", "mount0_base")


class World:
    """A read-only view of a MuJoCo model and its data; every property is of this instant.

    Movable objects and fixtures are called by their BDDL instance name, regions by their site name.
    """

    def __init__(self, model: Any, data: Any):
        self.model, self.data = model, data
        self.scratch = mujoco.MjData(model)  # for questions of the kind "what if the arm were there"
        names = [model.body(i).name for i in range(model.nbody)]
        roots = model.body_rootid[model.geom_bodyid]
        solid = (model.geom_type == _BOX) & ((model.geom_contype | model.geom_conaffinity) != 0)
        root_of = {name.removesuffix("_main"): i for i, name in enumerate(names) if name.endswith("_main")}
        self._bodies = {name: i for name, i in root_of.items() if model.body_rootid[i] == i}
        self._geoms = {name: np.flatnonzero(solid & (roots == i)) for name, i in self._bodies.items()}
        robot = [i for i, name in enumerate(names) if name in _ROBOT_ROOTS]
        owned = [*robot, *self._bodies.values()]
        self._arena_geoms = np.flatnonzero(solid & ~np.isin(roots, owned))
        self._arena = self._boxes(self._arena_geoms)  # tables and walls never move
        self.movable = tuple(
            name
            for name, i in self._bodies.items()
            if model.body_jntnum[i] and model.jnt_type[model.body_jntadr[i]] == mujoco.mjtJoint.mjJNT_FREE
        )
        self._shoulder = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, "robot0_link2")
        self._wrist = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, "robot0_link6")
        self._grip = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_SITE, "gripper0_grip_site")
        # A pad and the finger behind it: a slanted object may rest on the finger alone.
        self._sides = tuple(
            np.array(
                [model.geom(f"gripper0_finger{i}_pad_collision").id, model.geom(f"gripper0_finger{i}_collision").id]
            )
            for i in (1, 2)
        )
        self._fingers = [int(model.joint(f"gripper0_finger_joint{i}").qposadr[0]) for i in (1, 2)]
        self._finger_speeds = [int(model.joint(f"gripper0_finger_joint{i}").dofadr[0]) for i in (1, 2)]
        self._solid = solid
        self._parts: dict[int, np.ndarray] = {}
        self._name_of_geom = np.full(model.ngeom, "", dtype=object)
        for name, body in self._bodies.items():
            self._name_of_geom[roots == body] = name

    def body(self, name: str) -> int:
        """Body number of an object or fixture; RecordError if the scene has none of that name."""
        if name not in self._bodies:
            raise RecordError(f"'{name}' is not in the scene; it has {sorted(self._bodies)}")
        return self._bodies[name]

    def position(self, name: str) -> np.ndarray:
        """Body origin (3,), world meters."""
        return self.data.xpos[self.body(name)].copy()

    def rotation(self, name: str) -> np.ndarray:
        """Body axes as columns (3, 3)."""
        return self.data.xmat[self.body(name)].reshape(3, 3).copy()

    def speed(self, name: str) -> float:
        """Largest of the linear (m/s) and a tenth of the angular (rad/s) velocity components of a movable object."""
        start = self.model.jnt_dofadr[self.model.body_jntadr[self.body(name)]]
        velocity = np.abs(self.data.qvel[start : start + 6])
        return float(max(velocity[:3].max(), 0.1 * velocity[3:].max()))

    def site(self, name: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Position (3,) and world-aligned half sizes (3,) of a region, as its In predicate reads them, or None."""
        i = mujoco.mj_name2id(self.model, mujoco.mjtObj.mjOBJ_SITE, name)
        if i < 0:
            return None
        half = np.abs(self.data.site_xmat[i].reshape(3, 3) @ self.model.site_size[i])
        return self.data.site_xpos[i].copy(), half

    def boxes(self, name: str) -> Boxes:
        """Collision boxes of an object or fixture."""
        self.body(name)
        return self._boxes(self._geoms[name])

    def others(self, *names: str) -> Boxes:
        """Collision boxes of everything but the robot and the named objects."""
        rest = [geoms for name, geoms in self._geoms.items() if name not in names]
        return Boxes.joined([self._boxes(np.concatenate(rest)) if rest else Boxes.none(), self._arena])

    def part(self, body: int) -> Boxes:
        """Collision boxes of a body and all that hangs on it: a drawer, a door, a knob."""
        return self._boxes(self._part(body) & self._solid)

    def rest(self, body: int, *names: str) -> Boxes:
        """Collision boxes of everything but the robot, the named objects and a body with all that hangs on it."""
        geoms = [ids for name, ids in self._geoms.items() if name not in names]
        ids = np.concatenate(geoms) if geoms else np.zeros(0, int)
        return Boxes.joined([self._boxes(ids[~self._part(body)[ids]]), self._arena])

    def touches_part(self, body: int) -> tuple[bool, bool]:
        """Whether each finger touches the body or what hangs on it."""
        pairs, mine = self.data.contact.geom, self._part(body)
        left, right = (bool(mine[pairs[np.isin(pairs, finger).any(axis=1)]].any()) for finger in self._sides)
        return left, right

    def _part(self, body: int) -> np.ndarray:
        """(ngeom,) bool: the geoms of a body and its descendants."""
        if body not in self._parts:
            within = np.zeros(self.model.nbody, bool)
            within[body] = True
            for child in range(body + 1, self.model.nbody):  # children follow their parents
                within[child] = within[self.model.body_parentid[child]]
            self._parts[body] = within[self.model.geom_bodyid]
        return self._parts[body]

    def imagined(self, joints: dict[int, float], objects: dict[str, np.ndarray]) -> "World":
        """The scene as it would be with joints (by their number in qpos) and objects' origins (3,) elsewhere."""
        data = mujoco.MjData(self.model)
        data.qpos[:] = self.data.qpos
        for address, position in joints.items():
            data.qpos[address] = position
        for name, origin in objects.items():
            address = self.model.jnt_qposadr[self.model.body_jntadr[self.body(name)]]
            data.qpos[address : address + 3] = origin
        mujoco.mj_kinematics(self.model, data)
        return World(self.model, data)

    @property
    def arena(self) -> Boxes:
        """Collision boxes of tables, floor and walls."""
        return self._arena

    def names(self) -> tuple[str, ...]:
        """Every object and fixture."""
        return tuple(self._bodies)

    @property
    def grip_site(self) -> int:
        """Number of the site between the fingertips."""
        return self._grip

    @property
    def shoulder(self) -> np.ndarray:
        """Position (3,) of the arm's second joint."""
        return self.data.xpos[self._shoulder].copy()

    @property
    def grip(self) -> np.ndarray:
        """Position (3,) of the grip site between the fingertips."""
        return self.data.site_xpos[self._grip].copy()

    @property
    def hand(self) -> np.ndarray:
        """Axes (3, 3) of the grip site: closing direction, across it, and out of the hand."""
        return self.data.site_xmat[self._grip].reshape(3, 3).copy()

    def upright_reach(self, point: np.ndarray) -> float:
        """Distance from shoulder to wrist that the upright hand at a grip point (3,) asks for."""
        shoulder = self.data.xpos[self._shoulder]
        away = point[:2] - shoulder[:2]
        wrist = np.array([*(point[:2] - _WRIST_BEHIND * away / np.linalg.norm(away)), point[2] + _WRIST_ABOVE])
        return float(np.linalg.norm(wrist - shoulder))

    @property
    def reach(self) -> float:
        """Distance from shoulder to wrist now."""
        return float(np.linalg.norm(self.data.xpos[self._wrist] - self.data.xpos[self._shoulder]))

    def outward(self, direction: np.ndarray) -> bool:
        """The direction leads away from the shoulder, in the plane."""
        return bool((self.grip - self.data.xpos[self._shoulder])[:2] @ direction[:2] > 0)

    @property
    def width(self) -> float:
        """Opening between the finger pads, meters."""
        return float(abs(self.data.qpos[self._fingers[0]]) + abs(self.data.qpos[self._fingers[1]]))

    def touching(self) -> tuple[set[str], set[str]]:
        """Names of the objects and fixtures that each finger touches."""
        pairs = self.data.contact.geom
        found: tuple[set[str], set[str]] = (set(), set())
        for side, finger in zip(found, self._sides, strict=True):
            hits = pairs[np.isin(pairs, finger).any(axis=1)]
            side.update(str(name) for name in self._name_of_geom[hits].ravel() if name)
        return found

    def holds(self, name: str) -> bool:
        """Both fingers touch the object and have some of it between them, or it touches nothing but a finger.

        Pinched things bounce between the pads; fingers that push from inside a bowl hold nothing.
        """
        left, right = self.touching()
        if name not in left and name not in right:
            return False
        return self.hangs(name) or (name in left and name in right and self.straddles(name))

    def straddles(self, name: str, margin: float = 0.0) -> bool:
        """Some of the object is between the fingers, or within `margin` (m) below, above or beside that gap."""
        half = np.array([[self.width / 2, 0.008 + margin, 0.011 + margin]])
        return bool(overlaps(Boxes(self.grip[None], self.hand[None], half), self.boxes(name)).any())

    def hangs(self, name: str) -> bool:
        """The object touches the fingers and nothing else."""
        pairs = self.data.contact.geom
        mine = self._name_of_geom[pairs] == name
        others = pairs[mine.any(axis=1)][~mine[mine.any(axis=1)]]
        return bool(len(others) and np.isin(others, np.concatenate(self._sides)).all())

    def lies(self, name: str) -> bool:
        """The object touches something other than the fingers."""
        pairs = self.data.contact.geom
        mine = self._name_of_geom[pairs] == name
        others = pairs[mine.any(axis=1)][~mine[mine.any(axis=1)]]
        return bool(len(others) and not np.isin(others, np.concatenate(self._sides)).all())

    @property
    def finger_speed(self) -> float:
        """Speed of the faster finger, m/s."""
        return float(np.abs(self.data.qvel[self._finger_speeds]).max())

    def _boxes(self, geoms: np.ndarray) -> Boxes:
        return Boxes(
            self.data.geom_xpos[geoms].copy(),
            self.data.geom_xmat[geoms].reshape(-1, 3, 3).copy(),
            self.model.geom_size[geoms].copy(),
        )
