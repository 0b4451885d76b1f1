"""Validation: a diagnosis may spend budget only if the simulator bears it out. Four tests, the cheapest first.

evidence      the stored states of the failures it is about allow the claimed stage, cause and objects
specificity   the stored states of successes do not
re-creation   the compiled program's scenes make the same policy fail *in the same mode* more often than control scenes
              of the unperturbed task do (paired: same task, same seed; exact one-sided McNemar)
intervention  with the claimed cause removed the policy succeeds more often than with it kept (paired: same failed
              scene, same seed; exact one-sided McNemar)

The first two cost nothing. Either of the last two may be looked at again when more pairs have come: look k (from 0)
is tested at `spent(alpha, k)`, so that all looks together still err with probability `alpha` at most.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from scipy import stats

from lerobot_coda.critic.clusters import FailureCluster
from lerobot_coda.critic.diagnosis import Cause, Diagnosis, Mode, Stage
from lerobot_coda.critic.evidence import Claimed, bears_out
from lerobot_coda.critic.simulator import diagnose
from libero_pro.episode import Episode
from libero_pro.record import Record
from libero_pro.statistics import McNemar, mcnemar

Outcome = Literal["validated", "refuted", "undecided"]
Test = Literal["evidence", "specificity", "re-creation", "intervention"]
Pairs = Sequence[tuple[Episode, Episode]]
EVIDENCE_SHARE = 0.75  # a critic speaks of a whole cluster, in which causes mix
FALSE_ALARMS = 0.1


class Verdict(Record):
    """The verdict on a cluster's diagnosis with every count behind it.

    decided_by  the test that refuted it, or that is still open, or the last one that it passed
    program_same, control_same   episodes that failed in the cluster's mode, of `pairs`
    only_program, only_control   discordant pairs;  p_value: exact, one-sided, "the program re-creates the failure"
    alpha       what `p_value` had to be below at this look
    evidence, evidence_of        failures whose states allow the claim, of those checked
    false_alarms, successes      successes whose states would allow it too, of those checked
    intervention   what was taken away, "" where nothing was;  `contrasts` pairs with it removed and kept
    removed_solved, kept_solved  successes of either
    only_removed, only_kept      pairs of which only one side succeeded;  `intervention_p` exact, one-sided
    needed      pairs of the open test that would decide it at the rates seen so far; None: unknown, or decided
    steps       environment steps that the episodes of both simulator tests took, the expert's not included
    """

    schema_version: Literal[1] = 1
    cluster: str
    program: str
    outcome: Outcome
    reason: str
    pairs: int
    program_same: int
    control_same: int
    program_failures: int
    control_failures: int
    only_program: int
    only_control: int
    p_value: float
    alpha: float
    evidence: int
    evidence_of: int
    false_alarms: int
    successes: int
    decided_by: Test = "re-creation"
    intervention: str = ""
    contrasts: int = 0
    removed_solved: int = 0
    kept_solved: int = 0
    only_removed: int = 0
    only_kept: int = 0
    intervention_p: float = 1.0
    needed: int | None = None
    steps: int = 0


class Screening(NamedTuple):
    """What the stored states say: counts, and why they refute the claim, if they do, by which test."""

    evidence: int
    evidence_of: int
    false_alarms: int
    successes: int
    refuted_by: Test | None
    reason: str


class Intervened(NamedTuple):
    """What was taken away, and the policy's episodes with the cause (kept, removed), tested at `alpha`."""

    name: str
    pairs: Pairs
    alpha: float


class _Spoken(NamedTuple):
    """A cluster's claim, put to one episode."""

    stage: Stage
    cause: Cause
    objects: tuple[str, ...]
    predicate: tuple[str, ...] = ()


def spent(alpha: float, look: int) -> float:
    """The share of `alpha` that look number `look` (from 0) may use; over all looks they sum to `alpha`.

    A round has two looks. The first round may use 0.9 alpha, each later one a tenth of the one before: it has all the
    pairs of those before. A fifth of a round's share goes to its first look, which is there to stop early.
    """
    round_, second = divmod(look, 2)
    return alpha * 0.9 * 0.1**round_ * (0.8 if second else 0.2)


def fails_in_mode(episode: Episode, mode: Mode) -> bool:
    """Whether the episode failed, and in this mode."""
    diagnosis = diagnose(episode)
    return diagnosis is not None and diagnosis.mode == mode


def pairs_needed(won: int, lost: int, pairs: int, alpha: float, limit: int = 400) -> int | None:
    """How many pairs the observed discordance rates would need to reach `alpha`; None if they never would."""
    if won <= lost:
        return None
    for n in range(pairs, limit + 1):
        more, less = round(won * n / pairs), round(lost * n / pairs)
        if stats.binomtest(more, max(more + less, 1), 0.5, alternative="greater").pvalue < alpha:
            return n
    return None


def claims(
    cluster: FailureCluster, diagnoses: Mapping[str, Diagnosis], claim: Claimed | None
) -> list[tuple[Diagnosis, Claimed]]:
    """Each member and what is claimed of its episode: a critic's claim about the whole cluster, else its own diagnosis.

    A cluster may span several instructed objects, and a claim names one: of the others only stage and cause are meant.
    A claim that names an object which no member was asked for is put to all of them, and is wrong of all.
    """
    members = [diagnoses[name] for name in cluster.diagnoses]
    if claim is None:
        return [(member, member) for member in members]
    known = not claim.objects or claim.objects[0] in cluster.objects
    return [(member, put_to(claim, member) if known else claim) for member in members]


def put_to(claim: Claimed, about: Diagnosis) -> Claimed:
    """A claim as it concerns one episode: with its objects where it names this episode's, else stage and cause only."""
    own = about.objects[:1]
    return claim if claim.objects[:1] == own else _Spoken(claim.stage, claim.cause, own)


def screen(
    cluster: FailureCluster,
    diagnoses: Mapping[str, Diagnosis],
    probe: Mapping[str, Episode],
    claim: Claimed | None = None,
) -> Screening:
    """Evidence and specificity: what stored states say of a claim, at no cost.

    diagnoses  all diagnoses by hash;  `probe` the episodes they are about, and the successes beside them, by key
    claim      a critic's claim about the whole cluster; None: each member's own diagnosis is the claim
    """
    told = [(member, said) for member, said in claims(cluster, diagnoses, claim) if member.episode in probe]
    evidence = sum(bears_out(probe[member.episode], said) for member, said in told)
    typical = claim or next((said for _, said in told if said.stage == cluster.stage), None)
    tasks = set(cluster.tasks)
    successes = [e for e in probe.values() if e.success and e.invalid is None and e.scene.task_id in tasks]
    alarms = sum(typical is not None and _would_trigger(e, typical) for e in successes)
    refuted_by: Test | None = None
    reason = ""
    if told and evidence < EVIDENCE_SHARE * len(told):
        refuted_by = "evidence"
        reason = f"the states support the claim in {evidence} of {len(told)} failures only"
    elif successes and alarms > FALSE_ALARMS * len(successes):
        refuted_by, reason = "specificity", f"{alarms} of {len(successes)} successes would trigger it too"
    return Screening(evidence, len(told), alarms, len(successes), refuted_by, reason)


def _would_trigger(success: Episode, claim: Claimed) -> bool:
    """Whether a success shows what is claimed of a failure, of the object that the success was asked for."""
    target = next((p[1] for p in success.scene.goal if len(p) > 1 and p[1] in success.object_names), None)
    return bears_out(success, _Spoken(claim.stage, claim.cause, (target,) if target else ()))


def judge(
    cluster: FailureCluster,
    program: str,
    recreated: Pairs,
    diagnoses: Mapping[str, Diagnosis],
    probe: Mapping[str, Episode],
    *,
    alpha: float,
    claim: Claimed | None = None,
    intervened: Intervened | None = None,
) -> Verdict:
    """The verdict on `cluster` and the generation program (hash) compiled from it.

    recreated   pairs (episode in a program scene, episode in its control scene) of the same policy; pairs with an
                invalid side are left out, here and in `intervened`
    diagnoses, probe, claim  as `screen` takes them
    intervened  None: the cause could not be removed, so the verdict rests on the other three tests
    """
    screened = screen(cluster, diagnoses, probe, claim)
    valid = _valid(recreated)
    in_program = [fails_in_mode(a, cluster.mode) for a, _ in valid]
    in_control = [fails_in_mode(b, cluster.mode) for _, b in valid]
    again = mcnemar(in_control, in_program)  # "after" = program: won = fails in the program scene only
    contrasts = [] if intervened is None else _valid(intervened.pairs)
    kept, removed = [k.success for k, _ in contrasts], [r.success for _, r in contrasts]
    freed = mcnemar(kept, removed)

    outcome: Outcome
    needed = None
    decided_by: Test
    counts = f"{sum(in_program)}/{len(valid)} program scenes against {sum(in_control)}/{len(valid)} control scenes"
    if screened.refuted_by is not None:
        outcome, decided_by, reason = "refuted", screened.refuted_by, screened.reason
    elif not valid or again.p_value >= alpha:
        decided_by = "re-creation"
        against = f"the program does not re-create it: {counts}"
        outcome, reason, needed = _open(again, len(valid), alpha, against, counts)
    else:
        outcome, decided_by = "validated", "re-creation"
        reason = f"fails in this mode in {counts} (p={again.p_value:.2g})"
        if intervened is not None:
            decided_by = "intervention"
            how = f"{intervened.name}: {sum(removed)}/{len(contrasts)} solved, {sum(kept)} with the cause left in place"
            if freed.p_value < intervened.alpha:
                reason = f"{reason}; {how} (p={freed.p_value:.2g})"
            else:
                against = f"removing the cause does not help: {how}"
                outcome, reason, needed = _open(freed, len(contrasts), intervened.alpha, against, how)
    return Verdict(
        cluster=cluster.hash,
        program=program,
        outcome=outcome,
        reason=reason,
        pairs=len(valid),
        program_same=sum(in_program),
        control_same=sum(in_control),
        program_failures=sum(not a.success for a, _ in valid),
        control_failures=sum(not b.success for _, b in valid),
        only_program=again.only_after,
        only_control=again.only_before,
        p_value=again.p_value,
        alpha=alpha,
        evidence=screened.evidence,
        evidence_of=screened.evidence_of,
        false_alarms=screened.false_alarms,
        successes=screened.successes,
        decided_by=decided_by,
        intervention="" if intervened is None else intervened.name,
        contrasts=len(contrasts),
        removed_solved=sum(removed),
        kept_solved=sum(kept),
        only_removed=freed.only_after,
        only_kept=freed.only_before,
        intervention_p=freed.p_value,
        needed=needed,
        steps=sum(len(e) for pair in (*valid, *contrasts) for e in pair),
    )


def _valid(pairs: Pairs) -> list[tuple[Episode, Episode]]:
    return [(a, b) for a, b in pairs if a.invalid is None and b.invalid is None]


def _open(test: McNemar, pairs: int, alpha: float, against: str, so_far: str) -> tuple[Outcome, str, int | None]:
    """The outcome of a test that is not significant (yet), the reason, and how many pairs would decide it."""
    if not pairs:
        return "undecided", "no valid pair of scenes", None
    if test.only_after <= test.only_before:
        return "refuted", against, None
    needed = pairs_needed(test.only_after, test.only_before, pairs, alpha)
    more = f"; about {needed} pairs would decide" if needed else ""
    return "undecided", f"{so_far} (p={test.p_value:.2g}){more}", needed
