"""The simulator critic: a deterministic diagnosis from an episode's privileged arrays, no model needed.

It reads the facts (`lerobot_coda.critic.measure`) and decides by the furthest stage that the instructed object or part
reached. Distances are horizontal metres unless said otherwise.
"""

from typing import NamedTuple

import numpy as np

from lerobot_coda.critic.diagnosis import Cause, Diagnosis, Stage, episode_key
from lerobot_coda.critic.facts import LIFTED, Facts, Hold
from lerobot_coda.critic.measure import FAR_AWAY, MOVED_PART, measure
from libero_pro.episode import Episode

CLEAR = 0.05  # risen this much it is clear of its neighbors, so a later loss is a drop, not a slip
AT_RECEPTACLE = 0.10  # over or at the receptacle: half a basket and a half object
INSIDE = 0.085  # at rest this near a receptacle's middle it lies on or in it, if only on a plate's rim
ON_FIXTURE = 0.05  # outside a fixture's region by less than this it still lies on the fixture
MOVED = 0.04  # an object that nobody meant to move moves less than this
FELL = 0.05  # let go this much above where it came to rest, it fell; less, it was set down
SLID = 0.10  # the same where it came to rest on something, on which it may have slid or tipped
STILL = 0.02  # path of the last second below which the arm stands still
PUSHES = 0.3  # mean command above which an arm that stands still is stopped by something
BESIDE = 0.02  # fingers this far outside the footprint of another object did not aim at it
KEPT = 3  # instants in both fingers after which an object was taken, not brushed
PART_DONE = 1.0  # of its way: another part that ended open where it was closed, on where it was off
SHOWN = 3  # frames as evidence
CRITIC_VERSION = "3"


class Finding(NamedTuple):
    """The decision: what, why, from which instant to which, what else it is about, and how sure."""

    stage: Stage
    cause: Cause
    reason: str
    span: tuple[int, int]
    other: str | None = None
    confidence: float = 0.95


def diagnose(episode: Episode) -> Diagnosis | None:
    """Why the episode failed; None for a success or an invalid episode, which is never a failure."""
    if episode.success or episode.invalid is not None or len(episode) == 0 or episode.goal_holds[-1].all():
        return None
    f = measure(episode)
    found = _decide(f, episode.truncated)
    subject = (f.target or f.predicate[1]).replace("_", " ")
    first, last = (int(np.clip(instant, 0, f.steps)) for instant in found.span)
    last = max(first, last)
    asked = f.target or f.predicate[1]
    claimed = (asked, found.other or f.receptacle)
    frames = np.unique(np.linspace(first, last, SHOWN).round().astype(int))
    return Diagnosis(
        episode=episode_key(episode.actor, episode.scene.hash),
        scene=episode.scene.hash,
        suite=episode.scene.suite,
        task_id=episode.scene.task_id,
        stage=found.stage,
        cause=found.cause,
        objects=tuple(name for name in claimed if name),
        evidence=_numbers(f),
        explanation=f'"{episode.scene.instruction}": for the {subject}, {found.reason}.'[:600],
        confidence=found.confidence,
        critic="simulator",
        version=CRITIC_VERSION,
        predicate=f.predicate,
        span=(first, last),
        frames=tuple(int(frame) for frame in frames),
        difficulty=_difficulty(found),
    )


def _decide(f: Facts, truncated: bool) -> Finding:
    """The first rule that fits, from the furthest stage down."""
    if not truncated:
        reason = "the episode ended neither by success nor by the horizon"
        return Finding(Stage.DONE, Cause.EARLY_STOP, reason, (f.steps, f.steps), confidence=0.8)
    hold = f.hold
    if hold is not None and hold.rise >= LIFTED:
        return _kept(f) if hold.at_end else _lost(f, hold)
    if f.progress.max() > MOVED_PART:
        return _part_left(f)
    if hold is not None and hold.last - hold.first + 1 >= KEPT and not hold.at_end:
        return Finding(Stage.GRASP, Cause.SLIPPED, "both fingers had it, and it was never lifted", (hold.last, f.steps))
    return _instead(f) or _touched(f) or _motion(f, Stage.GRASP if f.nearest <= 0 or hold else Stage.REACH)


def _kept(f: Facts) -> Finding:
    """It is still in the fingers."""
    over = f.outside[-1] < INSIDE / 2 if np.isfinite(f.outside[-1]) else f.destination[-1] < AT_RECEPTACLE
    if over and f.away <= FAR_AWAY:  # distances are horizontal: it may be far above
        there = f.outside < INSIDE / 2 if np.isfinite(f.outside[-1]) else f.destination < AT_RECEPTACLE
        came = int(np.flatnonzero(~there)[-1]) + 1 if (~there).any() else 0
        reason = "it was still held over the receptacle when time was up"
        return Finding(Stage.PLACE, Cause.NOT_RELEASED, reason, (came, f.steps))
    return _motion(f, Stage.TRANSPORT)


def _lost(f: Facts, hold: Hold) -> Finding:
    """It was lifted, and left the fingers."""
    span, gap = (hold.last, hold.last + 10), float(f.destination[hold.last])
    far = f"{gap:.2f} m from the receptacle" if np.isfinite(gap) else "on the way"
    if not hold.opened:
        if hold.rise < CLEAR:
            return Finding(Stage.GRASP, Cause.SLIPPED, f"it slipped out {hold.rise * 100:.0f} cm above its place", span)
        return Finding(Stage.TRANSPORT, Cause.DROPPED, f"it fell from the closed gripper {far}", span)
    end, outside = float(f.destination[-1]), float(f.outside[-1])
    region = outside != end  # the goal names a region, not an object
    if (outside < ON_FIXTURE and hold.fall < FELL) if region else end < INSIDE:
        return Finding(
            Stage.PLACE,
            Cause.UNSATISFIED,
            "it rests at the receptacle, and the goal does not hold",
            span,
            confidence=0.85,
        )
    away = float(f.outside[hold.last]) > AT_RECEPTACLE / 2 if region else gap > AT_RECEPTACLE
    if away and hold.fall > (SLID if f.rest_object else FELL):
        return Finding(Stage.TRANSPORT, Cause.EARLY_RELEASE, f"it was let go in the air, {far}", span)
    if f.rest_object:
        where = f"it was put at {f.rest_object}"
        return Finding(Stage.PLACE, Cause.WRONG_RECEPTACLE, where, span, f.rest_object, 0.9)
    rests = f"it rests {end:.2f} m from the receptacle's center" if np.isfinite(end) else "it rests elsewhere"
    return Finding(Stage.PLACE, Cause.WRONG_PLACE, rests, span, confidence=0.9)


def _part_left(f: Facts) -> Finding:
    """A part was moved, not far enough."""
    share = f"{100 * f.progress[-1]:.0f} % of its way"
    if f.released < f.steps - 8:
        return Finding(
            Stage.TRANSPORT, Cause.EARLY_RELEASE, f"it was let go after {share}", (f.released, f.released + 10)
        )
    return _motion(f, Stage.TRANSPORT)


def _instead(f: Facts) -> Finding | None:
    """Something else was taken, or done."""
    if f.other_part is not None:
        name, share, first, last = f.other_part
        if share >= PART_DONE:
            return Finding(Stage.REACH, Cause.IGNORED_INSTRUCTION, f"{name} was moved instead", (first, last), name)
        return Finding(Stage.REACH, Cause.WRONG_OBJECT, f"{name} was moved a little instead", (first, last), name)
    if not f.others or f.other_held_steps < KEPT:
        return None
    other = f.others[0]
    span = (other.first, other.last)
    if other.rise < LIFTED:
        return Finding(Stage.REACH, Cause.WRONG_OBJECT, f"the fingers closed on {other.name} instead", span, other.name)
    delivered = f.other_to_receptacle < AT_RECEPTACLE or other.fall < FELL
    if delivered and other.opened and not other.at_end:
        done = f"{other.name} was carried and put down instead"
        return Finding(Stage.REACH, Cause.IGNORED_INSTRUCTION, done, span, other.name)
    return Finding(Stage.REACH, Cause.WRONG_OBJECT, f"{other.name} was taken instead", span, other.name)


def _touched(f: Facts) -> Finding | None:
    """It was pushed, or the gripper closed on nothing."""
    if f.displaced > MOVED:
        how = f"it was pushed {f.displaced * 100:.0f} cm and never grasped"
        return Finding(Stage.GRASP, Cause.PUSHED_AWAY, how, (f.pushed, f.pushed + 15))
    tried = f.attempt
    if tried is None:
        return None
    span = (tried.first, tried.last)
    if tried.beyond <= 0:
        how = f"the gripper closed {tried.distance * 100:.1f} cm beside it"
        return Finding(Stage.GRASP, Cause.MISSED_GRASP, how, span)
    if tried.touching and tried.other_beyond < min(tried.beyond, BESIDE):
        how = f"the gripper closed at {tried.other} instead"
        return Finding(Stage.REACH, Cause.WRONG_OBJECT, how, span, tried.other, 0.8)
    how = f"the gripper closed on nothing {tried.distance:.2f} m away from it"
    return Finding(Stage.REACH, Cause.MISSED_GRASP, how, span, confidence=0.9)


def _motion(f: Facts, stage: Stage) -> Finding:
    """The cause where neither object nor gripper tells one: what the arm did at the end."""
    if f.away > FAR_AWAY:
        how = f"the arm ended {f.away:.2f} m farther from everything than it began"
        return Finding(stage, Cause.DRIFTED, how, (f.left, f.steps))
    if f.late_path < STILL:
        span = (f.still, f.steps)
        if f.late_command > PUSHES:
            return Finding(stage, Cause.UNREACHABLE, "the arm kept pushing and did not move", span)
        how = f"the arm stood still for the last {f.steps - f.still} steps"
        return Finding(stage, Cause.STALLED, how, span)
    reason = "the arm was still moving when time was up"
    return Finding(stage, Cause.OUT_OF_TIME, reason, (f.steps, f.steps), confidence=0.8)


def _numbers(f: Facts) -> dict[str, float]:
    """The measured numbers behind a claim."""
    hold = f.hold
    numbers = {
        "held_steps": f.held_steps, "lifted_m": f.lifted, "first_held_step": f.holds[0].first if f.holds else -1,
        "last_held_step": hold.last if hold else -1, "fell_m": hold.fall if hold else 0.0, "nearest_m": f.nearest,
        "attempt_step": f.attempt_step, "attempt_distance_m": f.attempt_distance,
        "attempt_other_m": f.attempt_object_distance, "other_held_steps": f.other_held_steps,
        "other_lifted_m": f.other_lifted, "displaced_m": f.displaced, "receptacle_at_loss_m": f.receptacle_at_loss,
        "receptacle_at_end_m": f.receptacle_at_end, "part_share": float(f.progress.max()),
        "late_path_m": f.late_path, "late_command": f.late_command, "away_m": f.away, "still_step": f.still,
        "steps": f.steps,
    }  # fmt: skip
    return {key: round(float(value), 4) for key, value in numbers.items() if np.isfinite(value)}


# What recreates a cause, as kinds of generation operations with a difficulty in [0, 1].
_RECREATES: dict[Cause, dict[str, float]] = {
    Cause.WRONG_OBJECT: {"permute": 0.75, "retarget": 0.75, "crowd": 0.5},
    Cause.IGNORED_INSTRUCTION: {"retarget": 0.75, "rephrase": 0.5},
    Cause.PUSHED_AWAY: {"offset": 0.5},
    Cause.WRONG_PLACE: {"offset": 0.5},
    Cause.WRONG_RECEPTACLE: {"retarget": 0.5, "offset": 0.5},
    Cause.NOT_RELEASED: {"offset": 0.5},
    Cause.UNSATISFIED: {"offset": 0.25},
    Cause.UNREACHABLE: {"offset": 0.75, "arm": 0.5},
    Cause.DRIFTED: {"arm": 0.5},
}
_BY_STAGE: dict[Stage, dict[str, float]] = {
    Stage.REACH: {"permute": 0.75, "resample": 0.5},
    Stage.GRASP: {"resample": 0.5},
    Stage.TRANSPORT: {"resume": 0.5, "offset": 0.5},
    Stage.PLACE: {"resume": 0.5, "offset": 0.5},
    Stage.DONE: {},
}


def _difficulty(found: Finding) -> dict[str, float]:
    return _RECREATES.get(found.cause, _BY_STAGE[found.stage])
