"""What the critic costs: a training step of `coda` around ACT and SmolVLA against the bare policy, in one run.

Both train the same policy, from the same settings, on the same batches: forward, backward, optimizer, `update()`, in
turns. `coda` also learns V and twin Q from the observation a chunk later, and weighs cloning by advantages. The data
set is small and gone through several times: with a frozen vision-language model, a frame's features are computed once,
so the first epoch costs more, and is a row of its own. Seconds are the processor's, so that other work on the machine
plays no role; memory is what a process grew by, each policy in its own. Decoding the later frame is the data loader's
work, and is not in these figures.

    python benchmarks/training.py --json training.json
"""

import argparse
import multiprocessing
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "lerobot_coda"))

import tinyvlas
from lerobot.policies.factory import get_policy_class

from lerobot_coda.columns import EXECUTED, POTENTIAL
from lerobot_coda.modeling_coda import CodaPolicy
from libero_pro.figures import figure, keep

CAMERAS, CHUNK, EXECUTES = tinyvlas.CAMERAS, 50, 10
SIZES = {"act": 128, "smolvla": 256}  # pixels
# A quarter of SmolVLM2-500M in width, a third in depth; ACT is as published, but for the weights it starts from.
TEXT = {"hidden_size": 240, "intermediate_size": 640, "num_hidden_layers": 6, "head_dim": 16,
        "num_attention_heads": 15, "num_key_value_heads": 5}  # fmt: skip
VISION = {"hidden_size": 192, "intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 4,
          "image_size": 256, "patch_size": 16}  # fmt: skip
Step = Callable[[int], None]


def settings(family: str, folder: Path) -> dict[str, Any]:
    """Of the family's policy."""
    if family == "act":
        return {"pretrained_backbone_weights": None}
    tinyvlas.save_smolvlm(folder, TEXT, VISION)
    size = [SIZES[family]] * 2
    return {"vlm_model_name": str(folder), "num_vlm_layers": 6, "resize_imgs_with_padding": size}


def batches(family: str, count: int, rows: int) -> list[dict[str, Any]]:
    """Preprocessed batches of 2 * rows observations: those at t, then those a chunk later."""
    draw = torch.Generator().manual_seed(0)
    size = SIZES[family]
    made = []
    for number in range(count):
        batch: dict[str, Any] = {key: torch.rand(2 * rows, 3, size, size, generator=draw) for key in CAMERAS}
        batch |= {
            "observation.state": torch.randn(2 * rows, 8, generator=draw),
            "observation.language.tokens": torch.randint(8, 20, (2 * rows, 16), generator=draw),
            "observation.language.attention_mask": torch.ones(2 * rows, 16, dtype=torch.bool),
            "action": torch.randn(rows, CHUNK, 7, generator=draw),
            "action_is_pad": torch.zeros(rows, CHUNK, dtype=torch.bool),
            "next.reward": torch.zeros(rows, EXECUTES),
            "next.reward_is_pad": torch.zeros(rows, EXECUTES, dtype=torch.bool),
            POTENTIAL: torch.rand(rows, 2, generator=draw),
            EXECUTED: torch.ones(rows, 2),
            "index": (torch.arange(rows) + number * rows) * 100,
            "task": [tinyvlas.PROMPT] * 2 * rows,
        }
        made.append(batch)
    return made


def stepper(family: str, coda: bool, folder: Path, data: list[dict[str, Any]]) -> Step:
    """A training step on one of the batches: of `coda`, or of the bare policy on the observations at t."""
    torch.manual_seed(0)
    config = tinyvlas.config(family, settings(family, folder), chunk_size=CHUNK, n_action_steps=EXECUTES)
    for key in CAMERAS:
        config.input_features[key].shape = (3, SIZES[family], SIZES[family])
    if coda:
        config.value_weight, config.value_q = 0.1, True
        policy: Any = CodaPolicy(config)
    else:
        policy = get_policy_class(family)(config.family())
        rows = len(data[0]["action"])
        data = [{key: value if len(value) == rows else value[:rows] for key, value in batch.items()} for batch in data]
    optimizer = torch.optim.AdamW(policy.get_optim_params(), lr=1e-4)

    def step(number: int) -> None:
        policy.train()
        loss, _ = policy.forward(dict(data[number % len(data)]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if coda:
            policy.update()

    return step


def grown(family: str, coda: bool, folder: Path, rows: int) -> float:
    """MiB that this process grew by at its largest, building the policy and taking three steps."""
    data = batches(family, 3, rows)
    before = _resident("VmRSS")
    step = stepper(family, coda, folder, data)
    for number in range(3):
        step(number)
    return _resident("VmHWM") - before


def _resident(entry: str) -> float:
    """MiB of this process in memory, now (VmRSS) or at most (VmHWM); getrusage's peak is inherited from the parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(entry)) / 1024


def measure(family: str, folder: Path, command: str, *, rows: int, frames: int, epochs: int) -> list[dict[str, Any]]:
    """Rows of step time and memory for one family."""
    data = batches(family, frames, rows)
    bare, coda = (stepper(family, which, folder, data) for which in (False, True))
    seconds = np.zeros((2, epochs, frames))
    bare(0)  # what libraries set up once
    for epoch in range(epochs):
        for number in range(frames):
            for which, step in enumerate((bare, coda)):
                started = time.process_time()
                step(number)
                seconds[which, epoch, number] = time.process_time() - started
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        memory = [pool.apply(grown, (family, which, folder, rows)) for which in (False, True)]
    ratios = seconds[1] / seconds[0]
    peer = f"bare {family}"

    def row(name: str, ratio: float, unit: str, n: int, low: float | None = None, high: float | None = None) -> dict:
        value = round(float(ratio), 3)
        return figure(name, value, unit, command, peer=peer, ratio=value, n=n, low=low, high=high)

    whole = np.median(seconds[1].mean(0)) / np.median(seconds[0].mean(0))
    found = [row(f"train_step_{family}", whole, f"x over {epochs} epochs", ratios.size, *_interval(ratios))]
    found.append(row(f"train_step_{family}_first_epoch", np.median(ratios[0]), "x", frames))
    found.append(row(f"train_step_{family}_later_epochs", np.median(ratios[1:]), "x", ratios[1:].size))
    return [*found, row(f"train_memory_{family}", memory[1] / memory[0], f"x of {memory[0]:.0f} MiB", 1)]


def _interval(ratios: np.ndarray) -> tuple[float, float]:
    """95% bootstrap interval of the mean over epochs of the median ratio of a batch."""
    rng = np.random.default_rng(0)
    draws = [np.median(ratios[:, rng.integers(0, ratios.shape[1], ratios.shape[1])].mean(0)) for _ in range(2000)]
    return round(float(np.quantile(draws, 0.025)), 3), round(float(np.quantile(draws, 0.975)), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=sorted(SIZES), default=sorted(SIZES))
    parser.add_argument("--rows", type=int, default=8, help="of a batch (default 8)")
    parser.add_argument("--batches", type=int, default=4, help="of the data set (default 4)")
    parser.add_argument("--epochs", type=int, default=6, help="through it (default 6)")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    arguments = parser.parse_args()
    command, rows = shlex.join(["python", "benchmarks/training.py", *sys.argv[1:]]), []
    with TemporaryDirectory() as folder:
        for family in arguments.families:
            sizes = {"rows": arguments.rows, "frames": arguments.batches, "epochs": arguments.epochs}
            rows += measure(family, Path(folder) / "smolvlm", command, **sizes)
    for row in rows:
        print(f"{row['figure']:36} {row['value']:10} {row['unit']}")
    if arguments.json:
        keep(arguments.json, rows)


if __name__ == "__main__":
    main()
