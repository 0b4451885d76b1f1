"""The families of backbones by name, and how one is built: from its settings, or with a pretrained policy's weights."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lerobot.policies.factory import get_policy_class

from lerobot_coda.backbones.base import Backbone
from lerobot_coda.backbones.weights import first_lines, load_verified

if TYPE_CHECKING:
    from lerobot_coda.configuration_coda import CodaConfig

# LeRobot policy type -> module below this package and class in it; any other type gets the generic encoder.
FAMILIES = {
    "act": ("act", "ActBackbone"),
    "diffusion": ("diffusion", "DiffusionBackbone"),
    "smolvla": ("smolvla", "SmolVlaBackbone"),
    "pi0": ("pi0", "Pi0Backbone"),
    "pi05": ("pi05", "Pi05Backbone"),
    "pi0_fast": ("pi0_fast", "Pi0FastBackbone"),
    "xvla": ("xvla", "XvlaBackbone"),
}
# Settings of families that fetch pretrained parts, for when a checkpoint's weights replace them anyway.
WITHOUT_WEIGHTS = {"pretrained_backbone_weights": None, "load_vlm_weights": False}


def build_backbone(config: "CodaConfig", *, pretrained: bool = True, **kwargs: Any) -> Backbone:
    """The backbone that a configuration names.

    pretrained  with the weights at `config.backbone_path`, if that is set; False: a checkpoint's weights follow
    kwargs      what LeRobot gives policies beside their configuration: dataset_stats, dataset_meta
    Raises ValueError when the weights don't fit, or were not really loaded, and when the family lacks a package or a
    file of the hub.
    """
    if config.backbone == "grounded":
        from lerobot_coda.backbones.grounded_adapter import GroundedAdapter

        return GroundedAdapter(config)
    family = config.family()
    policy_class = get_policy_class(config.backbone)
    if config.backbone_path or not pretrained:
        for name, value in WITHOUT_WEIGHTS.items():
            if hasattr(family, name):
                setattr(family, name, value)
    try:
        if pretrained and config.backbone_path:
            policy = load_verified(policy_class, config.backbone_path, family, **kwargs)
        else:
            policy = policy_class(family, **kwargs)
    except (ImportError, OSError, RuntimeError) as error:  # the last is what pi0_fast makes of a missing tokenizer
        reason = first_lines(error.__cause__ or error)
        raise ValueError(f"the backbone '{config.backbone}' can't be built here: {reason}") from None
    module, name = FAMILIES.get(config.backbone, ("generic", "GenericBackbone"))
    adapter = getattr(import_module(f"lerobot_coda.backbones.{module}"), name)
    return adapter(policy, config.feature_cache_gb)
