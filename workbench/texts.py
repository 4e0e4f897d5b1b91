"""Where the text comes from: samples, a paste, an upload."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from focus_core.errors import FocusError
from focus_core.resources import data_dir
from focus_core.text import decode_text, read_text

MAX_UPLOAD_MB = 5
"""Largest accepted file; far more than the longest text a page shows."""


@dataclass(frozen=True)
class Sample:
    """A text that comes with the project.

    Attributes:
        name: its name in links.
        title: a few words.
        description: one line.
        path: the file.
    """

    name: str
    title: str
    description: str
    path: Path

    def read(self) -> str:
        """The text."""
        return read_text(self.path)


def samples() -> dict[str, Sample]:
    """The sample texts by name, in the order of their index.

    Raises:
        FocusError: the index is missing or damaged.
    """
    folder = data_dir() / "samples"
    try:
        entries = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        return {
            entry["id"]: Sample(entry["id"], entry["title"], entry["description"], folder / entry["file"])
            for entry in entries
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FocusError(f"The sample texts in {folder} cannot be read: paste a text, or install again.") from error


def uploaded(data: bytes, name: str) -> str:
    """The text of an uploaded file.

    Raises:
        FocusError: empty, binary or not UTF-8.
    """
    return decode_text(data, f"The file {name}")
