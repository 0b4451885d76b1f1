"""Big things beside the database: files named by the SHA-256 of their content, written once and never changed."""

import hashlib
from pathlib import Path
from uuid import uuid4

from libero_pro.record import RecordError


class Blobs:
    """A folder of blobs: `ab/abcdef...`. Several processes may write the same blob at once."""

    def __init__(self, folder: Path):
        self.folder = Path(folder)

    def path(self, hash: str) -> Path:
        """Where the blob of this hash lies, or would."""
        return self.folder / hash[:2] / hash

    def put(self, data: bytes) -> str:
        """Stores bytes and returns their hash; what is there already is left alone."""
        name = hashlib.sha256(data).hexdigest()
        path = self.path(name)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f".{name}.{uuid4().hex}")
            partial.write_bytes(data)
            partial.replace(path)
        return name

    def get(self, hash: str) -> bytes:
        """The bytes; RecordError if the file is missing or is not what its name says."""
        try:
            data = self.path(hash).read_bytes()
        except OSError as error:
            raise RecordError(f"blob {self.path(hash)} cannot be read: {error.strerror}") from None
        if hashlib.sha256(data).hexdigest() != hash:
            raise RecordError(f"blob {self.path(hash)} is damaged: its content is not what its name says")
        return data
