"""Checkpoint files as they may leave this machine: what pointed to a local folder points to the Hub, or nowhere."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lerobot_coda.hub.errors import HubError

_WEIGHTS = ("*.json", "*.safetensors")
# Settings that name where training took something from; a checkpoint works without them.
_LOCAL = ("output_dir", "pretrained_path", "grounding_path", "checkpoint_path", "backbone_path")


def checkpoint_files(
    folder: Path, *, dataset: str, revision: str, base: str | None
) -> tuple[dict[str, Path | bytes], str | None]:
    """Files of a checkpoint folder by name, and the base model that its adapters need (a Hub id; None: it is whole).

    dataset, revision   where its training data stand on the Hub
    base                Hub id in place of a base model that is a local folder
    HubError if an adapter's base is local and no `base` is given: nobody could load it.
    """
    files: dict[str, Path | bytes] = {p.name: p for pattern in _WEIGHTS for p in sorted(folder.glob(pattern))}
    adapter = folder / "adapter_config.json"
    needed = None
    if adapter.is_file():
        settings = json.loads(adapter.read_text(encoding="utf-8"))
        needed = _on_hub(settings.get("base_model_name_or_path"), base)
        files[adapter.name] = _json({**settings, "base_model_name_or_path": needed})
    for name in ("config.json", "train_config.json"):
        if name in files:
            settings = json.loads((folder / name).read_text(encoding="utf-8"))
            policy = settings if name == "config.json" else settings.get("policy") or {}
            if needed and policy.get("backbone_path"):
                policy["backbone_path"] = needed
            if name == "train_config.json":
                settings["dataset"] |= {"repo_id": dataset, "revision": revision, "root": None}
            files[name] = _json(_without_paths(settings))
    return files, needed


def check_base(train: Mapping[str, Any], base: str | None) -> None:
    """HubError if a train recipe makes adapters whose base model nobody else will have."""
    path = (train.get("policy") or {}).get("backbone_path")
    if train.get("peft") and path is not None:
        _on_hub(path, base)


def local_paths(files: Mapping[str, Path | bytes]) -> list[str]:
    """Absolute paths that are still named in rewritten files: what they point to is not on the Hub."""
    written = [data for name, data in files.items() if name.endswith(".json") and isinstance(data, bytes)]
    return sorted({text for data in written for text in _paths(json.loads(data))})


def _on_hub(base: Any, given: str | None) -> str:
    if given:
        return given
    if not isinstance(base, str) or Path(base).is_absolute() or base.count("/") != 1 or Path(base).exists():
        raise HubError(
            f"the adapters' base model is the local folder '{base}', which nobody else has: name its place on the Hub "
            "with --base OWNER/NAME"
        )
    return base


def _without_paths(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _without_paths(part, name) for name, part in value.items()}
    if isinstance(value, list):
        return [_without_paths(part, key) for part in value]
    return None if key in _LOCAL and isinstance(value, str) and Path(value).is_absolute() else value


def _paths(value: Any) -> list[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [path for part in value for path in _paths(part)]
    return [value] if isinstance(value, str) and Path(value).is_absolute() else []


def _json(data: Any) -> bytes:
    return (json.dumps(data, indent=4) + "\n").encode()
