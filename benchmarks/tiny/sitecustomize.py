"""Imported first by every Python that has this folder on its path: what `benchmarks.tiny_vlas` changes of LeRobot.

pi0, pi0.5     LeRobot knows two sizes of them, of billions of parameters; here both are of a few thousand, and their
               tokenizer, which the Hub gives to those alone who signed for it, is one of whole words.
lerobot-eval   keeps what each episode saw and did, as `$TINY_VLAS_KEPT/000.npz` and so on, where that is set.

Each change is made when LeRobot's module has been imported; no process imports one for it.
"""

import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from itertools import count
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

KEPT = "TINY_VLAS_KEPT"


def shrink(module: ModuleType) -> None:
    """Makes a family's module build tiny models."""
    sys.path.append(str(Path(__file__).parents[2] / "tests" / "lerobot_coda"))
    import tinyvlas

    tinyvlas._shrink(SimpleNamespace(setattr=setattr), [module])


def keep_episodes(module: ModuleType) -> None:
    """Makes `lerobot-eval` write every rollout's actions, observations and outcomes."""
    if KEPT not in os.environ:
        return
    import numpy as np

    folder, play, numbers = Path(os.environ[KEPT]), module.rollout, count()
    folder.mkdir(parents=True, exist_ok=True)

    def rollout(*args: Any, **kwargs: Any) -> dict:
        found = play(*args, **{**kwargs, "return_observations": True})
        seen = found.pop("observation")
        arrays = {name: value.numpy() for name, value in {**found, **seen}.items() if hasattr(value, "numpy")}
        np.savez(folder / f"{next(numbers):03d}.npz", **arrays)
        return found

    module.rollout = rollout


CHANGES = {
    "lerobot.policies.pi0.modeling_pi0": shrink,
    "lerobot.policies.pi05.modeling_pi05": shrink,
    "lerobot.scripts.lerobot_eval": keep_episodes,
}


class Changing(MetaPathFinder):
    """Finds the modules that are changed, and changes them when they have been executed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in CHANGES else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            CHANGES[name](module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, Changing())
