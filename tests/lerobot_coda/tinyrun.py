"""A finished run folder of a few kilobytes, as `evolve` leaves it; datasets and checkpoints are whatever is put in."""

import json
from collections.abc import Callable
from pathlib import Path

import yaml
from fakeworld import RECIPE

from lerobot_coda.memory import Memory, Program

Fill = Callable[[Path], None]
RUN = {"name": "tiny", "arm": "coda", "recipe_hash": "0123456789abcdef", "seed": 0, "command": "lerobot-coda evolve x",
       "versions": {"lerobot": "0.6.1"}, "started": "2026-01-01T00:00:00+00:00"}  # fmt: skip
SUMMARY = {"repo_id": "coda/tiny", "episodes": 2, "frames": 18, "successes": 1, "truncated": 1, "invalid_left_out": 0,
           "tasks": {"libero_object/2": 2}, "actors": {"expert": 2}, "programs": {"none": 2}, "cameras": ["agentview"],
           "columns": {"observation.coda_potential": 1}, "render_every": 4, "profile": "fast", "size": 64}  # fmt: skip
PROGRAM = {"name": "grasp-1", "mode": "grasp", "hash": "aa", "difficulty": 0.5, "operations": [{"op": "resample"}],
           "state": "active", "verdict": None, "measurement": None, "decision": None}  # fmt: skip
FRONTIER = {"n": 8, "before": {"successes": 1}, "after": {"successes": 5}, "p_value": 0.0625}


def bytes_dataset(root: Path, salt: bytes = b"") -> None:
    """Files named as LeRobot's are, of any content."""
    files = {"data/chunk-000/file-000.parquet": b"rows", "videos/observation.images.image/chunk-000/file-000.mp4": b"v",
             "meta/episodes/chunk-000/file-000.parquet": b"episodes", "meta/stats.json": b"{}",
             "meta/info.json": json.dumps({"codebase_version": "v3.0", "fps": 20, "robot_type": "panda"}).encode(),
             "images/scratch.png": b"never pushed"}  # fmt: skip
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data + (salt if name.endswith((".parquet", ".mp4")) else b""))


def bytes_checkpoint(folder: Path, salt: bytes = b"") -> None:
    """A checkpoint's files; paths of this machine stand in its configuration, as LeRobot leaves them."""
    folder.mkdir(parents=True)
    policy = {"type": "coda", "pretrained_path": "/here/base", "grounding_path": "/here/grounding.safetensors"}
    (folder / "config.json").write_text(json.dumps(policy))
    train = {"dataset": {"repo_id": "coda/tiny", "root": "/here/dataset"}, "policy": policy, "output_dir": "/here/out"}
    (folder / "train_config.json").write_text(json.dumps(train))
    (folder / "model.safetensors").write_bytes(b"weights" + salt)


def write_run(
    folder: Path, rounds: int = 2, dataset: Callable = bytes_dataset, checkpoint: Callable = bytes_checkpoint
) -> Path:
    """A base policy and `rounds` rounds, the last of which trained nothing."""
    _write(folder / "run.json", RUN)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    reports = []
    for number in range(rounds + 1):
        where = folder / "base" if number == 0 else folder / "rounds" / f"{number:03d}"
        trained = number == 0 or number < rounds
        if trained:
            salt = f"{number}".encode()
            dataset(where / "dataset", salt)
            _write(where / "dataset" / "libero_pro.json", SUMMARY)
            weights = where / "train" / "checkpoints" / "last" / "pretrained_model"
            checkpoint(weights, salt)
            _write(
                where / "steps" / "train.json", {"key": "k", "usage": {}, "result": str(weights.relative_to(folder))}
            )
        if number:
            _write(where / "programs" / "aa.json", {"name": "grasp-1"})
            report = {"round": number, "programs": [PROGRAM], "frontier": FRONTIER}
            _write(where / "round.json", report)
            reports.append(report)
    _write(folder / "summary.json", {**RUN, "finished": True, "rounds": reports})
    _write(folder / "heldout" / "steps" / "before.json", {"key": "k", "usage": {}, "result": []})
    memory = Memory(folder / "memory.sqlite")
    memory.add(Program, [{"hash": "aa", "name": "grasp-1", "mode": "grasp", "parent": None, "body": {}}])
    memory.close()
    (folder / "report").mkdir()
    (folder / "report" / "index.html").write_text("<h1>tiny</h1>")
    return folder


def _write(path: Path, data: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data))
