"""Recipes: what a person writes to start a run. YAML in, frozen and checked records out.

Two kinds are ours: evolve recipes (`EvolveRecipe`) and demonstration recipes (`DemosRecipe`, found beside a train
recipe). Train recipes are LeRobot's own (`lerobot-train --config_path`) and are read as plain mappings.
"""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, Field, ValidationError, model_validator

from lerobot_coda.baselines import ARMS, Arm, ArmName
from lerobot_coda.budget import Limits
from lerobot_coda.critic.settings import CriticSettings
from lerobot_coda.potential.acceptance import Thresholds
from lerobot_coda.tracking import TrackerSettings
from libero_pro.record import Record, RecordError, one_line
from libero_pro.suites import BASE, get_task

PromptSource = Literal["bddl", "filename"]


class Render(Record):
    """How images are made: `profile` faithful or fast, `size` pixels, a dataset frame drawn every `every` steps, of
    these `cameras`."""

    profile: Literal["faithful", "fast"] = "fast"
    size: int = Field(default=128, ge=32, le=512)
    every: int = Field(default=4, ge=1, le=32)
    cameras: tuple[Literal["agentview", "wrist"], ...] = Field(default=("agentview",), min_length=1)


class Base(Record):
    """The base policy, and demonstrations from fresh resets of the unperturbed tasks, which later rounds replay.

    It is trained on these by the recipe `train` for `steps`; or it is `policy`, as it is: the name of a shipped one
    (`lerobot-coda pretrained`) or the folder of a checkpoint.
    """

    train: str | None = None
    steps: int = Field(default=0, ge=0)
    policy: str | None = None
    demos_per_task: int = Field(ge=1, le=500)
    noise: float = Field(default=0.0, ge=0.0, le=1.0)

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        trained = self.train is not None and self.steps > 0
        if trained if self.policy is not None else not trained:
            raise ValueError("the base policy needs either 'train' and 'steps', or 'policy' alone")
        return self


class Probe(Record):
    """Where the policy is looked at: `scenes` a round, of which `explore` (a share) come from broad mild programs in
    later rounds; in the first all do. `difficulty` of the broad programs."""

    scenes: int = Field(ge=4, le=2000)
    explore: float = Field(default=0.25, ge=0.0, le=1.0)
    difficulty: float = Field(default=0.5, ge=0.0, le=1.0)


class Rollout(Record):
    """Where episodes are run and scenes judged: `local`, in the recipe's `workers` processes here, or `ray`, in
    `workers` actors of one CPU each (None: as many as here) on the cluster at `address` (None: RAY_ADDRESS, else a Ray
    started here). The episodes are the same, so a run may go on elsewhere than it began."""

    backend: Literal["local", "ray"] = "local"
    address: str | None = None
    workers: int | None = Field(default=None, ge=1, le=4096)

    @model_validator(mode="after")
    def _needs_ray(self) -> Self:
        if self.backend == "local" and (self.address or self.workers):
            raise ValueError("address and workers are of the backend ray: set backend: ray, or leave them out")
        return self


class Validation(Record):
    """The re-creation test: `pairs` of program and control scenes for each program, of at most `programs` new ones a
    round, exact test at `alpha`. Clusters with fewer than `minimum` failures are left alone."""

    pairs: int = Field(ge=4, le=500)
    alpha: float = Field(default=0.05, gt=0.0, lt=0.5)
    programs: int = Field(default=2, ge=1, le=20)
    minimum: int = Field(default=2, ge=1)


class Training(Record):
    """How a round trains: the train recipe, its `steps`, and the defaults that a training program starts from.

    `noise` is the chance, at each step of a demonstration, that a disturbance begins; `late_starts` the share of a
    program's demonstrations that may begin at the stage where the policy failed, where its rule asks for that.
    """

    train: str
    steps: int = Field(ge=1)
    noise: float = Field(default=0.03, ge=0.0, le=1.0)
    replay_share: float = Field(default=0.3, ge=0.0, le=0.9)
    grounding_weight: float = Field(default=1.0, ge=0.0)
    value_weight: float = Field(default=0.1, ge=0.0)
    include_failures: bool = True
    corrections: bool = True
    late_starts: float = Field(default=0.25, ge=0.0, le=0.75)


class Potential(Record):
    """Whether validated diagnoses make the goals' potentials finer, and what a refined one must reach on the round's
    stored episodes; where it does not, the goal's own potential stands."""

    refine: bool = True
    accept: Thresholds = Thresholds()


class Retention(Record):
    """Forgetting: `scenes` fresh resets of the base tasks, always the same, on which each round's policy is compared
    with the base policy; what it lost raises the share of base demonstrations. 0: not watched."""

    scenes: int = Field(default=0, ge=0, le=2000)


class Heldout(Record):
    """The evaluation on suites that nothing is generated from, before and after the rounds, on released starts.

    `frontier` caps the generated scenes on which base and final policy are compared in the end.
    """

    suites: tuple[str, ...] = Field(min_length=1)
    episodes_per_task: int = Field(ge=1, le=50)
    prompt_source: PromptSource = "bddl"
    profile: Literal["faithful", "fast"] = "fast"
    frontier: int = Field(default=60, ge=0)


class EvolveRecipe(Record):
    """A co-evolution run. `suite` and `task_ids` are the base tasks it starts from; held-out suites share the ids.

    proposals  whether a critic that is a model also writes programs, beside the rules'; they are validated like these
    tracker    where its numbers go besides: trackio or Weights & Biases; no part of what makes two runs the same
    memory     database of this run, as an SQLAlchemy URL; None: a file in the run's folder
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")
    arm: ArmName = "coda"
    suite: str
    task_ids: tuple[int, ...] = Field(min_length=1)
    seed: int = Field(default=0, ge=0, lt=2**31)
    rounds: int = Field(ge=0, le=100)
    workers: int = Field(default=2, ge=0, le=256)
    rollout: Rollout = Field(default=Rollout(), exclude=True)  # no part of what a run is: it may go on elsewhere
    base: Base
    probe: Probe
    critic: CriticSettings = CriticSettings()
    proposals: bool = False
    validation: Validation
    training: Training
    potential: Potential = Potential()
    retention: Retention = Retention()
    heldout: Heldout
    budget: Limits
    render: Render = Render()
    tracker: TrackerSettings = TrackerSettings()
    memory: str | None = Field(default=None, pattern=r"^(sqlite|postgresql)(\+\w+)?://\S+$")

    @property
    def rules(self) -> Arm:
        """The switches of its arm."""
        return ARMS[self.arm]

    @model_validator(mode="after")
    def _tasks_exist(self) -> Self:
        if self.suite not in BASE:
            close = difflib.get_close_matches(self.suite, BASE, n=1, cutoff=0.0)
            raise ValueError(
                f"suite '{self.suite}' cannot be generated from: only base suites can, LIBERO-Pro suites are held out; "
                f"nearest is '{close[0]}', there are {', '.join(BASE)}"
            )
        for suite in (self.suite, *self.heldout.suites):
            for task_id in self.task_ids:
                get_task(suite, task_id)
        if self.budget.environments_per_round <= self.probe.scenes:
            raise ValueError(
                f"budget.environments_per_round {self.budget.environments_per_round} leaves nothing to demonstrate in "
                f"after probe.scenes {self.probe.scenes}; raise the one or lower the other"
            )
        if not self.rules.experts and self.training.value_weight == 0:
            raise ValueError(f"arm '{self.arm}' learns from advantages alone: set training.value_weight above 0")
        if self.proposals and self.critic.kind == "simulator":
            raise ValueError("proposals needs a critic that writes: set critic.kind to transformers or endpoint")
        return self


class DemosRecipe(Record):
    """The dataset of a train recipe: expert demonstrations from fresh resets, and grounding layouts if it wants any."""

    suite: str
    task_ids: tuple[int, ...] = Field(min_length=1)
    per_task: int = Field(ge=1, le=1000)
    noise: float = Field(default=0.0, ge=0.0, le=1.0)
    seed: int = Field(default=0, ge=0, lt=2**31)
    layouts: int = Field(default=0, ge=0)
    difficulty: float = Field(default=1.0, ge=0.0, le=1.0)
    workers: int = Field(default=2, ge=0, le=256)
    render: Render = Render()

    @model_validator(mode="after")
    def _tasks_exist(self) -> Self:
        for task_id in self.task_ids:
            get_task(self.suite, task_id)
        return self


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping; RecordError names the file and what is wrong with it."""
    try:
        data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(f"recipe {path} cannot be read: {error.strerror}; give the path of a YAML file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        problem = " ".join(str(error).split())[:200]
        raise RecordError(f"recipe {path} is not YAML: {problem}") from None
    if not isinstance(data, dict):
        raise RecordError(f"recipe {path} must be a mapping of keys to values, not {type(data).__name__}")
    return data


def parse_recipe[R: Record](model: type[R], data: dict[str, Any], where: str) -> R:
    """Checks a mapping against a model; RecordError names the key and, if it is unknown, the nearest valid one."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        for problem in error.errors():  # a typo explains the "missing" beside it, so it is told first
            if problem["type"] == "extra_forbidden":
                raise RecordError(_unknown_key(model, problem["loc"], where)) from None
        raise RecordError(one_line(error, where).replace("Value error, ", "")) from None


def load_evolve(path: Path, changes: Mapping[str, Any] | None = None) -> EvolveRecipe:
    """Reads an evolve recipe, with `changes` in place of its own keys; checks that the train recipes it names exist."""
    recipe = parse_recipe(EvolveRecipe, {**read_yaml(path), **(changes or {})}, f"recipe {path}")
    for key, name in (("base.train", recipe.base.train), ("training.train", recipe.training.train)):
        if name is not None and not (Path(path).parent / name).is_file():
            raise RecordError(f"recipe {path}: field '{key}' names {name}, and there is no such file beside it")
    return recipe


def load_demos(train_recipe: Path) -> tuple[DemosRecipe, dict[str, Any]]:
    """The demonstration recipe of a train recipe and the train recipe itself.

    It stands in `demos/<last part of dataset.repo_id>.yaml` beside the train recipe, since `lerobot-train` refuses keys
    that are not its own.
    """
    train = read_yaml(train_recipe)
    dataset = train.get("dataset")
    repo_id = dataset.get("repo_id") if isinstance(dataset, dict) else None
    if not isinstance(dataset, dict) or not isinstance(repo_id, str) or not dataset.get("root"):
        raise RecordError(f"recipe {train_recipe}: fields 'dataset.repo_id' and 'dataset.root' must name the dataset")
    sidecar = Path(train_recipe).parent / "demos" / f"{repo_id.rsplit('/', 1)[-1]}.yaml"
    if not sidecar.is_file():
        raise RecordError(f"recipe {train_recipe} trains on {repo_id}, and {sidecar} says nothing of how to build it")
    return parse_recipe(DemosRecipe, read_yaml(sidecar), f"recipe {sidecar}"), train


def _unknown_key(model: type[BaseModel], loc: tuple[int | str, ...], where: str) -> str:
    """One sentence on an unknown key at `loc`, with the nearest key of the same level or the whole list."""
    level: type[BaseModel] = model
    for part in loc[:-1]:
        annotation = level.model_fields[str(part)].annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            level = annotation
    known = list(level.model_fields)
    close = difflib.get_close_matches(str(loc[-1]), known, n=1)
    hint = f"did you mean '{close[0]}'?" if close else f"the keys there are {', '.join(known)}"
    return f"{where}: unknown key '{'.'.join(map(str, loc))}'; {hint}"
