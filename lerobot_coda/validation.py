"""How a round validates its candidates: it draws the scenes that `critic.sequential` asks for and plays the policy.

What its pairs leave undecided is kept (`Pending`) and goes on from there in the next round, as long as the policy is
the same: pairs of another policy say nothing about this one.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lerobot_coda import archive
from lerobot_coda.budget import Usage
from lerobot_coda.console import Tick
from lerobot_coda.critic.clusters import FailureCluster
from lerobot_coda.critic.evidence import Claimed
from lerobot_coda.critic.intervene import REMEDIES, Contrast, contrast
from lerobot_coda.critic.sequential import Pair, Trial, validate
from lerobot_coda.critic.validate import Verdict
from lerobot_coda.engine import Gated
from lerobot_coda.generation import Placed
from lerobot_coda.programs import CoProgram
from libero_pro.episode import Episode
from libero_pro.record import Record
from libero_pro.scene import SceneSpec
from libero_pro.suites import scene_for

if TYPE_CHECKING:
    from lerobot_coda.rounds import Probed, Round

SPARE = 1.5  # failures intervened on for each pair that is wanted, since gates reject some
CONTROL_SEED = 1_000_000  # control scenes are fresh resets, drawn far from the seeds of the base demonstrations


class Pending(Record):
    """A candidate that its pairs left undecided, and what was spent on it.

    pairs      scene hashes (program scene, control scene);  `contrasts` (cause kept, cause removed)
    looks, contrast_looks   how often each test was looked at: what is left of alpha hangs on it
    """

    program: CoProgram
    pairs: tuple[tuple[str, str], ...] = ()
    looks: int = 0
    contrasts: tuple[tuple[str, str], ...] = ()
    contrast_looks: int = 0


def validated(
    round_: "Round",
    probed: "Probed",
    candidates: Sequence[tuple[CoProgram, FailureCluster]],
    told: Mapping[str, Claimed],
) -> tuple[dict[str, Verdict], list[Placed], tuple[Pending, ...]]:
    """The verdicts by program name, the program scenes that were played, and what is left undecided.

    told  critics' claims by cluster hash; without one a cluster's own diagnoses are the claim
    """
    before = {p.program.hash: p for p in round_.state.pending}
    trials = []
    for program, found in candidates:
        trial = Trial(found, program.generation.hash, told.get(found.hash))
        if known := before.get(program.hash):
            trial.pairs, trial.looks = _loaded(round_, known.pairs), known.looks
            trial.contrasts, trial.contrast_looks = _loaded(round_, known.contrasts), known.contrast_looks
        trials.append(trial)
    episodes = {archive.key_of(e): e for e in probed.episodes}
    player = RoundPlayer(round_, probed, {id(t): p for t, (p, _) in zip(trials, candidates, strict=True)})
    settings = round_.recipe.validation
    validate(trials, player, probed.diagnoses, episodes, pairs=settings.pairs, alpha=settings.alpha)

    verdicts: dict[str, Verdict] = {}
    pending = []
    for trial, (program, _) in zip(trials, candidates, strict=True):
        if trial.verdict is None:
            continue
        verdicts[program.name] = trial.verdict
        if trial.verdict.outcome == "undecided":
            pending.append(
                Pending(
                    program=program,
                    pairs=_hashes(trial.pairs),
                    looks=trial.looks,
                    contrasts=_hashes(trial.contrasts),
                    contrast_looks=trial.contrast_looks,
                )
            )
    return verdicts, player.placed, tuple(pending)


def _loaded(round_: "Round", pairs: Sequence[tuple[str, str]]) -> list[Pair]:
    return [(_stored(round_, a), _stored(round_, b)) for a, b in pairs]


def _stored(round_: "Round", scene: str) -> Episode:
    return Episode.load(round_.run.folder / archive.episode_path(round_.state.actor, scene))


def _hashes(pairs: Sequence[Pair]) -> tuple[tuple[str, str], ...]:
    return tuple((a.scene.hash, b.scene.hash) for a, b in pairs)


class RoundPlayer:
    """Draws and plays for one round, all trials of a look at once. `placed` are the program scenes, in order."""

    def __init__(self, round_: "Round", probed: "Probed", programs: Mapping[int, CoProgram]):
        self.round, self.probed, self.programs = round_, probed, programs
        self.placed: list[Placed] = []
        self._controls: Counter[tuple[str, int]] = Counter()

    def pairs(self, trials: Sequence[Trial], count: int, look: int) -> list[list[Pair]]:
        """The k-th scene of a program in a task is paired with the fresh reset of that task that seed k draws."""
        programs = [self.programs[id(trial)] for trial in trials]
        wanted = {p.name: p for p in programs}
        counts = dict.fromkeys(wanted, count)
        drawn = self.round.generator.scenes(_nth("validation scenes", look), counts, list(wanted.values()))
        self.placed += drawn
        controls = self._controlled(trials, drawn)
        usage = Usage(validation_environments=len(drawn))
        both = [*drawn, *controls]
        played = self.round.rollout(_nth("validate", look), "validation", both, usage, kind="validate")
        pairs = list(zip(drawn, played[: len(drawn)], played[len(drawn) :], strict=True))
        return [[(a, b) for placed, a, b in pairs if placed.program == program.name] for program in programs]

    def _controlled(self, trials: Sequence[Trial], drawn: Sequence[Placed]) -> list[Placed]:
        """Unperturbed scenes; a trial that goes on from an earlier round goes on with its seeds."""
        recipe, seen = self.round.recipe, self._controls
        for trial in trials:
            name = self.programs[id(trial)].name
            for task_id, n in Counter(a.scene.task_id for a, _ in trial.pairs).items():
                seen[name, task_id] = n
        controls = []
        for one in drawn:
            task_id = one.scene.task_id
            seed = CONTROL_SEED + 1000 * recipe.seed + seen[one.program, task_id]
            seen[one.program, task_id] += 1
            source = recipe.heldout.prompt_source
            controls.append(Placed("control", scene_for(recipe.suite, task_id, seed=seed, prompt_source=source)))
        self._file([Gated(c.scene) for c in controls])
        return controls

    def contrasts(self, trials: Sequence[Trial], count: int, look: int) -> list[list[Pair]]:
        """Scenes that differ in the claimed cause alone, of failures not intervened on before, through the gates."""
        episodes = {archive.key_of(e): e for e in self.probed.episodes}
        chosen = []
        for trial in trials:
            failures = trial.failures(self.probed.diagnoses, episodes)[trial.tried :][: round(count * SPARE)]
            trial.tried += len(failures)
            chosen += [(trial, REMEDIES[trial.cluster.mode], *failure) for failure in failures]
        experts = self._experts([failed.scene for _, remedy, failed, _ in chosen if remedy.handover], look)
        made: list[tuple[Trial, Contrast]] = []
        known = {(id(t), kept.scene.hash, removed.scene.hash) for t in trials for kept, removed in t.contrasts}
        for trial, remedy, failed, claim in chosen:
            found = contrast(remedy, failed, claim, experts.get(failed.scene.hash))
            if found is None:
                continue
            name = (id(trial), found.kept.hash, found.removed.hash)
            if name not in known:  # two failures that lead to the same scenes are one pair
                known.add(name)
                made.append((trial, found))
        kept = self._gated(made, count, look)
        scenes = [Placed("contrast", scene) for _, c in kept for scene in (c.kept, c.removed)]
        usage = Usage(validation_environments=len(scenes))
        played = self.round.rollout(_nth("contrast", look), "validation", scenes, usage, kind="validate")
        pairs = list(zip(played[::2], played[1::2], strict=True))
        return [[pair for (owner, _), pair in zip(kept, pairs, strict=True) if owner is trial] for trial in trials]

    def _experts(self, scenes: Sequence[SceneSpec], look: int) -> dict[str, Episode]:
        """The expert's undisturbed episode in each scene, by scene hash."""
        scenes = list({scene.hash: scene for scene in scenes}.values())
        if not scenes:
            return {}
        run, folder = self.round.run, self.round.run.folder / "demos" / "validation"

        def work(tick: Tick) -> tuple[Any, Usage]:
            shown = run.engine.demonstrate(scenes, folder, 0.0, tick)
            run.memory.add(*archive.episode_rows(shown, "validation", run.folder, folder, "expert"))
            return None, Usage(steps={"validation": sum(map(len, shown))})

        hashes = [scene.hash for scene in scenes]
        self.round.steps.run(_nth("validation experts", look), "demonstrate", len(scenes), hashes, work)
        return {name: Episode.load(folder / f"{name}.npz") for name in hashes}

    def _gated(self, made: Sequence[tuple[Trial, Contrast]], count: int, look: int) -> list[tuple[Trial, Contrast]]:
        """The first `count` of each trial whose two scenes both pass the gates."""
        scenes = [scene for _, c in made for scene in (c.kept, c.removed)]
        if not scenes:
            return []

        def work(tick: Tick) -> tuple[Any, Usage]:
            engine = self.round.run.engine
            moved = [scene for scene in scenes if scene.start is None]
            resumed = [scene for scene in scenes if scene.start is not None]  # a state that physics has been in
            gated = [*engine.gate(moved, tick), *engine.gate(resumed, tick, static=True)]
            self._file(gated)
            refused = Counter(g.gate for g in gated if not g.accepted)
            return {"passed": [g.scene.hash for g in gated if g.accepted], "rejected": dict(refused)}, Usage()

        inputs = [scene.hash for scene in scenes]
        result = self.round.steps.run(_nth("contrast scenes", look), "gate", len(scenes), inputs, work)
        passed = set(result["passed"])
        taken: Counter[int] = Counter()
        kept = []
        for trial, one in made:
            if {one.kept.hash, one.removed.hash} <= passed and taken[id(trial)] < count:
                taken[id(trial)] += 1
                kept.append((trial, one))
        self.round.generator.book(result["rejected"], [scene for _, c in kept for scene in (c.kept, c.removed)])
        return kept

    def _file(self, gated: Sequence[Gated]) -> None:
        for rows in archive.scene_rows(gated, None):
            self.round.run.memory.add(*rows)


def _nth(step: str, look: int) -> str:
    return step if look == 0 else f"{step} {look + 1}"
