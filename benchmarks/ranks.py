"""Does LeRobot's trainer in two processes learn what it learns in one, from the same global batch?

A small grounded policy with its critic, on data whose padding falls on the processes unevenly; see
tests/test_accelerate.py.

    python benchmarks/ranks.py --json results/ranks.json
"""

import argparse
import json
import shlex
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from test_accelerate import LOSSES, both

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
    empty = {"peer": "one process", "ratio": None, "n": len(one), "low": None, "high": None, "command": command}
    rows = [
        {"figure": "accelerate_2_equal", "value": int(equal), "unit": "1 if equal", **empty},
        {"figure": "accelerate_2_difference", "value": furthest, "unit": "largest difference of a weight", **empty},
    ]
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    return int(not equal)


if __name__ == "__main__":
    sys.exit(main())
