"""Sources of the text: samples, a pasted text, an uploaded file, a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from focus_core.errors import FocusError
from focus_core.io.reading import read_json
from focus_core.resources import data_dir
from focus_core.text import decode_text, find_texts, read_text
from workbench.engine.access import allowed, allowed_files

MAX_UPLOAD_MB = 5
"""Largest accepted file, far larger than the longest text of a page."""
PART_CHARACTERS = 16_000
"""Length of a part of a long file, about 4,000 tokens of English."""


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
        entries = read_json(folder / "index.json")
        return {
            entry["id"]: Sample(entry["id"], entry["title"], entry["description"], folder / entry["file"])
            for entry in entries
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FocusError(f"The sample texts in {folder} cannot be read: paste a text, or install again.") from error


def in_folder(folder: str) -> dict[str, Path]:
    """The text files of a folder and those below it, by their path in it.

    Raises:
        FocusError: there is no such folder, no text in it, or it may not be opened.
    """
    root = allowed(folder)
    if not root.is_dir():
        raise FocusError(f"There is no folder {folder}: check the path, on the machine that runs the workbench.")
    return {path.relative_to(root).as_posix(): path for path in found_at(folder)}


def found_at(place: str, tables: tuple[str, ...] = ()) -> list[Path]:
    """The text files at a place of this machine, a file or a folder; without links out of the allowed folders.

    Args:
        place: the file or folder.
        tables: suffixes of the tables of texts that may be named.

    Raises:
        FocusError: nothing is there, no text is, or it may not be opened.
    """
    files = allowed_files(find_texts([allowed(place)], tables=tables))
    if not files:
        raise FocusError(f"The texts in {place} are links to places that this workbench may not open.")
    return files


def parts(text: str) -> list[str]:
    """A text cut into parts of about `PART_CHARACTERS`, at the ends of paragraphs, lines or words where there are any.

    The parts joined are the text.
    """
    found, start = [], 0
    while len(text) - start > PART_CHARACTERS * 5 // 4:  # a short rest stays with the part before it
        middle, end = start + PART_CHARACTERS * 3 // 4, start + PART_CHARACTERS
        for mark in ("\n\n", "\n", " "):
            cut = text.rfind(mark, middle, end)
            if cut > 0:
                end = cut + len(mark)
                break
        found.append(text[start:end])
        start = end
    return [*found, text[start:]]


def uploaded(data: bytes, name: str) -> str:
    """The text of an uploaded file.

    Raises:
        FocusError: empty, binary or not UTF-8.
    """
    return decode_text(data, f"The file {name}")
