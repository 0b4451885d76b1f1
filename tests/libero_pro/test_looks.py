"""Looks reach the pixels, touch nothing else, and are gone with the next frame."""

from dataclasses import replace

import numpy as np
import pytest

from libero_pro import suites
from libero_pro.camera import projection
from libero_pro.layouts import layout
from libero_pro.looks import surfaces, worn
from libero_pro.record import RecordError
from libero_pro.render import Renderer, project
from libero_pro.scene import Look
from libero_pro.simulator import Simulator
from libero_pro.suites import BASE, tasks

TASK = ("libero_goal", 8)
LOOKS = {
    "shifted": Look(camera_shift=(0.0, 0.05, 0.03)),
    "turned": Look(camera_turn=(0.0, 0.0, 0.2)),
    "dark": Look(light=0.5),
    "lit from elsewhere": Look(light_shift=(3.0, -3.0, 0.0)),
    "red cabinet": Look(tints={"wooden_cabinet_1": (1.5, 0.3, 0.3)}),
    "blue table": Look(tints={"table": (0.5, 0.5, 1.5)}),
    "traded": Look(textures={"table": "floor", "floor": "table"}),
    "wooden table": Look(textures={"table": "wooden_cabinet_1"}),
}


def test_every_base_task_has_the_surfaces_it_names():
    assert surfaces(suites.get_task("libero_object", 0)) == ("walls", "floor")
    for suite in BASE:
        for task in tasks(suite):
            assert ("table" in surfaces(task)) == (layout(suite, task.task_id).ground != "floor")


@pytest.fixture(scope="module")
def sim():
    sim = Simulator(suites.get_task(*TASK))
    sim.reset(suites.scene_for(*TASK, seed=3))
    return sim


@pytest.mark.sim
@pytest.mark.render
def test_each_look_changes_the_image_and_none_outlives_it(sim):
    names = ("cam_pos", "cam_quat", "light_diffuse", "light_pos", "geom_matid", "geom_rgba")
    model, before = sim.model, {name: getattr(sim.model, name).copy() for name in names}
    plain_frame = sim.frame()
    with Renderer(model, size=64) as renderer:
        plain = renderer.render(plain_frame)
        seen = {}
        for name, look in LOOKS.items():
            seen[name] = renderer.render(replace(plain_frame, look=look))
            changed = np.abs(seen[name]["agentview"].astype(int) - plain["agentview"]).max(axis=2) > 8
            assert changed.mean() > 0.02, name
            again = renderer.render(plain_frame)
            assert all(np.array_equal(again[camera], plain[camera]) for camera in plain), name
        for name in ("shifted", "turned"):
            assert np.array_equal(seen[name]["wrist"], plain["wrist"])
        assert seen["dark"]["agentview"].mean() < 0.75 * plain["agentview"].mean()
        red = seen["red cabinet"]["agentview"].astype(int) - plain["agentview"]
        assert red[..., 1].sum() < 0 and (red[..., 0] >= -2).mean() > 0.9
        for name, value in before.items():
            assert np.array_equal(getattr(model, name), value), name
        with pytest.raises(RecordError, match="sun_1"):
            renderer.render(replace(plain_frame, look=Look(tints={"sun_1": (1, 1, 1)})))
        assert all(np.array_equal(renderer.render(plain_frame)[camera], plain[camera]) for camera in plain)


@pytest.mark.sim
def test_a_scenes_look_is_in_its_frames_and_not_in_its_physics(sim):
    look = LOOKS["shifted"]
    base = suites.scene_for(*TASK, seed=3)
    states = []
    for scene in (base, base.model_copy(update={"look": look})):
        sim.reset(scene)
        sim.settle(3)
        states.append(np.concatenate([sim.data.qpos, sim.data.qvel]))
        assert sim.frame().look == scene.look
    assert np.array_equal(*states)


@pytest.mark.sim
def test_labels_follow_a_moved_camera(sim):
    sim.reset(suites.scene_for(*TASK, seed=3))
    points = sim.reader.object_pos()
    frames = [replace(sim.frame(), look=look) for look in (None, LOOKS["shifted"], LOOKS["turned"])]
    projected = [project(sim.model, frame, "agentview", points) for frame in frames]
    for frame, expected in zip(frames, projected, strict=True):
        matrix = projection(sim.model, frame)
        homogeneous = np.hstack([points, np.ones((len(points), 1))]) @ matrix.T
        assert homogeneous[:, :2] / homogeneous[:, 2:] == pytest.approx(expected)
    assert np.abs(projected[1] - projected[0]).min() > 0.005
    assert np.abs(projected[2] - projected[0]).max() > 0.01


@pytest.mark.sim
@pytest.mark.parametrize(("suite", "task_id"), [("libero_object", 0), ("libero_10", 0), ("libero_10", 5)])
def test_every_arena_has_what_its_surfaces_name(suite, task_id):
    task = suites.get_task(suite, task_id)
    model = Simulator(task).model
    names = [*surfaces(task), *layout(suite, task_id).objects, *layout(suite, task_id).fixtures]
    before = model.geom_rgba.copy()
    for name in names:
        with worn(model, Look(tints={name: (0.5, 0.5, 0.5)})):
            assert not np.array_equal(model.geom_rgba, before), name
    with worn(model, Look(textures={name: "walls" for name in surfaces(task) if name != "walls"})):
        pass
    assert np.array_equal(model.geom_rgba, before)
