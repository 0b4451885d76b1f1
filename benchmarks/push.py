"""A push to the Hub that is killed at random points and repeated: is there one complete revision, and nothing doubled?

The run is pushed by the real client to a Hub on this machine (tests/hub_double.py). A process that pushes is ended by
SIGKILL at a random one of its requests: before its body is read, before it takes effect, or after it did and before
the answer. Then the push is repeated and the Hub compared with one that took the same run undisturbed.

    python benchmarks/push.py RUN --kills 20 --json results/push.json
"""

import argparse
import os
import random
import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from libero_pro.figures import keep

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from hub_double import HubDouble, killed_at

MOMENTS = ("arrived", "before", "after")
REPO = "ada/run"


def as_hub(endpoint: str) -> None:
    """Makes the client of this process talk to `endpoint`, without Xet."""
    from huggingface_hub import constants
    from huggingface_hub.utils import close_session, disable_progress_bars

    os.environ["HF_TOKEN"] = "hf_ada"
    constants.ENDPOINT = endpoint
    constants.HUGGINGFACE_CO_URL_TEMPLATE = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    constants.HF_HUB_OFFLINE, constants.HF_HUB_DISABLE_XET = False, True
    disable_progress_bars()
    close_session()


def undisturbed(run: Path, what: tuple[str, ...]) -> tuple[dict[str, Any], int, dict[str, int]]:
    """What a whole push leaves, the number of its requests, and how often each object was sent."""
    with HubDouble() as hub:
        as_hub(hub.endpoint)
        _push(run, what)
        whole, requests = hub.contents(), len(hub.log)
        _push(run, what)
        assert hub.contents() == whole, "a second push changed something"
        return whole, requests, dict(hub.uploads)


def interrupted(
    run: Path, what: tuple[str, ...], number: int, moment: str
) -> tuple[dict[str, Any], Counter[str], str] | None:
    """The Hub after a push that was killed at its request `number` and repeated, and that request; None if the push
    was over before."""
    with HubDouble() as hub:
        as_hub(hub.endpoint)
        if not killed_at(hub, number, moment, lambda: _push(run, what)):
            return None
        at = hub.log[number - 1]
        _push(run, what)
        return hub.contents(), hub.uploads, at


def rows(outcomes: list[tuple[bool, bool]], requests: int, command: str) -> list[dict[str, Any]]:
    """`{figure, value, unit, ...}` rows: complete revisions, and pushes after which nothing stands twice."""
    empty = {"peer": None, "ratio": None, "low": None, "high": None, "n": len(outcomes), "command": command}

    def row(figure: str, value: int, unit: str) -> dict[str, Any]:
        return {"figure": figure, "value": value, "unit": unit, **empty}

    return [
        row("push_interrupted_complete", sum(complete for complete, _ in outcomes), "pushes"),
        row("push_interrupted_doubled", sum(doubled for _, doubled in outcomes), "pushes"),
        row("push_requests", requests, "requests of a whole push"),
    ]


def _push(run: Path, what: tuple[str, ...]) -> None:
    from lerobot_coda.hub import Target, push

    push(run, Target(repo=REPO, what=what), wait=lambda seconds: None)


def main() -> int:
    """Prints a table, writes rows; the exit code is 1 if a repeated push left anything else than a whole one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--what", default="datasets,checkpoints,report")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    what = tuple(arguments.what.split(","))
    whole, requests, _ = undisturbed(arguments.run, what)
    draw = random.Random(arguments.seed)
    table = Table("killed at request", "moment", "complete", "nothing doubled", title=f"{requests} requests a push")
    outcomes: list[tuple[bool, bool]] = []
    while len(outcomes) < arguments.kills:
        number, moment = draw.randint(1, requests), draw.choice(MOMENTS)
        found = interrupted(arguments.run, what, number, moment)
        if found is None:
            continue
        left, uploads, at = found
        doubled = any(count > 1 for count in uploads.values()) or any(
            left[repo]["commits"] != whole[repo]["commits"] for repo in left.keys() & whole.keys()
        )
        outcomes.append((left == whole, doubled))
        table.add_row(f"{number}: {at[:70]}", moment, str(left == whole), str(not doubled))
    Console().print(table)
    written = rows(outcomes, requests, shlex.join(["python", "benchmarks/push.py", *sys.argv[1:]]))
    if arguments.json:
        keep(arguments.json, written)
    return int(not all(complete and not doubled for complete, doubled in outcomes))


if __name__ == "__main__":
    sys.exit(main())
