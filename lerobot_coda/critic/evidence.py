"""Evidence: what an episode's stored states must show for a claim about it to be possible, whoever makes the claim.

These are necessary conditions, not a diagnosis: two readings of one episode may both be possible, an impossible one
never is. They ask the facts (`lerobot_coda.critic.measure`) the other way round than the simulator critic does: not
"what went wrong?" but "can this have gone wrong?", each claim by itself and with some tolerance. They look at states
alone, never at the label of success, so successes can be asked as well.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

from lerobot_coda.critic.diagnosis import Cause, Stage
from lerobot_coda.critic.measure import FAR_AWAY, LIFTED, MOVED_PART, Facts, measure, unsatisfied
from lerobot_coda.critic.simulator import AT_RECEPTACLE, CLEAR, INSIDE, KEPT, MOVED, PUSHES, STILL
from libero_pro.episode import Episode

NEAR = 0.06  # fingers this near an object's middle are at it
AROUND = 0.02  # open fingers within so much of an object's footprint may be around it
CENTERED = 0.01  # ... and this near its middle they are


class Claimed(Protocol):
    """What a diagnosis and a critic's claim about a cluster have in common."""

    @property
    def stage(self) -> Stage: ...
    @property
    def cause(self) -> Cause: ...
    @property
    def objects(self) -> tuple[str, ...]: ...
    @property
    def predicate(self) -> tuple[str, ...]: ...


def bears_out(episode: Episode, claim: Claimed) -> bool:
    """Whether the stored states allow the claim: its predicate, stage, cause, and the objects that it names.

    The first object must be the object or part that the predicate is about; a second one must have the part in the
    failure that the cause gives it (what was taken instead, what it was put on). Without a predicate the claim is about
    the one that the episode failed at.
    """
    goal = episode.scene.goal
    if episode.invalid is not None or len(episode) == 0 or (claim.predicate and claim.predicate not in goal):
        return False
    facts = measure(episode, claim.predicate or unsatisfied(episode))
    missed = not bool(episode.goal_holds[-1, goal.index(facts.predicate)])
    return (
        _names_fit(facts, claim)
        and _STAGES[claim.stage](facts, missed)
        and _CAUSES[claim.cause](facts, missed, episode.truncated)
        and (claim.cause is not Cause.MISSED_GRASP or _missed_there(facts, claim.stage))
    )


def _names_fit(f: Facts, claim: Claimed) -> bool:
    """The claim speaks of what was asked for, and of what had a part in it."""
    named = claim.objects
    if not named or named[0] != (f.target or f.predicate[1]):
        return False
    if len(named) == 1:
        return True
    if claim.cause in (Cause.WRONG_OBJECT, Cause.IGNORED_INSTRUCTION):
        return named[1] in _instead(f)
    if claim.cause is Cause.WRONG_RECEPTACLE:
        return named[1] == f.rest_object
    return f.receptacle is None or named[1] == f.receptacle


def _instead(f: Facts) -> tuple[str, ...]:
    """What was taken or moved, or what the gripper closed at, in place of the instructed object or part."""
    taken = [hold.name for hold in f.others if hold.last - hold.first + 1 >= KEPT]
    part = [f.other_part[0]] if f.other_part else []
    tried = [f.attempt.other] if f.attempt and f.attempt.other and f.attempt.other_beyond < AROUND else []
    return (*taken, *part, *tried)


def _took_another(f: Facts) -> bool:
    return f.other_held_steps >= KEPT and f.other_lifted >= LIFTED


def _missed_there(f: Facts, stage: Stage) -> bool:
    """The fingers closed on nothing: at the object where it is the grasp that failed, else beside it."""
    if f.attempt is None:
        return False
    return f.attempt.beyond < AROUND if stage is Stage.GRASP else f.attempt.distance > CENTERED


def _came_clear(f: Facts) -> bool:
    return bool(f.holds) and f.lifted >= LIFTED


def _moved(f: Facts) -> bool:
    """A part was moved, an object lifted."""
    return f.progress.max() > MOVED_PART if f.target is None else _came_clear(f)


def _reached(f: Facts) -> bool:
    return bool(f.holds) or f.released >= 0 or f.nearest < NEAR or f.displaced > MOVED


def _let_go(f: Facts) -> bool:
    """It was lifted and left open fingers."""
    return _came_clear(f) and not f.held_at_end and f.commanded_open_at_loss


def _on_its_way(f: Facts) -> bool:
    """Nothing went wrong before: it is in the hand, or the part is moved, or no attempt was made."""
    if f.target is None:
        return f.attempt is None or _moved(f)
    return f.held_at_end or (f.attempt is None and f.held_steps < KEPT)


def _placed(f: Facts) -> bool:
    return _came_clear(f) and (_let_go(f) or f.receptacle_least < 1.5 * AT_RECEPTACLE)


_STAGES: Mapping[Stage, Callable[[Facts, bool], bool]] = MappingProxyType({
    Stage.REACH: lambda f, missed: missed and not _moved(f) and f.held_steps < KEPT,
    Stage.GRASP: lambda f, missed: not (_moved(f) and (f.target is None or f.lifted >= CLEAR)) and _reached(f),
    Stage.TRANSPORT: lambda f, missed: missed and _moved(f),
    Stage.PLACE: lambda f, missed: missed and _placed(f),
    Stage.DONE: lambda f, missed: missed,
})  # fmt: skip

# (facts, whether the predicate did not hold at the end, whether the horizon cut the episode) -> whether it can be
_CAUSES: Mapping[Cause, Callable[[Facts, bool, bool], bool]] = MappingProxyType({
    Cause.WRONG_OBJECT: lambda f, missed, cut: f.held_steps < KEPT and bool(_instead(f)),
    Cause.IGNORED_INSTRUCTION: lambda f, missed, cut: (
        f.held_steps < KEPT and (f.other_part is not None or (_took_another(f) and not f.others[0].at_end))
    ),
    Cause.MISSED_GRASP: lambda f, missed, cut: f.held_steps < KEPT and not _took_another(f),
    Cause.PUSHED_AWAY: lambda f, missed, cut: f.displaced > MOVED and f.held_steps < KEPT,
    Cause.SLIPPED: lambda f, missed, cut: bool(f.holds) and f.lifted < CLEAR and not f.held_at_end,
    Cause.DROPPED: lambda f, missed, cut: _came_clear(f) and not f.held_at_end and not f.commanded_open_at_loss,
    Cause.EARLY_RELEASE: lambda f, missed, cut: (
        missed and _moved(f) if f.target is None else _let_go(f) and f.receptacle_at_loss > AT_RECEPTACLE / 2
    ),
    Cause.WRONG_PLACE: lambda f, missed, cut: missed and _let_go(f) and f.receptacle_at_end >= INSIDE / 2,
    Cause.WRONG_RECEPTACLE: lambda f, missed, cut: _let_go(f) and f.rest_object is not None,
    Cause.NOT_RELEASED: lambda f, missed, cut: f.held_at_end and f.receptacle_at_end < 1.5 * AT_RECEPTACLE,
    Cause.UNSATISFIED: lambda f, missed, cut: missed and _let_go(f) and f.receptacle_at_end < 1.5 * AT_RECEPTACLE,
    Cause.OUT_OF_TIME: lambda f, missed, cut: missed and cut and f.late_path >= STILL and _on_its_way(f),
    Cause.UNREACHABLE: lambda f, missed, cut: missed and f.late_path < STILL and f.late_command > PUSHES / 2,
    Cause.STALLED: lambda f, missed, cut: missed and f.late_path < STILL,
    Cause.DRIFTED: lambda f, missed, cut: f.away > FAR_AWAY,
    Cause.EARLY_STOP: lambda f, missed, cut: missed and not cut,
})  # fmt: skip
