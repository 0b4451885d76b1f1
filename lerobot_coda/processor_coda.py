"""Pre- and post-processing of `--policy.type=coda`: the backbone's own pipelines (the factory finds this by name)."""

from dataclasses import dataclass
from typing import Any

import torch
from lerobot.lerobot_types import TransitionKey
from lerobot.policies.factory import make_pre_post_processors
from lerobot.processor import ProcessorStep, ProcessorStepRegistry, make_default_pre_post_processors
from torch import Tensor

from lerobot_coda.configuration_coda import LABEL_PREFIX, CodaConfig

IS_PAD = "_is_pad"


def make_coda_pre_post_processors(config: CodaConfig, dataset_stats: dict[str, Any] | None = None) -> tuple[Any, Any]:
    """Both pipelines for a fresh policy; the steps carry the names that resume and evaluation override."""
    config.input_features = config.policy_inputs()
    if config.backbone == "grounded":
        before, after = make_default_pre_post_processors(config, dataset_stats)
    else:
        before, after = make_pre_post_processors(config.family(), dataset_stats=dataset_stats)
    before.steps = [OneObservationARow(), *before.steps]
    return before, after


@dataclass
@ProcessorStepRegistry.register(name="coda_one_observation_a_row")
class OneObservationARow(ProcessorStep):
    """Makes 2B rows of B rows with the observations at t and t+k: first all of t, then all of t+k, tasks likewise.

    So each later step, tokenizers that write the state into the prompt included, sees one observation a row. Actions,
    rewards and the data engine's label columns keep B rows. Terminal frames, which the data engine appends without an
    action, are marked as padding. Anything else, observations without time among them, passes unchanged.
    """

    def __call__(self, transition: dict) -> dict:
        changed = transition.copy()
        seen = dict(transition.get(TransitionKey.OBSERVATION) or {})
        extra = dict(transition.get(TransitionKey.COMPLEMENTARY_DATA) or {})
        action = transition.get(TransitionKey.ACTION)
        if (
            isinstance(action, Tensor)
            and f"action{IS_PAD}" in extra
            and any(key.startswith(LABEL_PREFIX) for key in seen)
        ):
            extra[f"action{IS_PAD}"] = extra[f"action{IS_PAD}"] | (action == 0).all(-1)
        if extra.get(f"observation.state{IS_PAD}", torch.empty(0)).shape[-1] == 2:
            for key, value in seen.items():
                if isinstance(value, Tensor) and not key.startswith(LABEL_PREFIX) and not key.endswith(IS_PAD):
                    seen[key] = value.transpose(0, 1).flatten(0, 1)
            if isinstance(extra.get("task"), list):
                extra["task"] = extra["task"] * 2
        changed[TransitionKey.OBSERVATION], changed[TransitionKey.COMPLEMENTARY_DATA] = seen, extra
        return changed

    def transform_features(self, features: dict) -> dict:
        return features
