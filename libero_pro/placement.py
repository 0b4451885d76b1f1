"""Free places for objects: many candidate layouts of one base task at once, as arrays, without a simulator.

A candidate is the xy (n, 2) of the objects that a generated scene places itself: those on the table or floor, and those
stacked on them. Objects in or on fixtures stay where the reset puts them, because fixtures move a little per reset.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np

from libero_pro.bddl import first_instance
from libero_pro.layouts import Layout, Placed, layout
from libero_pro.replacement import stand_in
from libero_pro.scene import Pose
from libero_pro.suites import get_task

CLEARANCE = 0.01  # metres between two footprints
FIXTURE_CLEARANCE = 0.02  # fixtures are drawn anew, +-1 cm, at each reset
LEAD = 0.03  # metres by which the prompt's object must be nearer to its landmark than its twin
_FLOOR_BOUNDS = (-0.25, -0.30, 0.20, 0.30)  # x_min, y_min, x_max, y_max that the arm reaches well
_TABLE_MARGIN = 0.05  # metres around the base task's own places
# Large containers stay put unless an operation names them.
_CONTAINERS = ("basket", "red_basket")
# Objects whose own place the instruction refers to ("left plate", "right of the plate").
_ANCHORED = {("libero_10", 4): ("plate_1", "plate_2"), ("libero_10", 6): ("plate_1",)}
# Where the robot stands, by what the objects stand on.
_ROBOT_X = {"floor": -0.6, "living_room_table": -0.51, "study_table": -0.75}
_ROBOT_X_ELSEWHERE = -0.66
_LANDMARKS = {"plate": "plate_1", "ramekin": "glazed_rim_porcelain_ramekin_1", "box": "cookies_1"}


@dataclass(frozen=True)
class Relation:
    """Where the prompt says its object stands: `twin` (None: not on the table) must not fit the words better."""

    subject: int
    twin: int | None
    landmarks: tuple[int, ...]  # their mean is the place; empty: the nominal place itself


@dataclass(frozen=True)
class Arrangement:
    """The placeable objects of one base task, prepared for sampling.

    names      rows of every array here;  `placed` their nominal rest
    instances  what stands there: another name where an object is replaced
    followers  row -> rows whose mean displacement it shares: stacked on one, or named by the prompt relative to them
    stacked    row -> row of the object it stands on
    movable    rows that operations without a named object move
    movable_if_named  rows that an operation may move by name
    """

    names: tuple[str, ...]
    instances: tuple[str, ...]
    placed: tuple[Placed, ...]
    followers: dict[int, tuple[int, ...]]
    stacked: dict[int, int]
    movable: tuple[int, ...]
    movable_if_named: tuple[int, ...]
    relation: Relation | None
    nominal: np.ndarray  # (n, 2)
    spread: np.ndarray  # (n, 2)
    low: np.ndarray  # (n, 2) footprint corner relative to the origin
    high: np.ndarray  # (n, 2)
    obstacles: np.ndarray  # (m, 4) fixture rectangles, world
    bounds: np.ndarray  # (4,)
    pairs: tuple[np.ndarray, np.ndarray]  # rows of objects that must not touch
    sizes: np.ndarray  # (n, 3) extents of the collision boxes, metres
    robot: np.ndarray  # (2,) where the robot's base stands
    regions: dict[str, tuple[float, float, float, float]]  # the task's named rectangles on the ground, world
    fixtures: tuple[str, ...]  # besides the table or floor

    def row(self, name: str) -> int | None:
        """Row of an object, or None if it stands on a fixture or does not exist."""
        return self.names.index(name) if name in self.names else None

    def leaders(self, row: int) -> tuple[int, ...]:
        """The rows that must move for `row` to move: itself, or what it stands on or is named after."""
        return self.followers.get(row, (row,))

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """(count, n, 2) xy as base resets would draw them; what is stacked stays on its support."""
        xy = self.nominal + rng.uniform(-1.0, 1.0, (count, *self.nominal.shape)) * self.spread
        for row, support in self.stacked.items():
            xy[:, row] = xy[:, support] + self.nominal[row] - self.nominal[support]
        return xy

    def follow(self, start: np.ndarray, moved: np.ndarray) -> np.ndarray:
        """Moves followers by the mean displacement of their leaders; both arrays (count, n, 2)."""
        result = moved.copy()
        for row, leaders in self.followers.items():
            shift = np.mean([result[:, lead] - start[:, lead] for lead in leaders], axis=0)
            result[:, row] = start[:, row] + shift
        return result

    def acceptable(self, start: np.ndarray, moved: np.ndarray) -> np.ndarray:
        """(count,) bool: in bounds, footprints apart, prompt still true.

        Objects that did not move and are not replaced are not judged.
        """
        changed = np.any(moved != start, axis=2)  # (count, n)
        changed |= np.array([name != own for name, own in zip(self.instances, self.names, strict=True)])
        inside = np.all((moved >= self.bounds[:2]) & (moved <= self.bounds[2:]), axis=2)
        good = np.all(inside | ~changed, axis=1)
        low, high = moved + self.low, moved + self.high
        a, b = self.pairs
        gap = np.maximum(low[:, a] - high[:, b], low[:, b] - high[:, a]).max(axis=2)
        good &= np.all((gap >= CLEARANCE) | ~(changed[:, a] | changed[:, b]), axis=1)
        if len(self.obstacles):
            near, far = self.obstacles[:, :2], self.obstacles[:, 2:]
            gap = np.maximum(low[:, :, None] - far, near - high[:, :, None]).max(axis=3)
            good &= np.all((gap >= FIXTURE_CLEARANCE) | ~changed[:, :, None], axis=(1, 2))
        return good & self._prompt_true(moved)

    def _prompt_true(self, moved: np.ndarray) -> np.ndarray:
        relation = self.relation
        if relation is None or relation.twin is None:
            return np.ones(len(moved), bool)
        place = (
            moved[:, list(relation.landmarks)].mean(axis=1) if relation.landmarks else self.nominal[relation.subject]
        )
        own = np.linalg.norm(moved[:, relation.subject] - place, axis=1)
        other = np.linalg.norm(moved[:, relation.twin] - place, axis=1)
        return own + LEAD <= other

    def poses(self, xy: np.ndarray) -> dict[str, Pose]:
        """Explicit poses for one candidate (n, 2), at each object's own resting height and orientation."""
        return {
            name: Pose(
                position=(round(float(x), 4), round(float(y), 4), placed.position[2]), quaternion=placed.quaternion
            )
            for name, placed, (x, y) in zip(self.instances, self.placed, xy, strict=True)
        }


@cache
def arrangement(suite: str, task_id: int, replaced: tuple[tuple[str, str], ...] = ()) -> Arrangement:
    """The arrangement of a base task, with others in the places of some objects (instance, category).

    RecordError if the task has no measured layout.
    """
    nominal = layout(suite, task_id)
    free = nominal.free()
    names = tuple(name for name, placed in nominal.objects.items() if name in free or placed.support in free)
    others = dict(replaced)
    placed = tuple(
        stand_in(nominal.objects[name], others[name]) if name in others else nominal.objects[name] for name in names
    )
    index = {name: row for row, name in enumerate(names)}
    stacked = {index[name]: index[one.support] for name, one in nominal.objects.items() if one.support in index}
    followers: dict[int, tuple[int, ...]] = {row: (support,) for row, support in stacked.items()}
    relation = _relation(suite, task_id, nominal, index)
    if relation is not None and relation.landmarks and relation.subject not in followers:
        followers[relation.subject] = relation.landmarks
    anchored = {index[name] for name in _ANCHORED.get((suite, task_id), ())}
    if relation is not None and not relation.landmarks:
        anchored.add(relation.subject)
    named = tuple(row for row in range(len(names)) if row not in followers and row not in anchored)
    xy = np.array([one.position[:2] for one in placed])
    rectangles = np.array([one.footprint for one in placed])
    pairs = [(a, b) for a in range(len(names)) for b in range(a) if stacked.get(a) != b and stacked.get(b) != a]
    obstacles = [np.add(one.footprint, one.position[:2] * 2) for one in nominal.fixtures.values()]
    table = (*(xy.min(0) - _TABLE_MARGIN), *(xy.max(0) + _TABLE_MARGIN))
    return Arrangement(
        names=names,
        instances=tuple(first_instance(others[name]) if name in others else name for name in names),
        placed=placed,
        followers=followers,
        stacked=stacked,
        movable=tuple(row for row in named if nominal.category(names[row]) not in _CONTAINERS),
        movable_if_named=named,
        relation=relation,
        nominal=xy,
        spread=np.array([one.spread for one in placed]),
        low=rectangles[:, :2],
        high=rectangles[:, 2:],
        obstacles=np.array(obstacles).reshape(-1, 4),
        bounds=np.array(_FLOOR_BOUNDS if nominal.ground == "floor" else table),
        pairs=(np.array([a for a, _ in pairs], int), np.array([b for _, b in pairs], int)),
        sizes=np.column_stack([rectangles[:, 2:] - rectangles[:, :2], [one.top - one.bottom for one in placed]]),
        robot=np.array([_ROBOT_X.get(nominal.ground, _ROBOT_X_ELSEWHERE), 0.0]),
        regions=_regions(suite, task_id, nominal),
        fixtures=tuple(nominal.fixtures),
    )


def _regions(suite: str, task_id: int, nominal: Layout) -> dict[str, tuple[float, float, float, float]]:
    """World rectangles of the BDDL regions on the ground, which are written relative to its center."""
    known = get_task(suite, task_id).problem().regions
    ranges = {
        name: region.ranges[0] for name, region in known.items() if region.target == nominal.ground and region.ranges
    }
    offsets = [
        np.subtract(one.position[:2], np.mean(np.reshape(ranges[one.region], (2, 2)), axis=0))
        for one in (nominal.objects | nominal.fixtures).values()
        if one.region in ranges
    ]
    # The reset draws within the region and objects roll a little: the median is good to a centimetre.
    x, y = np.round(np.median(offsets, axis=0), 2)
    return {name: (a + x, b + y, c + x, d + y) for name, (a, b, c, d) in ranges.items()}


def _relation(suite: str, task_id: int, nominal: Layout, index: dict[str, int]) -> Relation | None:
    """The spatial words of a libero_spatial prompt, from the region that its bowl is drawn in."""
    if suite != "libero_spatial":
        return None
    subject = next(name for name in get_task(suite, task_id).goal()[0][1:] if name in nominal.objects)
    twin = next(n for n in nominal.objects if n != subject and nominal.category(n) == nominal.category(subject))
    if subject not in index:
        return None  # it is in or on a fixture, which stays
    region = nominal.objects[subject].region
    if region in index:
        return Relation(index[subject], index.get(twin), (index[region],))
    words = [word for word in _LANDMARKS if word in region.split("_")]
    return Relation(index[subject], index.get(twin), tuple(index[_LANDMARKS[word]] for word in words))
