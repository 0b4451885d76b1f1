"""Pre- and post-processing of `--policy.type=coda`: LeRobot's default pipelines (the factory finds this by name)."""

from typing import Any

from lerobot.processor import make_default_pre_post_processors

from lerobot_coda.configuration_coda import CodaConfig


def make_coda_pre_post_processors(config: CodaConfig, dataset_stats: dict[str, Any] | None = None) -> tuple[Any, Any]:
    """Both pipelines for a fresh policy; the steps carry the names that resume and evaluation override."""
    config.input_features = config.policy_inputs()
    return make_default_pre_post_processors(config, dataset_stats)
