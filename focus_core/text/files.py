"""Reads text files, and finds them in folders."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from focus_core.errors import FocusError
from focus_core.io.left_out import tell_left_out
from focus_core.io.reading import read_bytes, regular

TEXT_SUFFIXES = (".txt", ".md")
"""Suffixes of text files in a folder; a file given by name may have any suffix but those of tables."""
JSONL_SUFFIXES = (".jsonl", ".ndjson")
TABLE_SUFFIXES = (*JSONL_SUFFIXES, ".parquet")
"""Suffixes of tables with a text in each row, which only some callers read."""
_IS_TABLE = "{} is a table of texts, and plain text is read here: write its texts into .txt files."
CORPUS_SUFFIXES = (*TEXT_SUFFIXES, *TABLE_SUFFIXES)


def decode_text(data: bytes, name: str) -> str:
    """Decode the content of a text file. Other encodings than UTF-8 are refused, never guessed.

    Args:
        data: the bytes; a UTF-8 byte order mark is dropped, line ends are kept.
        name: name of the file in an error.

    Raises:
        FocusError: empty, binary, or not UTF-8.
    """
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise FocusError(f"{name} is UTF-16 text: save it as UTF-8 and try again.")
    if b"\0" in data:
        raise FocusError(f"{name} is a binary file: give a plain text file in UTF-8.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FocusError(
            f"{name} is not UTF-8 text (byte {error.start:,} cannot be read): save it as UTF-8 and try again."
        ) from error
    if not text.strip():
        raise FocusError(f"{name} is empty: give a file with some text in it.")
    return text


def read_text(path: str | Path) -> str:
    """Read a UTF-8 text file.

    Raises:
        FocusError: missing, not readable, empty, binary, not UTF-8, or a table of texts by its suffix.
    """
    path = Path(path)
    if path.suffix.lower() in TABLE_SUFFIXES:
        raise FocusError(_IS_TABLE.format(path))
    try:
        data = read_bytes(path)
    except FileNotFoundError as error:
        raise FocusError(f"There is no file {path}: check the path.") from error
    except PermissionError as error:
        raise FocusError(f"{path} cannot be read: you have no permission.") from error
    return decode_text(data, str(path))


def find_texts(
    paths: str | Path | Iterable[str | Path],
    *,
    unread: list[OSError] | None = None,
    suffixes: tuple[str, ...] = TEXT_SUFFIXES,
    tables: tuple[str, ...] = (),
) -> list[Path]:
    """Text files from a list of files and folders, or from a single one.

    Args:
        paths: files with any suffix; and folders, searched for files with one of `suffixes` in sorted order. Hidden
            files are left out.
        unread: where given, folders that cannot be listed are added to it, and pipes and broken links count as texts,
            so that reading them names the fault. Otherwise all three are left out.
        suffixes: of the files to find in folders.
        tables: suffixes of the tables that the caller reads where they are named, beside those among `suffixes`.

    Returns:
        The files in the order given, each once.

    Raises:
        FocusError: a path does not exist, there is no text at all, or a table where only plain text is read.
    """
    found: dict[Path, None] = {}
    for path in map(Path, [paths] if isinstance(paths, (str, Path)) else paths):
        if path.is_dir():
            inside = sorted(_text_files(path, unread, suffixes))
            if not inside:
                raise FocusError(no_texts(path, suffixes))
            tables_left = tuple(each for each in TABLE_SUFFIXES if each not in suffixes)
            tell_left_out(path, (each.name for each in _text_files(path, None, tables_left)), tables)
            found.update(dict.fromkeys(inside))
        elif not path.exists():
            hub = f"{path} is a data set of the hub: only `focus train --trainer` streams those."
            raise FocusError(
                hub if str(path).startswith("hf:") else f"There is no file or folder {path}: check the path."
            )
        elif path.suffix.lower() in TABLE_SUFFIXES and path.suffix.lower() not in (*suffixes, *tables):
            raise FocusError(_IS_TABLE.format(path))
        else:
            found[regular(path)] = None
    if not found:
        raise FocusError("No text was given: name at least one file or folder.")
    return list(found)


def no_texts(folder: str | Path, suffixes: tuple[str, ...] = TEXT_SUFFIXES) -> str:
    """The error for a folder in which there is no file to read."""
    return f"The folder {folder} has no {' or '.join(suffixes)} files: name the files themselves."


def _text_files(root: Path, unread: list[OSError] | None, suffixes: tuple[str, ...]) -> Iterator[Path]:
    """The text files below a folder that are not hidden, see `find_texts`."""
    for folder, subfolders, names in os.walk(root, onerror=None if unread is None else unread.append):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        for path in (Path(folder, name) for name in names if name.lower().endswith(suffixes)):
            if not path.name.startswith(".") and (unread is not None or path.is_file()):
                yield path
