"""What is left out of a series of pictures is what none of them shows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libero_pro.unseen import Lens, visible

SAMPLES = np.array([[0.375, 0.125], [0.875, 0.375], [0.125, 0.625], [0.625, 0.875]])
LENS = Lens(size=16, focal=20.0, near=0.01, samples=SAMPLES)


def drawn(vertices: np.ndarray, faces: np.ndarray) -> np.ndarray:
    """(n,) bool by brute force: turned to the camera and over a sample of some pixel. All vertices are ahead."""
    at = LENS.size / 2 + LENS.focal * vertices[:, :2] / -vertices[:, 2:]
    cells = np.stack(np.meshgrid(np.arange(LENS.size), np.arange(LENS.size)), -1).reshape(-1, 1, 2)
    samples = (cells + SAMPLES).reshape(-1, 2)
    corners = at[faces]
    inside = np.ones((len(faces), len(samples)), bool)
    for k in range(3):
        start, edge = corners[:, k], corners[:, (k + 1) % 3] - corners[:, k]
        way = samples[None] - start[:, None]
        inside &= edge[:, None, 0] * way[..., 1] - edge[:, None, 1] * way[..., 0] > 0
    return inside.any(axis=1)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), extent=st.floats(0.002, 0.3), drift=st.sampled_from([0.0, 1e-4]))
def test_no_triangle_that_colors_a_sample_is_left_out(seed: int, extent: float, drift: float):
    rng = np.random.default_rng(seed)
    middles = np.column_stack([rng.uniform(-0.5, 0.5, (200, 2)), rng.uniform(-2.0, -0.5, 200)])
    vertices = (middles[:, None] + rng.uniform(-extent, extent, (200, 3, 3))).reshape(-1, 3)
    vertices[:, 2] = np.minimum(vertices[:, 2], -0.02)
    faces = np.arange(600).reshape(-1, 3)
    kept = visible(vertices, faces, LENS, drift)
    moved = vertices + rng.uniform(-1, 1, vertices.shape) * drift / np.sqrt(3)
    assert not (drawn(moved, faces) & ~kept).any()


def test_most_of_a_mesh_finer_than_the_picture_is_left_out():
    rng = np.random.default_rng(0)
    middles = np.column_stack([rng.uniform(-0.3, 0.3, (2000, 2)), np.full(2000, -1.0)])
    vertices = (middles[:, None] + rng.uniform(-0.01, 0.01, (2000, 3, 3))).reshape(-1, 3)
    faces = np.arange(6000).reshape(-1, 3)
    kept, seen = visible(vertices, faces, LENS).sum(), drawn(vertices, faces).sum()
    assert 0 < seen <= kept < 200


def test_what_is_behind_the_camera_is_left_out_and_what_the_near_plane_cuts_is_not():
    vertices = np.array([[0, 0, 1.0], [0.1, 0, 1], [0, 0.1, 1], [0, 0, -1.0], [0.1, 0, -1]])
    faces = np.array([[0, 1, 2], [3, 4, 2], [3, 4, 1]])
    assert visible(vertices, faces, LENS).tolist() == [False, True, True]


@pytest.mark.render
@pytest.mark.parametrize(("suite", "profile"), [("libero_object", "fast"), ("libero_spatial", "faithful")])
def test_a_film_is_its_single_pictures_to_the_pixel(suite: str, profile, monkeypatch):
    """While the arm moves through the scene. In `libero_spatial` the stove mirrors: nothing may be left out there."""
    from libero_pro import unseen
    from libero_pro.render import Renderer
    from libero_pro.simulator import Simulator
    from libero_pro.suites import get_task, scene_for

    sim = Simulator(get_task(suite, 0))
    sim.reset(scene_for(suite, 0, seed=3))
    sim.settle(2)
    frames = [sim.frame()]
    for action in np.random.default_rng(0).uniform(-1, 1, (4, 7)):
        sim.step_chunk(np.repeat(action[None], 4, 0), stop_at_success=False)
        frames.append(sim.frame())
    left = []
    upload = unseen._upload
    monkeypatch.setattr(unseen, "_upload", lambda m, c, mesh, faces: (left.append(mesh), upload(m, c, mesh, faces)))
    with Renderer(sim.model, profile=profile) as renderer:
        film = renderer.film(frames)
        for index, frame in enumerate(frames):  # afterwards: the film has put everything back
            for camera, image in renderer.render(frame).items():
                np.testing.assert_array_equal(film[camera][index], image)
    assert bool(left) == (suite == "libero_object")
