"""Known defects of the released tasks: what a reader of a result must know, as data.

Each was found in the released files or by simulating the released starts (MuJoCo 3.3.7). Nothing is left out of a run
because of a defect; results are shown with and without the episodes whose defect distorts them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "false prompt", "wrong prompt", "ambiguous prompt", "contradiction", "degenerate", "duplicate", "in distribution",
    "weak perturbation", "hidden condition", "lenient success", "thrown start", "no starts", "history",
    "unsolvable", "missing object",
]  # fmt: skip


@dataclass(frozen=True)
class Defect:
    """One defect of a suite's tasks.

    tasks          task ids; None: all ten
    distorts       the success rate does not mean there what the suite's name says
    starts         released start states that have it; empty: all
    prompt_source  the prompt source under which it exists; None: both
    """

    kind: Kind
    suite: str
    tasks: tuple[int, ...] | None
    note: str
    distorts: bool = True
    starts: tuple[int, ...] = ()
    prompt_source: str | None = None

    def touches(self, suite: str, task_id: int, start: int | None, prompt_source: str) -> bool:
        """Whether an episode has it; `start` None asks for any start of the task."""
        return (
            suite == self.suite
            and (self.tasks is None or task_id in self.tasks)
            and (start is None or not self.starts or start in self.starts)
            and self.prompt_source in (None, prompt_source)
        )

    def where(self) -> str:
        """`libero_goal_task 7`, or with its starts."""
        tasks = "" if self.tasks is None else " " + ", ".join(map(str, self.tasks))
        starts = f" start {', '.join(map(str, self.starts))}" if self.starts else ""
        return f"{self.suite}{tasks}{starts}"


# (suite, task) -> released starts after which an object that nobody touched has moved more than 8 cm in x, y when the
# 10 settle steps end: the file was written without settling, and objects that start inside one another fly apart.
# Measured with the seeds of the default protocol (1000 + start).
THROWN: dict[tuple[str, int], tuple[int, ...]] = {
    ("libero_10", 0): (2, 45),
    ("libero_10_lan", 0): (23, 26, 29),
    ("libero_10_object", 6): (49,),
    ("libero_10_swap", 1): (6, 23, 30, 47),
    ("libero_10_swap", 3): (17, 30, 31, 32),
    ("libero_10_task", 1): (40,),
    ("libero_goal_object", 1): (23,),
    ("libero_goal_object", 8): (8,),
    ("libero_goal_swap", 5): (2, 6, 16, 25, 32, 46, 49),
    ("libero_spatial_lan", 0): (4, 9, 23, 25, 27, 34),
    ("libero_spatial_lan", 2): (13, 46, 48),
    ("libero_spatial_lan", 8): (7, 10, 11, 22, 32),
    ("libero_spatial_object", 0): (38, 43),
    ("libero_spatial_object", 2): (17, 33),
    ("libero_spatial_object", 8): (15, 17, 26),
    ("libero_spatial_swap", 0): (37,),
    ("libero_spatial_swap", 3): (33, 35),
    ("libero_spatial_task", 0): (0, 5, 34, 36, 46),
    ("libero_spatial_task", 2): (21, 22, 47),
    ("libero_spatial_task", 8): (11, 39),
}

_BASES = ("libero_spatial", "libero_object", "libero_goal", "libero_10")
# Their init facts open a drawer or door, or turn on a stove. LIBERO draws such joints before the fixtures' places, from
# the same random numbers, and appends their samplers to a list that every hard reset lengthens: the places depend on
# how many resets the environment has seen. LeRobot's own environment has made three by its first episode, and makes one
# more for each episode after it. The simulator here draws each start as after LIBERO's first reset.
BY_HISTORY = {"libero_spatial": (4,), "libero_10": (3, 8, 9)}
# Suite of the position grid -> tasks in which an object that stood in the target's way is 10 m away in every start: a
# distractor, or the basket that the target shall go into.
PARKED: dict[str, tuple[int, ...]] = {
    "libero_object_temp_x0.2": (0, 1, 6),
    "libero_object_temp_x0.3": (0, 1, 2, 3, 4, 6, 7, 8, 9),
    "libero_object_temp_x0.4": (0, 1, 2, 3, 4, 5, 6, 7, 8, 9),
    "libero_object_temp_x0.5": (0, 1, 2, 3, 4, 5, 6, 7, 8, 9),
    "libero_object_temp_y0.2": (5,),
    "libero_object_temp_y0.3": (5,),
    "libero_object_temp_y0.4": (0, 4, 6, 7, 8),
    "libero_object_temp_y0.5": (0, 4, 6, 7, 8),
}
PARKED_BASKET = {"libero_object_temp_y0.4": (5,), "libero_object_temp_y0.5": (2, 3, 5, 9)}

DEFECTS: tuple[Defect, ...] = (
    *(
        Defect(
            "wrong prompt",
            f"{base}_lan",
            None,
            "the prompt by file name is the unperturbed one, so nothing of the language axis is tested",
            prompt_source="filename",
        )
        for base in _BASES
    ),
    *(
        Defect(
            "wrong prompt",
            f"{base}_task",
            None,
            "the prompt by file name asks for the unperturbed goal, so a policy that obeys it must fail",
            prompt_source="filename",
        )
        for base in _BASES
    ),
    Defect(
        "false prompt",
        "libero_spatial_swap",
        (0,),
        "the plate moves away, so the bowl is no longer `between the plate and the ramekin`",
    ),
    Defect(
        "false prompt",
        "libero_spatial_swap",
        (8,),
        "the plate moves away, so the bowl is no longer `next to the plate`",
    ),
    Defect(
        "in distribution",
        "libero_spatial_task",
        (7, 9),
        "equals base task 9 and 7 with the two identical bowls exchanged: nothing is perturbed",
    ),
    Defect(
        "weak perturbation",
        "libero_object_swap",
        None,
        "the basket never moves; the target trades places with one other grocery",
        distorts=False,
    ),
    Defect("weak perturbation", "libero_object_object", (9,), "only the basket changes", distorts=False),
    Defect("duplicate", "libero_goal_task", (6,), "the same scene, prompt and goal as task 2"),
    Defect(
        "degenerate",
        "libero_goal_task",
        (7,),
        "`turn off the stove` starts with the stove off; only a nudge of the knob below zero succeeds",
    ),
    Defect(
        "ambiguous prompt",
        "libero_10_task",
        (8,),
        "`the left moka pot` depends on the viewpoint; the goal means the one in the right region",
    ),
    *(
        Defect(
            "hidden condition",
            suite,
            (8,),
            "the stove, on at the start, must still be on at the end; the prompt does not say so",
            distorts=False,
        )
        for suite in ("libero_10", "libero_10_swap", "libero_10_object", "libero_10_lan", "libero_10_task")
    ),
    *(
        Defect(
            "lenient success",
            suite,
            (6,),
            "right of the plate counts without contact with the table: the held pudding can end the episode",
            distorts=False,
        )
        for suite in ("libero_10", "libero_10_swap", "libero_10_object", "libero_10_lan", "libero_10_task")
    ),
    Defect("contradiction", "libero_10_object", (5,), "the prompt says book, the scene has a bowl in its place"),
    Defect(
        "contradiction",
        "libero_10_object",
        (6,),
        "the prompt says white mug, the scene has a white and yellow one in its place",
    ),
    Defect(
        "contradiction",
        "libero_10_object",
        (9,),
        "the prompt says yellow and white mug, the scene has a red one in its place",
    ),
    *(
        Defect(
            "history",
            suite,
            task_ids,
            "LIBERO places the fixtures by the seed and by how many resets its environment has seen, here by the seed "
            "alone: LeRobot's own environment starts otherwise, and in each episode differently",
            distorts=False,
        )
        for base, task_ids in BY_HISTORY.items()
        for suite in (base, *(f"{base}_{axis}" for axis in ("swap", "object", "lan", "task")))
    ),
    *(
        Defect("unsolvable", suite, task_ids, "the basket is 10 m away, out of the robot's reach and of the image")
        for suite, task_ids in PARKED_BASKET.items()
    ),
    *(
        Defect("missing object", suite, task_ids, "a distractor is 10 m away, so the scene is emptier", distorts=False)
        for suite, task_ids in PARKED.items()
    ),
    Defect("no starts", "libero_object_temp_y0.5", (1,), "released without start states, so it cannot be run"),
    *(
        Defect("thrown start", suite, (task_id,), "an object is thrown while the scene settles", starts=starts)
        for (suite, task_id), starts in THROWN.items()
    ),
)


def defects_of(suite: str, task_id: int, *, prompt_source: str, start: int | None = None) -> tuple[Defect, ...]:
    """The known defects of a task, or of one of its released starts, under a prompt source."""
    return tuple(defect for defect in DEFECTS if defect.touches(suite, task_id, start, prompt_source))


def is_sound(suite: str, task_id: int, start: int, prompt_source: str) -> bool:
    """Whether no known defect distorts what an episode from a released start says."""
    return not any(d.distorts for d in defects_of(suite, task_id, prompt_source=prompt_source, start=start))


def defects_in(episodes: Iterable[tuple[str, int, int, str]]) -> list[Defect]:
    """The defects that some of the episodes (suite, task id, start, prompt source) have, in the order of `DEFECTS`.

    Also tasks of their suites that nobody can run.
    """
    seen = set(episodes)
    suites = {suite for suite, *_ in seen}
    return [
        defect
        for defect in DEFECTS
        if (defect.kind == "no starts" and defect.suite in suites) or any(defect.touches(*episode) for episode in seen)
    ]
