"""Frozen, content-addressed records: what flows between the parts of the loop."""

import hashlib
import json
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError


class RecordError(ValueError):
    """A record, file or recipe that cannot be used; the message names the field and the way out."""


def one_line(error: ValidationError, what: str) -> str:
    """Turns a pydantic error into one sentence that names the first offending field."""
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"]) or "(whole record)"
    return f"{what}: field '{field}': {first['msg'].removeprefix('Value error, ')}"


class Record(BaseModel):
    """A frozen record with canonical JSON and a content hash that is its identity.

    Unknown fields and non-finite numbers are refused, so nothing a model or a person writes is half-understood.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, no spaces; equal records give equal text."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    @property
    def hash(self) -> str:
        """First 16 hex digits of the SHA-256 of the canonical JSON."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    @classmethod
    def parse(cls, data: str | bytes | dict) -> Self:
        """Reads a record from JSON text or a mapping; raises RecordError with one sentence naming the field."""
        try:
            if isinstance(data, dict):
                return cls.model_validate(data)
            return cls.model_validate_json(data)
        except ValidationError as error:
            raise RecordError(one_line(error, cls.__name__)) from None

    def save(self, path: Path) -> None:
        """Writes the record so that a reader sees the old file or the new one, never half of one."""
        write_atomically(path, self.to_json().encode())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads a record from a file; RecordError names the file."""
        try:
            return cls.parse(Path(path).read_bytes())
        except OSError as error:
            raise RecordError(f"cannot read {path}: {error.strerror}") from None
        except RecordError as error:
            raise RecordError(f"{path}: {error}") from None


def write_atomically(path: Path, data: bytes) -> None:
    """Writes bytes beside `path` and renames, so a crash leaves no half-written file."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(data)
    partial.replace(path)
