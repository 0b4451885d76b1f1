"""RunSummary: the numbers of one finished or running co-evolution run, as every rendering of the report reads them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from lerobot_coda.progress import Rate
from lerobot_coda.report.gallery import Exhibit
from lerobot_coda.report.lineage import Lineage
from lerobot_coda.report.scenemap import ScenePoint

VERDICTS = ("validated", "refuted", "undecided")


def show(rate: Rate) -> str:
    """A rate for people: "62 % (31/50) [48 %, 74 %]"; what was not measured is not a rate of zero."""
    if rate.n == 0:
        return "not measured"
    return f"{rate.rate:.0%} ({rate.successes}/{rate.n}) [{rate.low:.0%}, {rate.high:.0%}]"


@dataclass(frozen=True)
class Comparison:
    """The same scenes and seeds before and after, and what flipped. `held_out`: nothing was generated from it."""

    name: str
    held_out: bool
    before: Rate
    after: Rate
    gained: int | None  # failed before, succeeded after; None where episodes could not be paired
    lost: int | None  # succeeded before, failed after
    p_value: float | None  # exact two-sided McNemar test
    invalid: int = 0  # pairs left out, as the infrastructure or the physics failed in one of them


@dataclass(frozen=True)
class CurvePoint:
    """Success on one set of scenes after one round (round 0: before the first).

    Points are joined within a `segment`: a name whose scenes change has a segment for each set of scenes.
    """

    round: int
    name: str
    success: Rate
    segment: int = 0


@dataclass(frozen=True)
class BudgetRow:
    """What one meter counted, in environments, layouts, control steps or wall seconds."""

    meter: str
    amount: float
    unit: Literal["environments", "layouts", "steps", "s"]


@dataclass(frozen=True)
class DiagnosisRow:
    """One cluster of failures, what was claimed of it, and the verdict: one of VERDICTS or "not tested"."""

    round: int
    mode: str
    stage: str
    causes: str
    tasks: str
    failures: int
    verdict: str
    evidence: str


@dataclass(frozen=True)
class ProgramRow:
    """One generation program, what became of it and why."""

    round: int
    program: str
    operations: str
    difficulty: float
    measured: int  # scenes it was measured on, before and after
    decision: str
    reason: str


@dataclass(frozen=True)
class RejectionRow:
    """Generated scenes that one validity gate refused."""

    gate: str
    scenes: int


@dataclass(frozen=True)
class TaskRow:
    """One task of one held-out suite, before and after."""

    suite: str
    task_id: int
    before: Rate
    after: Rate


@dataclass(frozen=True)
class Clip:
    """Stored episodes of one scene: a failure before co-evolution, and the same scene after it."""

    scene: str
    instruction: str
    before: Path
    after: Path | None
    success_after: bool | None


@dataclass(frozen=True)
class RunSummary:
    """Everything a report shows. `leakage` counts emitted scenes that match a test (must be 0), `missing` says what
    the run folder does not hold, one sentence each."""

    name: str
    status: str
    finished: bool = False
    comparisons: tuple[Comparison, ...] = ()
    curve: tuple[CurvePoint, ...] = ()
    budget: tuple[BudgetRow, ...] = ()
    diagnosed: int = 0  # failed episodes that got a diagnosis
    diagnoses: tuple[DiagnosisRow, ...] = ()
    programs: tuple[ProgramRow, ...] = ()
    rejections: tuple[RejectionRow, ...] = ()
    accepted_scenes: int = 0
    leakage: int = 0
    card: tuple[tuple[str, str], ...] = ()
    protocol: str = ""  # the benchmark's own card
    commands: tuple[str, ...] = ()
    clip: Clip | None = None
    tasks: tuple[TaskRow, ...] = ()
    exhibits: tuple[Exhibit, ...] = ()
    scenes: tuple[ScenePoint, ...] = ()
    lineage: Lineage = field(default_factory=Lineage)
    missing: tuple[str, ...] = ()

    def verdicts(self) -> dict[str, int]:
        """Diagnoses made (one a failed episode) and how many got each verdict through their cluster."""
        counts = {kind: sum(row.failures for row in self.diagnoses if row.verdict == kind) for kind in VERDICTS}
        return {"made": self.diagnosed, **counts, "not tested": self.diagnosed - sum(counts.values())}

    @property
    def rejected_scenes(self) -> int:
        """Scenes refused by any gate."""
        return sum(row.scenes for row in self.rejections)
