"""Does LeRobot's trainer in two processes learn what it learns in one, from the same global batch?

A small grounded policy with its critic, on data whose padding falls on the processes unevenly; see
tests/test_accelerate.py.

    python benchmarks/ranks.py --json results/ranks.json
"""

import argparse
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from test_accelerate import LOSSES, both

from libero_pro.figures import figure, keep

EQUAL = 1e-5  # of a weight of order one after a few steps of plain gradient descent: rounding


def main() -> int:
    """Prints the losses, writes rows; the exit code is 1 if they differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        one, two, furthest = both(Path(folder))
    table = Table("step", *LOSSES, title=f"one / two processes; weights differ by {furthest:.1e} at most")
    for step, (a, b) in enumerate(zip(one, two, strict=True), start=1):
        table.add_row(str(step), *(f"{a[name]:g} / {b[name]:g}" for name in LOSSES))
    Console().print(table)
    equal = furthest < EQUAL
    command = shlex.join(["python", "benchmarks/ranks.py", *sys.argv[1:]])
    beside: dict[str, Any] = {"peer": "one process", "n": len(one)}
    rows = [
        figure("accelerate_2_equal", int(equal), "1 if equal", command, **beside),
        figure("accelerate_2_difference", furthest, "largest difference of a weight", command, **beside),
    ]
    if arguments.json:
        keep(arguments.json, rows)
    return int(not equal)


if __name__ == "__main__":
    sys.exit(main())
