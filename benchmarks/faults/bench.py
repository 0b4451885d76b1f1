"""What faults are planted in, and what makes one count as named."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lerobot_coda.doctor import simulator
from lerobot_coda.doctor.check import Finding

Kind = Literal["machine", "render", "simulator", "policy"]


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
