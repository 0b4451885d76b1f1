"""Faults of a checkpoint: configuration, features, processors, statistics, weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.faults.bench import Bench, Fault, Kind
from benchmarks.faults.damage import as_adapter, edit_config, edit_tensors, half, rename, shape
from lerobot_coda.doctor.check import Finding, attempt


def broken(check: str, break_it: Callable[[Path], object] | None = None) -> Callable[[Bench], Finding]:
    """Looks at a copy of the sound checkpoint after something was done to it; None: nothing."""

    def look(bench: Bench) -> Finding:
        from lerobot_coda.doctor import checkpoint, policy

        folder = bench.copy()
        if break_it is not None:
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
