"""`lerobot-coda render`: videos of stored episodes, drawn from their states."""

import argparse
from pathlib import Path
from typing import Any

from lerobot_coda.console import add_options, display_of

_EXAMPLE = """examples:
  lerobot-coda render demos/episodes/0a1b2c3d4e5f6a7b.npz --out video.mp4
  lerobot-coda render demos/episodes --out videos --cameras agentview wrist --size 256

Several episodes, or a folder, need a folder as --out; videos that are there already are kept.
"""


def add(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "render",
        help="write videos of stored episodes",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("episodes", type=Path, nargs="+", metavar="EPISODE", help="episode file or folder")
    parser.add_argument("--out", type=Path, required=True, metavar="PATH", help="video.mp4, or a folder for several")
    parser.add_argument("--cameras", nargs="+", choices=("agentview", "wrist"), default=["agentview"])
    parser.add_argument("--size", type=int, default=256, help="image side in pixels (default 256)")
    parser.add_argument("--every", type=int, default=2, help="control steps a video frame (default 2)")
    parser.add_argument("--profile", choices=("faithful", "fast"), default="faithful")
    parser.add_argument("--workers", type=int, default=2)
    add_options(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    from libero_pro.record import RecordError
    from libero_pro.replay import episode_files

    for name, low, high in (("size", 16, 2048), ("every", 1, 1000)):
        if not low <= getattr(arguments, name) <= high:
            raise RecordError(f"--{name} must be {low} to {high}, not {getattr(arguments, name)}")
    files = episode_files(arguments.episodes)
    single = arguments.out.suffix == ".mp4"
    if single and len(files) > 1:
        raise RecordError(f"--out {arguments.out} is one video, but there are {len(files)} episodes; name a folder")
    videos = {path: arguments.out if single else arguments.out / f"{path.stem}.mp4" for path in files}
    if len(set(videos.values())) < len(videos):
        raise RecordError("two episodes have the same file name; render them into folders of their own")
    from lerobot_coda.filming import Film, film
    from libero_pro.episode import Episode
    from libero_pro.replacement import task_of

    missing = [path for path in files if single or not videos[path].exists()]
    jobs = []
    for path in missing:
        scene = Episode.load(path).scene
        look = (tuple(arguments.cameras), arguments.size, arguments.every, arguments.profile)
        jobs.append(Film(path, videos[path], task_of(scene), *look))
    display = display_of(arguments)
    with display.stage("render", "render", len(files)) as tick:
        tick(len(files) - len(jobs))
        for done, _ in enumerate(film(jobs, workers=arguments.workers), 1 + len(files) - len(jobs)):
            tick(done)
    display.say(f"videos of {len(files)} episodes are in {arguments.out}")
