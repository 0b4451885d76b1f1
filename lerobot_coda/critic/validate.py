"""Validation: a diagnosis may spend budget only if the simulator bears it out.

re-creation   the compiled program's scenes make the same policy fail *in the same mode* more often than control scenes
              of the unperturbed task do (paired: same task, same seed; exact one-sided McNemar at `alpha`)
evidence      the stored states of the failures it is about support the claimed stage
specificity   the stored states of successes do not
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from scipy import stats

from lerobot_coda.critic.clusters import FailureCluster
from lerobot_coda.critic.diagnosis import Diagnosis, Mode
from lerobot_coda.critic.simulator import diagnose, supports
from libero_pro.episode import Episode
from libero_pro.record import Record
from libero_pro.statistics import mcnemar

Outcome = Literal["validated", "refuted", "undecided"]
EVIDENCE_SHARE = 0.9
FALSE_ALARMS = 0.1


class Verdict(Record):
    """The verdict on a cluster's diagnosis with every count behind it.

    program_same, control_same   episodes that failed in the cluster's mode, of `pairs`
    only_program, only_control   discordant pairs;  p_value: exact, one-sided, "the program re-creates the failure"
    evidence, evidence_of        failures whose states support the claim, of those checked
    false_alarms, successes      successes whose states would support it too, of those checked
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


def fails_in_mode(episode: Episode, mode: Mode) -> bool:
    """Whether the episode failed, and in this mode."""
    diagnosis = diagnose(episode)
    return diagnosis is not None and diagnosis.mode == mode


def pairs_needed(only_program: int, only_control: int, pairs: int, alpha: float, limit: int = 400) -> int | None:
    """How many pairs the observed discordance rates would need to reach `alpha`; None if they never would."""
    if only_program <= only_control:
        return None
    for n in range(pairs, limit + 1):
        won, lost = round(only_program * n / pairs), round(only_control * n / pairs)
        if stats.binomtest(won, max(won + lost, 1), 0.5, alternative="greater").pvalue < alpha:
            return n
    return None


def judge(
    cluster: FailureCluster,
    program: str,
    recreated: Sequence[tuple[Episode, Episode]],
    diagnoses: Mapping[str, Diagnosis],
    probe: Mapping[str, Episode],
    *,
    alpha: float,
) -> Verdict:
    """The verdict on `cluster` and the generation program (hash) compiled from it.

    recreated  pairs (episode in a program scene, episode in its control scene) of the same policy; pairs with an
               invalid side are left out
    diagnoses  all diagnoses by hash;  `probe` the episodes they are about, and the successes beside them, by key
    """
    valid = [(a, b) for a, b in recreated if a.invalid is None and b.invalid is None]
    in_program = [fails_in_mode(a, cluster.mode) for a, _ in valid]
    in_control = [fails_in_mode(b, cluster.mode) for _, b in valid]
    test = mcnemar(in_control, in_program)  # "after" = program: won = fails in the program scene only

    members = [diagnoses[h] for h in cluster.diagnoses]
    checked = [d for d in members if d.episode in probe]
    evidence = sum(supports(probe[d.episode], d) for d in checked)
    claim = next((d for d in members if d.stage == cluster.stage), members[0])
    tasks = set(cluster.tasks)
    successes = [e for e in probe.values() if e.success and e.invalid is None and e.scene.task_id in tasks]
    false_alarms = sum(supports(e, claim) for e in successes)

    outcome: Outcome
    counts = f"{sum(in_program)}/{len(valid)} program scenes against {sum(in_control)}/{len(valid)} control scenes"
    if checked and evidence < EVIDENCE_SHARE * len(checked):
        outcome, reason = "refuted", f"the states support the claim in {evidence} of {len(checked)} failures only"
    elif successes and false_alarms > FALSE_ALARMS * len(successes):
        outcome, reason = "refuted", f"{false_alarms} of {len(successes)} successes would trigger it too"
    elif not valid:
        outcome, reason = "undecided", "no valid pair of program and control scene"
    elif test.p_value < alpha:
        outcome, reason = "validated", f"fails in this mode in {counts} (p={test.p_value:.2g})"
    elif test.only_after <= test.only_before:
        outcome, reason = "refuted", f"the program does not re-create it: {counts}"
    else:
        need = pairs_needed(test.only_after, test.only_before, len(valid), alpha)
        more = f"; about {need} pairs would decide" if need else ""
        outcome, reason = "undecided", f"{counts} (p={test.p_value:.2g}){more}"
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
        only_program=test.only_after,
        only_control=test.only_before,
        p_value=test.p_value,
        alpha=alpha,
        evidence=evidence,
        evidence_of=len(checked),
        false_alarms=false_alarms,
        successes=len(successes),
    )
