"""A small vision-language-action backbone that grounds the instruction before it acts.

The instruction asks two questions of the image, "where is the thing to move" and "where does it go". Each is a query
matched against a key map over the image; the answer is a point on the image and in the world. The action chunk is a
function of these points and of proprioception. Everything but the frozen vision and language trunks is trained.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lerobot_coda.backbones.language import EMBEDDING_SIZE
from lerobot_coda.backbones.vision import COARSE_CHANNELS, FINE_CHANNELS
from lerobot_coda.ranks import weighted_mean

ROLES = ("target", "receptacle")
WINDOW = 2.5  # cells around the peak that the sub-cell position is averaged over
REACH = 2.0  # cells that a vote can point away from its cell
TARGET_SPREAD = 0.8  # standard deviation of the heat map's label, in cells
WORLD_SCALE = 0.3  # metres that count as one unit inside the network


@dataclass(frozen=True)
class Grounding:
    """Answers for the two roles. logits (B, 2, H, W); image (B, 2, 2) u, v in [0, 1]; world (B, 2, 3) metres;
    appearance (B, 2, width) key features at the answer."""

    logits: Tensor
    image: Tensor
    world: Tensor
    appearance: Tensor

    def detach(self) -> "Grounding":
        return Grounding(self.logits.detach(), self.image.detach(), self.world.detach(), self.appearance.detach())


def mlp(inputs: int, hidden: int, outputs: int, layers: int = 2) -> nn.Sequential:
    """Linear - LayerNorm - GELU blocks and a linear output."""
    blocks: list[nn.Module] = []
    for _ in range(layers):
        blocks += [nn.Linear(inputs, hidden), nn.LayerNorm(hidden), nn.GELU()]
        inputs = hidden
    return nn.Sequential(*blocks, nn.Linear(inputs, outputs))


class GroundedBackbone(nn.Module):
    """Feature maps + sentence vector + proprioception -> grounding, head features, action chunk."""

    def __init__(self, chunk_size: int, width: int = 64, hidden: int = 512):
        super().__init__()
        self.chunk_size, self.width = chunk_size, width
        self.fine = nn.Conv2d(FINE_CHANNELS, width, 1)
        self.coarse = nn.Conv2d(COARSE_CHANNELS, width, 1)
        self.norm = nn.GroupNorm(8, width)
        self.mix = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, groups=width),
            nn.Conv2d(width, 2 * width, 1),
            nn.GELU(),
            nn.Conv2d(2 * width, width, 1),
        )
        self.query = mlp(EMBEDDING_SIZE, 256, len(ROLES) * width, layers=1)
        self.sharpness = nn.Parameter(torch.tensor(2.0))
        self.offset = nn.Conv2d(width, 2, 1)
        self.point = mlp(2 + 8 + 2 * width, 128, 3)
        self.instruction = nn.Sequential(nn.Linear(EMBEDDING_SIZE, 32), nn.GELU())
        self.features_size = 1 + 6 + 2 + 2 * 9 + 9 + 32 + 2 * 16
        self.appearance = nn.Linear(width, 16)
        self.action = mlp(self.features_size, hidden, chunk_size * 7, layers=3)

    def key_map(self, fine: Tensor, coarse: Tensor) -> Tensor:
        """Keys (B, width, H, W) on the fine grid from both feature maps."""
        # a third faster on a CPU, where the features come channels first from the cache
        fine, coarse = (m.float().contiguous(memory_format=torch.channels_last) for m in (fine, coarse))
        up = F.interpolate(self.coarse(coarse), size=fine.shape[-2:], mode="bilinear", align_corners=False)
        x = F.gelu(self.norm(self.fine(fine) + up))
        return x + self.mix(x)

    def ground(self, keys: Tensor, sentence: Tensor) -> Grounding:
        """Points for Q questions an image: keys (B, width, H, W), sentence (B, 384) or (B, Q, 384).

        With Q questions the results have B * Q rows, image-major.
        """
        if sentence.dim() == 2:
            sentence = sentence[:, None]
        batch, questions = sentence.shape[:2]
        height, cols = keys.shape[-2:]
        query = self.query(sentence).view(batch, questions * len(ROLES), self.width)
        flat = keys.flatten(2)
        logits = torch.einsum("bqc,bcn->bqn", query, flat) * (self.sharpness.exp() / self.width)
        rows = torch.arange(height, device=keys.device, dtype=torch.float32).repeat_interleave(cols)
        columns = torch.arange(cols, device=keys.device, dtype=torch.float32).repeat(height)
        peak = logits.detach().argmax(-1)
        far = ((rows[peak][..., None] - rows).abs() > WINDOW) | ((columns[peak][..., None] - columns).abs() > WINDOW)
        near = logits.masked_fill(far, float("-inf")).softmax(-1)
        # Every cell near the peak votes for the centre of what it sees: finer than the grid.
        du, dv = (REACH * torch.tanh(self.offset(keys))).flatten(2).unsqueeze(2).unbind(1)
        u = ((near * (columns + du)).sum(-1) + 0.5) / cols
        v = ((near * (rows + dv)).sum(-1) + 0.5) / height
        image = torch.stack([u, v], -1)
        appearance = torch.einsum("bqn,bcn->bqc", near, flat)
        waves = torch.cat([torch.sin(image * f * torch.pi) for f in (1.0, 2.0, 4.0, 8.0)], -1)
        world = self.point(torch.cat([image * 2 - 1, waves, appearance, query], -1)) * WORLD_SCALE
        total = batch * questions
        return Grounding(
            logits.view(total, len(ROLES), height, cols),
            image.view(total, len(ROLES), 2),
            world.view(total, len(ROLES), 3),
            appearance.view(total, len(ROLES), self.width),
        )

    def head_features(self, grounding: Grounding, sentence: Tensor, state: Tensor) -> Tensor:
        """What the action and value heads see: (B, features_size). state (B, 8) as LeRobot's LIBERO gives it."""
        position, angle, fingers = state[:, :3], state[:, 3:6], state[:, 6:8]
        # Only differences and the height: what is learned at one place holds at every other.
        parts = [position[:, 2:] / WORLD_SCALE, rotation_features(angle), fingers / 0.04]
        for role in range(len(ROLES)):
            parts += [nearness(grounding.world[:, role] - position)]
        parts += [nearness(grounding.world[:, 1] - grounding.world[:, 0]), self.instruction(sentence)]
        parts += [self.appearance(grounding.appearance).flatten(1)]
        return torch.cat(parts, -1)

    def act(self, features: Tensor) -> Tensor:
        """Action chunk (B, chunk_size, 7): six deltas and a gripper logit (positive closes)."""
        return self.action(features).view(-1, self.chunk_size, 7)


def nearness(delta: Tensor) -> Tensor:
    """A difference in metres on three scales, so that millimetres and decimetres are both visible: (..., 9)."""
    return torch.cat([delta / WORLD_SCALE, torch.tanh(delta / 0.05), torch.tanh(delta / 0.01)], -1)


def rotation_features(axis_angle: Tensor) -> Tensor:
    """First two columns of the rotation matrix (B, 6): continuous where a downward hand's axis-angle flips sign."""
    theta = axis_angle.norm(dim=-1, keepdim=True).clamp_min(1e-6)
    axis = axis_angle / theta
    x, y, z = axis.unbind(-1)
    c, s = theta.cos().squeeze(-1), theta.sin().squeeze(-1)
    t = 1 - c
    first = torch.stack([t * x * x + c, t * x * y + s * z, t * x * z - s * y], -1)
    second = torch.stack([t * x * y - s * z, t * y * y + c, t * y * z + s * x], -1)
    return torch.cat([first, second], -1)


def grounding_loss(grounding: Grounding, image: Tensor, world: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the heat map against a small Gaussian, and L1 of the world point in metres.

    image (B, 2, 2) u, v in [0, 1]; world (B, 2, 3); weight (B, 2), 0 where there is no label.
    """
    height, cols = grounding.logits.shape[-2:]
    rows = torch.arange(height, device=image.device)
    columns = torch.arange(cols, device=image.device)
    du = image[..., 0, None] * cols - 0.5 - columns
    dv = image[..., 1, None] * height - 0.5 - rows
    heat = (-(dv[..., :, None] ** 2 + du[..., None, :] ** 2) / (2 * TARGET_SPREAD**2)).flatten(2)
    label = heat.softmax(-1)
    cross = -(label * grounding.logits.flatten(2).log_softmax(-1)).sum(-1)
    distance = (grounding.world - world).abs().sum(-1)
    return weighted_mean(cross, weight, floor=1e-6), weighted_mean(distance, weight, floor=1e-6)
