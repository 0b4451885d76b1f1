"""Docstrings as this project writes them, for mkdocstrings: aligned entries become lists.

    images  camera -> (H, W, 3) uint8
    state   (8,) float32;  `seed` for whatever is drawn

turn into a list of two entries. Indented blocks stay code.
"""

import re
from typing import Any

try:
    from griffe import Extension
except ImportError:  # the tests read this module without the documentation's packages
    Extension = object

_ENTRY = re.compile(r"^([a-z_][\w.]*(?:, [a-z_][\w.]*)*)(?: \([^)]*\)(?:, [a-z_]\w* \([^)]*\))*)?  +(\S.*)$")


class Entries(Extension):
    """Rewrites each docstring before it is rendered."""

    def on_object(self, *, obj: Any, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = listed(obj.docstring.value)


def listed(text: str) -> str:
    """The text with each run of aligned entries as a Markdown list."""
    lines: list[str] = []
    inside = False
    for line in text.split("\n"):
        found = _ENTRY.match(line)
        if found:
            lines += ["", ""] if not inside and lines and lines[-1] else []
            names = ", ".join(f"`{name}`" for name in found[1].split(", "))
            given = line[found.end(1) : found.start(2)].strip()
            lines.append(f"- {names}{f' {given}' if given else ''}: {found[2].strip()}")
        elif inside and line.startswith("  ") and line.strip():
            lines.append(f"  {line.strip()}")
        else:
            lines += [""] if inside and line else []
            lines.append(line)
        inside = bool(found) or (inside and line.startswith("  ") and bool(line.strip()))
    return "\n".join(lines)
