"""Gives a dataset's potential column one version, from the episodes that its frames were written from.

Shards of earlier rounds hold the potential of their round. Where a later round trains on them, all of its frames are
labeled anew from the stored episodes: the column is rewritten in place, images and actions stay as they are.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lerobot_coda.columns import POTENTIAL
from lerobot_coda.potential.versions import Potentials
from libero_pro.episode import Episode
from libero_pro.record import RecordError, write_atomically

VERSION = "potential.json"  # beside a dataset's own files: the `Potentials` that its column holds
_STATS = f"stats/{POTENTIAL}/"
_QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}


def version_of(root: Path) -> str | None:
    """Hash of the version that a dataset's potential column holds; None where it does not say."""
    try:
        return Potentials.load(root / VERSION).hash
    except RecordError:
        return None


def relabel(root: Path, potentials: Potentials, sources: Iterable[Path]) -> int:
    """Rewrites the potential column of a LeRobot dataset, with its statistics, and returns the number of episodes.

    sources  files of stored episodes (`<scene hash>.npz`) among which is that of every episode of the dataset
    RecordError names an episode that no source fits. A dataset that is cut off half-way must be thrown away: work on a
    copy that nobody reads yet.
    """
    by_scene: dict[str, list[Path]] = {}
    for path in sources:
        by_scene.setdefault(path.stem, []).append(path)
    phi: dict[int, np.ndarray] = {}
    for path in _files(root / "meta" / "episodes"):
        table = pq.read_table(path)
        for row in table.select(["episode_index", "length", "coda/scene", "coda/actor"]).to_pylist():
            found = by_scene.get(row["coda/scene"], [])
            phi[row["episode_index"]] = _evaluated(row, found, potentials, root)
        _write(path, _with_statistics(table, phi))
    for path in _files(root / "data"):
        _rewrite(path, phi)
    everything = _statistics(np.concatenate([phi[index] for index in sorted(phi)]))
    told = root / "meta" / "stats.json"
    statistics = {**json.loads(told.read_text(encoding="utf-8")), POTENTIAL: everything}
    write_atomically(told, json.dumps(statistics, indent=4).encode())
    potentials.save(root / VERSION)
    return len(phi)


def _evaluated(row: dict[str, Any], found: list[Path], potentials: Potentials, root: Path) -> np.ndarray:
    """(T+1,) potential of one episode of the dataset, from the stored episode of its scene, actor and length."""
    for path in found:
        episode = Episode.load(path)
        if episode.actor == row["coda/actor"] and len(episode) + 1 == row["length"]:
            return potentials.evaluate(episode)
    raise RecordError(
        f"{root}: the episode of {row['coda/actor']} in scene {row['coda/scene']} is not stored, so its potential "
        "cannot be labeled anew; leave its shard out or record it again"
    )


def _with_statistics(table: pa.Table, phi: dict[int, np.ndarray]) -> pa.Table:
    """The episodes' table with the potential's statistics replaced."""
    rows = [_statistics(phi[index]) for index in table["episode_index"].to_pylist()]
    for name in [name for name in table.column_names if name.startswith(_STATS)]:
        at, field = table.schema.get_field_index(name), table.schema.field(name)
        table = table.set_column(at, field, pa.array([row[name.removeprefix(_STATS)] for row in rows], field.type))
    return table


def _rewrite(path: Path, phi: dict[int, np.ndarray]) -> None:
    """One data file with the column replaced; its row groups stay, since readers load an episode by its group."""
    source = pq.ParquetFile(path)
    at, field = source.schema_arrow.get_field_index(POTENTIAL), source.schema_arrow.field(POTENTIAL)
    partial = path.with_name(path.name + ".partial")
    with pq.ParquetWriter(partial, source.schema_arrow) as writer:
        for group in range(source.num_row_groups):
            table = source.read_row_group(group)
            where = zip(table["episode_index"].to_pylist(), table["frame_index"].to_pylist(), strict=True)
            values = [float(phi[episode][frame]) for episode, frame in where]
            column = values if not pa.types.is_nested(field.type) else [[value] for value in values]
            writer.write_table(table.set_column(at, field, pa.array(column, field.type)))
    source.close()
    partial.replace(path)


def _write(path: Path, table: pa.Table) -> None:
    partial = path.with_name(path.name + ".partial")
    pq.write_table(table, partial)
    partial.replace(path)


def _statistics(values: np.ndarray) -> dict[str, list[float]]:
    """As LeRobot keeps them of a column of width 1."""
    wide = values.astype(float)
    found = {"min": wide.min(), "max": wide.max(), "mean": wide.mean(), "std": wide.std()}
    found |= {name: np.quantile(wide, share) for name, share in _QUANTILES.items()}
    return {**{name: [float(value)] for name, value in found.items()}, "count": [len(values)]}


def _files(folder: Path) -> list[Path]:
    """A dataset's parquet files; RecordError where there are none."""
    files = sorted(folder.glob("*/*.parquet"))
    if not files:
        raise RecordError(f"{folder} has no parquet files; it is not part of a LeRobot dataset")
    return files
