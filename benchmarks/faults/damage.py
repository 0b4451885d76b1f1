"""Ways to damage a checkpoint's files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def edit_config(change: Callable[[dict], object], name: str = "config.json") -> Callable[[Path], None]:
    """Changes a JSON file of a checkpoint."""

    def write(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        change(content)
        (folder / name).unlink()  # the sound checkpoint links to it
        (folder / name).write_text(json.dumps(content))

    return write


def edit_tensors(pattern: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Changes a safetensors file of a checkpoint."""

    def write(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        (path,) = folder.glob(pattern)
        tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
        change(tensors)
        path.unlink()
        save_file(tensors, path)

    return write


def half(name: str) -> Callable[[Path], None]:
    """An interrupted copy of a file."""

    def cut(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).unlink()
        (folder / name).write_bytes(content[: len(content) // 2])

    return cut


def rename(old: str, new: str) -> Callable[[dict], None]:
    """Another key for an input."""

    def change(config: dict) -> None:
        config["input_features"][new] = config["input_features"].pop(old)

    return change


def shape(field: str, key: str, size: int) -> Callable[[dict], None]:
    """Another size of a vector."""

    def change(config: dict) -> None:
        config[field][key]["shape"] = [size]

    return change


def as_adapter(base: str) -> Callable[[Path], None]:
    """A checkpoint that says it is an adapter of `base`."""

    def write(folder: Path) -> None:
        edit_config(lambda config: config.update(use_peft=True))(folder)
        adapter = folder / "adapter_config.json"
        settings = json.loads(adapter.read_text()) if adapter.is_file() else {}
        adapter.write_text(json.dumps({**settings, "base_model_name_or_path": base}))

    return write
