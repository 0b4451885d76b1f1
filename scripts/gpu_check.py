"""What a train recipe needs on this machine's GPU: run it once before a long run. One report, as text and JSON.

On made-up frames of the recipe's size the stock trainer loads the model, computes a loss, and takes a few steps; its
checkpoint is loaded as an evaluation would, infers chunks, and plays a few steps in the simulator. Each has its
seconds and the memory at its largest.

    python scripts/gpu_check.py recipes/coda_smolvla.yaml --json gpu.json
    python scripts/gpu_check.py recipes/coda_smolvla.yaml --tiny smolvla    # the check itself, on a processor
"""

import argparse
import json
import logging
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from libero_pro.record import RecordError, write_atomically

STEPS = 4  # of training; the first is not counted, as libraries choose their kernels in it
TESTS = Path(__file__).parents[1] / "tests" / "lerobot_coda"
TINY = ("smolvla", "pi0", "pi05", "xvla")


@dataclass
class Check:
    """One part: seconds, the largest memory so far in GB (of the GPU, else of this process), and what was found."""

    name: str
    seconds: float = 0.0
    memory_gb: float = 0.0
    found: str = ""


@dataclass
class Report:
    """All parts, and the sentence why the rest was not tried."""

    recipe: str
    device: str
    device_gb: float
    versions: dict[str, str]
    checks: list[Check] = field(default_factory=list)
    problem: str | None = None

    def text(self) -> str:
        """For people."""
        lines = [f"{self.recipe} on {self.device} ({self.device_gb:.0f} GB)"]
        lines += [f"  {c.name:34} {c.seconds:8.3f} s {c.memory_gb:7.2f} GB  {c.found}" for c in self.checks]
        most = max((c.memory_gb for c in self.checks), default=0.0)
        lines.append(f"stopped: {self.problem}" if self.problem else f"All parts ran; {most:.1f} GB at most.")
        return "\n".join(lines)


def make_frames(root: Path, size: int, length: int) -> None:
    """A dataset of two episodes with the cameras, state and labels that the data engine writes, at random."""
    import numpy as np
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    from lerobot_coda.columns import EXECUTED, POTENTIAL

    rng, cameras = np.random.default_rng(0), ("observation.images.image", "observation.images.image2")
    image = {"dtype": "image", "shape": (size, size, 3), "names": ["height", "width", "channel"]}
    widths = {"observation.state": 8, "action": 7, "next.reward": 1, POTENTIAL: 1, EXECUTED: 1}
    numbers = {key: {"dtype": "float32", "shape": (width,), "names": None} for key, width in widths.items()}
    features = {**dict.fromkeys(cameras, image), **numbers}
    made = LeRobotDataset.create("local/check", 20, features, root, use_videos=False)
    for _ in range(2):
        for t in range(length):
            frame: dict[str, Any] = {c: rng.integers(0, 255, (size, size, 3), dtype=np.uint8) for c in cameras}
            frame |= {key: rng.random(width).astype(np.float32) for key, width in widths.items()}
            frame |= {"next.reward": np.array([t == length - 2], np.float32), EXECUTED: np.ones(1, np.float32)}
            made.add_frame({**frame, "task": "pick the milk and place it in the basket"})
        made.save_episode()
    made.finalize()


def train(config: dict[str, Any], path: Path, report: Report) -> Path:
    """Trains as `lerobot-train --config_path` does, and notes loading, a loss and the steps; returns the checkpoint."""
    import torch
    from lerobot.scripts import lerobot_train

    path.write_text(yaml.safe_dump(config))
    update, losses, steps = lerobot_train.update_policy, [], []
    began = time.perf_counter()

    def watched(metrics: Any, policy: Any, batch: Any, optimizer: Any, clip: Any, accelerator: Any, **rest: Any) -> Any:
        if not steps:
            trained = sum(p.numel() for p in policy.parameters() if p.requires_grad)
            total = sum(p.numel() for p in policy.parameters())
            note("load the model", began, f"{total / 1e6:,.1f} million parameters, {trained / 1e6:,.2f} trained")
            start = time.perf_counter()
            with torch.no_grad(), accelerator.autocast():
                loss, _ = policy.forward(dict(batch))
            note(f"a loss of {config['batch_size']} samples", start, f"loss {float(loss):.4g}")
        start = time.perf_counter()
        result = update(metrics, policy, batch, optimizer, clip, accelerator, **rest)
        _wait()
        steps.append(time.perf_counter() - start)
        losses.append(float(metrics.loss.val))
        return result

    def note(name: str, start: float, found: str) -> None:
        _wait()
        report.checks.append(Check(name, time.perf_counter() - start, _memory(), found))

    lerobot_train.update_policy = watched
    before, sys.argv = sys.argv, ["lerobot-train", f"--config_path={path}"]
    try:
        lerobot_train.train()
    finally:
        lerobot_train.update_policy, sys.argv = update, before
    seconds = sum(steps[1:]) / len(steps[1:])
    report.checks.append(Check("a training step", seconds, _memory(), f"losses {losses[0]:.4g} to {losses[-1]:.4g}"))
    return Path(config["output_dir"]) / "checkpoints" / "last" / "pretrained_model"


def act(checkpoint: Path, device: str, report: Report, rows: int) -> None:
    """Loads the checkpoint, infers chunks for one and for `rows` observations, and plays two of them."""
    import numpy as np

    from libero_pro.policy_runner import LeRobotChunkPolicy
    from libero_pro.rollout import Observation, run
    from libero_pro.suites import scene_for

    with _noted(report, "load the checkpoint") as check:
        policy = LeRobotChunkPolicy.from_pretrained(checkpoint, device=device)
        check.found = f"chunks of which {policy.n_action_steps} are executed"
    rng, size = np.random.default_rng(0), policy.image_size or 256
    images = {camera: rng.integers(0, 255, (size, size, 3), dtype=np.uint8) for camera in policy.cameras}
    seen = Observation(images, rng.random(8).astype(np.float32), "pick the milk and place it in the basket", seed=0)
    policy.act([seen])  # kernels are chosen
    for count in dict.fromkeys((1, rows)):
        with _noted(report, f"chunks for {count} observation{'s' * (count > 1)}") as check:
            found = policy.act([seen] * count)
            check.found = f"actions {found.min():.2f} to {found.max():.2f}"
    with _noted(report, "two chunks in the simulator") as check:
        (episode,) = run(policy, [scene_for("libero_object", 0)], workers=0, horizon=2 * policy.n_action_steps)
        if episode.invalid is not None:
            raise RecordError(episode.invalid)
        check.found = f"{len(episode)} steps"


def main(arguments: list[str] | None = None) -> int:
    """0 if every part ran, 1 if one did not, 2 with one sentence where there is nothing to check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path, help="a train recipe of a pretrained model, recipes/coda_*.yaml")
    parser.add_argument("--tiny", choices=TINY, help="with a random model of this family, on a processor")
    parser.add_argument("--observations", type=int, default=8, help="that wait at once (default: 8)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    try:
        recipe, device, gb = _start(options.recipe, options.tiny)
    except RecordError as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return 2
    names = ("lerobot_policy_coda", "lerobot", "torch", "transformers", "mujoco")
    report = Report(options.recipe.name, device, gb, {name: metadata.version(name) for name in names})
    with tempfile.TemporaryDirectory() as folder, _smaller(options.tiny, recipe, Path(folder)) as size:
        try:
            _run(recipe, report, Path(folder), size, options.observations)
        except Exception as error:  # whatever it is, what was found before is worth having
            lines = str(error).strip().splitlines() or ["no reason given"]
            report.problem = f"{type(error).__name__}: {lines[0][:500]}"
    print(report.text())
    if options.json:
        write_atomically(options.json, (json.dumps(asdict(report), indent=1) + "\n").encode())
    return int(report.problem is not None)


def _start(path: Path, tiny: str | None) -> tuple[dict[str, Any], str, float]:
    """The recipe, and the device with its memory; RecordError where nothing can be checked."""
    from lerobot_coda.recipe import read_yaml

    recipe = read_yaml(path)
    if "backbone_path" not in (recipe.get("policy") or {}):
        named = (recipe.get("training") or {}).get("train")
        hint = f"give {path.parent / named}, which it trains with" if named else "give one of recipes/coda_*.yaml"
        raise RecordError(f"{path} is no train recipe of a pretrained model: {hint}")
    import torch

    if tiny:
        return recipe, "the processor, a tiny random model", _processor_gb()
    if not torch.cuda.is_available():
        raise RecordError(
            "torch sees no GPU here: run this on a machine with one, or add --tiny smolvla to try the check itself"
        )
    properties = torch.cuda.get_device_properties(0)
    return recipe, properties.name, properties.total_memory / 1e9


@contextmanager
def _smaller(tiny: str | None, recipe: dict[str, Any], folder: Path) -> Iterator[int]:
    """The size of images; with a tiny family the recipe gets a random model of it, and becomes small besides."""
    if tiny is None:
        yield 256
        return
    sys.path.insert(0, str(TESTS))
    import pytest
    import tinyvlas
    from test_vla_recipes import tiny_base

    with pytest.MonkeyPatch.context() as patch:
        own = {"backbone_path": str(tiny_base(tiny, folder, patch)), "device": "cpu", "use_amp": False}
        recipe["policy"] = {**recipe["policy"], **own, "n_action_steps": tinyvlas.EXECUTES}
        recipe |= {"batch_size": 2, "num_workers": 0}
        yield tinyvlas.SIZE


def _run(recipe: dict[str, Any], report: Report, folder: Path, size: int, rows: int) -> None:
    from lerobot.utils.import_utils import register_third_party_plugins

    from lerobot_coda.training import train_config

    register_third_party_plugins()
    logging.disable(logging.INFO)
    frames = folder / "frames"
    make_frames(frames, size, length=max(12, int(recipe["batch_size"]) * STEPS // 2))
    config = train_config(recipe, dataset=frames, output=folder / "out", steps=STEPS, seed=0, repo_id="local/check")
    checkpoint = train(config, folder / "train.yaml", report)
    act(checkpoint, str(recipe["policy"]["device"]), report, rows)


@contextmanager
def _noted(report: Report, name: str) -> Iterator[Check]:
    import torch

    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    check, start = Check(name), time.perf_counter()
    yield check
    _wait()
    check.seconds, check.memory_gb = time.perf_counter() - start, _memory()
    report.checks.append(check)


def _wait() -> None:
    """Until the GPU has done what it was given."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _memory() -> float:
    """GB at most: of the GPU since this part began, else of this process."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e9
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e9


def _processor_gb() -> float:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemTotal")) * 1024 / 1e9


if __name__ == "__main__":
    sys.exit(main())
