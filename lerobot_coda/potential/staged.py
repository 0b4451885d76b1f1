"""Staged potentials: a typed plan, evaluated on stored episodes. Data, never code.

A plan is a list of stages. Each belongs to a leg (one thing to do) and a leg to a block:

    Phi(s) = scale * sum over stages k that count in s of w_k * (1 if k is done in s else h_k(s)),   sum_k w_k = 1

A stage counts when every earlier stage of its leg is done and every block before its own is done; a stage is done when
its condition holds or a later one of its leg is done (what rests in its receptacle needs no holding). Stages are read
from the state alone (an object that is dropped falls back), so Phi is Markov and shaping with it leaves optimal chunks
optimal (Ng, Harada and Russell 1999); at a terminal state the learner takes Phi = 0. Heights and tilts are measured
from the start of the episode, which is the same in all of its states.

A latched plan keeps what was reached: its stage m_t = max(m_{t-1}, ...) is history, so Phi is a potential of (s, m) and
the value function must see m, which `evaluate` returns beside it.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from lerobot_coda.potential.names import Names
from lerobot_coda.potential.terms import Clause, Term, contradiction, entails
from lerobot_coda.potential.trace import Trace
from libero_pro.episode import Episode
from libero_pro.record import Record

MAX_STAGES = 24
Link = Literal["next", "then", "also"]


class Stage(Record):
    """One stage.

    link      next: goes on with the leg above;  also: begins another leg beside it, in any order;  then: begins a leg
              that counts once everything above is done
    weight    its share of the potential, relative to the other stages'
    progress  terms whose mean, weighted by their shares, is the stage's progress h in [0, 1]
    until     what ends it: any of the clauses, all terms of a clause
    """

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")
    link: Link = "next"
    weight: float = Field(default=1.0, gt=0, le=10)
    progress: Clause = Field(min_length=1, max_length=4)
    until: tuple[Clause, ...] = Field(min_length=1, max_length=4)

    @model_validator(mode="after")
    def _can_hold(self) -> "Stage":
        for clause in self.until:
            if not 1 <= len(clause) <= 4:
                raise ValueError(f"stage '{self.name}': a clause of its condition has {len(clause)} terms, not 1 to 4")
            if pair := contradiction(clause):
                raise ValueError(
                    f"stage '{self.name}' never ends: {pair[0].kind} and {pair[1].kind} exclude each other"
                )
        return self

    def terms(self) -> tuple[Term, ...]:
        """All terms, those of the progress first."""
        return (*self.progress, *(term for clause in self.until for term in clause))

    def height(self, trace: Trace) -> np.ndarray:
        """h, (T+1,) in [0, 1]."""
        shares = np.array([term.share for term in self.progress])
        return np.average([term.progress(trace) for term in self.progress], axis=0, weights=shares)

    def holds(self, trace: Trace) -> np.ndarray:
        """(T+1,) bool: whether its condition holds."""
        clauses = [np.all([term.holds(trace) for term in clause], axis=0) for clause in self.until]
        return np.any(clauses, axis=0)


@dataclass(frozen=True)
class Evaluated:
    """phi (T+1,) in [0, scale], not yet 0 at the terminal;  stage (T+1,) the share of the stages that are done."""

    phi: np.ndarray
    stage: np.ndarray


class StagedPotential(Record):
    """An ordered plan of at most 24 stages; `scale` bounds Phi to [0, scale]; `latched` keeps what was reached."""

    schema_version: Literal[2] = 2
    stages: tuple[Stage, ...] = Field(min_length=1, max_length=MAX_STAGES)
    scale: float = Field(default=0.5, gt=0, le=1)
    latched: bool = False

    @model_validator(mode="after")
    def _in_order(self) -> "StagedPotential":
        names = [stage.name for stage in self.stages]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two stages are called '{twice}'; every stage needs a name of its own")
        if self.stages[0].link != "next":
            raise ValueError(f"the first stage '{names[0]}' has nothing before it to be '{self.stages[0].link}' to")
        if self.latched:
            if also := next((stage.name for stage in self.stages if stage.link == "also"), None):
                raise ValueError(f"a latched potential is one chain: stage '{also}' cannot be 'also'")
        else:
            _no_cycle(self.blocks())
        return self

    def blocks(self) -> list[list[list[Stage]]]:
        """Blocks of legs of stages."""
        blocks: list[list[list[Stage]]] = [[[]]]
        for stage in self.stages:
            if stage.link == "then":
                blocks.append([[]])
            elif stage.link == "also":
                blocks[-1].append([])
            blocks[-1][-1].append(stage)
        return blocks

    def check(self, names: Names) -> None:
        """RecordError naming the stage and the word if it speaks of what the scene does not have."""
        for stage in self.stages:
            for term in stage.terms():
                try:
                    term.check(names)
                except ValueError as error:
                    raise type(error)(f"stage '{stage.name}': {error}") from None

    def evaluate(self, episode: Episode) -> np.ndarray:
        """Phi at each instant, (T+1,) in [0, scale]; the terminal instant of a success is 0.

        Raises RecordError when the episode lacks something that the plan speaks of.
        """
        phi = self.run(episode).phi
        if episode.terminated:
            phi[-1] = 0.0
        return phi

    def run(self, episode: Episode) -> Evaluated:
        """Phi before the terminal is set to 0, and the stage, at each instant."""
        trace = Trace(episode)
        done = self._done(trace)
        total = sum(stage.weight for stage in self.stages)
        phi, stage_count = np.zeros(len(episode) + 1), np.zeros(len(episode) + 1)
        begun = np.ones(len(episode) + 1, bool)  # every block before this one is done
        for block in self.blocks():
            ended = begun
            for leg in block:
                counts = begun
                for stage in leg:
                    achieved = np.where(done[stage.name], 1.0, stage.height(trace))
                    phi += counts * (stage.weight / total) * achieved
                    counts = counts & done[stage.name]
                    stage_count += counts
                ended = ended & counts
            begun = ended
        return Evaluated(self.scale * np.clip(phi, 0.0, 1.0), stage_count / len(self.stages))

    def done(self, episode: Episode) -> dict[str, np.ndarray]:
        """Stage name -> (T+1,) bool: its condition or that of a later stage of its leg holds (or did, if latched)."""
        return self._done(Trace(episode))

    def _done(self, trace: Trace) -> dict[str, np.ndarray]:
        self.check(trace.names)
        done: dict[str, np.ndarray] = {}
        for block in self.blocks():
            for leg in block:
                later: np.ndarray = np.zeros(len(trace.episode) + 1, bool)
                for stage in reversed(leg):
                    later = later | stage.holds(trace)
                    done[stage.name] = later
        if self.latched:
            done = self._latch(done)
        return {stage.name: done[stage.name] for stage in self.stages}

    def _latch(self, done: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The same with stages kept: stage k is done from the first instant on at which k-1 was and its own holds."""
        kept: dict[str, np.ndarray] = {}
        before: np.ndarray = np.ones(len(done[self.stages[0].name]), bool)
        for stage in self.stages:
            before = np.logical_or.accumulate(before & done[stage.name])
            kept[stage.name] = before
        return kept


def _no_cycle(blocks: list[list[list[Stage]]]) -> None:
    """ValueError where a stage cannot be pursued, or where two that must both be done undo each other."""
    for block in blocks:
        for leg in block:
            for k, stage in enumerate(leg):
                for earlier in leg[:k]:
                    if entails(earlier.until, stage.until):
                        raise ValueError(
                            f"stage '{stage.name}' comes after '{earlier.name}', which cannot end before it: "
                            "put them the other way round or leave one out"
                        )
    ends = [(leg[-1], number) for number, block in enumerate(blocks) for leg in block]
    for i, (first, block_number) in enumerate(ends):
        for second, later in ends[i + 1 :]:
            pairs = [contradiction((*a, *b)) for a in first.until for b in second.until]
            if later > block_number and all(pairs):
                raise ValueError(
                    f"stage '{second.name}' undoes '{first.name}', and both must be done: leave one out, or latch it"
                )
