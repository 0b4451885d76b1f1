"""Any LeRobot checkpoint as a chunk policy: its own processors, its own weights, LIBERO's camera names."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lerobot.configs import FeatureType, PreTrainedConfig
from lerobot.envs.utils import preprocess_observation
from lerobot.policies import make_policy, make_pre_post_processors
from lerobot.utils.import_utils import register_third_party_plugins

from libero_pro.env import LiberoProEnv
from libero_pro.footage import LABELS
from libero_pro.record import RecordError
from libero_pro.rollout import Observation

# The keys that LeRobot's LIBERO environments and datasets use.
CAMERA_KEYS = {"agentview": "observation.images.image", "wrist": "observation.images.image2"}


class LeRobotChunkPolicy:
    """Runs a policy as `lerobot-eval` would, a whole chunk at a time.

    On a CPU each observation is inferred by itself, so that its actions do not depend on which others wait with it;
    on an accelerator the waiting ones form a batch. Draws (diffusion, flow matching) are seeded by the observation.

    policy          a loaded `PreTrainedPolicy`, or one wrapped by PEFT
    camera_keys     camera -> the policy's image key
    n_action_steps  steps executed of each chunk; None: the checkpoint's own setting
    threads         of torch during inference; one is fastest beside simulator processes
    """

    def __init__(
        self,
        policy: Any,
        preprocessor: Any,
        postprocessor: Any,
        *,
        actor: str,
        n_action_steps: int | None = None,
        camera_keys: Mapping[str, str] = CAMERA_KEYS,
        threads: int = 1,
    ):
        config = policy.config
        if getattr(config, "n_obs_steps", 1) > 1:
            raise RecordError(
                f"{actor}: n_obs_steps is {config.n_obs_steps}, but chunks are inferred from a single observation; "
                "evaluate this policy with lerobot-eval"
            )
        visual = check_features(config.input_features, config.output_features, camera_keys, actor)
        chunk = getattr(config, "chunk_size", None) or getattr(config, "horizon", None)
        steps = n_action_steps or getattr(config, "n_action_steps", None) or chunk or 1
        if chunk is not None and not 1 <= steps <= chunk:
            raise RecordError(f"n_action_steps must be 1 to {chunk}, this policy's chunk, not {steps}")
        self.actor = actor
        self.cameras = tuple(camera for camera, key in camera_keys.items() if key in visual)
        self.n_action_steps = int(steps)
        self.image_size = next((int(visual[key].shape[-1]) for key in sorted(visual)), None)
        self.policy = policy
        self._keys = dict(camera_keys)
        self._pre, self._post = preprocessor, postprocessor
        self._batched = torch.device(config.device).type != "cpu"
        self._limit = threads

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        *,
        device: str = "cpu",
        n_action_steps: int | None = None,
        camera_keys: Mapping[str, str] = CAMERA_KEYS,
        threads: int = 1,
    ) -> "LeRobotChunkPolicy":
        """Loads a checkpoint folder (`.../pretrained_model`) or a Hub repository, PEFT adapters included.

        RecordError, before anything is simulated, if it is no checkpoint, is damaged, or needs what LIBERO-Pro lacks.
        """
        register_third_party_plugins()
        path = checkpoint_folder(path)
        actor = f"policy:{checkpoint_id(path)}"
        with _damage(path, "its configuration"):
            config = PreTrainedConfig.from_pretrained(path, cli_overrides=[f"--device={device}"])
        config.pretrained_path = path
        if config.input_features:
            check_features(config.input_features, config.output_features or {}, camera_keys, actor)
        weights = "adapter_model.safetensors" if config.use_peft else "model.safetensors"
        if not (path / weights).is_file():
            raise RecordError(f"{path} holds no weights: {weights} is missing; copy the whole checkpoint folder")
        with _damage(path, "its weights"):
            # An identity map: the cameras' names are checked above, with how to map them.
            policy = make_policy(config, env_cfg=LiberoProEnv(), rename_map={key: key for key in camera_keys.values()})
        policy.eval()
        _check_weights(policy, path)
        with _damage(path, "its processors"):
            pre, post = make_pre_post_processors(
                config,
                pretrained_path=str(path),
                preprocessor_overrides={"device_processor": {"device": config.device}},
            )
        return cls(
            policy,
            pre,
            post,
            actor=actor,
            n_action_steps=n_action_steps,
            camera_keys=camera_keys,
            threads=threads,
        )

    def reset(self) -> None:
        """Forgets queued actions."""
        self.policy.reset()

    def act(self, observations: list[Observation]) -> np.ndarray:
        """Actions (B, n_action_steps, 7) float32, unnormalized and clipped to the controller's range."""
        groups = [observations] if self._batched else [[observation] for observation in observations]
        with _threads(self._limit), torch.inference_mode():
            return np.concatenate([self._infer(group) for group in groups])

    def _infer(self, group: Sequence[Observation]) -> np.ndarray:
        raw: dict[str, Any] = {"agent_pos": np.stack([o.state for o in group])}
        batch = preprocess_observation(raw)
        for camera in self.cameras:
            pixels = np.stack([o.images[camera] for o in group])
            image = preprocess_observation({"pixels": {"image": pixels}})["observation.images.image"]
            batch[self._keys[camera]] = image
        batch["task"] = [o.prompt for o in group]
        batch = self._pre(batch)
        with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if self._batched else []):
            torch.manual_seed(group[0].seed)
            chunk = self.policy.predict_action_chunk(batch)[:, : self.n_action_steps]
        # One step at a time, as lerobot-eval feeds its postprocessor: (B, 7).
        steps = [self._post(chunk[:, t]) for t in range(chunk.shape[1])]
        actions = torch.stack([step.to("cpu", torch.float32) for step in steps], dim=1).numpy()
        return np.clip(actions, -1.0, 1.0)


def check_features(
    inputs: Mapping[str, Any], outputs: Mapping[str, Any], camera_keys: Mapping[str, str], actor: str
) -> dict[str, Any]:
    """The images that a policy looks at, by key; RecordError if it needs what LIBERO-Pro does not give.

    LIBERO-Pro gives two cameras and 8 numbers of state, and takes 7 numbers of action.
    """
    # `empty_camera` inputs are placeholders that policies fill themselves.
    visual = {key: ft for key, ft in inputs.items() if ft.type is FeatureType.VISUAL and "empty_camera" not in key}
    if len(visual) > len(camera_keys):
        raise RecordError(
            f"{actor} looks at {len(visual)} cameras ({', '.join(sorted(visual))}), but LIBERO-Pro has "
            f"{len(camera_keys)} ({', '.join(camera_keys)}); evaluate a policy that was trained on these"
        )
    unnamed = visual.keys() - set(camera_keys.values())
    if unnamed:
        raise RecordError(
            f"{actor} looks at {', '.join(sorted(unnamed))}; say which camera that is, e.g. --rename-map "
            '\'{"observation.images.image": "observation.images.camera1"}\' (`image` is agentview, `image2` the wrist)'
        )
    for features, key, size in ((inputs, "observation.state", 8), (outputs, "action", 7)):
        shape = tuple(features[key].shape) if key in features else None
        if shape not in (None, (size,)):
            raise RecordError(f"{actor}: {key} has shape {shape}, but LIBERO-Pro's is ({size},); retrain it on LIBERO")
    # LeRobot declares every observation column of a dataset, so its policies name labels that they never look at.
    known = [key for key in inputs if key == "observation.state" or key.startswith(LABELS)]
    lacking = [key for key, ft in inputs.items() if ft.type is not FeatureType.VISUAL and key not in known]
    if lacking:
        raise RecordError(f"{actor} needs {', '.join(sorted(lacking))}, which LIBERO-Pro does not give")
    return visual


def checkpoint_folder(path: str | Path) -> Path:
    """The local folder of a checkpoint: itself, or the download of a Hub repository `owner/name`; else RecordError."""
    folder = Path(path)
    if not folder.exists() and re.fullmatch(r"[\w.-]+/[\w.-]+", str(path)):
        from huggingface_hub import snapshot_download

        try:
            return Path(snapshot_download(str(path)))
        except Exception as error:  # offline, private, absent: the hub's own classes differ by version
            reason = str(error).strip().splitlines()[0]
            raise RecordError(f"{path} is neither a folder nor a Hub repository that can be read: {reason}") from None
    if not (folder / "config.json").is_file():
        nested = folder / "pretrained_model"
        hint = f"; did you mean {nested}?" if (nested / "config.json").is_file() else ""
        raise RecordError(f"{path} is not a LeRobot checkpoint: it has no config.json{hint}")
    return folder


def checkpoint_id(path: str | Path) -> str:
    """First 12 hex digits of the SHA-256 over a checkpoint's configuration, processors and weights."""
    digest = hashlib.sha256()
    for file in sorted(Path(path).iterdir()):
        if file.suffix in (".json", ".safetensors") and file.name != "train_config.json":
            digest.update(file.name.encode())
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:12]


def _check_weights(policy: Any, path: Path) -> None:
    """Some LeRobot loaders print a failure and go on with random weights: compares a few tensors with the file."""
    from safetensors import safe_open

    file = path / "model.safetensors"
    if not file.is_file():
        return
    loaded = policy.state_dict()
    with safe_open(file, framework="pt") as stored:
        names = [name for name in stored.keys() if name in loaded]  # noqa: SIM118 (not a dict)
        for name in names[:: max(1, len(names) // 8)]:
            tensor, mine = stored.get_tensor(name), loaded[name].cpu()
            if tensor.shape != mine.shape or not torch.equal(tensor.to(mine.dtype), mine):
                raise RecordError(f"{path}: weight '{name}' was not loaded; the file and this policy code do not match")


@contextmanager
def _damage(path: Path, what: str) -> Iterator[None]:
    """One sentence for the dozen ways in which LeRobot's loaders fail on a damaged or foreign checkpoint."""
    try:
        yield
    except RecordError:
        raise
    except (Exception, SystemExit) as error:  # draccus leaves through argparse
        lines = [line for line in str(error).splitlines() if line.strip()] or ["no reason given"]
        raise RecordError(
            f"{path}: {what} cannot be loaded ({type(error).__name__}: {lines[0].strip()[:300]}); "
            "copy the checkpoint folder again, or check that the policy's package is installed"
        ) from error


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
