"""Texts in tables: the column that holds them, and the lines of a JSON Lines file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from focus_core.errors import FocusError
from focus_core.io.reading import parse_json
from focus_core.io.remote import RemoteFile
from focus_core.io.schema import table
from focus_core.text import JSONL_SUFFIXES

SUFFIXES = JSONL_SUFFIXES
"""Suffixes of files with one JSON object on each line."""
TEXT_COLUMNS = ("text", "content", "document")
"""Names of the text column of a table, in order of preference."""


@dataclass(frozen=True)
class Line:
    """One document of a JSON Lines file.

    Attributes:
        path: the file, of this machine or of a store.
        number: of the line, from 1.
        start: its first byte.
        end: the byte after its last.
    """

    path: Path | RemoteFile
    number: int
    start: int
    end: int

    def read_text(self) -> str:
        """The text of the line, which alone is read of its file.

        Raises:
            FocusError: it is no JSON object with a text that is not empty.
            StoreError: the store cannot be used.
        """
        text = line_text(self._bytes(), self.number, self.path)
        if not text.strip():
            raise FocusError(f"Line {self.number} of {self.path} has an empty text.")
        return text

    def _bytes(self) -> bytes:
        if isinstance(self.path, RemoteFile):
            return self.path.read_bytes(self.start, self.end)
        with self.path.open("rb") as file:
            file.seek(self.start)
            return file.read(self.end - self.start)


def lines(path: Path | RemoteFile) -> Iterator[Line]:
    """The documents of a JSON Lines file, in order; empty lines are left out.

    Raises:
        StoreError: the store cannot be used.
    """
    start = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield Line(path, number, start, start + len(line))
            start += len(line)


def line_text(line: str | bytes, number: int, path: Path | RemoteFile) -> str:
    """The text of one line.

    Raises:
        FocusError: it is no JSON object, or has no text.
    """
    try:
        row = parse_json(
            line.decode("utf-8-sig") if isinstance(line, bytes) else line, str(path), table(), finite=False
        )
        text = row[text_column(row, str(path))]
        if not isinstance(text, str):
            raise TypeError
    except (ValueError, TypeError) as error:
        if isinstance(error, FocusError) and "column" in str(error):
            raise
        raise FocusError(f"Line {number} of {path} is not a JSON object with a text: correct it.") from error
    return text


def text_column(names: Iterable[str], where: str) -> str:
    """The column that holds the texts of a table.

    Args:
        names: of its columns.
        where: the table, in an error.

    Raises:
        FocusError: none of `TEXT_COLUMNS` is there.
    """
    names = list(names)
    for column in TEXT_COLUMNS:
        if column in names:
            return column
    raise FocusError(f"{where} has no column called {', '.join(TEXT_COLUMNS)}: rename the one with the text to 'text'.")
