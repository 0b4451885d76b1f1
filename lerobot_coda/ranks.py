"""Training in several processes (`accelerate launch`): each sees its part of a batch, the loss is that of the whole.

LeRobot averages the gradients of P processes. A loss that is a plain mean over rows is then the mean over all rows;
one that is weighted needs the others' weights, and a random draw must not be the same one P times.
"""

import torch.distributed as dist
from torch import Tensor


def rank() -> int:
    """Number of this process, from 0."""
    return dist.get_rank() if _several() else 0


def processes() -> int:
    """How many train together; 1 without `accelerate launch`."""
    return dist.get_world_size() if _several() else 1


def summed(value: Tensor) -> Tensor:
    """The sum over all processes of a tensor of the same shape in each, without gradient."""
    if not _several():
        return value.detach()
    total = value.detach().clone()
    dist.all_reduce(total)
    return total


def weighted_mean(values: Tensor, weights: Tensor, floor: float = 1.0) -> Tensor:
    """This process's part of sum(w v) / max(sum(w), floor) over all rows of all processes: the average of the parts.

    values, weights (B, ...) of equal shape; with one process, the weighted mean itself.
    """
    return (values * weights).sum() * processes() / summed(weights.sum()).clamp_min(floor)


def _several() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
