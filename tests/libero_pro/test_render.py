"""Images against robosuite's own, the fast profile's error, stored frames alone, and the projection of labels."""

import sys
import types

import numpy as np
import pytest

from libero_pro import gl, suites
from libero_pro._libero import quiet_import
from libero_pro.record import RecordError
from libero_pro.render import Frame, Renderer, camera_id, project
from libero_pro.simulator import Simulator

pytestmark = [pytest.mark.sim, pytest.mark.render]
TASK = ("libero_object", 1)
KEYS = {"agentview": "agentview_image", "wrist": "robot0_eye_in_hand_image"}
ARRAYS = ("body_pos", "body_quat", "site_rgba", "mesh_face", "mesh_facenormal", "mesh_facetexcoord", "mesh_facenum")


@pytest.fixture(scope="module")
def images():
    """Four instants: (frames of the lean simulator, robosuite's observations of the same instants, simulator)."""
    task = suites.get_task(*TASK)
    wrapper = quiet_import("libero.libero.envs.env_wrapper")
    reference = wrapper.OffScreenRenderEnv(
        bddl_file_name=str(task.bddl_path), camera_heights=128, camera_widths=128, hard_reset=False
    )
    sim = Simulator(task)
    sim.reset(suites.scene_for(*TASK, init_state_id=3, seed=7))
    # robosuite's soft reset, at the seed's start state, is the lean one's; robosuite's hard reset costs 3 s more.
    reference.seed(7)
    reference.reset()
    reference.sim.model.body_pos[:] = sim.model.body_pos
    reference.sim.model.body_quat[:] = sim.model.body_quat
    reference.env.robots[0].gripper.current_action = np.zeros(1)
    observations = [reference.set_init_state(task.init_states()[3])]
    frames = [sim.frame()]
    rng = np.random.default_rng(0)
    for step in range(6):
        action = rng.uniform(-1, 1, 7)
        sim.step(action)
        observation = reference.step(action)[0]
        if step % 2:
            frames.append(sim.frame())
            observations.append(observation)
    yield frames, observations, sim
    reference.close()


@pytest.fixture(scope="module")
def faithful(images):
    with Renderer(images[2].model) as renderer:
        yield renderer


def test_faithful_images_equal_robosuite(images, faithful):
    frames, observations, _ = images
    for index, (frame, observation) in enumerate(zip(frames, observations, strict=True)):
        drawn = faithful.render(frame)
        for name, key in KEYS.items():
            assert np.array_equal(drawn[name], observation[key][::-1, ::-1]), (index, name)
    assert not np.array_equal(observations[0][KEYS["wrist"]], observations[-1][KEYS["wrist"]])


def test_fast_profile_is_close_and_leaves_the_model_alone(images, faithful):
    frames, _, sim = images
    before = {name: getattr(sim.model, name).copy() for name in ARRAYS}
    with Renderer(sim.model, profile="fast") as fast:
        for name, value in before.items():
            assert np.array_equal(getattr(sim.model, name), value), name
        for frame in frames:
            exact, quick = faithful.render(frame), fast.render(frame)
            for name in KEYS:
                assert psnr(exact[name], quick[name]) >= 33.0, name
                assert not np.array_equal(exact[name], quick[name])


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    error = np.mean((a.astype(float) - b.astype(float)) ** 2)
    return float(10 * np.log10(255**2 / error))


def test_frames_render_the_same_from_storage_and_between_others(images, faithful):
    frames, _, sim = images
    first = faithful.render(frames[1], ["agentview"])
    assert list(first) == ["agentview"] and first["agentview"].dtype == np.uint8
    # Another scene in the live simulator, whose model the renderer shares, changes nothing.
    sim.reset(suites.scene_for(*TASK, seed=1))
    live = sim.data.qpos.copy(), sim.model.body_pos.copy()
    stored = Frame(*(np.array(part.tolist()) for part in
                     (frames[1].qpos, frames[1].body_pos, frames[1].body_quat, frames[1].site_rgba)))  # fmt: skip
    assert np.array_equal(faithful.render(stored, ["agentview"])["agentview"], first["agentview"])
    assert np.array_equal(sim.data.qpos, live[0]) and np.array_equal(sim.model.body_pos, live[1])
    hidden = Frame(stored.qpos + 0, stored.body_pos + np.array([0.2, 0, 0]), None, stored.site_rgba)
    assert not np.array_equal(faithful.render(hidden, ["agentview"])["agentview"], first["agentview"])


@pytest.mark.parametrize("camera", ["agentview", "wrist"])
def test_projection_equals_robosuites_camera_matrix(images, camera, monkeypatch):
    _, _, sim = images
    monkeypatch.setitem(sys.modules, "h5py", types.ModuleType("h5py"))  # imported by robosuite's module, not needed
    utils = quiet_import("robosuite.utils.camera_utils")
    sim.reset(suites.scene_for(*TASK, init_state_id=3, seed=7))
    size = 128
    model_name = sim.model.camera(camera_id(sim.model, camera)).name
    matrix = utils.get_camera_transform_matrix(sim.env.sim, model_name, size, size)
    seen = np.array([0.02, -0.03, 0.0]) + sim.reader.eef_pos() - [0, 0, 0.1] + np.eye(3) * 0.05
    homogeneous = np.hstack([seen, np.ones((3, 1))]) @ matrix.T
    columns, rows = (homogeneous[:, :2] / homogeneous[:, 2:3]).T
    # robosuite counts from the top left of the upright picture; ours is mirrored left to right.
    assert project(sim.model, sim.data, camera, seen)[:, 0] == pytest.approx(1 - columns / size, abs=1e-9)
    assert project(sim.model, sim.data, camera, seen)[:, 1] == pytest.approx(rows / size, abs=1e-9)
    assert project(sim.model, sim.frame(), camera, seen) == pytest.approx(project(sim.model, sim.data, camera, seen))
    behind = sim.data.cam_xpos[camera_id(sim.model, camera)] + 0.5 * sim.data.cam_xmat[
        camera_id(sim.model, camera)].reshape(3, 3)[:, 2]  # fmt: skip
    assert np.isnan(project(sim.model, sim.data, camera, behind)).all()


@pytest.mark.parametrize("camera", ["agentview", "wrist"])
def test_projected_points_lie_on_the_segmented_object(images, faithful, camera):
    """The label of the middle of an object's collision boxes lies at the middle of the pixels that show it."""
    _, _, sim = images
    sim.reset(suites.scene_for(*TASK, init_state_id=3, seed=7))
    frame = sim.frame()
    ids = faithful.segment(frame, camera)
    assert ids.shape == (128, 128) and ids.max() < sim.model.ngeom
    checked = 0
    for name in sim.object_names:
        geoms = np.flatnonzero(sim.model.geom_bodyid == sim.env.obj_body_id[name])
        mask = np.isin(ids, geoms)
        if mask.sum() < 40 or "basket" in name:
            continue
        boxes = sim.data.geom_xpos[geoms[sim.model.geom_group[geoms] == 0]]
        middle = (boxes.min(axis=0) + boxes.max(axis=0)) / 2
        u, v = faithful.project(frame, camera, middle)[0]
        rows, columns = np.nonzero(mask)
        label = np.array([u, v]) * 128 - 0.5
        assert np.abs(label - [columns.mean(), rows.mean()]).max() < 6, name
        assert columns.min() - 1 <= label[0] <= columns.max() + 1 and rows.min() - 1 <= label[1] <= rows.max() + 1
        checked += 1
    assert checked >= (4 if camera == "agentview" else 1)


def test_errors_name_the_way_out(images):
    _, _, sim = images
    with pytest.raises(RecordError, match="sideways"):
        Renderer(sim.model, cameras=["sideways"])
    with pytest.raises(RecordError, match="faithful"):
        Renderer(sim.model, profile="quick")
    renderer = Renderer(sim.model, cameras=["agentview"], size=32)
    assert renderer.render(sim.frame())["agentview"].shape == (32, 32, 3)
    renderer.close()
    with pytest.raises(RecordError, match="closed"):
        renderer.render(sim.frame())


def test_no_opengl_is_one_sentence(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "disable")
    monkeypatch.setattr(gl, "_egl_devices", lambda: 0)
    monkeypatch.setattr(gl, "_loads", lambda *names: None)
    with pytest.raises(RecordError, match="apt-get install libegl1"):
        gl.context(8, 8)
    assert gl.configure() is None
    monkeypatch.setattr(gl, "_loads", lambda *names: object())
    assert gl.configure() == "osmesa"
