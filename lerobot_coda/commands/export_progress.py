"""`lerobot-coda export-progress`: a dataset's potential as the progress file of LeRobot's reward-aligned weighting.

LeRobot's `--sample_weighting.type=rabc` weighs a frame by progress[t + chunk] - progress[t], read from a parquet with
`index` (of the frame in the dataset), `episode_index`, `frame_index` and `progress_sparse`. With a potential in that
column any policy that can weigh its samples profits from it, without value heads. Such weights are no shaping: they do
not keep what is optimal.
"""

import argparse
from pathlib import Path
from typing import Any

FILE = "sarm_progress.parquet"  # where LeRobot looks, in the dataset's folder
_NEEDED = ("index", "episode_index", "frame_index")
_EXAMPLE = """examples:
  lerobot-coda export-progress runs/long/round1/dataset
  lerobot-train --dataset.root=runs/long/round1/dataset --dataset.repo_id=local/long --policy.type=smolvla \\
      --sample_weighting.type=rabc
"""


def add(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "export-progress",
        help="write a dataset's potential for lerobot-train --sample_weighting.type=rabc",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("dataset", type=Path, help="dataset folder with observation.coda_potential")
    parser.add_argument("--out", type=Path, metavar="PARQUET", help=f"default: {FILE} in the dataset's folder")
    parser.add_argument("--scale", type=float, default=0.5, help="the potential's scale, which becomes 1 (default 0.5)")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    path, frames, episodes = export_progress(arguments.dataset, arguments.out, scale=arguments.scale)
    print(f"{path}: progress of {frames} frames in {episodes} episodes")
    print(
        "use it with --sample_weighting.type=rabc"
        + (f" --sample_weighting.progress_path={path}" if arguments.out else "")
    )


def export_progress(root: Path, out: Path | None = None, *, scale: float = 0.5) -> tuple[Path, int, int]:
    """Writes the progress file of a LeRobot dataset and returns its path, and the numbers of frames and episodes.

    Progress is Phi / scale in [0, 1]; the terminal frame of a success, where Phi is 0 by definition, gets 1: RA-BC asks
    how far the task is, and it is done there. RecordError if the folder is no dataset, lacks the potential, or holds
    values outside [0, scale].
    """
    import pandas as pd

    from lerobot_coda.columns import POTENTIAL
    from libero_pro.record import RecordError, write_atomically

    if not 0 < scale <= 1:
        raise RecordError(f"--scale {scale:g} is not in (0, 1]")
    files = sorted((root / "data").glob("*/*.parquet"))
    if not files or not (root / "meta" / "info.json").exists():
        raise RecordError(f"{root} is not a LeRobot dataset: it has no data/*/*.parquet with meta/info.json")
    shards = []
    for file in files:
        try:
            shard = pd.read_parquet(file, columns=None)
        except (OSError, ValueError) as error:
            raise RecordError(f"{file} cannot be read: {error}") from None
        if missing := [name for name in (*_NEEDED, POTENTIAL) if name not in shard]:
            raise RecordError(
                f"{root} has no column '{missing[-1]}'; datasets with it are built by `lerobot-coda demos RECIPE` and "
                "`lerobot-coda evolve RECIPE`"
            )
        shards.append(shard[[*_NEEDED, POTENTIAL, *(["next.success"] if "next.success" in shard else [])]])
    table = pd.concat(shards, ignore_index=True).sort_values("index", ignore_index=True)
    phi = table[POTENTIAL].map(lambda value: float(value[0]) if hasattr(value, "__len__") else float(value))
    if not phi.between(-1e-6, scale + 1e-6).all():
        raise RecordError(
            f"{POTENTIAL} has values from {phi.min():.3g} to {phi.max():.3g}; give its scale with --scale"
        )
    progress = phi / scale
    if "next.success" in table:
        last = table.groupby("episode_index")["index"].transform("max") == table["index"]
        succeeded = table["next.success"].map(
            lambda value: bool(value[0]) if hasattr(value, "__len__") else bool(value)
        )
        progress = progress.mask(last & succeeded, 1.0)
    written = table[list(_NEEDED)].assign(progress_sparse=progress.clip(0.0, 1.0).astype("float32"))
    path = out or root / FILE
    write_atomically(path, written.to_parquet(index=False))
    return path, len(written), int(written["episode_index"].nunique())
