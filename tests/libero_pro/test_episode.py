"""Episode files: what is written comes back, what is damaged is refused in one sentence."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libero_pro.episode import Episode
from libero_pro.record import RecordError
from libero_pro.suites import scene_for

T, N = 12, 3


@pytest.fixture(scope="module")
def episode() -> Episode:
    """Random arrays of the right shapes and types."""
    rng = np.random.default_rng(0)
    optional = {"camera": rng.normal(size=(3, 4))} if "camera" in {f.name for f in fields(Episode)} else {}
    return Episode(
        scene=scene_for("libero_object", 0, seed=5),
        actor="policy:test",
        success=True,
        terminated=True,
        truncated=False,
        object_names=("a", "b", "c"),
        actions=rng.normal(size=(T, 7)).astype(np.float32),
        qpos=rng.normal(size=(T + 1, 30)),
        frame_qpos=rng.normal(size=(T + 1, 30)),
        site_rgba=rng.random((1, 4, 4)).astype(np.float32),
        body_pos=rng.normal(size=(9, 3)),
        body_quat=rng.normal(size=(9, 4)),
        proprio=rng.normal(size=(T + 1, 8)).astype(np.float32),
        object_pos=rng.normal(size=(T + 1, N, 3)),
        object_quat=rng.normal(size=(T + 1, N, 4)),
        eef_pos=rng.normal(size=(T + 1, 3)),
        held=np.full(T + 1, -1, np.int16),
        goal_holds=np.zeros((T + 1, 1), bool),
        executed=np.array([8, 4], np.int16),
        wall_s=1.5,
        tags={"program": "abc"},
        **optional,
    )


def assert_same(a: Episode, b: Episode) -> None:
    """Equal in every field, arrays bit by bit and in type."""
    for field in fields(Episode):
        x, y = getattr(a, field.name), getattr(b, field.name)
        if isinstance(x, np.ndarray):
            assert x.dtype == y.dtype, field.name
            np.testing.assert_array_equal(x, y, err_msg=field.name)
        else:
            assert x == y, field.name


def test_round_trip(episode, tmp_path):
    episode.save(tmp_path / "deep" / "e.npz")
    assert_same(Episode.load(tmp_path / "deep" / "e.npz"), episode)


def test_round_trip_with_labels_and_an_error(episode, tmp_path):
    other = replace(episode, expert_actions=episode.actions + 1, invalid="the worker died", success=False)
    other.save(tmp_path / "e.npz")
    assert_same(Episode.load(tmp_path / "e.npz"), other)


def test_length_and_tags(episode):
    assert len(episode) == T
    tagged = episode.tagged(round="2")
    assert tagged.tags == {"program": "abc", "round": "2"}
    assert episode.tags == {"program": "abc"}


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(RecordError, match=r"absent\.npz"):
        Episode.load(tmp_path / "absent.npz")


@pytest.mark.parametrize("keep", [0, 1, 100, 0.5, -1])
def test_a_cut_file_is_refused(episode, tmp_path, keep):
    path = tmp_path / "e.npz"
    episode.save(path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep) if isinstance(keep, float) else keep])
    with pytest.raises(RecordError, match=r"e\.npz is not a readable episode"):
        Episode.load(path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_a_flipped_byte_is_refused_or_harmless(episode, tmp_path, where, flip):
    path = tmp_path / "e.npz"
    if not path.exists():
        episode.save(path)
    data = bytearray(path.read_bytes())
    data[int(where * len(data))] ^= flip
    damaged = tmp_path / "damaged.npz"
    damaged.write_bytes(data)
    try:
        loaded = Episode.load(damaged)
    except RecordError:
        return
    assert_same(loaded, episode)  # the byte was in a time stamp or the like


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"schema_version": np.array(9)}, "readable"),  # an array where the header should be
        ({"header": np.frombuffer(b"{}", np.uint8)}, "object_names"),
        ({"header": np.frombuffer(b"[]", np.uint8)}, "readable"),
        ({"surprise": np.zeros(3)}, "surprise"),
        ({"qpos": np.zeros((T, 30))}, "qpos has shape"),
        ({"object_pos": np.zeros((T + 1, N + 1, 3))}, "object_pos has shape"),
        ({"held": None}, "held"),
    ],
)
def test_a_file_of_other_content_is_refused(episode, tmp_path, change, what):
    path = tmp_path / "e.npz"
    episode.save(path)
    with np.load(path) as data:
        arrays = {name: data[name] for name in data.files}
    for name, value in change.items():
        arrays[name] = value
        if value is None:
            del arrays[name]
    if "schema_version" in change:
        del arrays["header"]
    np.savez_compressed(path, **arrays)
    with pytest.raises(RecordError, match=what):
        Episode.load(path)


def test_another_schema_is_refused(episode, tmp_path, monkeypatch):
    path = tmp_path / "e.npz"
    monkeypatch.setattr("libero_pro.episode.SCHEMA_VERSION", 99)
    episode.save(path)
    monkeypatch.undo()
    with pytest.raises(RecordError, match="schema 99"):
        Episode.load(path)


def test_pickled_objects_are_never_loaded(tmp_path):
    path = tmp_path / "e.npz"
    np.savez(path, header=np.array([{"a": 1}], dtype=object))
    with pytest.raises(RecordError, match="readable"):
        Episode.load(path)
