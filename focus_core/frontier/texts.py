"""Kinds of text: each a file or a folder of documents, cut into blocks that are spread over all of its documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from focus_core.errors import FocusError
from focus_core.io.reading import read_json
from focus_core.io.schema import array, maybe, table, text
from focus_core.shipped import routers_folder
from focus_core.text import document_blocks, evenly_spaced, read_text


@dataclass(frozen=True)
class Kind:
    """Text of one kind.

    Attributes:
        name: such as "dialogue".
        files: its documents.
    """

    name: str
    files: tuple[Path, ...]


@dataclass(frozen=True)
class Cut:
    """Blocks of one kind of text at one length.

    Attributes:
        blocks: (N, T) int64 token ids.
        documents: name of the document of each block.
        available: blocks in the whole kind, of which these are evenly spaced ones.
    """

    blocks: np.ndarray
    documents: tuple[str, ...]
    available: int


def find_kinds(folder: Path) -> list[Kind]:
    """The kinds of text in a folder: every .txt file and every subfolder of .txt files, in order of their names.

    Hidden entries and other files are left out.

    Raises:
        FocusError: there is no such folder, no text in it or in a subfolder, or two kinds have one name.
    """
    if not folder.is_dir():
        raise FocusError(f"There is no folder {folder}: give one that holds a file or a subfolder for each kind.")
    kinds: dict[str, Kind] = {}
    for entry in sorted(entry for entry in folder.iterdir() if not entry.name.startswith(".")):
        if entry.is_dir():
            files = tuple(sorted(file for file in entry.rglob("*.txt") if _is_document(file, entry)))
            if not files:
                raise FocusError(f"The folder {entry} has no .txt files: add some, or move it out of {folder}.")
        elif entry.suffix == ".txt":
            files = (entry,)
        else:
            continue
        name = entry.name if entry.is_dir() else entry.stem
        if name in kinds:
            raise FocusError(f"{folder} has a file and a folder for the kind {name!r}: rename one of them.")
        kinds[name] = Kind(name, files)
    if not kinds:
        raise FocusError(f"{folder} holds no kind of text: give each kind a .txt file or a subfolder of them.")
    return list(kinds.values())


def _is_document(file: Path, root: Path) -> bool:
    return file.is_file() and not any(part.startswith(".") for part in file.relative_to(root).parts)


def cut(tokenizer: object, files: Iterable[Path], length: int, wanted: int) -> Cut:
    """Evenly spaced blocks over all documents; fewer, or none, where the text is too short.

    Args:
        tokenizer: a fast tokenizer of Transformers.
        files: the documents.
        length: T, tokens per block.
        wanted: number of blocks.

    Raises:
        FocusError: a document cannot be read, or `length` or `wanted` is below 1.
    """
    if wanted < 1:
        raise FocusError("Block length and number of blocks must be at least 1.")
    files = list(files)
    parts = document_blocks(tokenizer, map(read_text, files), length)
    names = [file.name for file, blocks in zip(files, parts, strict=True) for _ in blocks]
    chosen = evenly_spaced(len(names), wanted)
    return Cut(np.concatenate(parts)[chosen], tuple(names[number] for number in chosen), len(names))


_TEXTS = array(table({"name": text(), "sha256": text()}))
_TRAINED = table(optional={"data": _TEXTS, "started_from": maybe(table())})
_RECORDS = ("training.json", "plan.json")
"""Records beside routers that name the texts which these were trained, fitted or planned on."""


def training_texts(folder: str | Path) -> list[dict[str, Any]]:
    """Name and hash of the texts that routers were made from, earlier stages included; empty without a record.

    Args:
        folder: of the routers, or a shipped name.
    """
    return [text for name in _RECORDS for text in _stages(routers_folder(folder) / name)]


def _stages(path: Path) -> Iterator[dict[str, Any]]:
    try:
        stage = read_json(path)
        while stage:
            _TRAINED(stage, "")
            yield from stage.get("data", ())
            stage = stage.get("started_from")
    except (OSError, ValueError):
        return


def check_held_out(
    documents: Iterable[tuple[str, str]], trained_on: Mapping[str, Iterable[dict[str, Any]]], option: str
) -> None:
    """Refuse documents that baselines are fitted or routers were trained on.

    Args:
        documents: name and SHA-256 of each.
        trained_on: texts with their SHA-256, by what was trained on them.
        option: that names the documents.

    Raises:
        FocusError: there is one.
    """
    known = {each["sha256"]: where for where, texts in trained_on.items() for each in texts}
    for name, sha256 in documents:
        if sha256 in known:
            raise FocusError(
                f"{name} is training text of {known[sha256]}: take it out of {option}, since only held-out text counts."
            )


def one_document(documents: Iterable[str]) -> str:
    """The warning where all blocks come from one document; empty where they come from several."""
    names = list(documents)
    if len(set(names)) > 1 or not names:
        return ""
    return f"All blocks come from one document ({names[0]}): the intervals are about it alone."
