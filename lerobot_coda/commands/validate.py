"""`lerobot-coda validate`: scenes from a file through every gate, each rejection with its reason."""

import argparse
import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

from lerobot_coda.console import add_options, display_of

_EXAMPLE = """example:
  lerobot-coda validate scenes/scenes.jsonl --out verdicts.jsonl

SCENES holds one scene a line, as `generate` writes them. With --out every verdict is kept as soon as it is known, and
the same command goes on where an earlier one stopped. The exit code is 1 if a scene is rejected.
"""
_SHOWN = 5  # rejected scenes whose reason is printed


def add(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "validate",
        help="put scenes through the validity gates",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "scenes", type=Path, metavar="SCENES", help="file with one scene a line, or a folder of generate"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the verdicts, one a line")
    parser.add_argument("--workers", type=int, default=2)
    add_options(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    from libero_pro.journal import Journal
    from libero_pro.judge import judge
    from libero_pro.scenefile import read_scenes
    from libero_pro.validity import Verdict

    scenes = read_scenes(arguments.scenes)

    verdicts: dict[int, Verdict] = {}
    journal = None
    if arguments.out:
        name = hashlib.sha256("".join(scene.hash for scene in scenes).encode()).hexdigest()[:16]
        journal = Journal(arguments.out, {"scenes": name})
        for row in journal.rows:
            index = row.pop("index")
            verdicts[index] = Verdict.parse(row)
    missing = [index for index in range(len(scenes)) if index not in verdicts]
    display = display_of(arguments)
    with display.stage("gate", "validate", len(scenes)) as tick:
        tick(len(verdicts))
        for position, verdict in judge([scenes[index] for index in missing], workers=arguments.workers):
            verdicts[missing[position]] = verdict
            if journal is not None:
                journal.append({"index": missing[position], **verdict.model_dump(mode="json")})
            tick(len(verdicts))
    rejected = [(index, verdict) for index, verdict in sorted(verdicts.items()) if not verdict.accepted]
    for gate, count in Counter(verdict.gate for _, verdict in rejected).most_common():
        display.say(f"{gate}: {count}")
    for index, verdict in rejected[:_SHOWN]:
        display.say(f"scene {index + 1} ({verdict.scene}): {verdict.gate}: {verdict.reason}")
    where = f"; verdicts are in {arguments.out}" if arguments.out else ""
    display.say(f"{len(scenes) - len(rejected)} of {len(scenes)} scenes in {arguments.scenes} pass every gate{where}")
    if rejected:
        raise SystemExit(1)
