"""A checkpoint folder as its files are: JSON and safetensors, before anything is loaded."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from libero_pro.policy_runner import checkpoint_folder
from libero_pro.record import RecordError

PREPROCESSOR, POSTPROCESSOR = "policy_preprocessor.json", "policy_postprocessor.json"


@dataclass(frozen=True)
class Checkpoint:
    """A folder that `save_pretrained` or `lerobot-train` wrote, and its config.json."""

    folder: Path
    config: dict[str, Any]

    def features(self, field: str, kind: str) -> dict[str, tuple[int, ...]]:
        """Key -> shape of the `input_features` or `output_features` of one type (VISUAL, STATE, ACTION)."""
        features = self.config.get(field) or {}
        return {key: tuple(feature["shape"]) for key, feature in features.items() if feature["type"] == kind}

    def steps(self, processor: str) -> list[dict[str, Any]]:
        """Steps of a processor file; none if it is missing."""
        path = self.folder / processor
        return read_json(path)["steps"] if path.is_file() else []

    @property
    def is_adapter(self) -> bool:
        """Whether the weights are PEFT's, on top of another checkpoint."""
        return bool(self.config.get("use_peft"))

    @property
    def weights(self) -> Path:
        """The file of its weights."""
        return self.folder / ("adapter_model.safetensors" if self.is_adapter else "model.safetensors")


def read(path: str) -> Checkpoint:
    """A folder or Hub repository as a checkpoint; RecordError says what stands in its place."""
    folder = checkpoint_folder(path)
    config = read_json(folder / "config.json")
    if not isinstance(config, dict) or not isinstance(config.get("type"), str):
        raise RecordError(f"{folder / 'config.json'} names no policy type; it is not LeRobot's configuration")
    return Checkpoint(folder, config)


def read_json(path: Path) -> Any:
    """The content of a JSON file; RecordError if it is not one."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RecordError(f"{path} is not JSON ({error}); copy it again") from None
