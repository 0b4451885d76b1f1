"""What becomes of a round's programs: a decision on each by its measured progress, and the program that follows it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lerobot_coda.coprograms import joined
from lerobot_coda.programs import CoProgram
from lerobot_coda.progress import Decision, Measurement, combination, decide, is_stalled, learnability
from libero_pro.record import RecordError


@dataclass
class Succession:
    """By program name: what was decided, what follows (None: nothing), and its rounds without progress."""

    decisions: dict[str, Decision] = field(default_factory=dict)
    successors: dict[str, CoProgram | None] = field(default_factory=dict)
    stalled: dict[str, int] = field(default_factory=dict)

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
) -> Succession:
    """Decides on each program that was measured in round `number`; one that was not stays as it is.

    by_task  of each program (successes, episodes) after the training by task;  `stalled` rounds without progress
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
    _keep_one(found, programs, measured)
    chosen = combination(exhausted)
    if chosen is not None:
        name, made = chosen
        known = {program.name: program for program in programs}
        try:
            both = joined(known[name], known[made.partner or ""], number)
        except RecordError:  # they share no task, and both stay retired
            return found
        found.decisions[name], found.successors[name] = made, both
        found.stalled[both.name] = 0
    return found


def _keep_one(found: Succession, programs: Sequence[CoProgram], measured: Mapping[str, Measurement]) -> None:
    """Keeps the most learnable of the retired programs where nothing else follows."""
    retired = {p.name: p for p in programs if p.name in found.decisions and found.decisions[p.name].action == "retire"}
    if found.following or not retired:
        return
    name = max(retired, key=lambda name: learnability(measured[name].posterior_after))
    reason = f"{found.decisions[name].reason}; nothing else is left to learn from"
    found.decisions[name], found.successors[name] = Decision("keep", reason), retired[name]
    found.stalled[name] = 0
