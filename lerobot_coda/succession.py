"""What becomes of a round's programs: a decision on each by its measured progress, and the program that follows it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lerobot_coda.coprograms import joined, revived
from lerobot_coda.programs import CoProgram
from lerobot_coda.progress import Decision, Measurement, combination, decide, is_stalled, learnability, revivals
from libero_pro.record import Record, RecordError


class Retired(Record):
    """A program that is no longer used, and its successes in `n` scenes when it was given up."""

    program: CoProgram
    successes: int
    n: int


@dataclass
class Succession:
    """By program name: what was decided, what follows (None: nothing), and its rounds without progress.

    retired  programs that nothing follows, those of earlier rounds first
    """

    decisions: dict[str, Decision] = field(default_factory=dict)
    successors: dict[str, CoProgram | None] = field(default_factory=dict)
    stalled: dict[str, int] = field(default_factory=dict)
    retired: tuple[Retired, ...] = ()

    @property
    def following(self) -> tuple[CoProgram, ...]:
        """The next round's programs, in order."""
        return tuple(program for program in self.successors.values() if program is not None)


def succeed(
    programs: Sequence[CoProgram],
    measured: Mapping[str, Measurement],
    by_task: Mapping[str, Mapping[int, tuple[int, int]]],
    stalled: Mapping[str, int],
    number: int,
    *,
    retired: Sequence[Retired] = (),
    probed: Mapping[str, tuple[int, int]] | None = None,
) -> Succession:
    """Decides on each program that was measured in round `number`; one that was not stays as it is.

    by_task  of each program (successes, episodes) after the training by task;  `stalled` rounds without progress
    retired  programs of earlier rounds; one that is forgotten by `probed`, (successes, episodes) in fresh scenes of it
             now by name, comes back
    Of those that are solved at their hardest, the best two are joined to one that asks for both at once. A program is
    not retired while none other is left: it stays the best-known place to learn.
    """
    found = Succession()
    exhausted: dict[str, Measurement] = {}
    for program in programs:
        name, m = program.name, measured.get(program.name)
        if m is None:
            found.successors[name] = program
            continue
        waited = stalled.get(name, 0)
        made = decide(m, rounds_without_progress=waited, by_task=by_task.get(name))
        successor = program.after(made.action, number, made.tasks)
        found.decisions[name], found.successors[name] = made, successor
        if successor is not None:
            found.stalled[successor.name] = waited + 1 if is_stalled(m) and made.action != "promote" else 0
        elif made.action == "promote":
            exhausted[name] = m
    _revive(found, retired, probed or {}, number)
    _keep_one(found, programs, measured)
    _join(found, programs, exhausted, number)
    kept = [r for r in retired if found.successors.get(r.program.name) is None]
    given_up = [program for program in programs if found.successors[program.name] is None]
    found.retired = (*kept, *(_retired(program, measured[program.name]) for program in given_up))
    return found


def _retired(program: CoProgram, last: Measurement) -> Retired:
    return Retired(program=program, successes=last.after.successes, n=last.n)


def _revive(
    found: Succession, retired: Sequence[Retired], probed: Mapping[str, tuple[int, int]], number: int
) -> None:  # fmt: skip
    """Brings back what is being forgotten, unless a program of its name is in use."""
    known = {r.program.name: r for r in retired if r.program.name not in found.successors}
    for name, made in revivals({name: (r.successes, r.n) for name, r in known.items()}, probed).items():
        found.decisions[name], found.successors[name] = made, revived(known[name].program, number)
        found.stalled[name] = 0


def _join(
    found: Succession, programs: Sequence[CoProgram], exhausted: Mapping[str, Measurement], number: int
) -> None:  # fmt: skip
    """Joins the best two of the exhausted programs, unless they share no task: then both stay retired."""
    chosen = combination(exhausted)
    if chosen is None:
        return
    name, made = chosen
    known = {program.name: program for program in programs}
    try:
        both = joined(known[name], known[made.partner or ""], number)
    except RecordError:
        return
    found.decisions[name], found.successors[name] = made, both
    found.stalled[both.name] = 0


def _keep_one(found: Succession, programs: Sequence[CoProgram], measured: Mapping[str, Measurement]) -> None:
    """Keeps the most learnable of the retired programs where nothing else follows."""
    retired = {p.name: p for p in programs if p.name in found.decisions and found.decisions[p.name].action == "retire"}
    if found.following or not retired:
        return
    name = max(retired, key=lambda name: learnability(measured[name].posterior_after))
    reason = f"{found.decisions[name].reason}; nothing else is left to learn from"
    found.decisions[name], found.successors[name] = Decision("keep", reason), retired[name]
    found.stalled[name] = 0
