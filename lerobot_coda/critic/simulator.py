"""The simulator critic: a deterministic diagnosis from an episode's privileged arrays, no model needed.

It measures (`measure`), then decides by the furthest stage the *instructed* object reached (`diagnose`). Distances are
horizontal metres unless said otherwise; thresholds are module constants with their reason.
"""

from dataclasses import dataclass

import numpy as np

from lerobot_coda.critic.diagnosis import Cause, Diagnosis, Stage, episode_key
from libero_pro.episode import Episode
from libero_pro.goals import owner

NEAR = 0.06  # a closing gripper this near an object's origin tried to take it (objects are 4-10 cm wide)
ON_TARGET = 0.015  # ... and this near, it was in the right place: beyond, open fingers no longer surround the object
LIFTED = 0.02  # origin risen this much while held: off its support
CLEAR = 0.05  # ... and this much: clear of neighbors, so a later loss is a drop, not a slip
AT_RECEPTACLE = 0.10  # over or at the receptacle: half a basket and a half object
INSIDE = 0.06  # at rest within the receptacle's inner half size
MOVED = 0.04  # an untouched object moves less than this
STILL = 0.02  # path length in the last third of an episode below which the arm stands still
FAR_AWAY = 0.35  # eef this much farther from every object than at the start: out of the workspace
CRITIC_VERSION = "1"


@dataclass(frozen=True)
class Facts:
    """What the arrays of one episode say about its first unsatisfied goal predicate. Indices are instants (0..T).

    `target` is None where the predicate is about a fixture (a drawer, a stove): then only motion facts are meaningful.
    """

    target: str | None
    receptacle: str | None
    held_steps: int
    lifted: float
    first_held: int
    last_held: int
    held_at_end: bool
    commanded_open_at_loss: bool
    receptacle_at_loss: float
    receptacle_at_end: float
    receptacle_least: float
    displaced: float
    nearest: float
    attempt_step: int
    attempt_distance: float
    attempt_object: str | None
    attempt_object_distance: float
    other_held: str | None
    other_held_steps: int
    other_lifted: float
    other_to_receptacle: float
    rest_object: str | None
    rest_object_distance: float
    late_path: float
    late_command: float
    away: float


def goal_objects(predicate: tuple[str, ...], names: tuple[str, ...]) -> tuple[str | None, str | None]:
    """(target, receptacle) of a goal predicate as object names, None where it is a fixture or there is none."""
    target = predicate[1] if len(predicate) > 1 and predicate[1] in names else None
    return target, owner(predicate[2], names) if len(predicate) > 2 else None


def unsatisfied(episode: Episode) -> tuple[str, ...]:
    """The first goal predicate that does not hold at the end (the first of all where every one holds)."""
    goal = episode.scene.goal
    final = episode.goal_holds[-1] if len(episode.goal_holds) else np.zeros(len(goal), bool)
    return next((p for p, holds in zip(goal, final, strict=False) if not holds), goal[0])


def _closings(actions: np.ndarray) -> np.ndarray:
    """Steps at which the gripper command turns from open to closed."""
    closed = actions[:, 6] > 0
    before = np.concatenate([[False], closed[:-1]])
    return np.flatnonzero(closed & ~before)


def measure(episode: Episode) -> Facts:
    """The facts of an episode; works on successes too, which is how specificity is tested."""
    names, positions, eef, held = episode.object_names, episode.object_pos, episode.eef_pos, episode.held
    steps = len(episode)
    target, receptacle = goal_objects(unsatisfied(episode), names)
    target_index = names.index(target) if target else -1
    to_objects = np.linalg.norm(positions[..., :2] - eef[:, None, :2], axis=-1)  # (T+1, n)

    own = held == target_index if target else np.zeros(len(held), bool)
    instants = np.flatnonzero(own)
    last_held = int(instants[-1]) if len(instants) else -1
    rise = positions[..., 2] - positions[0, :, 2]
    path = positions[:, target_index] if target else eef
    if receptacle:
        gap = np.linalg.norm(path[:, :2] - positions[:, names.index(receptacle), :2], axis=-1)
    else:
        gap = np.full(len(eef), np.inf)

    others = [i for i in range(len(names)) if i != target_index and names[i] != receptacle]
    other_steps = [int((held == i).sum()) for i in others]
    other = others[int(np.argmax(other_steps))] if others and max(other_steps) > 0 else -1

    # The attempt that counts is the one that came nearest to the target: a policy often tries again.
    closings = _closings(episode.actions)
    to_target = to_objects[:, target_index] if target else np.full(len(eef), np.inf)
    attempt = int(closings[np.argmin(to_target[closings])]) if len(closings) and target else -1
    if attempt < 0 and len(closings):
        attempt = int(closings[0])
    around = [(float(to_objects[attempt, i]), names[i]) for i in others] if attempt >= 0 else []
    attempt_near = min(around, default=(float("inf"), None))

    loss = min(last_held, steps - 1)
    resting = [
        (float(np.linalg.norm(path[-1, :2] - positions[-1, i, :2])), names[i]) for i in range(len(names))
        if i != target_index and names[i] != receptacle
    ]  # fmt: skip
    rest = min(resting, default=(float("inf"), None))
    late = eef[len(eef) * 2 // 3 :]
    late_actions = np.abs(episode.actions[steps * 2 // 3 :, :3])
    start_away, end_away = (float(np.linalg.norm(positions[t] - eef[t], axis=-1).min()) for t in (0, -1))
    return Facts(
        target=target,
        receptacle=receptacle,
        held_steps=len(instants),
        lifted=float(rise[own, target_index].max()) if len(instants) else 0.0,
        first_held=int(instants[0]) if len(instants) else -1,
        last_held=last_held,
        held_at_end=bool(own[-1]),
        commanded_open_at_loss=bool(len(instants) and episode.actions[max(loss - 2, 0) : loss + 1, 6].min() < 0),
        receptacle_at_loss=float(gap[last_held]) if len(instants) else float("inf"),
        receptacle_at_end=float(gap[-1]),
        receptacle_least=float(gap.min()),
        displaced=float(np.linalg.norm(path[-1, :2] - path[0, :2])) if target else 0.0,
        nearest=float(to_target.min()),
        attempt_step=attempt,
        attempt_distance=float(to_target[attempt]) if attempt >= 0 else float("inf"),
        attempt_object=attempt_near[1],
        attempt_object_distance=attempt_near[0],
        other_held=names[other] if other >= 0 else None,
        other_held_steps=max(other_steps, default=0),
        other_lifted=float(rise[held == other, other].max()) if other >= 0 else 0.0,
        other_to_receptacle=(
            float(np.linalg.norm(positions[-1, other, :2] - positions[-1, names.index(receptacle), :2]))
            if other >= 0 and receptacle
            else float("inf")
        ),
        rest_object=rest[1],
        rest_object_distance=rest[0],
        late_path=float(np.linalg.norm(np.diff(late, axis=0), axis=-1).sum()),
        late_command=float(late_actions.max(axis=1).mean()) if len(late_actions) else 0.0,
        away=end_away - start_away,
    )


def _motion(f: Facts, stage: Stage) -> tuple[Stage, Cause, str]:
    """The cause where neither object nor gripper tells one: what the arm did at the end."""
    if f.away > FAR_AWAY:
        return stage, Cause.DRIFTED, f"the arm ended {f.away:.2f} m farther from every object than it began"
    if f.late_path < STILL and f.late_command > 0.5:
        return stage, Cause.UNREACHABLE, "the arm kept pushing and did not move"
    if f.late_path < STILL:
        return stage, Cause.STALLED, f"the arm moved {f.late_path * 100:.1f} cm in the last third"
    return stage, Cause.OUT_OF_TIME, "the arm was still moving when time was up"


def _decide(f: Facts, truncated: bool) -> tuple[Stage, Cause, str]:
    """The first rule that fits, from the furthest stage down."""
    if not truncated:
        return Stage.DONE, Cause.EARLY_STOP, "the episode ended neither by success nor by the horizon"
    if f.held_steps and f.lifted >= LIFTED:
        if f.held_at_end:
            if f.receptacle_at_end < AT_RECEPTACLE:
                return Stage.PLACE, Cause.NOT_RELEASED, "it was still held over the receptacle when time was up"
            return _motion(f, Stage.TRANSPORT)
        if not f.commanded_open_at_loss:
            if f.lifted < CLEAR:
                return Stage.GRASP, Cause.SLIPPED, f"it slipped out {f.lifted * 100:.0f} cm above its place"
            where = f"{f.receptacle_at_loss:.2f} m from the receptacle"
            return Stage.TRANSPORT, Cause.DROPPED, f"it fell from the closed gripper {where}"
        if f.receptacle_at_end < INSIDE:
            return Stage.PLACE, Cause.UNSATISFIED, "it rests in the receptacle, and the goal does not hold"
        if f.rest_object_distance < NEAR:
            return Stage.PLACE, Cause.WRONG_RECEPTACLE, f"it was put at {f.rest_object}"
        if f.receptacle_at_loss > 1.5 * AT_RECEPTACLE:
            away = f"{f.receptacle_at_loss:.2f} m away from the receptacle"
            return Stage.TRANSPORT, Cause.EARLY_RELEASE, f"it was let go {away}"
        return Stage.PLACE, Cause.WRONG_PLACE, f"it rests {f.receptacle_at_end:.2f} m from the receptacle's center"
    if f.held_steps >= 2:
        return Stage.GRASP, Cause.SLIPPED, "both fingers had it, and it was never lifted"
    if f.other_held_steps >= 3 and f.other_lifted >= LIFTED:
        if f.other_to_receptacle < AT_RECEPTACLE:
            return Stage.REACH, Cause.IGNORED_INSTRUCTION, f"{f.other_held} was carried to the receptacle instead"
        return Stage.REACH, Cause.WRONG_OBJECT, f"{f.other_held} was taken instead"
    if f.displaced > MOVED:
        return Stage.GRASP, Cause.PUSHED_AWAY, f"it was pushed {f.displaced * 100:.0f} cm and never grasped"
    if f.attempt_step >= 0 and f.target:
        if f.attempt_distance < NEAR and f.attempt_distance <= f.attempt_object_distance:
            stage = Stage.GRASP if f.attempt_distance < ON_TARGET else Stage.REACH
            return stage, Cause.MISSED_GRASP, f"the gripper closed {f.attempt_distance * 100:.1f} cm beside it"
        if f.attempt_object_distance < NEAR:
            return Stage.REACH, Cause.WRONG_OBJECT, f"the gripper closed at {f.attempt_object} instead"
        where = f"the gripper closed on nothing {f.attempt_distance:.2f} m away from it"
        return Stage.REACH, Cause.MISSED_GRASP, where
    return _motion(f, Stage.GRASP if f.nearest < NEAR else Stage.REACH)


def diagnose(episode: Episode) -> Diagnosis | None:
    """Why the episode failed; None for a success or an invalid episode, which is never a failure."""
    if episode.success or episode.invalid is not None or len(episode) == 0:
        return None
    f = measure(episode)
    stage, cause, reason = _decide(f, episode.truncated)
    others = {
        Cause.WRONG_OBJECT: f.other_held or f.attempt_object,
        Cause.IGNORED_INSTRUCTION: f.other_held,
        Cause.WRONG_RECEPTACLE: f.rest_object,
    }
    claimed = (f.target, others.get(cause) or f.receptacle)
    numbers = {
        "held_steps": f.held_steps, "lifted_m": f.lifted, "first_held_step": f.first_held,
        "last_held_step": f.last_held, "nearest_m": f.nearest, "attempt_step": f.attempt_step,
        "attempt_distance_m": f.attempt_distance, "attempt_other_m": f.attempt_object_distance,
        "other_held_steps": f.other_held_steps, "other_lifted_m": f.other_lifted, "displaced_m": f.displaced,
        "receptacle_at_loss_m": f.receptacle_at_loss, "receptacle_at_end_m": f.receptacle_at_end,
        "late_path_m": f.late_path, "away_m": f.away, "steps": len(episode),
    }  # fmt: skip
    subject = (f.target or " ".join(unsatisfied(episode))).replace("_", " ")
    return Diagnosis(
        episode=episode_key(episode.actor, episode.scene.hash),
        scene=episode.scene.hash,
        suite=episode.scene.suite,
        task_id=episode.scene.task_id,
        stage=stage,
        cause=cause,
        objects=tuple(name for name in claimed if name),
        evidence={key: round(float(value), 4) for key, value in numbers.items() if np.isfinite(value)},
        explanation=f'"{episode.scene.instruction}": for the {subject}, {reason}.'[:600],
        confidence=0.6 if cause in (Cause.OUT_OF_TIME, Cause.EARLY_STOP) else 0.95,
        critic="simulator",
        version=CRITIC_VERSION,
    )


def supports(episode: Episode, diagnosis: Diagnosis) -> bool:
    """Whether an episode's stored states bear out the *stage* of a claim, whoever made it.

    Used both ways: on the failed episodes a diagnosis is about (evidence) and on successes (specificity).
    """
    f = measure(episode)
    came_clear = f.held_steps > 0 and f.lifted >= LIFTED
    set_down = f.receptacle_least < 1.5 * AT_RECEPTACLE or (f.commanded_open_at_loss and not f.held_at_end)
    return {
        Stage.REACH: not came_clear,
        Stage.GRASP: not (came_clear and f.lifted >= CLEAR),
        Stage.TRANSPORT: came_clear and not episode.success,
        Stage.PLACE: came_clear and set_down and not episode.success,
        Stage.DONE: not episode.success,
    }[diagnosis.stage]
