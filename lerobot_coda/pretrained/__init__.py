"""Policies that come with the package: LeRobot checkpoints, each in a folder of its own with a model card."""

from pathlib import Path

from libero_pro.record import RecordError
from libero_pro.suites import nearest

_HERE = Path(__file__).parent


def names() -> list[str]:
    """The shipped policies."""
    return sorted(path.parent.name for path in _HERE.glob("*/config.json"))


def folder(name: str) -> Path:
    """The checkpoint folder of a shipped policy, for `--policy.path`; RecordError if there is none of that name."""
    if name not in names():
        raise RecordError(f"no policy '{name}' is shipped{nearest(name, names())}; there are: {', '.join(names())}")
    return _HERE / name
