"""The statistics between a policy and its data: LeRobot passes a feature without them as it is, and says nothing."""

from collections.abc import Mapping

import torch
from safetensors.torch import load_file

from lerobot_coda.doctor.check import Verdict, check, fail, ok, warn
from lerobot_coda.doctor.checkpoint import POSTPROCESSOR, PREPROCESSOR, Checkpoint

NORMALIZERS = ("normalizer_processor", "unnormalizer_processor")
STATS = {
    "MEAN_STD": ("mean", "std"),
    "MIN_MAX": ("min", "max"),
    "QUANTILES": ("q01", "q99"),
    "QUANTILE10": ("q10", "q90"),
}
_REMAKE = "make the processors again: `make_pre_post_processors(config, dataset_stats=dataset.meta.stats)`"
_MIGRATE = "run `python -m lerobot.processor.migrate_policy_normalization --pretrained-path FOLDER`"


@check("processors")
def processors(checkpoint: Checkpoint) -> Verdict:
    """Pre- and postprocessor and every file that their steps name."""
    for name in (PREPROCESSOR, POSTPROCESSOR):
        if not (checkpoint.folder / name).is_file():
            return fail(f"{name} is missing, so observations or actions pass unnormalized", _MIGRATE)
        for step in checkpoint.steps(name):
            if step.get("state_file") and not (checkpoint.folder / step["state_file"]).is_file():
                return fail(f"{name} names {step['state_file']}, which is missing", "copy the whole checkpoint folder")
    return ok(f"{PREPROCESSOR} and {POSTPROCESSOR}")


@check("normalization")
def normalization(checkpoint: Checkpoint) -> Verdict:
    """Statistics are there, finite and not degenerate: LeRobot passes a feature without statistics as it is."""
    seen: set[str] = set()
    constant: list[str] = []
    for name in (PREPROCESSOR, POSTPROCESSOR):
        for step in checkpoint.steps(name):
            if step.get("registry_name") not in NORMALIZERS:
                continue
            stats = load_file(checkpoint.folder / step["state_file"]) if step.get("state_file") else {}
            settings = step.get("config", {})
            for key, feature in settings.get("features", {}).items():
                mode = settings.get("norm_map", {}).get(feature["type"], "IDENTITY")
                seen.add(mode)
                if mode == "IDENTITY":
                    continue
                problem, flat = _statistics(key, tuple(feature["shape"]), mode, stats)
                if problem:
                    return fail(f"{name}: {problem}", _REMAKE)
                constant += [f"{key}[{index}]" for index in flat]
    asked = {mode for mode in checkpoint.config.get("normalization_mapping", {}).values() if mode != "IDENTITY"}
    if asked - seen:
        return fail(f"the configuration asks for {', '.join(sorted(asked - seen))}, no processor does it", _MIGRATE)
    if constant:
        return warn(
            f"{', '.join(constant)} never changed in training", "any other value there is blown up: look at the data"
        )
    return ok(", ".join(sorted(seen - {"IDENTITY"})) or "none asked for")


def _statistics(
    key: str, shape: tuple[int, ...], mode: str, stats: Mapping[str, torch.Tensor]
) -> tuple[str, list[int]]:
    """(what is wrong, "" if nothing; numbers of the feature that never changed)."""
    if mode not in STATS:
        return f"'{key}' has the unknown normalization {mode}", []
    names = [f"{key}.{stat}" for stat in STATS[mode]]
    if missing := [name for name in names if name not in stats]:
        return f"no statistics '{missing[0]}' for {mode}", []
    low, high = (stats[name].double().flatten() for name in names)
    for name, values in zip(names, (low, high), strict=True):
        if not torch.isfinite(values).all():
            return f"'{name}' is not finite", []
        if values.numel() not in (1, shape[0]):
            return f"'{name}' has {values.numel()} numbers for {shape[0]}", []
    spread = high if mode == "MEAN_STD" else high - low
    if (spread < 0).any() or (spread == 0).all():
        return f"'{names[1]}' leaves no spread (all zero or negative)", []
    return "", torch.nonzero(spread == 0).flatten().tolist()
