"""Where the objects of every base task rest, so that new layouts can be sampled without a simulator.

`python -m libero_pro.layouts` measures them again (a few minutes) and rewrites `data/layouts.json`.
"""

import json
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from libero_pro.record import Record, RecordError, write_atomically
from libero_pro.suites import BASE, Task, scene_for, tasks

DRAWS = 8  # fresh resets settled and averaged per task
SPREAD_DRAWS = 40  # fresh resets whose start positions give the spread
SETTLE_STEPS = 20  # no-op control steps before a pose counts as resting
DATA = Path(__file__).parent / "data" / "layouts.json"
Vector = tuple[float, float, float]
Rectangle = tuple[float, float, float, float]


class Placed(Record):
    """How one object or fixture rests in a base task, averaged over fresh resets.

    position    world position of the body origin, metres; x, y belong to the place, z to the object (on a flat support)
    quaternion  (w, x, y, z) at rest
    footprint   (x_min, y_min, x_max, y_max) of its collision boxes in world axes, relative to the origin, metres
    bottom, top lowest and highest collision point relative to the origin, metres
    support     what it stands on: the table or floor, another instance, or a fixture
    region      name of the BDDL region it is drawn in; `spread` half the range of x and y over fresh resets
    """

    position: Vector
    quaternion: tuple[float, float, float, float]
    footprint: Rectangle
    bottom: float
    top: float
    support: str
    region: str
    spread: tuple[float, float]

    @property
    def radius(self) -> float:
        """Radius of the circle around the origin that holds the footprint, metres."""
        return float(np.hypot(*np.abs(np.reshape(self.footprint, (2, 2))).max(0)))


class Layout(Record):
    """The nominal layout of one base task."""

    suite: str
    task_id: int
    ground: str  # instance name of the table or floor
    objects: dict[str, Placed]
    fixtures: dict[str, Placed]

    def free(self) -> tuple[str, ...]:
        """Movable objects that stand directly on the table or floor."""
        return tuple(name for name, placed in self.objects.items() if placed.support == self.ground)

    def category(self, name: str) -> str:
        """`akita_black_bowl_2` -> `akita_black_bowl`."""
        return name.rsplit("_", 1)[0]


def layout(suite: str, task_id: int) -> Layout:
    """The measured layout of a base task; RecordError if there is none."""
    try:
        return _layouts()[suite, task_id]
    except KeyError:
        raise RecordError(
            f"no measured layout for {suite} {task_id}; generation starts from the base suites {', '.join(BASE)}"
        ) from None


@cache
def _layouts() -> dict[tuple[str, int], Layout]:
    try:
        rows = json.loads(DATA.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(
            f"{DATA.name} cannot be read ({error}); rebuild it with `python -m libero_pro.layouts`"
        ) from None
    return {(row["suite"], row["task_id"]): Layout.parse(row) for row in rows}


def measure(task: Task, simulator: Any = None) -> Layout:
    """Measures one base task from fresh resets; builds a simulator unless one is given (seconds)."""
    if simulator is None:
        from libero_pro.simulator import Simulator

        simulator = Simulator(task)
    sim = simulator
    problem = task.problem()
    ground = next(name for name, kind in problem.fixtures.items() if kind in _GROUNDS)
    names = [*problem.objects, *(name for name in problem.fixtures if name != ground)]
    starts: dict[str, list[np.ndarray]] = {name: [] for name in names}
    rests: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for seed in reversed(range(SPREAD_DRAWS)):  # ends with the settled draw that gives quaternions and boxes
        sim.reset(scene_for(task.suite, task.task_id, seed=seed))
        for name in names:
            starts[name].append(np.array(sim.data.body(f"{name}_main").xpos))
        if seed < DRAWS:
            sim.settle(SETTLE_STEPS)
            for name in names:
                rests[name].append(np.array(sim.data.body(f"{name}_main").xpos))
    quaternions = {name: np.array(sim.data.body(f"{name}_main").xquat) for name in names}
    boxes = {name: collision_corners(sim.model, sim.data, name) - rests[name][-1] for name in names}
    positions = {name: np.median(rests[name], axis=0) for name in names}
    for name in problem.objects:  # a stacked object keeps the offset and tilt that it has in the last draw
        support = _support(task, name)
        if support in problem.objects:
            positions[name] = positions[support] + rests[name][-1] - rests[support][-1]
    placed = {
        name: Placed(
            position=_rounded(positions[name]),
            quaternion=_rounded(quaternions[name]),
            footprint=_rounded([*boxes[name].min(0)[:2], *boxes[name].max(0)[:2]]),
            bottom=_rounded(boxes[name].min(0)[2:])[0],
            top=_rounded(boxes[name].max(0)[2:])[0],
            support=_support(task, name),
            region=_region(task, name),
            spread=_rounded(np.ptp(starts[name], axis=0)[:2] / 2),
        )
        for name in names
    }
    return Layout(
        suite=task.suite,
        task_id=task.task_id,
        ground=ground,
        objects={name: placed[name] for name in problem.objects},
        fixtures={name: placed[name] for name in names if name not in problem.objects},
    )


def collision_corners(model, data, name: str) -> np.ndarray:
    """World corners (8 per box, 3) of an instance's collision geometry; LIBERO's objects collide as boxes only."""
    root = model.body(f"{name}_main").id
    bodies = {root}
    for body in range(root + 1, model.nbody):  # children follow their parents
        if model.body_parentid[body] in bodies:
            bodies.add(body)
    unit = np.array(np.meshgrid([-1, 1], [-1, 1], [-1, 1])).reshape(3, -1).T
    corners = [
        (unit * model.geom_size[geom]) @ data.geom_xmat[geom].reshape(3, 3).T + data.geom_xpos[geom]
        for geom in range(model.ngeom)
        if model.geom_bodyid[geom] in bodies and (model.geom_contype[geom] or model.geom_conaffinity[geom])
    ]
    return np.concatenate(corners)


_GROUNDS = ("floor", "table", "kitchen_table", "living_room_table", "study_table", "coffee_table")


def _support(task: Task, name: str) -> str:
    problem = task.problem()
    region = _region(task, name)
    return problem.regions[region].target if region in problem.regions else region


def _region(task: Task, name: str) -> str:
    return next(fact[2] for fact in task.problem().init if len(fact) == 3 and fact[1] == name)


def _rounded(values: Iterable[float]) -> tuple:
    return tuple(round(float(value), 4) for value in values)


def build(path: Path, simulate: Callable[[Task], Any] | None = None) -> None:
    """Measures every base task and writes the data file."""
    rows = []
    for suite in BASE:
        for task in tasks(suite):
            print(f"measuring {suite} {task.task_id}", flush=True)
            rows.append(measure(task, simulate(task) if simulate else None).model_dump(mode="json"))
    lines = ",\n".join(json.dumps(row, sort_keys=True, separators=(",", ":")) for row in rows)
    write_atomically(path, f"[\n{lines}\n]\n".encode())


if __name__ == "__main__":
    build(DATA)
