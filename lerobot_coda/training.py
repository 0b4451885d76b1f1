"""Training by stock `lerobot-train`: the exact recipe is written, run in a process of its own, and followed.

Whatever a round trains can be rerun by hand: `lerobot-train --config_path=<round>/train.yaml`.
"""

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from lerobot_coda.threads import thread_environment, usable_cores
from libero_pro.record import RecordError, write_atomically

COMMAND = (sys.executable, "-m", "lerobot_coda.reading")  # `lerobot-train`, its training set in memory
Tick = Callable[[int], None]  # called with the number of steps done so far
_PROGRESS = re.compile(rb"Training:.*?\|\s*(\d+)/(\d+)")  # LeRobot's tqdm bar
_LOGGED = re.compile(rb"\bstep:(\d+)\b")
IN_CHECKPOINT = ("type", "backbone", "backbone_path", "backbone_config")  # settled when a policy is first built
CHECKPOINT = Path("checkpoints") / "last" / "pretrained_model"


class TrainingError(RecordError):
    """`lerobot-train` failed; the message holds its last line and where its log is."""


def train_config(
    recipe: Mapping[str, Any],
    *,
    dataset: Path,
    output: Path,
    steps: int,
    seed: int,
    policy: Mapping[str, Any] | None = None,
    start: Path | None = None,
    repo_id: str = "coda/run",
) -> dict[str, Any]:
    """A complete `lerobot-train` configuration from a train recipe.

    start   checkpoint to go on from: `policy.type` gives way to `policy.path`, and what it holds of its backbone stays;
            the rest of `policy` become overrides
    policy  overrides such as grounding_path; a None removes the key
    The learning-rate schedule is stretched to `steps`, and only the last checkpoint is kept besides one halfway.
    """
    config: dict[str, Any] = {key: value for key, value in recipe.items() if key not in ("resume", "env")}
    block = {**dict(recipe.get("policy") or {}), **dict(policy or {})}
    block = {key: value for key, value in block.items() if value is not None}
    block["push_to_hub"] = False
    if "scheduler_decay_steps" in block or block.get("type") == "coda" or start is not None:
        block["scheduler_decay_steps"] = steps
        block["scheduler_warmup_steps"] = min(int(block.get("scheduler_warmup_steps", 50)), max(1, steps // 10))
    if start is not None:
        block = {"path": str(start), **{key: value for key, value in block.items() if key not in IN_CHECKPOINT}}
    config["policy"] = block
    config["dataset"] = {**dict(recipe.get("dataset") or {}), "repo_id": repo_id, "root": str(dataset)}
    config.update(output_dir=str(output), steps=steps, seed=seed, save_freq=max(1, steps // 2), env_eval_freq=0)
    config["log_freq"] = min(int(config.get("log_freq", 50)), max(1, steps // 5))
    return config


def run_lerobot_train(config: Mapping[str, Any], path: Path, *, tick: Tick) -> Path:
    """Writes `config` to `path`, runs `lerobot-train --config_path=path`, returns the last checkpoint's folder.

    A run that was cut off goes on from its last checkpoint; one that left none is begun again. Raises TrainingError.
    """
    output = Path(config["output_dir"])
    write_atomically(path, yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True).encode())
    checkpoint = output / CHECKPOINT
    if _trained_steps(output) >= int(config["steps"]):
        return checkpoint
    arguments = [f"--config_path={path}"]
    before = 0  # steps of an earlier run, which the bar of a resumed one does not count
    if (checkpoint / "train_config.json").is_file():
        arguments = [f"--config_path={checkpoint / 'train_config.json'}", "--resume=true"]
        before = _trained_steps(output)
    elif output.exists():
        shutil.rmtree(output)  # LeRobot refuses a folder that exists
    log = path.with_suffix(".log")
    environment = {
        **os.environ,
        **thread_environment(max(1, usable_cores() - int(config.get("num_workers", 4)))),
        "TOKENIZERS_PARALLELISM": "false",
    }
    environment.pop("TQDM_DISABLE", None)  # its bar is what is followed
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
        preexec_fn=_die_with_parent if sys.platform == "linux" else None,
    )
    try:
        last = _follow(process, log, tick, before)
    except BaseException:
        _stop(process)
        raise
    if process.returncode != 0:
        raise TrainingError(f"lerobot-train ended with code {process.returncode}: {last}; its log is {log}")
    if not (checkpoint / "config.json").is_file():
        raise TrainingError(f"lerobot-train left no checkpoint in {output}; its log is {log}")
    tick(int(config["steps"]))
    return checkpoint


def _trained_steps(output: Path) -> int:
    """Steps of the last checkpoint, 0 if there is none: the `last` link points to a folder named by its step."""
    last = output / CHECKPOINT.parent
    if not (last / "pretrained_model" / "config.json").is_file():
        return 0
    name = last.resolve().name
    return int(name) if name.isdigit() else 0


def _follow(process: subprocess.Popen, log: Path, tick: Tick, before: int) -> str:
    """Copies the output to the log and reports steps; returns the last line that says something."""
    assert process.stdout is not None
    tail: deque[str] = deque(maxlen=40)
    pending = b""
    with log.open("ab") as file:
        while chunk := os.read(process.stdout.fileno(), 65536):
            file.write(chunk)
            file.flush()
            lines = re.split(rb"[\r\n]", pending + chunk)
            pending = lines.pop()
            for line in lines:
                if found := _PROGRESS.search(line):
                    tick(before + int(found.group(1)))
                elif found := _LOGGED.search(line):
                    tick(int(found.group(1)))
                elif text := line.decode(errors="replace").strip():
                    tail.append(text)
    process.wait()
    return next((line for line in reversed(tail) if "Error" in line), tail[-1] if tail else "no output")


def _die_with_parent() -> None:
    """Asks Linux to end the trainer when this process is killed, or it would train on against the rerun."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _stop(process: subprocess.Popen) -> None:
    """Ends the trainer and its loader processes."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.killpg(process.pid, number)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            continue
