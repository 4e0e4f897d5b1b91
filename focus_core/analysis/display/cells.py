"""Drawn cells of a text: every character once, with the tokens that cover it, and pages of them."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

PAGE_TOKENS = 800
"""Tokens drawn on one page of the strip."""

_JOINERS = {"\u200d", "\u200c"}


@dataclass(frozen=True)
class Cell:
    """A piece of the text that is drawn once.

    Attributes:
        start: first character.
        end: one past the last character.
        tokens: indices of the tokens that cover it, usually one. Several where they share a character or belong to one
            visible character, such as a letter with its accents. None for characters that the tokenizer dropped.
    """

    start: int
    end: int
    tokens: tuple[int, ...]


def build_cells(text: str, offsets: np.ndarray) -> list[Cell]:
    """Cut a text into cells so that every character is drawn exactly once.

    Args:
        text: the analysed text.
        offsets: (T, 2) character span of each token, in order.

    Returns:
        Cells in reading order that tile the text; tokens without characters (special tokens) get an empty
        cell.
    """
    cells: list[Cell] = []
    for index, (start, end) in enumerate(offsets.tolist()):
        reached = cells[-1].end if cells else 0
        if start > reached:
            cells.append(Cell(reached, start, ()))
            reached = start
        if start == end:
            cells.append(Cell(reached, reached, (index,)))
        elif cells and cells[-1].tokens and (start < reached or _continues(text, start, cells[-1])):
            last = cells[-1]
            cells[-1] = Cell(last.start, max(last.end, end), (*last.tokens, index))
        else:
            cells.append(Cell(reached, max(reached, end), (index,)))
    reached = cells[-1].end if cells else 0
    if reached < len(text):
        cells.append(Cell(reached, len(text), ()))
    return cells


def _continues(text: str, start: int, last: Cell) -> bool:
    """Whether the character at `start` forms one visible character with the one before it."""
    if start == 0 or last.end != start:
        return False
    before, character = text[start - 1], text[start]
    if before == "\u200d" or character in _JOINERS or unicodedata.category(character) in ("Mn", "Me", "Mc"):
        return not before.isspace()
    if "\U0001f3fb" <= character <= "\U0001f3ff":  # skin tones
        return not before.isspace()
    if _is_flag_half(character) and _is_flag_half(before):  # two halves make one flag
        run = 0
        while run < start and _is_flag_half(text[start - 1 - run]):
            run += 1
        return run % 2 == 1
    return False


def _is_flag_half(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def paginate(cells: Sequence[Cell], size: int = PAGE_TOKENS) -> list[tuple[int, int]]:
    """Ranges [first, last) of cells, each with about `size` tokens; at least one range."""
    pages: list[tuple[int, int]] = []
    first, held = 0, 0
    for position, cell in enumerate(cells):
        if held >= size:
            pages.append((first, position))
            first, held = position, 0
        held += max(1, len(cell.tokens))
    return [*pages, (first, len(cells))]


def page_of(cells: Sequence[Cell], pages: Sequence[tuple[int, int]], token: int) -> int:
    """The page that draws a token, 0 if none does."""
    for number, (first, last) in enumerate(pages):
        if any(token in cell.tokens for cell in cells[first:last]):
            return number
    return 0
