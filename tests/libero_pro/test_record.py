"""Records: canonical text, identity, refusals that name the field."""

import hashlib

import pytest
from pydantic import Field

from libero_pro.record import Record, RecordError, write_atomically


class Sample(Record):
    """A record with what records use."""

    name: str
    size: float = Field(default=1.0, gt=0)
    parts: tuple[int, ...] = ()
    table: dict[str, float] = Field(default_factory=dict)


def test_equal_records_have_equal_text_and_hash_whatever_the_order_of_keys():
    a = Sample.parse('{"name": "é", "table": {"x": 1, "y": 2}, "size": 2}')
    b = Sample.parse({"size": 2.0, "table": {"y": 2.0, "x": 1.0}, "name": "é"})
    assert a == b
    assert a.to_json() == b.to_json() == '{"name":"é","parts":[],"size":2.0,"table":{"x":1.0,"y":2.0}}'
    assert a.hash == b.hash
    assert len(a.hash) == 16
    assert a.hash != Sample(name="e", size=2, table={"x": 1, "y": 2}).hash


def test_hash_is_of_the_canonical_text():
    text = '{"name":"milk_1","parts":[],"size":1.0,"table":{}}'
    assert Sample(name="milk_1").hash == hashlib.sha256(text.encode()).hexdigest()[:16] == "193e4daec111e23a"


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"name": "a", "sizes": 1}, "sizes"),
        ({"name": "a", "size": float("nan")}, "size"),
        ({"name": "a", "size": float("inf")}, "size"),
        ({"name": "a", "size": -1}, "size"),
        ({"name": "a", "parts": [1, "x"]}, "parts.1"),
        ({}, "name"),
        ('{"name": "a", "size": NaN}', "size"),
        ("not json", "(whole record)"),
        ("[]", "(whole record)"),
        (b"\xff\xfe", "(whole record)"),
    ],
)
def test_bad_data_is_refused_by_the_name_of_its_field(data, field):
    with pytest.raises(RecordError, match="Sample") as caught:
        Sample.parse(data)
    assert f"'{field}'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_frozen():
    with pytest.raises(Exception, match="frozen"):
        Sample(name="a").name = "b"


def test_saved_and_loaded(tmp_path):
    record = Sample(name="a", parts=(1, 2))
    record.save(tmp_path / "deep" / "a.json")
    assert Sample.load(tmp_path / "deep" / "a.json") == record


def test_loading_names_the_file(tmp_path):
    with pytest.raises(RecordError, match=r"absent\.json"):
        Sample.load(tmp_path / "absent.json")
    (tmp_path / "half.json").write_text('{"name": "a", "si')
    with pytest.raises(RecordError, match=r"half\.json.*Sample"):
        Sample.load(tmp_path / "half.json")


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.json"
    write_atomically(path, b"old")
    with pytest.raises(TypeError):
        write_atomically(path, None)
    assert path.read_bytes() == b"old"
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert [child.name for child in tmp_path.iterdir()] == ["a.json"]
