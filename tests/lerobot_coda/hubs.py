"""The Hub of this machine in the place of the real one, for a test's process."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from hub_double import HubDouble
from huggingface_hub import constants
from huggingface_hub.utils import _http, close_session


@contextmanager
def served(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[HubDouble]:
    """A Hub that the client of this process talks to, with a token of `ada`, no Xet and nothing waited for."""
    with HubDouble() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        template = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(folder / "token"))
        monkeypatch.setattr(_http, "time", SimpleNamespace(sleep=lambda seconds: None))
        monkeypatch.setenv("HF_TOKEN", "hf_ada")
        monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
        close_session()
        yield hub
        close_session()
