"""A checkpoint before it costs a night: all that its files say, its weights, one real chunk of actions."""

import contextlib
import io
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from lerobot_coda.doctor import features, normalization
from lerobot_coda.doctor.check import Finding, Verdict, attempt, check, fail, ok, skipped, warn
from lerobot_coda.doctor.checkpoint import Checkpoint, read, read_json
from libero_pro.policy_runner import LeRobotChunkPolicy


def examine(path: str, simulator: Any | None) -> Iterator[Finding]:
    """All checks of a checkpoint (a folder, or a Hub repository); without a simulator none of its actions."""
    checkpoint = attempt("config", lambda: read(path))
    if isinstance(checkpoint, Finding):
        yield checkpoint
        return
    for look in CHECKS:
        yield look(checkpoint)
    policy = attempt("weights loaded", lambda: load(checkpoint))
    if isinstance(policy, Finding):
        yield policy
        yield from skipped(("policy output",), "weights loaded")
        return
    yield weights_loaded(policy.policy, checkpoint)
    if simulator is None:
        yield from skipped(("policy output",), "simulator")
        return
    yield policy_output(policy, simulator)


@check("adapter")
def adapter(checkpoint: Checkpoint) -> Verdict:
    """A PEFT adapter finds the policy that it adapts."""
    if not checkpoint.is_adapter:
        if (checkpoint.folder / "adapter_config.json").is_file():
            return fail("there is an adapter, but config.json has use_peft false: it is ignored", "set it to true")
        return ok("none")
    path = checkpoint.folder / "adapter_config.json"
    if not path.is_file():
        return fail("config.json has use_peft true, but there is no adapter_config.json",
                    "set it to false, or copy the whole checkpoint folder")  # fmt: skip
    base = read_json(path).get("base_model_name_or_path")
    if not base:
        return fail("adapter_config.json names no base", "set base_model_name_or_path to the policy it adapts")
    if (Path(base) / "config.json").is_file():
        return ok(f"adapts {base}")
    if base.startswith((".", "/", "~")) or base.count("/") != 1:
        return fail(f"the adapted policy {base} is not there", "set base_model_name_or_path in adapter_config.json")
    from huggingface_hub import try_to_load_from_cache

    if isinstance(try_to_load_from_cache(base, "config.json"), str):
        return ok(f"adapts {base} (in the hub's cache)")
    return warn(
        f"the adapted policy {base} is not on this machine", f"run `hf download {base}` while there is a network"
    )


@check("device")
def device(checkpoint: Checkpoint, available: Collection[str] | None = None) -> Verdict:
    """The device that the checkpoint names is here; LeRobot otherwise takes another without a word."""
    wanted = str(checkpoint.config.get("device") or "cpu")
    here = _devices() if available is None else available
    if wanted.split(":")[0] not in here:
        return warn(f"the checkpoint names '{wanted}', this machine has {', '.join(sorted(here))}",
                    f"pass --policy.device={'cuda' if 'cuda' in here else 'cpu'}")  # fmt: skip
    kind = str(checkpoint.config.get("dtype") or "")
    if wanted == "cpu" and kind in ("bfloat16", "float16"):
        return warn(f"{kind} on a CPU is slow", "pass --policy.dtype=float32")
    return ok(f"{wanted} {kind}".strip())


@check("weights")
def weights(checkpoint: Checkpoint) -> Verdict:
    """The weights file is complete and every number in it finite."""
    path = checkpoint.weights
    if not path.is_file():
        return fail(f"{path.name} is missing", "copy the whole checkpoint folder")
    count = 0
    try:
        with safe_open(path, framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118 (not a dict)
                tensor = stored.get_tensor(name)
                count += tensor.numel()
                if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                    return fail(f"{path.name}: '{name}' has numbers that are not finite",
                                "the training diverged: take an earlier checkpoint")  # fmt: skip
    except SafetensorError as error:
        return fail(f"{path.name} is damaged or cut short ({error})", "copy or download it again")
    return ok(f"{path.name}: {count / 1e6:,.1f} million finite numbers")


def load(checkpoint: Checkpoint) -> LeRobotChunkPolicy:
    """The checkpoint as a `LeRobotChunkPolicy`, on its own device if that is here, quietly."""
    wanted = str(checkpoint.config.get("device") or "cpu")
    here = wanted if wanted.split(":")[0] in _devices() else "cpu"
    with contextlib.redirect_stdout(io.StringIO()):
        return LeRobotChunkPolicy.from_pretrained(
            checkpoint.folder, device=here, camera_keys=features.camera_keys(checkpoint)
        )


@check("weights loaded")
def weights_loaded(policy: Any, checkpoint: Checkpoint) -> Verdict:
    """Every weight of the file is in the policy and every weight of the policy comes from a file.

    Some LeRobot loaders swallow a failure, and all ignore names that do not fit: what is left is random.
    """
    remedy = "use the code version that trained it; its weights' names or shapes do not fit this one"
    files = [(_own_weights(policy, checkpoint), checkpoint.weights)]
    if checkpoint.is_adapter and (base := base_path(checkpoint)) is not None:
        files.append((_base_weights(policy), base / "model.safetensors"))
    unread: list[str] = []
    for mine, path in files:
        with safe_open(path, framework="pt") as stored:
            names = set(stored.keys())
            unread += sorted(names - mine.keys())
            for name in sorted(names & mine.keys()):
                tensor, loaded = stored.get_tensor(name), mine[name].cpu()
                if tensor.shape != loaded.shape or not torch.equal(tensor.to(loaded.dtype), loaded):
                    return fail(f"'{name}' is not what {path} holds", remedy)
        held = {mine[name].data_ptr() for name in names & mine.keys()}  # tied weights are stored once
        missing = sorted(name for name in mine.keys() - names if mine[name].data_ptr() not in held)
        if missing and path == checkpoint.weights:
            return fail(f"{len(missing)} weights of the policy are in no file and random, first '{missing[0]}'", remedy)
    if unread:
        return warn(f"{len(unread)} weights of the file are not in the policy, first '{unread[0]}'", remedy)
    return ok(f"every weight is the file's ({len(files[0][0])} tensors)")


@check("policy output")
def policy_output(policy: LeRobotChunkPolicy, simulator: Any) -> Verdict:
    """A chunk for the released start is finite, of the right shape and not at the limits all the time."""
    from lerobot_coda.doctor.simulator import draw
    from libero_pro.rollout import Observation

    images = draw(simulator, policy.cameras, policy.image_size or 128) if policy.cameras else {}
    prompt = simulator.scene.instruction
    actions = policy.act([Observation(images=images, state=simulator.proprio(), prompt=prompt, seed=0)])[0]
    if actions.shape != (policy.n_action_steps, features.ACTION_SIZE):
        return fail(
            f"a chunk has shape {actions.shape}", f"it must be ({policy.n_action_steps}, {features.ACTION_SIZE})"
        )
    if not np.isfinite(actions).all():
        return fail("the actions are not finite", "look at 'weights' and 'normalization'")
    arm = np.abs(actions[:, :6])
    if (limited := float((arm >= 1.0).mean())) > 0.5:
        return warn(
            f"{limited:.0%} of the arm's actions are at the limits of -1 and 1",
            "its actions are likely not unnormalized, or absolute: look at 'normalization' and the training data",
        )
    return ok(f"{len(actions)} actions, the arm's up to {arm.max():.2f}")


def base_path(checkpoint: Checkpoint) -> Path | None:
    """The local folder of the policy that an adapter adapts, None if there is none."""
    base = read_json(checkpoint.folder / "adapter_config.json").get("base_model_name_or_path")
    return Path(base) if base and (Path(base) / "config.json").is_file() else None


def _own_weights(policy: Any, checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """What the checkpoint's file ought to hold: all weights, or those of the adapter alone."""
    if not checkpoint.is_adapter:
        return policy.state_dict()
    from peft import get_peft_model_state_dict

    return get_peft_model_state_dict(policy)


def _base_weights(policy: Any) -> dict[str, torch.Tensor]:
    """The weights below an adapter, by the names that they have without one."""
    found = policy.get_base_model().state_dict()
    return {name.replace(".base_layer", "").replace(".original_module", ""): tensor for name, tensor in found.items()}


def _devices() -> set[str]:
    gpus = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return {"cpu", *(name for name, here in gpus.items() if here)}


CHECKS = (
    features.configured,
    features.cameras,
    features.state_size,
    features.action_size,
    features.chunk,
    normalization.processors,
    normalization.normalization,
    adapter,
    device,
    weights,
)
