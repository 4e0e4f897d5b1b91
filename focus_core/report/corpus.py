"""A corpus as sections of text, one in memory at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from focus_core.analysis.tables import text_hash
from focus_core.errors import FocusError
from focus_core.report.model import Document
from focus_core.text import find_texts, read_text

SECTION_CHARACTERS = 100_000
"""Longest section, in characters: the unit of tokenising, of tagging, and of work repeated after an interruption."""


@dataclass(frozen=True)
class Corpus:
    """Text files with their lengths and hashes.

    Attributes:
        files: the files.
        documents: name, length and hash of each.
    """

    files: tuple[Path, ...]
    documents: tuple[Document, ...]

    @property
    def characters(self) -> int:
        """Length of all texts."""
        return sum(document.characters for document in self.documents)

    @property
    def sha256(self) -> str:
        """The text's own hash for a single file, else the hash of the hashes in order."""
        if len(self.documents) == 1:
            return self.documents[0].sha256
        return hashlib.sha256("".join(document.sha256 for document in self.documents).encode()).hexdigest()


class Section(NamedTuple):
    """A piece of a document.

    Attributes:
        document: index of the document.
        start: where it starts in the document, in characters.
        corpus_start: where it starts in the corpus.
        text: the piece.
    """

    document: int
    start: int
    corpus_start: int
    text: str


class Unread(NamedTuple):
    """A document that cannot be used.

    Attributes:
        document: its name, relative to the folder that all have in common.
        reason: one sentence.
    """

    document: str
    reason: str


def scan(paths: Iterable[str | Path]) -> Corpus:
    """Find the texts in files and folders, and read each once for its length and hash.

    Raises:
        FocusError: a path does not exist, or a file is no text in UTF-8.
    """
    files = find_texts(paths)
    root = _common_folder(files)
    return Corpus(tuple(files), tuple(_document(path, root) for path in files))


def scan_readable(paths: str | Path | Iterable[str | Path]) -> tuple[Corpus, tuple[Unread, ...]]:
    """As `scan`, with the documents that cannot be read apart.

    Raises:
        FocusError: a path does not exist, or no file is text in UTF-8.
    """
    files = find_texts(paths)
    root = _common_folder(files)
    found: dict[Path, Document] = {}
    unread = []
    for path in files:
        try:
            found[path] = _document(path, root)
        except (FocusError, OSError) as error:
            if len(files) == 1:
                raise
            name = path.relative_to(root).as_posix()
            unread.append(Unread(name, str(error).replace(str(path), name)))
    if not found:
        raise FocusError(f"None of the {len(files)} documents can be read. The first: {unread[0].reason}")
    return Corpus(tuple(found), tuple(found.values())), tuple(unread)


def sections(corpus: Corpus, skip: int = 0) -> Iterator[Section]:
    """The corpus in order, cut after paragraphs or lines where possible; the pieces add up to it.

    Args:
        corpus: the files.
        skip: sections at the start that are left out.

    Raises:
        FocusError: a file can no longer be read.
    """
    number, corpus_start = 0, 0
    for index, path in enumerate(corpus.files):
        # Cuts depend on the text, so skipped sections of a file must be read as well.
        text = read_text(path)
        for start, end in cuts(text):
            if number >= skip:
                yield Section(index, start, corpus_start + start, text[start:end])
            number += 1
        corpus_start += len(text)


def cuts(text: str, longest: int = SECTION_CHARACTERS) -> list[tuple[int, int]]:
    """Spans [start, end) that cover a text, cut after an empty line, a line or a space in its second half."""
    spans, start = [], 0
    while start < len(text):
        end = min(start + longest, len(text))
        if end < len(text):
            for mark in ("\n\n", "\n", " "):
                cut = text.rfind(mark, start + longest // 2, end)
                if cut >= 0:
                    end = cut + len(mark)
                    break
        spans.append((start, end))
        start = end
    return spans


def _document(path: Path, root: Path) -> Document:
    text = read_text(path)
    return Document(path.relative_to(root).as_posix(), len(text), text_hash(text))


def _common_folder(files: list[Path]) -> Path:
    """The folder that file names are given relative to; no report names a machine's own paths."""
    folder = files[0].parent
    while not all(path.is_relative_to(folder) for path in files):
        folder = folder.parent
    return folder
