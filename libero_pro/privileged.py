"""SceneState: what a simulator knows of one instant and a camera does not; read by critics, potentials and experts."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from libero_pro.parts import articulated_parts, subtree
from libero_pro.scene import Goal


@dataclass(frozen=True)
class SceneState:
    """Poses, contacts, joints and predicates of one instant; plain data, world frame, metres and radians.

    object_pos (n, 3), object_quat (n, 4) wxyz   body origins in the order of object_names
    eef_pos (3,), eef_quat (4,) wxyz             grip site and hand body
    gripper_width                                distance between the fingers' joints, 0 closed to 0.08 open
    held                                         index of the object touched by both finger pads, -1 for none
    contacts                                     touching pairs of names, each pair in alphabetical order: objects,
                                                 fixtures, "gripper", "robot", and "table" for everything else
    joints                                       positions of all hinges and slides that are not the robot's, by name
    goal, goal_holds (n_goal,)                   the scene's predicates and which of them hold
    sites                                        centers of the regions that goals name, e.g. basket_1_contain_region
    fixtures                                     positions of the fixtures' bodies
    """

    object_names: tuple[str, ...]
    object_pos: np.ndarray
    object_quat: np.ndarray
    eef_pos: np.ndarray
    eef_quat: np.ndarray
    gripper_width: float
    held: int
    contacts: frozenset[tuple[str, str]]
    joints: dict[str, float]
    goal: Goal
    goal_holds: np.ndarray
    sites: dict[str, np.ndarray]
    fixtures: dict[str, np.ndarray]

    @property
    def held_name(self) -> str | None:
        """Name of the held object, None for none."""
        return self.object_names[self.held] if self.held >= 0 else None

    def touching(self, a: str, b: str) -> bool:
        """Whether two named things touch."""
        return (min(a, b), max(a, b)) in self.contacts


class StateReader:
    """Reads SceneStates from a live LIBERO environment; all ids are looked up once."""

    def __init__(self, env: Any) -> None:
        self._env = env
        model = env.sim.model._model
        self._data = env.sim.data._data
        robot = env.robots[0]
        self.object_names: tuple[str, ...] = tuple(env.objects_dict)
        self._objects = np.array([env.obj_body_id[name] for name in self.object_names], int)
        self._fixtures = {name: env.obj_body_id[name] for name in env.fixtures_dict}
        self.eef_site: int = robot.eef_site_id
        self.eef_body: int = model.body(robot.robot_model.eef_name).id
        self._fingers = [int(index) for index in robot._ref_gripper_joint_pos_indexes]
        robot_joints = {*robot.robot_joints, *robot.gripper_joints}
        self._joints = {
            model.joint(j).name: int(model.jnt_qposadr[j])
            for j in range(model.njnt)
            if model.jnt_type[j] >= 2 and model.joint(j).name not in robot_joints
        }
        self._sites = {name: model.site(name).id for name in env.object_sites_dict}
        self._region_sites = np.array(list(self._sites.values()), int)
        self._region_bodies = np.array(list(self._fixtures.values()), int)
        self.region_names: tuple[str, ...] = (*self._sites, *self._fixtures)
        self._site_size = model.site_size
        self.parts = articulated_parts(env)
        self.part_names: tuple[str, ...] = tuple(part.name for part in self.parts)
        self.part_range = np.array([(part.closed, part.open) for part in self.parts], float).reshape(-1, 2)
        self._part_qpos = np.array([model.jnt_qposadr[part.joint] for part in self.parts], int)
        self._part_joints = np.array([part.joint for part in self.parts], int)
        self._part_geoms = np.array([part.geom for part in self.parts], int)
        self._part_on_axis = np.array([part.on_axis for part in self.parts], bool)
        roots = {
            **{body: name for name, body in self._fixtures.items()},
            **{int(body): name for name, body in zip(self.object_names, self._objects, strict=True)},
            model.body(robot.gripper.root_body).id: "gripper",
            model.body(robot.robot_model.root_body).id: "robot",
        }
        self._labels, self._geom_label = _label_geoms(model, roots)
        object_of = {name: index for index, name in enumerate(self.object_names)}
        self._geom_object = np.array([object_of.get(self._labels[label], -1) for label in self._geom_label])
        self._geom_thing = self._geom_object.copy()  # objects, then parts
        for index, part in enumerate(self.parts, len(self.object_names)):
            self._geom_thing[subtree(model, part.body)] = index
        self._geom_gripper = self._geom_label == self._labels.index("gripper")
        self._geom_pad = np.zeros(model.ngeom, int)
        for side, pad in ((1, "left_fingerpad"), (2, "right_fingerpad")):
            self._geom_pad[[model.geom(name).id for name in robot.gripper.important_geoms[pad]]] = side

    def object_pos(self) -> np.ndarray:
        """(n, 3) positions of the movable objects."""
        return self._data.xpos[self._objects]

    def object_quat(self) -> np.ndarray:
        """(n, 4) orientations wxyz of the movable objects."""
        return self._data.xquat[self._objects]

    def eef_pos(self) -> np.ndarray:
        """(3,) grip site."""
        return self._data.site_xpos[self.eef_site].copy()

    def gripper_qpos(self) -> np.ndarray:
        """(2,) finger joints."""
        return self._data.qpos[self._fingers]

    def held(self) -> int:
        """Index of the object that both finger pads touch, -1 for none."""
        pairs = self._data.contact.geom
        if not len(pairs):
            return -1
        pads = self._geom_pad[pairs]
        if not pads.any():
            return -1
        things = self._geom_object[pairs[:, ::-1]]
        left, right = set(things[pads == 1].tolist()), set(things[pads == 2].tolist())
        return min((left & right) - {-1}, default=-1)

    def touched(self) -> np.ndarray:
        """(n + p,) bool: which objects and then which parts the gripper touches."""
        pairs = self._data.contact.geom
        found = np.zeros(len(self.object_names) + len(self.parts) + 1, bool)
        found[self._geom_thing[pairs[:, ::-1][self._geom_gripper[pairs]]]] = True  # the last one: nothing of these
        return found[:-1]

    def part_pos(self) -> np.ndarray:
        """(p,) joint positions of the articulated parts, m or rad."""
        return self._data.qpos[self._part_qpos]

    def part_point(self) -> np.ndarray:
        """(p, 3) where each part is taken hold of: a drawer's handle, the edge of a door, the top of a knob."""
        points = self._data.geom_xpos[self._part_geoms]
        points[self._part_on_axis, :2] = self._data.xanchor[self._part_joints[self._part_on_axis], :2]
        return points

    def region_pos(self) -> np.ndarray:
        """(m, 3) centers of the regions, then positions of the fixtures."""
        return np.concatenate([self._data.site_xpos[self._region_sites], self._data.xpos[self._region_bodies]])

    def region_half(self) -> np.ndarray:
        """(m, 3) half sizes of the regions along the world's axes, as LIBERO's In reads them; 0 for fixtures."""
        turned = self._data.site_xmat[self._region_sites].reshape(-1, 3, 3)
        half = np.abs(turned @ self._site_size[self._region_sites][:, :, None])[..., 0]
        return np.concatenate([half, np.zeros((len(self._region_bodies), 3))])

    def contacts(self) -> frozenset[tuple[str, str]]:
        """Touching pairs of names, see SceneState."""
        pairs = np.sort(self._geom_label[self._data.contact.geom], axis=1).reshape(-1, 2)
        return frozenset((self._labels[a], self._labels[b]) for a, b in set(map(tuple, pairs.tolist())) if a != b)

    def goal_holds(self, goal: Goal) -> np.ndarray:
        """(n_goal,) bool, LIBERO's own predicate of each conjunct."""
        return np.array([bool(self._env._eval_predicate(list(predicate))) for predicate in goal], bool)

    def read(self, goal: Goal, goal_holds: np.ndarray) -> SceneState:
        """The whole state of this instant."""
        data = self._data
        return SceneState(
            object_names=self.object_names,
            object_pos=self.object_pos(),
            object_quat=self.object_quat(),
            eef_pos=self.eef_pos(),
            eef_quat=data.xquat[self.eef_body].copy(),
            gripper_width=float(np.abs(self.gripper_qpos()).sum()),
            held=self.held(),
            contacts=self.contacts(),
            joints={name: float(data.qpos[address]) for name, address in self._joints.items()},
            goal=goal,
            goal_holds=goal_holds.copy(),
            sites={name: data.site_xpos[site].copy() for name, site in self._sites.items()},
            fixtures={name: data.xpos[body].copy() for name, body in self._fixtures.items()},
        )


def _label_geoms(model: Any, roots: dict[int, str]) -> tuple[list[str], np.ndarray]:
    """Sorted label names and, per geom, the index of its label: the nearest ancestor body that is a root."""
    labels = sorted({*roots.values(), "table"})
    of_body = np.full(model.nbody, labels.index("table"))
    for body in range(1, model.nbody):
        of_body[body] = labels.index(roots[body]) if body in roots else of_body[model.body_parentid[body]]
    return labels, of_body[model.geom_bodyid]
