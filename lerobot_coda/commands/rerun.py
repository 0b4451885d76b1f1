"""`lerobot-coda rerun`: a stored episode as a recording for the Rerun viewer."""

import argparse
from pathlib import Path
from typing import Any

_EXAMPLE = """examples:
  lerobot-coda rerun demos/episodes/0a1b2c3d4e5f6a7b.npz
  lerobot-coda rerun EPISODE.npz --potential potential.json --output episode.rrd
  rerun episode.rrd

The curve is that of the goal's own potential; --potential takes another, as `lerobot-coda potential --json` writes it.
Needs: pip install 'lerobot_policy_coda[rerun]'
"""


def add(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "rerun",
        help="write a stored episode as a Rerun recording",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("episode", type=Path, metavar="EPISODE", help="episode file (*.npz)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="recording (default: EPISODE with .rrd)")
    parser.add_argument("--potential", type=Path, metavar="JSON", help="potential to show (default: the goal's own)")
    parser.add_argument("--cameras", nargs="+", choices=("agentview", "wrist"), default=["agentview", "wrist"])
    parser.add_argument("--size", type=int, default=256, help="image side in pixels (default 256)")
    parser.add_argument("--every", type=int, default=2, help="control steps an image (default 2)")
    parser.add_argument("--profile", choices=("faithful", "fast"), default="fast", help="rendering (default fast)")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    from libero_pro.record import RecordError

    for name, low, high in (("size", 16, 2048), ("every", 1, 1000)):
        if not low <= getattr(arguments, name) <= high:
            raise RecordError(f"--{name} must be {low} to {high}, not {getattr(arguments, name)}")
    out = arguments.output or arguments.episode.with_suffix(".rrd")
    if out.suffix != ".rrd":
        raise RecordError(f"--output {out} must end in .rrd, which the Rerun viewer opens")
    from lerobot_coda.potential import StagedPotential
    from lerobot_coda.potential.plans import plan_of
    from lerobot_coda.rerun_export import export
    from libero_pro.episode import Episode

    episode = Episode.load(arguments.episode)
    potential = StagedPotential.load(arguments.potential) if arguments.potential else plan_of(episode)
    export(
        episode,
        out,
        potential=potential,
        cameras=arguments.cameras,
        size=arguments.size,
        every=arguments.every,
        profile=arguments.profile,
    )
    print(f"recording: {out}\nto see it: rerun {out}")
