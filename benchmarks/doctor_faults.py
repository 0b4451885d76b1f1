"""Does `lerobot-coda doctor` name what is wrong? Plants one fault at a time and asks the check that ought to see it.

Every fault has a sound twin: the same check on the same kind of input without the fault must be content, or a doctor
that always complains would score best. Nothing installed is changed; faults live in a temporary folder.

    python -m benchmarks.doctor_faults --json results/benchmark.json
"""

import argparse
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.faults.bench import Bench
from benchmarks.faults.checkpoint import POLICY
from benchmarks.faults.machine import MACHINE
from benchmarks.faults.simulator import SIMULATOR
from lerobot_coda.threads import set_threads
from libero_pro.figures import figure, keep

FAULTS = (*MACHINE, *SIMULATOR, *POLICY)


def main() -> int:
    """Prints a row for each fault; 0 if all are named and no sound twin is accused."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures into this file of rows")
    arguments = parser.parse_args()
    set_threads()
    named = accused = 0
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(Path(scratch))
        for fault in FAULTS:
            finding, twin = fault.plant(bench), fault.sound(bench)
            named += fault.named(finding)
            accused += twin.status != "ok"
            print(
                f"{'named' if fault.named(finding) else 'MISSED':6}  {fault.what:42}  {finding.name}: {finding.found}"
            )
            if twin.status != "ok":
                print(f"ACCUSED without fault: {twin.name}: {twin.found}")
    print(f"{named} of {len(FAULTS)} faults named, {accused} sound twins accused")
    if arguments.json:
        keep(arguments.json, rows(named, accused, len(FAULTS)))
    return 0 if named == len(FAULTS) and accused == 0 else 1


def rows(named: int, accused: int, count: int) -> list[dict[str, Any]]:
    """The figures, in the form of `results/`."""
    command = shlex.join(["python", "-m", "benchmarks.doctor_faults", *sys.argv[1:]])
    return [
        figure("doctor_faults_named", named, "planted faults", command, n=count),
        figure("doctor_false_alarms", accused, "sound twins", command, n=count),
    ]


if __name__ == "__main__":
    sys.exit(main())
