"""A corpus as sections of text, one in memory at a time."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from focus_core.analysis.tables import text_hash
from focus_core.errors import FocusError
from focus_core.io.files import valid_name
from focus_core.io.jsonl import SUFFIXES, Line, lines
from focus_core.io.remote import RemoteFile, StoreError, is_remote, remote_texts
from focus_core.report.model import Document, Unread
from focus_core.results import text_records
from focus_core.text import TEXT_SUFFIXES, find_texts, read_text

File = Path | Line | RemoteFile
"""A document: a file of this machine or of a store, or a line of a JSON Lines file."""
SECTION_CHARACTERS = 100_000
"""Longest section, in characters: the unit of tokenising, of tagging, and of work repeated after an interruption."""

UNIT_CHARACTERS = SECTION_CHARACTERS
"""Longest unit of several sections, in characters."""


@dataclass(frozen=True)
class Corpus:
    """Texts with their lengths and hashes.

    Attributes:
        files: one for each text, of this machine or of a store.
        documents: name, length and hash of each.
        unread: documents that cannot be read, which are in neither list.
    """

    files: tuple[File, ...]
    documents: tuple[Document, ...]
    unread: tuple[Unread, ...] = ()

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

    def text(self, document: int) -> str:
        """The text of a document, as it was when the corpus was scanned.

        Raises:
            FocusError: it can no longer be read, or has changed.
            OSError: the same.
        """
        text = _read(self.files[document])
        if text_hash(text) != self.documents[document].sha256:
            raise FocusError(f"{self.documents[document].name} changed after this run began: leave it, and run again.")
        return text

    def texts(self) -> Iterator[str]:
        """The text of every document, one in memory at a time.

        Raises:
            FocusError: one can no longer be read.
        """
        return map(self.text, range(len(self.files)))

    def records(self) -> list[dict[str, Any]]:
        """Name, size and SHA-256 of each document, see `focus_core.results.text_records`.

        Those of a store and of JSON Lines are of their text in UTF-8.
        """
        found = []
        for file, document in zip(self.files, self.documents, strict=True):
            if isinstance(file, Path):
                found += text_records([file])
            else:
                name, size = PurePath(document.name).name, len(_read(file).encode())
                found.append({"name": name, "bytes": size, "sha256": document.sha256})
        return found

    def without(self, failed: Mapping[int, str]) -> Corpus:
        """The corpus without the documents that turned out to be unusable, which are listed as unread.

        Args:
            failed: the reason of each, by index.

        Raises:
            FocusError: no document is left.
        """
        kept = [index for index in range(len(self.files)) if index not in failed]
        if not kept:
            reason = next(iter(failed.values()))
            many = f"None of the {len(self.files)} documents can be used. The first: {reason}"
            raise FocusError(reason if len(self.files) == 1 else many)
        unread = [Unread(self.documents[index].name, reason) for index, reason in failed.items()]
        documents = tuple(self.documents[index] for index in kept)
        return Corpus(tuple(self.files[index] for index in kept), documents, (*self.unread, *unread))


Place = tuple[int, int]
"""A place in a corpus: index of a document, and number of a section in it."""


class Section(NamedTuple):
    """A piece of a document.

    Attributes:
        document: index of the document.
        start: where it starts in the document, in characters.
        corpus_start: where it starts in the corpus.
        text: the piece.
        number: of the piece in its document.
        last: whether it ends the document.
    """

    document: int
    start: int
    corpus_start: int
    text: str
    number: int = 0
    last: bool = True

    @property
    def after(self) -> Place:
        """Where the next section is."""
        return (self.document + 1, 0) if self.last else (self.document, self.number + 1)


def scan(paths: str | Path | Iterable[str | Path], suffixes: tuple[str, ...] = TEXT_SUFFIXES) -> Corpus:
    """Find the texts in files and folders, and read each once for its length and hash.

    Args:
        paths: files and folders of this machine, or addresses of a store. Each line of a JSON Lines file
            is a document.
        suffixes: of the files to find in folders.

    Raises:
        FocusError: a path does not exist, no file is text in UTF-8, or a store cannot be used.
    """
    unlisted: list[OSError] = []
    files = _find(paths, unlisted, suffixes)
    if not files:
        raise FocusError("There is no document in these files: give one with a text on some line.")
    root = _common_folder(files)
    found: dict[File, Document] = {}
    unread = [_unlisted(error, root) for error in unlisted]
    for file in files:
        name = valid_name(_path(file).relative_to(root).as_posix())
        try:
            text = _read(file)
        except StoreError:
            raise
        except (FocusError, OSError) as error:
            if len(files) == 1:
                raise
            unread.append(Unread(name, _without_folder(str(error), file, name)))
        else:
            found[file] = Document(name, len(text), text_hash(text))
    if not found:
        raise FocusError(f"None of the {len(files)} documents can be read. The first: {unread[0].reason}")
    return Corpus(tuple(found), tuple(found.values()), tuple(unread))


Unit = tuple[Section, ...]
"""Sections that follow each other, at most `UNIT_CHARACTERS` where they are several: one piece of work on a cluster.

Several sections are whole documents, so each document fails alone."""


def units(corpus: Corpus, begin: Place = (0, 0), failed: dict[int, str] | None = None) -> Iterator[Unit]:
    """The sections of `sections`, some at a time where documents are short."""
    found: list[Section] = []
    length = 0
    for section in sections(corpus, begin, failed):
        whole = section.last and not section.number
        if found and not (whole and length + len(section.text) <= UNIT_CHARACTERS):
            yield tuple(found)
            found, length = [], 0
        if whole:
            found.append(section)
            length += len(section.text)
        else:
            yield (section,)
    if found:
        yield tuple(found)


def sections(corpus: Corpus, begin: Place = (0, 0), failed: dict[int, str] | None = None) -> Iterator[Section]:
    """The corpus in order, cut after paragraphs or lines where possible; the pieces add up to it.

    Args:
        corpus: the files.
        begin: the first section.
        failed: documents by index that are left out, with the reason; others may be added meanwhile. Those that
            vanished or changed since the scan are.

    Raises:
        FocusError: a document vanished or changed, and `failed` is None.
        StoreError: the store cannot be used.
    """
    corpus_start = 0
    for index, document in enumerate(corpus.documents):
        if index >= begin[0] and (failed is None or index not in failed):
            try:
                text = corpus.text(index)
            except StoreError:
                raise
            except (FocusError, OSError) as error:
                if failed is None:
                    raise
                failed[index] = _without_folder(str(error), corpus.files[index], document.name)
            else:
                spans = cuts(text)
                for number in range(begin[1] if index == begin[0] else 0, len(spans)):
                    if failed is not None and index in failed:  # since its last section
                        break
                    start, end = spans[number]
                    last = number == len(spans) - 1
                    yield Section(index, start, corpus_start + start, text[start:end], number, last)
        corpus_start += document.characters


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


def _find(paths: str | Path | Iterable[str | Path], unlisted: list[OSError], suffixes: tuple[str, ...]) -> list[File]:
    """The texts in files, folders and stores, in the order given, each once."""
    paths = [paths] if isinstance(paths, (str, Path)) else list(paths)
    stored = [str(path) for path in paths if is_remote(path)]
    if not stored:
        found = find_texts(paths, unread=unlisted, suffixes=suffixes, tables=SUFFIXES)
        return [document for file in found for document in _documents(file)]
    if len(stored) < len(paths):
        raise FocusError("Some texts are in a store and some on this machine: give those of one place.")
    found = dict.fromkeys(file for address in stored for file in remote_texts(address, suffixes))
    return [document for file in found for document in _documents(file)]


def _documents(file: Path | RemoteFile) -> Iterable[File]:
    return lines(file) if PurePath(file.name).suffix.lower() in SUFFIXES else [file]


def _without_folder(reason: str, file: File, name: str) -> str:
    """A reason that names no folder of this machine."""
    return reason.replace(str(file.path), file.path.name) if isinstance(file, Line) else reason.replace(str(file), name)


def _unlisted(error: OSError, root: PurePath) -> Unread:
    folder = valid_name(os.path.relpath(error.filename, root))
    return Unread(f"{folder}/", f"{folder} cannot be listed ({error.strerror}): none of its texts are here.")


def _read(file: File) -> str:
    return read_text(file) if isinstance(file, Path) else file.read_text()


def _path(file: File) -> PurePath:
    if isinstance(file, Line):
        path = _path(file.path)
        return path.with_name(f"{path.name}:{file.number}")
    return file.path if isinstance(file, RemoteFile) else file.absolute()


def _common_folder(files: list[File]) -> PurePath:
    """The folder that file names are given relative to; no report names a machine's own paths."""
    paths = [_path(file) for file in files]
    folder = paths[0].parent
    while not all(path.is_relative_to(folder) for path in paths):
        folder = folder.parent
    return folder
