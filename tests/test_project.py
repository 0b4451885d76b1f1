"""The project's own files: what is installed, under which name, and what `make setup` does and says."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

SYSTEM_TOOLS = ("sh", "cat", "cksum", "grep", "dirname", "env")


def _tools(folder: Path, *names: str) -> Path:
    """A folder for PATH that holds a few system tools and no Python."""
    folder.mkdir()
    for name in names:
        found = shutil.which(name)
        assert found, f"{name} is needed by this test"
        (folder / name).symlink_to(found)
    return folder


def _script(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + body)
    path.chmod(0o755)


def _find(repository: Path, path: Path, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [shutil.which("sh") or "sh", "scripts/find_python.sh", *arguments],
        cwd=repository,
        env={"PATH": str(path), "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def _system_python_is_absent() -> bool:
    return not any(Path(path).exists() for path in ("/usr/local/bin/python3.12", "/opt/homebrew/bin/python3.12"))


def test_metadata_name_keeps_its_underscores() -> None:
    """LeRobot matches the literal name: a build that normalizes it to dashes makes the plugin disappear."""
    assert metadata.distribution("lerobot_policy_coda").metadata["Name"] == "lerobot_policy_coda"


@pytest.mark.e2e
def test_lerobots_own_discovery_registers_policy_and_environment_and_loads_no_simulator() -> None:
    code = (
        "import sys; from lerobot.utils.import_utils import register_third_party_plugins as register; register()\n"
        "from lerobot.configs.policies import PreTrainedConfig; from lerobot.envs.configs import EnvConfig\n"
        "print('coda' in PreTrainedConfig.get_known_choices(), 'libero_pro' in EnvConfig.get_known_choices())\n"
        "heavy = {'mujoco', 'robosuite', 'libero', 'lerobot.envs.libero', 'efficientnet_lite_pytorch'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.stdout.splitlines() == ["True True", "[]"], run.stderr


def test_constraints_pin_every_direct_dependency_and_nothing_else(repository: Path) -> None:
    lines = [line for line in (repository / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+", line) for line in lines)
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in lines}
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    own = next(text for text in extras["dev"] if text.startswith(project["name"]))  # other extras, by name
    wanted = [*project["dependencies"], *(text for text in extras["dev"] if text != own)]
    wanted += [text for extra in re.findall(r"[a-z]+", own.partition("[")[2]) for text in extras[extra]]
    names = {re.match(r"[A-Za-z0-9._-]+", text)[0].lower().replace("_", "-") for text in wanted}  # type: ignore[index]
    assert names - pinned == set()
    assert not any(name.startswith("nvidia-") for name in pinned)  # torch's platform decides


def test_the_finder_finds_this_python(repository: Path, tmp_path: Path) -> None:
    path = _tools(tmp_path / "bin", *SYSTEM_TOOLS)
    (path / "python3.12").symlink_to(sys._base_executable)  # type: ignore[attr-defined]
    run = _find(repository, path, tmp_path)
    assert run.returncode == 0, run.stderr
    found = subprocess.run([run.stdout.strip(), "-c", "import sys; print(sys.version_info[:2])"], capture_output=True)
    assert found.stdout.strip() == b"(3, 12)"


def test_the_finder_asks_pyenv_when_its_shim_is_not_active(repository: Path, tmp_path: Path) -> None:
    path = _tools(tmp_path / "bin", *SYSTEM_TOOLS)
    _script(path / "python3.12", 'echo "pyenv: python3.12: command not found" >&2; exit 127\n')
    _script(
        path / "pyenv", f'case "$1" in root) echo "{tmp_path}/root";; versions) printf "3.11.7\\n3.12.1\\n";; esac\n'
    )
    _script(tmp_path / "root/versions/3.12.1/bin/python", f'exec "{sys._base_executable}" "$@"\n')  # type: ignore[attr-defined]
    run = _find(repository, path, tmp_path)
    assert run.returncode == 0, run.stderr
    assert Path(run.stdout.strip()).exists()


def test_the_finder_asks_uv(repository: Path, tmp_path: Path) -> None:
    path = _tools(tmp_path / "bin", *SYSTEM_TOOLS)
    _script(path / "uv", f'[ "$*" = "python find 3.12" ] && echo "{sys._base_executable}"\n')  # type: ignore[attr-defined]
    run = _find(repository, path, tmp_path)
    assert run.returncode == 0, run.stderr


@pytest.mark.skipif(not _system_python_is_absent(), reason="a system-wide Python 3.12 is found here, rightly")
def test_without_python_the_finder_says_what_to_install(repository: Path, tmp_path: Path) -> None:
    run = _find(repository, _tools(tmp_path / "bin", *SYSTEM_TOOLS), tmp_path)
    assert run.returncode == 1
    assert run.stdout == ""
    assert len(run.stderr.strip().splitlines()) == 1
    assert "Python 3.12 was not found" in run.stderr and "uv python install 3.12" in run.stderr


@pytest.mark.skipif(not _system_python_is_absent(), reason="a system-wide Python 3.12 is found here, rightly")
def test_another_python_is_not_taken(repository: Path, tmp_path: Path) -> None:
    path = _tools(tmp_path / "bin", *SYSTEM_TOOLS)
    _script(path / "python3", "echo ''\n")  # what a Python 3.11 answers to the finder's question
    run = _find(repository, path, tmp_path)
    assert run.returncode == 1 and "Python 3.12 was not found" in run.stderr


def test_a_wrong_python_given_by_hand_is_refused(repository: Path, tmp_path: Path) -> None:
    path = _tools(tmp_path / "bin", *SYSTEM_TOOLS)
    run = _find(repository, path, tmp_path, "/bin/false")
    assert run.returncode == 1
    assert "/bin/false is not a Python 3.12" in run.stderr


@pytest.fixture
def checkout(repository: Path, tmp_path: Path) -> Path:
    """A checkout's project files with a .venv whose `python` only writes down how it was called."""
    root = tmp_path / "checkout"
    (root / "scripts").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "scripts/find_python.sh"):
        shutil.copy(repository / name, root / name)
    _script(root / ".venv/bin/python", 'echo "$@" >> calls.txt\n')
    return root


def _make(root: Path, target: str, **env: str) -> subprocess.CompletedProcess[str]:
    cleared = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "--no-print-directory", target]
    return subprocess.run(command, cwd=root, env={**cleared, **env}, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(("target", "installed"), [("setup", "-e . -c"), ("setup-dev", "-e .[dev] -c")])
def test_setup_installs_once_and_again_only_when_dependencies_change(checkout: Path, target, installed) -> None:
    calls = checkout / "calls.txt"
    assert _make(checkout, target).returncode == 0
    assert f"{installed} constraints.txt" in calls.read_text()
    calls.unlink()
    second = _make(checkout, "setup")  # what the tests need is more than the package
    assert second.returncode == 0 and second.stdout == "" and not calls.exists()
    with (checkout / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    assert _make(checkout, "setup").returncode == 0
    assert "pip install" in calls.read_text()


def test_a_failed_installation_is_not_taken_for_done(checkout: Path) -> None:
    _script(checkout / ".venv/bin/python", 'case "$*" in *install*) exit 1;; esac\n')
    assert _make(checkout, "setup").returncode != 0
    assert not (checkout / ".venv/.installed").exists()


def test_setup_refuses_an_environment_of_another_python(checkout: Path) -> None:
    _script(checkout / ".venv/bin/python", 'case "$*" in *version_info*) exit 1;; esac\n')
    run = _make(checkout, "setup")
    assert run.returncode != 0
    assert "another Python than 3.12" in run.stderr and "make clean" in run.stderr


def test_setup_without_python_stops_before_making_anything(checkout: Path, tmp_path: Path) -> None:
    shutil.rmtree(checkout / ".venv")
    (checkout / "scripts/find_python.sh").write_text("echo 'Python 3.12 was not found' >&2; exit 1\n")
    run = _make(checkout, "setup")
    assert run.returncode != 0
    assert "Python 3.12 was not found" in run.stderr
    assert not (checkout / ".venv").exists()


@pytest.fixture(scope="module")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The distribution as it would be published (the modules may be empty: its metadata is what counts)."""
    root = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE", "lerobot_policy_coda.py"):
        shutil.copy(repository / name, root / name)
    for package in ("libero_pro", "lerobot_coda"):
        (root / package).mkdir()
        (root / package / "__init__.py").touch()
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", "out", "."]
    subprocess.run(command, cwd=root, check=True, capture_output=True, timeout=120)
    return next((root / "out").glob("*.whl"))


@pytest.mark.e2e
def test_a_built_wheel_keeps_the_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        found = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        assert "\nName: lerobot_policy_coda\n" in archive.read(found).decode()


@pytest.mark.e2e
def test_python_311_is_refused_by_pip(wheel: Path, tmp_path: Path) -> None:
    """`pip install` on another Python stops before it downloads anything, with pip's own sentence."""
    other = next((found for found in _other_pythons() if found), None)
    if other is None:
        pytest.skip("no other Python here")
    command = [other, "-m", "pip", "install", "--no-deps", "--no-index", "--target", str(tmp_path), str(wheel)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode != 0
    assert "requires a different Python" in run.stderr and ">=3.12" in run.stderr


@pytest.mark.e2e
def test_python_311_is_named_by_the_preflight(repository: Path) -> None:
    other = next((found for found in _other_pythons() if found), None)
    if other is None:
        pytest.skip("no other Python here")
    run = subprocess.run([other, "-m", "lerobot_coda.preflight"], cwd=repository, capture_output=True, text=True)
    assert run.returncode == 2
    assert re.fullmatch(r"Python 3\.1[013] cannot run lerobot-coda, which needs Python 3\.12: .*\n", run.stdout), (
        run.stderr
    )


def _other_pythons() -> list[str | None]:
    """Interpreters of other versions that really run (a pyenv shim may not)."""
    candidates = [shutil.which(name) for name in ("python3.11", "python3.10", "python3.13")]
    candidates += [str(path) for path in sorted(Path.home().glob(".pyenv/versions/3.1[013]*/bin/python"))]
    found: list[str | None] = []
    for candidate in candidates:
        if candidate and subprocess.run([candidate, "-c", "import pip"], capture_output=True).returncode == 0:
            found.append(candidate)
    return found


def test_readme_names_the_gl_packages_and_the_two_commands(repository: Path) -> None:
    text = (repository / "README.md").read_text()
    for needed in ("libegl1", "libgl1-mesa-dri", "libosmesa6", "make setup", "make demo", "Python 3.12"):
        assert needed in text


def test_ci_runs_the_tests(repository: Path) -> None:
    script = repository / ".ci/run"
    assert os.access(script, os.X_OK)
    assert "make test" in script.read_text() and "set -euo pipefail" in script.read_text()
