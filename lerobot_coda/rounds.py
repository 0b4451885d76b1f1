"""One round of co-evolution. `evolve.py` strings rounds together; `Engine` does the work; `learning.py` trains.

Each method is one step of the paper's loop. Costly ones are `Steps` (done once, resumable); what is cheap and
deterministic (diagnosing, clustering, compiling, deciding) is computed again on a rerun, from the same episodes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lerobot_coda import archive
from lerobot_coda.budget import Usage
from lerobot_coda.console import Tick
from lerobot_coda.coprograms import EXPLORATION
from lerobot_coda.critic.clusters import FailureCluster, cluster
from lerobot_coda.critic.diagnosis import Diagnosis
from lerobot_coda.critic.review import SIMULATOR, Claim, CriticUsage, SimulatorCritic, as_diagnosis, choose, reviewed
from lerobot_coda.critic.settings import open_critic
from lerobot_coda.critic.sheet import with_sheets
from lerobot_coda.critic.simulator import diagnose
from lerobot_coda.critic.validate import Verdict
from lerobot_coda.engine import Engine
from lerobot_coda.generation import Generator, Placed
from lerobot_coda.memory import EpisodeRow, Memory
from lerobot_coda.programs import CoProgram, compile_cluster, exploration, levels, undiagnosed
from lerobot_coda.progress import Decision, Measurement, allocate, measure
from lerobot_coda.proposal import written_programs
from lerobot_coda.recipe import EvolveRecipe
from lerobot_coda.state import Shard, State
from lerobot_coda.steps import Steps, write_json
from lerobot_coda.succession import succeed
from lerobot_coda.validation import validated
from libero_pro.episode import Episode
from libero_pro.scene import SceneSpec

MINIMUM_ENVIRONMENTS = 8  # fewer are no round


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

    def by_program(self) -> dict[str, tuple[int, int]]:
        """(successes, episodes) by the program that made the scene; invalid episodes count nowhere."""
        found: dict[str, tuple[int, int]] = {}
        for placed, episode in zip(self.placed, self.episodes, strict=True):
            if episode.invalid is None:
                won, n = found.get(placed.program, (0, 0))
                found[placed.program] = (won + episode.success, n + 1)
        return found

    def failures(self, modes: set[str]) -> list[Episode]:
        """Failed episodes in these modes, out of the other half."""
        told = {d.episode for d in self.diagnoses.values() if str(d.mode) in modes or EXPLORATION in modes}
        return [e for e in self.episodes[1::2] if archive.key_of(e) in told]


class Round:
    """Round `number`, from `state`, with `budget` environments to generate."""

    def __init__(self, run: Run, number: int, state: State, steps: Steps, generator: Generator, budget: int):
        self.run, self.number, self.state = run, number, state
        self.steps, self.generator, self.budget = steps, generator, budget
        self.recipe = run.recipe
        self._undecided = state.pending
        self.asked = CriticUsage()  # what the critic took
        self._claims: dict[str, Claim] = {}  # critics' claims by cluster hash
        self._failed_tasks: tuple[int, ...] = ()
        self._by_task: dict[str, dict[int, tuple[int, int]]] = {}  # (successes, episodes) after training, by program

    def probe(self) -> Probed:
        """Rolls the policy out in scenes of the active programs (the frontier), of broad ones and of retired ones.

        Retired programs get half of what explores: what they taught may be forgotten.
        """
        if self.recipe.rules.source == "none":
            return Probed((), (), {})
        probe, active = self.recipe.probe, self.state.programs
        # A last round with less than the usual budget keeps the usual balance of looking and learning.
        total = min(probe.scenes, round(self.budget * probe.scenes / self.recipe.budget.environments_per_round))
        broad = self._broad()
        explore = total if not active else round(total * probe.explore)
        retired = [r.program for r in self.state.retired]
        again = explore // 2 if retired and active else 0
        looked = [*broad, *retired, *active]
        wanted = {
            **evenly(broad, explore - again), **evenly(retired, again), **allocate(total - explore, self.scores(active))
        }  # fmt: skip
        self.remember(looked)
        placed = self.generator.scenes("probe scenes", wanted, looked)
        episodes = self.rollout("probe", "probe", placed, Usage(environments=len(placed)))
        found = [d for e in episodes if (d := diagnose(e)) is not None]
        write_json(self.steps.folder / "diagnoses.json", [d.model_dump(mode="json") for d in found])
        self._failed_tasks = tuple(sorted({d.task_id for d in found}))
        return Probed(tuple(placed), tuple(episodes), {d.hash: d for d in found})

    def cluster(self, probed: Probed) -> list[FailureCluster]:
        """Groups the failures and asks the recipe's critic about each group: what it claims, validation tests."""
        found = list(probed.diagnoses.values())
        episodes = {archive.key_of(e): e for e in probed.episodes}
        grouped = cluster(found, minimum=self.recipe.validation.minimum, episodes=episodes, embed=_sentences)
        for rows in archive.failure_rows(found, grouped, self.state.actor):
            self.run.memory.add(*rows)
        settings, folder = self.recipe.critic, self.steps.folder
        clips = {c.hash: choose(c, probed.diagnoses, episodes, settings.clips_per_cluster) for c in grouped}
        if settings.kind != SIMULATOR:
            clips = with_sheets(
                clips, folder / "critic", frames=settings.frames, size=settings.image_size,
                profile=self.recipe.render.profile, workers=self.recipe.workers,
            )  # fmt: skip
        told = reviewed(grouped, clips, open_critic(settings, folder), SimulatorCritic())
        self.asked = sum((review.usage for _, review in told), CriticUsage())
        clusters = [c for c, _ in told]
        self._claims = {c.hash: r.claim for c, r in told if r.claim is not None and r.decided != SIMULATOR}
        claimed = [d for _, r in told for clip in clips[r.cluster] if (d := as_diagnosis(r, clip)) is not None]
        changed = {c.hash: r.cluster for c, r in told if c.hash != r.cluster}
        for rows in archive.failure_rows(claimed if self._claims else (), clusters, self.state.actor, changed):
            self.run.memory.add(*rows)
        self.run.memory.add(*archive.review_rows([r for _, r in told], folder, self.run.memory))
        write_json(folder / "clusters.json", [c.model_dump(mode="json") | {"hash": c.hash} for c in clusters])
        write_json(folder / "reviews.json", [r.model_dump(mode="json") for _, r in told])
        return clusters

    def compile(self, clusters: Sequence[FailureCluster]) -> list[tuple[CoProgram, FailureCluster]]:
        """A program for the largest cluster of each mode that no active program answers yet.

        One that validation left undecided goes on with the program that it had.
        """
        rules = self.recipe.rules
        if rules.source != "diagnoses" or not rules.critic:
            return []
        answered = {p.mode for p in self.state.programs}
        largest = {str(c.mode): c for c in reversed(clusters) if str(c.mode) not in answered}
        new = [c for c in clusters if largest.get(str(c.mode)) is c][: self.recipe.validation.programs]
        before = {p.program.mode: p.program for p in self.state.pending}
        compiled = []
        for found in new:
            suggested = self._claims[found.hash].difficulty if found.hash in self._claims else None
            program = before.get(str(found.mode)) or compile_cluster(
                found, self.recipe, self.number, difficulty=suggested
            )
            compiled.append((program, found))
        compiled += written_programs(self, [found for _, found in compiled])
        self.remember([p for p, _ in compiled])
        return compiled

    def validate(
        self, candidates: Sequence[tuple[CoProgram, FailureCluster]], probed: Probed
    ) -> tuple[dict[str, Verdict], list[Placed]]:
        """Judges each candidate (`lerobot_coda.validation`); returns verdicts by program name, and program scenes."""
        if not candidates or not self.recipe.rules.validation:
            return {}, []
        programs = [p for p, _ in candidates]
        verdicts, trials, undecided = validated(self, probed, candidates, self._claims)
        self._undecided = (*undecided, *(p for p in self.state.pending if p.program not in programs))
        self.run.memory.add(*archive.verdict_rows((verdicts[p.name], p) for p in programs))
        write_json(self.steps.folder / "verdicts.json", [v.model_dump(mode="json") for v in verdicts.values()])
        return verdicts, trials

    def active(
        self, candidates: Sequence[tuple[CoProgram, FailureCluster]], verdicts: Mapping[str, Verdict]
    ) -> list[CoProgram]:
        """The programs that may spend the budget: those of earlier rounds and those validated now, or the arm's own.

        Where every diagnosis was refuted, the probe's broad programs spend it: what is not understood is practiced. An
        undecided one is waited for, since a policy that trains is another one.
        """
        rules = self.recipe.rules
        if rules.source != "diagnoses":
            return [] if rules.source == "none" else self._broad()
        if not rules.critic:  # one broad answer to all failures
            fresh = undiagnosed(self.recipe, self.number, self._failed_tasks) if self._failed_tasks else None
            return list(self.state.programs) or ([fresh] if fresh else [])
        passed = [p for p, _ in candidates if not rules.validation or verdicts[p.name].outcome == "validated"]
        chosen = [*self.state.programs, *passed]
        waits = any(verdict.outcome == "undecided" for verdict in verdicts.values())
        return chosen if chosen or waits else self._broad()

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
            tasks: dict[int, list[bool]] = {}
            for n, _, a in pairs:
                if n == name:
                    tasks.setdefault(a.scene.task_id, []).append(a.success)
            self._by_task[name] = {task: (sum(solved), len(solved)) for task, solved in sorted(tasks.items())}
        return measured, archive.comparison(pairs, (self.state.actor, after.actor))

    def decide(
        self, after: State, programs: Sequence[CoProgram], measured: Mapping[str, Measurement], probed: Probed
    ) -> tuple[dict[str, Decision], State]:
        """What becomes of each program by its measured progress (`lerobot_coda.succession`); the next round's state."""
        rules = self.recipe.rules
        deciding = [p for p in programs if rules.source == "diagnoses" and p.mode != EXPLORATION]
        found = succeed(
            deciding, measured if rules.decisions else {}, self._by_task, self.state.stalled, self.number,
            retired=self.state.retired, probed=probed.by_program(),
        )  # fmt: skip
        decisions = found.decisions
        self.remember(found.following)
        decided = {p.name: p for p in (*deciding, *(r.program for r in self.state.retired)) if p.name in decisions}
        for name, program in decided.items():
            made, successor = decisions[name], found.successors[name]
            for rows in archive.progress_rows(program, measured.get(name), made, successor, self.number):
                self.run.memory.add(*rows)
        write_json(
            self.steps.folder / "progress.json",
            {
                "measurements": [m.model_dump(mode="json") for m in measured.values()],
                "decisions": [{"program": n, "action": d.action, "reason": d.reason} for n, d in decisions.items()],
            },
        )
        # Levels are drawn anew each round under the same names: what was measured of them guides the next allocation.
        known = {**self.state.measured, **measured} if rules.source == "levels" else measured
        names = list(known) if rules.source == "levels" else [p.name for p in found.following]
        update = {
            "programs": found.following,
            "retired": found.retired,
            "pending": self._undecided if after.key == self.state.key else (),
            "stalled": found.stalled,
            "measured": {name: known[name] for name in names if name in known},
        }
        return decisions, after.model_copy(update=update)

    def _broad(self) -> list[CoProgram]:
        """Programs that know of no diagnosis: where the policy is looked at, and all that some arms have."""
        return (levels if self.recipe.rules.source == "levels" else exploration)(self.recipe, self.number)

    # What the steps share.

    def rollout(
        self,
        step: str,
        purpose: str,
        placed: Sequence[Placed],
        usage: Usage,
        state: State | None = None,
        *,
        kind: str | None = None,
    ) -> list[Episode]:
        """The policy's episodes in the scenes, in order; each (checkpoint, scene) is played once in a run.

        kind  what prices the step in the estimate of the time left; None: the step's own name
        """
        state = state or self.state
        if not placed:
            return []
        scenes = [p.scene for p in placed]

        def work(tick: Tick) -> tuple[Any, Usage]:
            return None, usage + Usage(steps={purpose: play(self.run, state, scenes, purpose, tick)})

        self.steps.run(step, kind or step, len(placed), [state.key, [s.hash for s in scenes]], work)
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


def _sentences(texts: Sequence[str]) -> Any:
    """Sentence vectors (n, 384) of explanations; torch is loaded only where there are any."""
    from lerobot_coda.backbones.language import embed

    return embed(texts).numpy()
