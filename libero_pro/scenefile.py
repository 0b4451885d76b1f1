"""Reads programs and scenes that people and models write: bounded in size, checked field by field, never executed."""

from collections.abc import Callable
from pathlib import Path

from libero_pro.programs import GenerationProgram
from libero_pro.record import RecordError
from libero_pro.scene import SceneSpec

MAX_BYTES = 64 * 2**20
MAX_SCENES = 100_000


def read_program(path: Path) -> GenerationProgram:
    """A generation program from a JSON file; RecordError names the file and the field."""
    return _named(path, "", GenerationProgram.parse, _text(path))


def read_scenes(path: Path) -> list[SceneSpec]:
    """Scenes from a file with one JSON object a line (or from the `scenes.jsonl` of a folder).

    RecordError names the file, the line and the field of the first that is not a scene, before any is used.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "scenes.jsonl"
    lines = [(number, line) for number, line in enumerate(_text(path).split(b"\n"), 1) if line.strip()]
    if not lines:
        raise RecordError(f"{path} holds no scene; write one JSON object a line")
    if len(lines) > MAX_SCENES:
        raise RecordError(f"{path} holds {len(lines)} scenes; at most {MAX_SCENES} are read at once")
    return [_named(path, f", line {number}", SceneSpec.parse, line) for number, line in lines]


def _text(path: Path) -> bytes:
    try:
        size = Path(path).stat().st_size
        if size > MAX_BYTES:
            raise RecordError(f"{path} has {size / 2**20:.0f} MiB; at most {MAX_BYTES // 2**20} are read")
        return Path(path).read_bytes()
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}") from None


def _named[T](path: Path, where: str, parse: Callable[[bytes], T], text: bytes) -> T:
    try:
        return parse(text)
    except RecordError as error:
        raise RecordError(f"{path}{where}: {error}") from None
