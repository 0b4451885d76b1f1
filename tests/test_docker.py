"""The container files say what the README and the preflight say; they are read here, not built."""

import re
from pathlib import Path

import pytest

from lerobot_coda.preflight import GL_PACKAGES


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_versions_are_pinned_and_the_readmes_commands_are_run(name: str, repository: Path) -> None:
    text = (repository / "docker" / f"{name}.Dockerfile").read_text()
    (base,) = re.findall(r"^FROM (\S+)$", text, re.MULTILINE)
    assert re.fullmatch(r"python:3\.12\.\d+-slim-bookworm", base)
    installed = re.search(r"apt-get install -y --no-install-recommends (.*) \\", text)
    assert installed and set(installed[1].split()) == {"make", *GL_PACKAGES.split()}
    assert "make setup" in text and "-c constraints.txt" in (repository / "Makefile").read_text()
    ignored = (repository / "docker" / f"{name}.Dockerfile.dockerignore").read_text().split()
    assert {".git", ".venv", "runs"} <= set(ignored)
