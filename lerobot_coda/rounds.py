"""One round of co-evolution. `evolve.py` strings rounds together; `Engine` does the work; `learning.py` trains.

Each method is one step of the paper's loop. Costly ones are `Steps` (done once, resumable); what is cheap and
deterministic (diagnosing, clustering, compiling, deciding) is computed again on a rerun, from the same episodes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from lerobot_coda import archive
from lerobot_coda.budget import Usage
from lerobot_coda.console import Tick
from lerobot_coda.critic.clusters import FailureCluster, cluster
from lerobot_coda.critic.diagnosis import Diagnosis
from lerobot_coda.critic.simulator import diagnose
from lerobot_coda.critic.validate import Verdict, judge
from lerobot_coda.engine import Engine, Gated
from lerobot_coda.generation import Generator, Placed
from lerobot_coda.memory import EpisodeRow, Memory
from lerobot_coda.programs import CoProgram, compile_cluster, exploration
from lerobot_coda.progress import Decision, Measurement, allocate, decide, is_stalled, measure
from lerobot_coda.recipe import EvolveRecipe
from lerobot_coda.steps import Steps, write_json
from libero_pro.episode import Episode
from libero_pro.record import Record
from libero_pro.scene import SceneSpec
from libero_pro.suites import scene_for

CONTROL_SEED = 1_000_000  # control scenes are fresh resets, drawn far from the seeds of the base demonstrations
MINIMUM_ENVIRONMENTS = 8  # fewer are no round


class Shard(Record):
    """A dataset shard, its folder relative to the run, and how many episodes it holds."""

    path: str
    episodes: int


class State(Record):
    """What a round starts from; all of it follows from the recipe and the rounds before.

    checkpoint  folder of the policy, relative to the run;  `actor` its short name (base, r001, ...);  `key` hash of how
                it came to be
    programs    active programs;  `stalled` rounds without progress and `measured` the last measurement, by program name
    shards      dataset shards of earlier rounds;  `grounding` the last grounding set, relative to the run
    """

    checkpoint: str
    actor: str
    key: str
    programs: tuple[CoProgram, ...] = ()
    stalled: dict[str, int] = Field(default_factory=dict)
    measured: dict[str, Measurement] = Field(default_factory=dict)
    shards: tuple[Shard, ...] = ()
    grounding: str | None = None


@dataclass(frozen=True)
class Run:
    """What all rounds share. `train_recipe` is the mapping that `recipe.training.train` names."""

    folder: Path
    recipe: EvolveRecipe
    train_recipe: Mapping[str, Any]
    engine: Engine
    memory: Memory
    base_shards: tuple[Shard, ...]


@dataclass(frozen=True)
class Probed:
    """The probe's scenes and episodes, in order, and what the critic said of the failures (by hash)."""

    placed: tuple[Placed, ...]
    episodes: tuple[Episode, ...]
    diagnoses: Mapping[str, Diagnosis]

    def held_back(self) -> list[Placed]:
        """Every second scene: measured on, never trained on, whatever happened there."""
        return list(self.placed[::2])

    def failures(self, modes: set[str]) -> list[Episode]:
        """Failed episodes in these modes, out of the other half."""
        told = {d.episode for d in self.diagnoses.values() if str(d.mode) in modes or "exploration" in modes}
        return [e for e in self.episodes[1::2] if archive.key_of(e) in told]


class Round:
    """Round `number`, from `state`, with `budget` environments to generate."""

    def __init__(self, run: Run, number: int, state: State, steps: Steps, generator: Generator, budget: int):
        self.run, self.number, self.state = run, number, state
        self.steps, self.generator, self.budget = steps, generator, budget
        self.recipe = run.recipe

    def probe(self) -> Probed:
        """Rolls the policy out in scenes of the active programs (the frontier) and of broad, mild ones."""
        if self.recipe.arm == "sft":
            return Probed((), (), {})
        probe, active = self.recipe.probe, self.state.programs
        # A last round with less than the usual budget keeps the usual balance of looking and learning.
        total = min(probe.scenes, round(self.budget * probe.scenes / self.recipe.budget.environments_per_round))
        broad = exploration(self.recipe, self.number)
        explore = total if not active else round(total * probe.explore)
        wanted = {**evenly(broad, explore), **allocate(total - explore, self.scores(active))}
        self.remember([*broad, *active])
        placed = self.generator.scenes("probe scenes", wanted, [*broad, *active])
        episodes = self.rollout("probe", "probe", placed, Usage(environments=len(placed)))
        found = [d for e in episodes if (d := diagnose(e)) is not None]
        write_json(self.steps.folder / "diagnoses.json", [d.model_dump(mode="json") for d in found])
        return Probed(tuple(placed), tuple(episodes), {d.hash: d for d in found})

    def cluster(self, probed: Probed) -> list[FailureCluster]:
        """Groups what the critic said of the failures."""
        found = list(probed.diagnoses.values())
        clusters = cluster(found, minimum=self.recipe.validation.minimum)
        shown = [c.model_dump(mode="json") | {"hash": c.hash} for c in clusters]
        write_json(self.steps.folder / "clusters.json", shown)
        for rows in archive.failure_rows(found, clusters, self.state.actor):
            self.run.memory.add(*rows)
        return clusters

    def compile(self, clusters: Sequence[FailureCluster]) -> list[tuple[CoProgram, FailureCluster]]:
        """A program for each of the largest clusters whose mode no active program answers yet."""
        if self.recipe.arm != "coda":
            return []
        answered = {p.mode for p in self.state.programs}
        new = [c for c in clusters if str(c.mode) not in answered][: self.recipe.validation.programs]
        compiled = [(compile_cluster(c, self.recipe, self.number), c) for c in new]
        self.remember([p for p, _ in compiled])
        return compiled

    def validate(
        self, candidates: Sequence[tuple[CoProgram, FailureCluster]], probed: Probed
    ) -> tuple[dict[str, Verdict], list[Placed]]:
        """Judges each candidate by its scenes beside control scenes; returns verdicts by program name, and scenes."""
        if not candidates:
            return {}, []
        programs = [p for p, _ in candidates]
        wanted = {p.name: self.recipe.validation.pairs for p in programs}
        trials = self.generator.scenes("validation scenes", wanted, programs)
        controls = self._controls(trials)
        both = [*trials, *controls]
        played = self.rollout("validate", "validation", both, Usage(validation_environments=len(trials)))
        pairs = list(zip(trials, played[: len(trials)], played[len(trials) :], strict=True))
        episodes = {archive.key_of(e): e for e in probed.episodes}
        verdicts = {}
        for program, found in candidates:
            recreated = [(a, b) for placed, a, b in pairs if placed.program == program.name]
            verdicts[program.name] = judge(
                found,
                program.generation.hash,
                recreated,
                probed.diagnoses,
                episodes,
                alpha=self.recipe.validation.alpha,
            )
        write_json(self.steps.folder / "verdicts.json", [v.model_dump(mode="json") for v in verdicts.values()])
        self.run.memory.add(*archive.verdict_rows((verdicts[p.name], p) for p in programs))
        return verdicts, trials

    def active(
        self, candidates: Sequence[tuple[CoProgram, FailureCluster]], verdicts: Mapping[str, Verdict]
    ) -> list[CoProgram]:
        """The programs that may spend the budget: those of earlier rounds, and those validated now."""
        if self.recipe.arm == "uniform":
            return exploration(self.recipe, self.number)
        passed = [p for p, _ in candidates if verdicts[p.name].outcome == "validated"]
        return [*self.state.programs, *passed]

    def measure(
        self, after: State, programs: Sequence[CoProgram], probed: Probed, trials: Sequence[Placed]
    ) -> tuple[dict[str, Measurement], dict[str, Any]]:
        """The same scenes and seeds before and after the training: per program, and over all of the frontier."""
        if after.key == self.state.key:
            return {}, archive.comparison([], (self.state.actor, after.actor))
        known = {p.name for p in programs}
        scenes = [*probed.held_back(), *(t for t in trials if t.program in known)]
        before = archive.load_all(self.run.folder, self.state.actor, [p.scene for p in scenes])
        again = self.rollout("measure", "evaluation", scenes, Usage(), after)
        both = zip(scenes, before, again, strict=True)
        pairs = [(p.program, b, a) for p, b, a in both if b.invalid is None and a.invalid is None]
        measured = {}
        for name in dict.fromkeys(name for name, _, _ in pairs):
            own = [(b.success, a.success) for n, b, a in pairs if n == name]
            measured[name] = measure(name, self.number, [b for b, _ in own], [a for _, a in own])
        return measured, archive.comparison(pairs, (self.state.actor, after.actor))

    def decide(
        self, after: State, programs: Sequence[CoProgram], measured: Mapping[str, Measurement]
    ) -> tuple[dict[str, Decision], State]:
        """Promotes, keeps, refines or retires each program by its measured progress; returns the next round's state."""
        decisions: dict[str, Decision] = {}
        following: list[CoProgram] = []
        stalled: dict[str, int] = {}
        for program in programs if self.recipe.arm == "coda" else ():
            m = measured.get(program.name)
            if m is None:
                following.append(program)
                continue
            waited = self.state.stalled.get(program.name, 0)
            made = decisions[program.name] = decide(m, rounds_without_progress=waited)
            successor = program.after(made.action, self.number)
            if successor is not None:
                following.append(successor)
                self.remember([successor])
                stalled[program.name] = waited + 1 if is_stalled(m) and made.action != "promote" else 0
            for rows in archive.progress_rows(program, m, made, successor, self.number):
                self.run.memory.add(*rows)
        write_json(
            self.steps.folder / "progress.json",
            {
                "measurements": [m.model_dump(mode="json") for m in measured.values()],
                "decisions": [{"program": n, "action": d.action, "reason": d.reason} for n, d in decisions.items()],
            },
        )
        kept = {p.name: measured[p.name] for p in following if p.name in measured}
        return decisions, after.model_copy(update={"programs": tuple(following), "stalled": stalled, "measured": kept})

    # What the steps share.

    def rollout(
        self, step: str, purpose: str, placed: Sequence[Placed], usage: Usage, state: State | None = None
    ) -> list[Episode]:
        """The policy's episodes in the scenes, in order; each (checkpoint, scene) is played once in a run."""
        state = state or self.state
        if not placed:
            return []
        scenes = [p.scene for p in placed]

        def work(tick: Tick) -> tuple[Any, Usage]:
            return None, usage + Usage(steps={purpose: play(self.run, state, scenes, purpose, tick)})

        self.steps.run(step, step, len(placed), [state.key, [s.hash for s in scenes]], work)
        return archive.load_all(self.run.folder, state.actor, scenes)

    def remember(self, programs: Sequence[CoProgram]) -> None:
        """Files programs in the memory and as `programs/<hash>.json`."""
        self.run.memory.add(*archive.program_rows(programs))
        for program in programs:
            program.save(self.steps.folder / "programs" / f"{program.hash}.json")

    def scores(self, programs: Sequence[CoProgram]) -> dict[str, tuple[float, tuple[int, int]]]:
        """Progress and success posterior by program name, as `allocate` takes them; a new one has the prior's."""
        last = self.state.measured
        return {
            p.name: (last[p.name].progress, last[p.name].posterior_after) if p.name in last else (0.0, (1, 1))
            for p in programs
        }

    def _controls(self, trials: Sequence[Placed]) -> list[Placed]:
        """For each trial a fresh reset of its task, unperturbed: the k-th scene of a program and task gets seed k."""
        seen: Counter[tuple[str, int]] = Counter()
        controls = []
        for trial in trials:
            task_id = trial.scene.task_id
            seed = CONTROL_SEED + 1000 * self.recipe.seed + seen[trial.program, task_id]
            seen[trial.program, task_id] += 1
            source = self.recipe.heldout.prompt_source
            controls.append(Placed("control", scene_for(self.recipe.suite, task_id, seed=seed, prompt_source=source)))
        for rows in archive.scene_rows([Gated(c.scene) for c in controls], None):
            self.run.memory.add(*rows)
        return controls


def play(run: Run, state: State, scenes: Sequence[SceneSpec], purpose: str, tick: Tick) -> int:
    """Plays and files episodes; returns the environment steps of those that were first played for this purpose."""
    folder = run.folder / "rollouts" / state.actor
    played = run.engine.rollout(run.folder / state.checkpoint, scenes, folder, tick)
    run.memory.add(*archive.episode_rows(played, purpose, run.folder, folder, state.actor))
    own = {row["scene"] for row in run.memory.rows(EpisodeRow, actor=state.actor, purpose=purpose)}
    return sum({e.scene.hash: len(e) for e in played if e.scene.hash in own}.values())


def evenly(programs: Sequence[CoProgram], total: int) -> dict[str, int]:
    """`total` split evenly by program name, the first ones getting what is left over."""
    share, rest = divmod(total, max(1, len(programs)))
    return {p.name: share + (index < rest) for index, p in enumerate(programs)}
