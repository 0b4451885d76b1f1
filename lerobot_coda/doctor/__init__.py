"""Looks at everything that silently ruins a LIBERO-Pro result, and says what to do about it.

for finding in examine(policy="runs/x/checkpoints/last/pretrained_model"):  # in order, as they are made
    print(finding.name, finding.status, finding.found, finding.remedy)
"""

from collections.abc import Iterator

from lerobot_coda.doctor import machine, simulator
from lerobot_coda.doctor.check import Finding, attempt, ok, skipped

__all__ = ["Finding", "examine"]


def examine(policy: str | None = None, full: bool = False) -> Iterator[Finding]:
    """All checks: of the machine, of the simulator on it, and of a policy if given.

    policy  checkpoint folder or Hub repository
    full    hash every file of the benchmark, not a part
    """
    yield from machine.examine(full)
    started = attempt("simulator", simulator.start)
    if isinstance(started, Finding):
        yield started
        yield from skipped(simulator.NAMES, "simulator")
    else:
        yield Finding("simulator", *ok(f"{simulator.SUITE} {simulator.TASK_ID} at released start 0"))
        yield from simulator.examine(started)
    if policy is not None:
        from lerobot_coda.doctor.policy import examine as examine_policy

        yield from examine_policy(policy, None if isinstance(started, Finding) else started)
