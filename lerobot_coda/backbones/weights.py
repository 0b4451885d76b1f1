"""Loading a pretrained LeRobot policy so that it is certain to have loaded: some loaders print a failure and go on."""

import json
from pathlib import Path
from typing import Any

import httpx
import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open

SAMPLES = 24  # tensors whose values are compared


def checkpoint_folder(path: str | Path) -> Path:
    """The local folder of a LeRobot checkpoint given as a folder or a hub id; ValueError when there is none."""
    folder = Path(path)
    if not folder.is_dir():
        if str(path).count("/") != 1 or folder.is_absolute():
            raise ValueError(f"backbone_path '{path}' is neither a folder nor a hub id of the form owner/name")
        try:
            folder = Path(snapshot_download(str(path), allow_patterns=["*.json", "*.safetensors"]))
        except (OSError, httpx.HTTPError) as error:  # absent, private, gated, offline
            raise ValueError(f"backbone_path '{path}' can't be had from the Hub: {first_lines(error)}") from None
    if not (folder / "config.json").is_file():
        raise ValueError(f"backbone_path '{path}' is not a LeRobot checkpoint: it has no config.json")
    return folder


def policy_type(folder: Path) -> str:
    """The LeRobot policy type that a checkpoint's config.json names."""
    return str(json.loads((folder / "config.json").read_text()).get("type"))


def load_verified(policy_class: Any, path: str | Path, config: Any, **kwargs: Any) -> Any:
    """A policy with the weights of a checkpoint, through its family's own loader.

    Raises ValueError when the file can't be read, or a parameter has no counterpart in it, another shape or other
    values than the file's.
    """
    folder = checkpoint_folder(path)
    if not (folder / "model.safetensors").is_file():
        hint = "; merge its adapters into the base policy first" if (folder / "adapter_config.json").is_file() else ""
        raise ValueError(f"backbone_path '{path}' has no model.safetensors{hint}")
    try:
        with safe_open(folder / "model.safetensors", framework="pt"):
            pass
    except SafetensorError as error:
        raise ValueError(f"backbone_path '{path}': model.safetensors can't be read: {error}") from None
    try:
        policy = policy_class.from_pretrained(folder, config=config, **kwargs)
    except RuntimeError as error:
        raise ValueError(f"backbone_path '{path}' does not fit these settings: {first_lines(error)}") from None
    verify(policy, folder / "model.safetensors")
    return policy


def verify(policy: torch.nn.Module, file: Path) -> None:
    """ValueError unless every parameter of the policy is in a safetensors file, and a sample of them is equal to it."""
    with safe_open(file, framework="pt") as stored:
        names = set(stored.keys())
        found: dict[str, str] = {}
        tied: dict[int, list[str]] = {}
        for name, parameter in policy.named_parameters(remove_duplicate=False):
            tied.setdefault(parameter.data_ptr(), []).append(name)
            # openpi's exports lack LeRobot's prefix.
            if match := next((n for n in (name, name.removeprefix("model.")) if n in names), None):
                found[name] = match
        parameters = dict(policy.named_parameters(remove_duplicate=False))
        missing = [group[0] for group in tied.values() if not any(name in found for name in group)]
        if missing:
            raise ValueError(
                f"{file}: {len(missing)} parameters are not in the file, the first is '{missing[0]}'; the checkpoint "
                "and the policy's settings do not match"
            )
        shared = sorted(found)
        for name in shared[:: max(1, len(shared) // SAMPLES)]:
            tensor, mine = stored.get_tensor(found[name]), parameters[name].detach().cpu()
            if tensor.shape != mine.shape or not torch.equal(tensor.to(mine.dtype), mine):
                raise ValueError(f"{file}: parameter '{name}' was not loaded: the file holds other values")


def first_lines(error: BaseException) -> str:
    """What an error says, on one line of at most 300 characters."""
    return " ".join(str(error).split())[:300]
