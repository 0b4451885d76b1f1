"""Contact sheets: which instants they show, and what is drawn of stored states."""

from io import BytesIO

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from lerobot_coda.critic.review import Clip
from lerobot_coda.critic.sheet import compose, instants, with_sheets
from libero_pro.episode import Episode
from libero_pro.record import RecordError
from libero_pro.render import Frame, Renderer
from libero_pro.suites import get_task, scene_for


@given(st.integers(0, 600), st.integers(0, 600), st.integers(0, 600), st.integers(1, 16))
def test_instants_are_in_order_within_the_episode_and_hold_its_ends_and_the_span(steps, first, length, count):
    span = (first, first + length)
    shown = instants(steps, span, count)
    assert len(shown) == min(count, steps + 1) and list(shown) == sorted(set(shown))
    assert shown[0] == 0 and shown[-1] <= steps
    if count >= 4 and span != (0, 0):
        assert {0, steps, min(span[0], steps), min(span[1], steps)} <= set(shown)


def test_half_of_the_instants_look_into_the_span():
    assert instants(100, (40, 60), 8) == (0, 20, 40, 45, 50, 60, 80, 100)
    assert instants(100, (0, 0), 6) == (0, 12, 25, 50, 75, 100)


def test_a_sheet_shows_rows_of_cameras_and_columns_of_instants():
    images = [np.full((64, 64, 3), shade, np.uint8) for shade in (10, 200, 90)]
    rows = {"agentview": images, "wrist": images[::-1]}
    data = compose(rows, (0, 37, 80))
    sheet = np.array(Image.open(BytesIO(data)))
    assert data == compose(rows, (0, 37, 80)) != compose(rows, (0, 38, 80))  # the time is burned in
    columns = [76 + 32 + k * 68 for k in range(3)]
    assert [int(sheet[18 + 32, x, 0]) for x in columns] == [10, 200, 90]
    assert [int(sheet[18 + 68 + 32, x, 0]) for x in columns] == [90, 200, 10]


def test_an_episode_without_a_step_cannot_be_shown(tmp_path):
    none = Episode.unrun(scene_for("libero_object", 0, seed=0), "policy:x", "the worker died")
    with pytest.raises(RecordError, match="no step to show"):
        with_sheets({"c": [Clip(none)]}, tmp_path)


@pytest.mark.render
def test_sheets_of_stored_states_are_drawn_once_and_always_alike(tmp_path, monkeypatch):
    from libero_pro.recorder import EpisodeRecorder
    from libero_pro.simulator import Simulator

    scene = scene_for("libero_object", 0, seed=0)
    simulator = Simulator(get_task("libero_object", 0))
    simulator.reset(scene)
    simulator.settle()
    recorder = EpisodeRecorder(simulator, scene, "policy:random")
    recorder.start()
    recorder.chunk(np.random.default_rng(0).uniform(-1, 1, (8, 7)).astype(np.float32))
    episode = recorder.finish(truncated=True)

    clips = {"a": [Clip(episode)], "b": [Clip(episode)]}
    drawn = with_sheets(clips, tmp_path, frames=3, size=64)
    [a], [b] = drawn["a"], drawn["b"]
    assert a.sheet.parent == tmp_path / "a" and a.sheet.name.startswith(scene.hash)
    assert a.sheet.read_bytes() == b.sheet.read_bytes()
    shown = np.array(Image.open(a.sheet))[18:, 76:]
    with Renderer(simulator.model, size=64, profile="fast") as renderer:
        images = renderer.render(Frame.of(episode, 0))
    np.testing.assert_array_equal(shown[:64, :64], images["agentview"][:, ::-1])
    np.testing.assert_array_equal(shown[68:132, :64], images["wrist"][:, ::-1])

    before = a.sheet.stat().st_mtime_ns
    assert with_sheets(clips, tmp_path, frames=3, size=64) == drawn and a.sheet.stat().st_mtime_ns == before
    monkeypatch.setattr("lerobot_coda.critic.sheet._studio", _no_gl)
    with pytest.raises(RecordError, match=f"no contact sheet of scene {scene.hash}.*no off-screen OpenGL"):
        with_sheets(clips, tmp_path, frames=2, size=64, workers=0)


def _no_gl(key):
    raise RecordError("no off-screen OpenGL")
