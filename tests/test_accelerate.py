"""Several processes train as one: the stock trainer under `accelerate launch`, one global batch, the same losses."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

GRACE_S = 15.0  # in which processes that have trained may end by themselves
SIZE, STEPS, BATCH, LAYOUTS = 32, 4, 8, 6
LOSSES = ("loss", "cloning_loss", "value_loss", "q_loss", "grounding_static_mm")


def make_data(folder: Path) -> Path:
    """Two episodes of eight frames, whose last ones carry no action, and a few static layouts."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    from lerobot_coda.columns import EXECUTED, POINTS, POTENTIAL
    from lerobot_coda.grounding import GroundingSet

    rng = np.random.default_rng(0)
    widths = {"observation.state": 8, "action": 7, "next.reward": 1, POTENTIAL: 1, EXECUTED: 1, POINTS: 10}
    features = {name: {"dtype": "float32", "shape": (width,), "names": None} for name, width in widths.items()}
    image = {"dtype": "image", "shape": (SIZE, SIZE, 3), "names": ["height", "width", "channel"]}
    made = LeRobotDataset.create(
        "local/ranks", 20, {"observation.images.image": image, **features}, folder / "set", use_videos=False
    )
    for episode in range(2):
        for t in range(8):
            frame = {name: rng.random(width).astype(np.float32) for name, width in widths.items()}
            frame["action"] *= t < 7 - 2 * episode  # padding falls on the processes unevenly
            frame |= {"next.reward": np.array([t == 6], np.float32), EXECUTED: np.array([t % 3 > 0], np.float32)}
            frame["observation.images.image"] = rng.integers(0, 255, (SIZE, SIZE, 3), dtype=np.uint8)
            made.add_frame({**frame, "task": "pick the milk"})
        made.save_episode()
    made.finalize()
    GroundingSet(
        images=rng.integers(0, 255, (LAYOUTS, SIZE, SIZE, 3), dtype=np.uint8),
        text=np.zeros((LAYOUTS, 1), np.int32),
        image_points=rng.random((LAYOUTS, 1, 2, 2)).astype(np.float32),
        world_points=rng.random((LAYOUTS, 1, 2, 3)).astype(np.float32),
        weight=(rng.random((LAYOUTS, 1, 2)) > 0.4).astype(np.float32),
        texts=("pick the milk",),
    ).save(folder / "layouts.safetensors")
    return folder


def recipe(data: Path, output: Path, processes: int) -> list[str]:
    """Plain SGD: Adam's first steps turn rounding into a whole step where a gradient is next to nothing."""
    settings = {
        "dataset.repo_id": "local/ranks", "dataset.root": data / "set", "dataset.use_imagenet_stats": "false",
        "policy.type": "coda", "policy.device": "cpu", "policy.push_to_hub": "false", "policy.image_size": SIZE,
        "policy.chunk_size": 4, "policy.n_action_steps": 2, "policy.width": 8, "policy.hidden": 16,
        "policy.value_weight": 0.5, "policy.value_q": "true", "policy.grounding_weight": 1.0,
        "policy.grounding_path": data / "layouts.safetensors",
        "policy.grounding_batch_size": LAYOUTS // processes, "batch_size": BATCH // processes,
        "use_policy_training_preset": "false", "optimizer.type": "sgd", "optimizer.lr": 0.05, "seed": 3,
        "scheduler.type": "cosine_decay_with_warmup", "scheduler.num_warmup_steps": 0, "scheduler.peak_lr": 0.05,
        "scheduler.num_decay_steps": STEPS, "scheduler.decay_lr": 0.05,
        "output_dir": output, "steps": STEPS, "save_freq": STEPS, "log_freq": 1, "num_workers": 0, "eval_steps": 0,
        "env_eval_freq": 0,
    }  # fmt: skip
    return [f"--{name}={value}" for name, value in settings.items()]


def launched(arguments: list[str], cwd: Path) -> str:
    """What two processes print under `accelerate launch`; its --cpu would start one, whatever --num_processes says.

    Torch can lock up as it takes its process group down, when all is trained and saved: that is not waited for.
    """
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
    command = [*launch, "-m", "lerobot.scripts.lerobot_train", *arguments]
    said = cwd / "launched"
    with said.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=cwd, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    until = time.monotonic() + 600
    try:
        while process.poll() is None and "End of training" not in said.read_text() and time.monotonic() < until:
            time.sleep(0.5)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=GRACE_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    text = said.read_text()
    assert "End of training" in text, text[-4000:]
    return text


def single(arguments: list[str], said: Path) -> "subprocess.Popen[bytes]":
    """A process that trains and prints into `said`."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "lerobot.scripts.lerobot_train", *arguments]
    with said.open("wb") as out:
        return subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)


def logged(said: str) -> list[dict[str, float]]:
    """The losses of each step, as the trainer prints them."""
    lines = [line for line in said.splitlines() if re.search(r"\bstep:\d", line)]
    return [
        {name: float(found[1]) for name in LOSSES if (found := re.search(rf"\b{name}:([-\d.e]+)", line))}
        for line in lines
    ]


def both(folder: Path) -> tuple[list[dict[str, float]], list[dict[str, float]], float]:
    """Losses of each step of one process and of two, and the largest difference of a weight in the end."""
    data = make_data(folder)
    alone = single(recipe(data, folder / "one", 1), folder / "said")
    two = launched(recipe(data, folder / "two", 2), folder)
    code = alone.wait(timeout=900)
    one = (folder / "said").read_text()
    assert code == 0, one[-4000:]
    assert f"Effective batch size: {BATCH // 2} x 2 = {BATCH}" in two
    checkpoints = [folder / run / "checkpoints" / "last" / "pretrained_model" for run in ("one", "two")]
    first, second = (load_file(path / "model.safetensors") for path in checkpoints)
    return logged(one), logged(two), max((first[name] - second[name]).abs().max().item() for name in first)


@pytest.mark.e2e
def test_two_processes_under_accelerate_launch_train_as_one(tmp_path: Path) -> None:
    first, second, furthest = both(tmp_path)
    assert len(first) == len(second) == STEPS and set(first[0]) == set(LOSSES)
    for a, b in zip(first, second, strict=True):
        assert a == pytest.approx(b, abs=2e-3)  # printed with three decimals
    assert furthest < 1e-5


def _share(number: int, port: int, rows: torch.Tensor, weights: torch.Tensor, out: Path) -> None:
    from lerobot_coda.ranks import weighted_mean
    from lerobot_coda.value import advantage_weights

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=number, world_size=2)
    mine = slice(number * 3, number * 3 + 3)
    values = rows[mine].clone().requires_grad_()
    part = weighted_mean(values, weights[mine])
    part.backward()
    torch.save([part.detach(), values.grad, advantage_weights(rows[mine], 0.5, 3.0)], out / f"{number}.pt")
    dist.destroy_process_group()


def test_the_average_of_the_parts_is_the_weighted_mean_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    from torch.multiprocessing import start_processes

    from lerobot_coda.ranks import weighted_mean
    from lerobot_coda.value import advantage_weights

    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    rows, weights = torch.randn(6), torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 0.5])
    start_processes(_share, args=(port, rows, weights, tmp_path), nprocs=2, start_method="fork")
    parts, gradients, advantages = zip(*(torch.load(tmp_path / f"{n}.pt") for n in (0, 1)), strict=True)
    whole = rows.clone().requires_grad_()
    mean = weighted_mean(whole, weights)
    mean.backward()
    assert torch.allclose(sum(parts) / 2, mean.detach())
    assert torch.allclose(torch.cat(gradients) / 2, whole.grad)
    assert torch.allclose(torch.cat(advantages), advantage_weights(rows, 0.5, 3.0))
