"""Grounding sets and what the backbone makes of an image and an instruction."""

from pathlib import Path

import numpy as np
import pytest
import torch

from lerobot_coda.backbones.grounded import GroundedBackbone, Grounding, grounding_loss, rotation_features
from lerobot_coda.grounding import GroundingSet
from lerobot_coda.static_layouts import label
from libero_pro.camera import project
from libero_pro.record import RecordError
from libero_pro.suites import scene_for


def layouts(count: int, seed: int = 0) -> GroundingSet:
    rng = np.random.default_rng(seed)
    return GroundingSet(
        images=rng.integers(0, 255, (count, 32, 32, 3), dtype=np.uint8),
        text=np.zeros((count, 2), np.int32),
        image_points=rng.random((count, 2, 2, 2)).astype(np.float32),
        world_points=rng.random((count, 2, 2, 3)).astype(np.float32),
        weight=np.ones((count, 2, 2), np.float32),
        texts=(f"pick the thing {seed}",),
    )


def test_round_trip(tmp_path: Path) -> None:
    data = layouts(3)
    data.save(tmp_path / "set.safetensors")
    again = GroundingSet.load(tmp_path / "set.safetensors")
    assert again.texts == data.texts
    assert np.array_equal(again.images, data.images)
    assert np.array_equal(again.world_points, data.world_points)


def test_a_damaged_or_missing_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "bad.safetensors").write_bytes(b"not a tensor file")
    for name in ("bad.safetensors", "missing.safetensors"):
        with pytest.raises(RecordError, match=r"grounding_path .* is not a readable grounding set"):
            GroundingSet.load(tmp_path / name)


def test_concatenation_keeps_each_text() -> None:
    both = GroundingSet.concatenate([layouts(2, 0), layouts(3, 1)])
    assert len(both) == 5
    assert [both.texts[i] for i in both.text[:, 0]] == ["pick the thing 0"] * 2 + ["pick the thing 1"] * 3


def test_labels_project_each_asked_object() -> None:
    camera = np.array([[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]])
    positions = {"milk_1": np.array([0.2, 0.4, 2.0]), "basket_1": np.array([1.0, 1.0, 2.0])}
    scene = scene_for("libero_object", 0)
    data = label(
        [scene],
        {0: (np.zeros((8, 8, 3), np.uint8), positions, camera)},
        lambda _: [("pick milk", "milk_1", "basket_1")],
    )
    assert data.image_points[0, 0].tolist() == [pytest.approx([0.1, 0.2]), pytest.approx([0.5, 0.5])]
    assert np.allclose(project(camera, positions["milk_1"]), [0.1, 0.2])


def test_loss_is_least_at_the_label() -> None:
    image, world = torch.tensor([[[0.52, 0.27], [0.8, 0.8]]]), torch.zeros(1, 2, 3)
    rows, columns = torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij")

    def at(u: float, v: float) -> float:
        heat = -((columns - (u * 24 - 0.5)) ** 2 + (rows - (v * 24 - 0.5)) ** 2)
        logits = torch.stack([heat, -((columns - 18.7) ** 2 + (rows - 18.7) ** 2)])[None]
        grounding = Grounding(logits, image, world, torch.zeros(1, 2, 4))
        return grounding_loss(grounding, image, world, torch.ones(1, 2))[0].item()

    assert at(0.52, 0.27) < at(0.60, 0.27) and at(0.52, 0.27) < at(0.52, 0.40)


def test_rotation_features_do_not_jump_where_the_axis_angle_flips() -> None:
    near = torch.tensor([[torch.pi - 1e-3, 0.0, 0.0], [-torch.pi + 1e-3, 0.0, 0.0]])
    a, b = rotation_features(near)
    assert torch.allclose(a, b, atol=5e-3)


def test_many_questions_equal_one_by_one() -> None:
    torch.manual_seed(0)
    net = GroundedBackbone(4, width=16, hidden=32).eval()
    keys = net.key_map(torch.rand(2, 40, 12, 12), torch.rand(2, 112, 6, 6))
    sentences = torch.randn(2, 3, 384)
    together = net.ground(keys, sentences)
    for q in range(3):
        alone = net.ground(keys, sentences[:, q])
        assert torch.allclose(together.world.view(2, 3, 2, 3)[:, q], alone.world, atol=1e-5)
        assert torch.allclose(together.image.view(2, 3, 2, 2)[:, q], alone.image, atol=1e-5)
