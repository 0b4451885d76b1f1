"""The expert at work in a scene, with hands that a fault can take over: what planted failures are made of."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from libero_pro.episode import Episode
from libero_pro.expert.articulation import Articulation, articulations
from libero_pro.expert.expert import decide
from libero_pro.expert.motion import CLOSE, OPEN, Decision, towards
from libero_pro.expert.pick import Plans
from libero_pro.expert.place import carry
from libero_pro.expert.placements import Place, find_place
from libero_pro.expert.solve import SETTLE_STEPS
from libero_pro.expert.subtasks import share
from libero_pro.expert.world import World
from libero_pro.record import RecordError
from libero_pro.recorder import EpisodeRecorder
from libero_pro.scene import Goal, SceneSpec
from libero_pro.simulator import Simulator

ACTOR = "policy:bench"  # the truth stands in the record beside the episode, not in it
LONGEST = 280  # control steps of an episode: more than any planted failure needs
ELSEWHERE = 150  # control steps at most for another task than the scene's: what takes longer is not worth waiting for
_FINGERS = tuple(f"gripper0_finger{i}{part}_collision" for i in (1, 2) for part in ("", "_pad"))
_SLIPPERY = 0.0005  # friction of fingers that let everything through
_STEADY = 0.9  # share of a tremor that the next step keeps


class NotPlanted(Exception):
    """The fault does not apply to this scene, or did not take: no episode comes of it."""


class Solved(Exception):
    """The scene's goal holds: the episode is over, and no failure."""


class Actor:
    """Acts in a scene from its start and records it; `predicate` is the one of the goal that a fault is about.

    Movements tremble and run at a pace, both drawn by `rng`, so that no two episodes are alike.
    """

    def __init__(self, sim: Simulator, scene: SceneSpec, predicate: tuple[str, ...], rng: np.random.Generator) -> None:
        sim.reset(scene)
        sim.settle(SETTLE_STEPS)
        self.sim, self.scene, self.predicate, self.rng = sim, scene, predicate, rng
        self.world = World(sim.model, sim.data)
        self.joints = articulations(sim.env)
        self.plans = Plans()
        self.pace = float(rng.uniform(0.75, 1.0))
        self._start = {name: self.world.position(name) for name in sim.object_names}
        self._tremor: np.ndarray = np.zeros(3)
        self._strength = float(rng.uniform(0.0, 0.12))
        self._gripper = OPEN
        self._recorder = EpisodeRecorder(sim, scene, ACTOR)
        self._recorder.start()

    # --- what it knows

    @property
    def target(self) -> str:
        """The object or part that the predicate is about."""
        return self.predicate[1]

    @property
    def part(self) -> Articulation | None:
        """The joint that the predicate speaks of; None where it places an object."""
        return self.joints[self.target] if len(self.predicate) == 2 else None

    @property
    def instant(self) -> int:
        """Control steps so far."""
        return self._recorder.steps

    @property
    def holding(self) -> str | None:
        """The object between both finger pads."""
        held = self.sim.reader.held()
        return self.sim.object_names[held] if held >= 0 else None

    def place(self) -> Place:
        """Where the predicate's object goes."""
        return find_place(self.world, self.predicate, share(self.scene.goal, self.predicate))

    def to_go(self) -> float:
        """Horizontal distance (m) of the object from its place, or of a part's joint from its threshold (m or rad)."""
        part = self.part
        if part is not None:
            return abs(part.position(self.world) - part.threshold(self.predicate[0]))
        return float(np.linalg.norm(self.world.position(self.target)[:2] - self.place().xy))

    def lifted(self) -> float:
        """How much (m) higher than at the start the object's origin is; 0 for a part."""
        return float(self._shift()[2])

    def moved(self) -> float:
        """How far (m) the object is from where it stood at the start; 0 for a part."""
        return float(np.linalg.norm(self._shift()))

    def _shift(self) -> np.ndarray:
        return self.world.position(self.target) - self._start[self.target] if self.part is None else np.zeros(3)

    def from_target(self) -> float:
        """Distance (m) of the grip point from the box around the object or part."""
        part = self.part
        boxes = self.world.boxes(self.target) if part is None else self.world.part(part.body)
        beyond = np.maximum(boxes.low() - self.world.grip, self.world.grip - boxes.high())
        return float(np.linalg.norm(np.maximum(beyond, 0.0)))

    # --- what it does

    def act(self, action: np.ndarray) -> None:
        """One control step, trembling."""
        if self.instant >= LONGEST:
            raise NotPlanted(f"nothing came of it in {LONGEST} steps")
        self._tremor = _STEADY * self._tremor + (1 - _STEADY) * self.rng.normal(0.0, 1.0, 3)
        executed = np.array(action, np.float32)
        executed[:3] = np.clip(executed[:3] + 3.0 * self._strength * self._tremor, -1.0, 1.0)
        self._gripper = float(executed[6])
        if self._recorder.step(executed):
            raise Solved

    def expert(self, goal: Goal | None = None) -> Decision:
        """What the expert would do now for a goal (the scene's own by default)."""
        goal = goal or self.scene.goal
        try:
            return decide(self.world, self.joints, goal, self.sim.reader.goal_holds(goal), self.plans)
        except RecordError as error:
            raise NotPlanted(str(error)) from None

    def follow(self, until: Callable[[Decision], bool], goal: Goal | None = None) -> Decision:
        """Does as the expert would until a decision for which `until` holds, and returns that one unexecuted."""
        limit = self.instant + (LONGEST if goal is None else ELSEWHERE)
        while self.instant < limit:
            decision = self.expert(goal)
            if until(decision):
                return decision
            if decision.phase == "done" and goal is None:
                raise NotPlanted("the expert was done before")
            self.act(self.paced(decision.action))
        raise NotPlanted("the other task takes too long")

    def follow_to(self, *phases: str) -> Decision:
        """Follows the expert to the first of these phases of its work on the predicate."""
        return self.follow(lambda decision: decision.task == self.predicate and decision.phase in phases)

    def paced(self, action: np.ndarray) -> np.ndarray:
        """The action at this actor's pace."""
        return np.concatenate([action[:3] * self.pace, action[3:]])

    def go(
        self, point: np.ndarray, gripper: float, *, steps: int = 45, near: float = 0.01, speed: float = 0.85
    ) -> bool:
        """Straight to a grip point (3,), the hand's axes kept; returns whether it came within `near` metres."""
        for _ in range(steps):
            if np.linalg.norm(self.world.grip - point) < near:
                return True
            self.act(towards(self.world, "go", point, np.zeros(3), gripper, speed * self.pace).action)
        return bool(np.linalg.norm(self.world.grip - point) < near)

    def move(self, direction: np.ndarray, steps: int, gripper: float | None = None) -> None:
        """A constant translation command (3,), the fingers as they are unless told otherwise."""
        gripper = self._gripper if gripper is None else gripper
        for _ in range(steps):
            self.act(np.array([*direction, 0.0, 0.0, 0.0, gripper]))

    def rest(self, low: int, high: int) -> None:
        """Stands still for a random number of steps, without a tremor."""
        strength, self._strength = self._strength, 0.0
        self.move(np.zeros(3), int(self.rng.integers(low, high + 1)))
        self._strength = strength

    def rise(self, height: float, gripper: float | None = None) -> None:
        """Straight up by `height` metres, as far as the arm goes."""
        point = self.world.grip + np.array([0.0, 0.0, height])
        self.go(point, self._gripper if gripper is None else gripper, near=0.02)

    def put_down(self, place: Place, fall: float = np.inf) -> int:
        """Carries the held object to a place and lets it go there; returns the instant at which the fingers open.

        NotPlanted where the hand can't get so low that the object falls by less than `fall` metres.
        """
        lost = 0  # steps; what is pinched by its rim bounces between the pads
        while (decision := carry(self.world, self.target, place)).phase != "release":
            lost = 0 if self.world.holds(self.target) else lost + 1
            if lost > 5:
                raise NotPlanted("it was lost on the way")
            self.act(self.paced(decision.action))
        if self.world.boxes(self.target).low()[2] - place.ground > fall:
            raise NotPlanted("it would fall there")
        opened = self.instant
        self.move(np.zeros(3), 9, OPEN)
        self.rise(0.1)
        return opened

    def go_on(self) -> None:
        """What a policy does that has not noticed: on to the receptacle, open there, up; or it stays, or rises."""
        if self.part is None and self.rng.random() < 0.5:
            over = np.array([*self.place().xy, max(self.world.grip[2], self.world.position(self.target)[2] + 0.15)])
            if self.go(over, self._gripper, near=0.03):
                self.move(np.zeros(3), 8, OPEN)
                self.rise(0.06)
        elif self.rng.random() < 0.5:
            self.rise(0.12)
        self.rest(5, 30)

    @contextmanager
    def slippery(self) -> Iterator[None]:
        """Fingers without friction, as long as the block lasts."""
        model = self.sim.model
        fingers = [model.geom(name).id for name in _FINGERS]
        kept = model.geom_friction[fingers].copy(), model.geom_priority[fingers].copy()
        model.geom_friction[fingers], model.geom_priority[fingers] = _SLIPPERY, 2
        try:
            yield
        finally:
            model.geom_friction[fingers], model.geom_priority[fingers] = kept

    def lose(self, action: Callable[[], np.ndarray], steps: int = 40) -> int:
        """Acts with closed, slippery fingers until nothing has been between them for 3 instants; returns when."""
        away = 0
        with self.slippery():
            for _ in range(steps):
                executed = np.array(action(), np.float32)
                executed[6] = CLOSE
                self.act(executed)
                away = 0 if self.holding == self.target else away + 1
                if away >= 3:
                    return self.instant - 3
        raise NotPlanted("it stayed between the fingers")

    def finish(self) -> Episode:
        """The episode, cut by its horizon here."""
        return self._recorder.finish(truncated=True)
