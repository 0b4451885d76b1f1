"""What a policy takes and gives, against what LIBERO gives and takes: cameras, state, action, chunk."""

import json

from lerobot_coda.doctor.check import Verdict, check, fail, ok, warn
from lerobot_coda.doctor.checkpoint import PREPROCESSOR, Checkpoint
from libero_pro.policy_runner import CAMERA_KEYS

STATE_SIZE, ACTION_SIZE = 8, 7
LONG = 20  # control steps (a second) without a look; LIBERO results fall beyond about 10


@check("config")
def configured(checkpoint: Checkpoint) -> Verdict:
    """The policy's type, and that it acts on a single observation."""
    if checkpoint.config.get("n_obs_steps", 1) != 1:
        return warn(
            f"{checkpoint.config['type']} looks back over {checkpoint.config['n_obs_steps']} observations",
            "evaluate it with lerobot-eval; `lerobot-coda benchmark` infers from a single one",
        )
    return ok(f"policy type '{checkpoint.config['type']}'")


@check("policy cameras")
def cameras(checkpoint: Checkpoint) -> Verdict:
    """The policy's image keys are LIBERO's, its images square and channels first."""
    images = checkpoint.features("input_features", "VISUAL")
    wanted = sorted(key for key in images if "empty_camera" not in key)
    known = set(CAMERA_KEYS.values())
    if not wanted:
        return warn("the policy looks at no camera", "add image features unless it is meant to act blindly")
    if len(wanted) > len(known):
        return fail(f"the policy looks at {', '.join(wanted)}", f"train it on {' and '.join(sorted(known))} only")
    if not set(wanted) <= known:
        renamed = json.dumps(
            {CAMERA_KEYS[camera]: key for camera, key in camera_keys(checkpoint).items() if key in wanted}
        )
        return fail(
            f"the policy looks at {', '.join(key for key in wanted if key not in known)}, LIBERO has "
            f"{' and '.join(sorted(known))}",
            f"pass --rename_map='{renamed}' to lerobot-eval, --rename-map to `lerobot-coda benchmark`",
        )
    for key in wanted:
        shape = images[key]
        if len(shape) != 3 or shape[0] not in (1, 3):
            return fail(f"{key} has shape {shape}", "save features as (channels, height, width)")
        if shape[1] != shape[2]:
            return warn(f"{key} has shape {shape}", "LIBERO's images are square: the policy will see them stretched")
    saved = _rename_map(checkpoint)
    if saved:
        return warn(f"the preprocessor renames {', '.join(saved)}",
                    f"lerobot-eval forgets that: pass --rename_map='{json.dumps(saved)}' again")  # fmt: skip
    return ok(f"{' and '.join(wanted)}, {images[wanted[0]][1]} pixels")


@check("policy state")
def state_size(checkpoint: Checkpoint) -> Verdict:
    """`observation.state` has LIBERO's 8 numbers, and the policy wants no other state."""
    states = checkpoint.features("input_features", "STATE")
    if not states:
        return warn("the policy sees no state", "fine if it was trained so; else add observation.state")
    for key, shape in states.items():
        if key != "observation.state":
            return fail(f"the policy wants '{key}', which LIBERO does not give", "train it on observation.state only")
        if shape != (STATE_SIZE,):
            return fail(
                f"the policy wants a state of {shape}, LIBERO gives ({STATE_SIZE},)",
                "train on position, axis-angle and both finger joints (HuggingFaceVLA/libero has them)",
            )
    return ok("observation.state (8,)")


@check("policy action")
def action_size(checkpoint: Checkpoint) -> Verdict:
    """The policy gives 7 numbers."""
    found = checkpoint.features("output_features", "ACTION")
    if found.get("action") != (ACTION_SIZE,):
        return fail(
            f"the policy gives actions of {found.get('action', 'no kind')}, LIBERO takes ({ACTION_SIZE},)",
            "train on 3 translations, 3 rotations and the gripper",
        )
    return ok("action (7,)")


@check("chunk")
def chunk(checkpoint: Checkpoint) -> Verdict:
    """How many actions are predicted and executed at a time: the setting that moves LIBERO numbers most."""
    size = checkpoint.config.get("chunk_size") or checkpoint.config.get("horizon")
    steps = checkpoint.config.get("n_action_steps") or size or 1
    if size is not None and not 1 <= steps <= size:
        return fail(
            f"n_action_steps is {steps}, but chunks have {size} actions", f"set it to 1 to {size} in config.json"
        )
    found = f"executes {steps} of {size or 1} predicted actions"
    if steps > LONG:
        return warn(
            f"{found}: {steps / 20:g} s without a look", "try --policy.n_action_steps=10 and report what you use"
        )
    return ok(found)


def camera_keys(checkpoint: Checkpoint) -> dict[str, str]:
    """Camera -> the policy's image key: LIBERO's own, else by name (wrist, hand, gripper), else in order."""
    wanted = sorted(key for key in checkpoint.features("input_features", "VISUAL") if "empty_camera" not in key)
    free = [key for key in wanted if key not in CAMERA_KEYS.values()]
    keys = {camera: key for camera, key in CAMERA_KEYS.items() if key in wanted}
    on_wrist = [key for key in free if any(word in key for word in ("wrist", "hand", "gripper"))]
    if "wrist" not in keys and on_wrist:
        keys["wrist"] = on_wrist[0]
    for key in free:
        camera = next((camera for camera in CAMERA_KEYS if camera not in keys), None)
        if camera is not None and key not in keys.values():
            keys[camera] = key
    return {**CAMERA_KEYS, **keys}


def _rename_map(checkpoint: Checkpoint) -> dict[str, str]:
    renaming = (
        step["config"]["rename_map"]
        for step in checkpoint.steps(PREPROCESSOR)
        if step.get("registry_name") == "rename_observations_processor"
    )
    return next(renaming, {})
