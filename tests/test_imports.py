"""Arrows point one way, LeRobot is imported in named places only, and what every command imports is light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

MAY_IMPORT_LEROBOT = {
    "libero_pro/env.py",
    "libero_pro/dataset.py",
    "libero_pro/policy_runner.py",
    "lerobot_coda/configuration_coda.py",
    "lerobot_coda/modeling_coda.py",
    "lerobot_coda/processor_coda.py",
    "lerobot_coda/reading.py",
    "lerobot_coda/training.py",
    "lerobot_coda/backbones/families.py",
    "lerobot_coda/backbones/pi0.py",
    "lerobot_coda/backbones/pi0_fast.py",
    "lerobot_coda/backbones/smolvla.py",
    "lerobot_policy_coda.py",
}


def _imported(path: Path) -> set[str]:
    """Absolute modules imported anywhere in a file, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
    return found


def _sources(repository: Path, package: str) -> list[Path]:
    files = sorted((repository / package).rglob("*.py"))
    assert files, f"no sources in {package}"
    return files


def _top(modules: set[str]) -> set[str]:
    return {module.split(".")[0] for module in modules}


def test_libero_pro_never_imports_lerobot_coda(repository: Path) -> None:
    guilty = [
        path.relative_to(repository).as_posix()
        for path in _sources(repository, "libero_pro")
        if _top(_imported(path)) & {"lerobot_coda", "lerobot_policy_coda"}
    ]
    assert guilty == []


def test_lerobot_is_imported_in_named_places_only(repository: Path) -> None:
    sources = [*_sources(repository, "libero_pro"), *_sources(repository, "lerobot_coda")]
    guilty = {path.relative_to(repository).as_posix() for path in sources if "lerobot" in _top(_imported(path))}
    assert guilty <= MAY_IMPORT_LEROBOT


def test_nothing_unpickles_or_runs_text(repository: Path) -> None:
    guilty = []
    for path in [*_sources(repository, "libero_pro"), *_sources(repository, "lerobot_coda")]:
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        names = {call.id for call in calls if isinstance(call, ast.Name)}
        if names & {"eval", "exec", "compile"} or _top(_imported(path)) & {"pickle", "dill", "cloudpickle", "marshal"}:
            guilty.append(path.relative_to(repository).as_posix())
    assert guilty == []


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("lerobot_coda.cli", ("torch", "mujoco", "robosuite", "libero", "lerobot", "transformers")),
        ("libero_pro.suites", ("torch", "mujoco", "robosuite", "lerobot")),
        ("libero_pro.rollout", ("torch", "mujoco", "robosuite", "lerobot")),
        ("lerobot_coda.preflight", ("numpy", "torch", "mujoco", "pydantic", "libero_pro")),
    ],
)
def test_imports_light(module: str, heavy: tuple[str, ...], repository: Path) -> None:
    code = f"import sys; import {module}; print(*sorted({set(heavy)!r} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == []
