"""View models of tokens: drawn cells, pages of them, and the token table."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from focus_core.analysis import Trace

PAGE_TOKENS = 800
"""Tokens drawn on one page of the strip."""

_JOINERS = {"\u200d", "\u200c"}


@dataclass(frozen=True)
class Cell:
    """A piece of the text that is drawn once.

    Attributes:
        start: first character.
        end: one past the last character.
        tokens: indices of the tokens that cover it, usually one; several where they share a character or
            belong to one visible character (an emoji sequence, a letter with its accents); none for
            characters that the tokenizer dropped.
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


def visible(text: str) -> str:
    """A short text with its blanks and control characters made visible, for tables and titles."""
    if text.isprintable():  # most are, and looking at every character takes long for thousands of them
        return text.replace(" ", "·")
    marks = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"}
    return "".join(
        marks.get(c) or (f"⟨U+{ord(c):04X}⟩" if unicodedata.category(c) in ("Cc", "Cf", "Co") else c) for c in text
    )


def token_text(trace: Trace, token: int) -> str:
    """The characters of a token as they can be shown, or the vocabulary's spelling if it has none."""
    start, end = trace.offsets[token]
    return visible(trace.text[start:end]) if end > start else trace.tokens[token]


def context(trace: Trace, token: int, around: int = 28) -> str:
    """A token between brackets, with the text around it on one line."""
    start, end = (int(edge) for edge in trace.offsets[token])
    while start < end - 1 and trace.text[start] == " ":
        start += 1
    before, after = trace.text[max(0, start - around) : start], trace.text[end : end + around]
    return visible(f"{before}[{trace.text[start:end]}]{after}").replace("·", " ")


def group_order(trace: Trace, layer: int) -> np.ndarray:
    """(T, K) int64 groups of each token from the largest to the smallest weight, ties to the lower number."""
    return np.argsort(-trace.assignment[layer], axis=-1, kind="stable")


def margins(trace: Trace, layer: int) -> np.ndarray:
    """(T,) float32 weight of the last group joined minus that of the first group not joined.

    Zero means that a coin could have decided. Where all K groups are joined, or none, nothing is: infinity.
    """
    k = trace.config.joined(layer)
    weights = -np.sort(-trace.assignment[layer], axis=-1)
    if not 0 < k < weights.shape[1]:
        return np.full(weights.shape[0], np.inf, dtype=np.float32)
    return weights[:, k - 1] - weights[:, k]


def ambiguous(trace: Trace, layer: int, count: int = 50) -> pd.DataFrame:
    """Tokens whose groups were decided by the smallest margins in a layer, the closest call first."""
    k, order, margin = trace.config.joined(layer), group_order(trace, layer), margins(trace, layer)
    if not 0 < k < order.shape[1]:
        return pd.DataFrame(columns=["token", "text", "in context", "groups", "runner-up", "margin"])
    chosen = np.argsort(margin, kind="stable")[:count]
    return pd.DataFrame(
        {
            "token": chosen,
            "text": [token_text(trace, int(i)) for i in chosen],
            "in context": [context(trace, int(i)) for i in chosen],
            "groups": [_joined(order[i, :k]) for i in chosen],
            "runner-up": order[chosen, k],
            "margin": margin[chosen],
        }
    )


def groups_by_layer(trace: Trace, token: int) -> pd.DataFrame:
    """The groups of one token in every layer, with the weight of the first and the margin."""
    rows = []
    for row, layer in enumerate(trace.layers):
        k = trace.config.joined(row)
        weights = trace.assignment[row, token]
        order = np.argsort(-weights, kind="stable")
        rest = weights[order[k - 1]] - weights[order[k]] if 0 < k < len(order) else np.inf
        rows.append((layer, _joined(order[:k]), float(weights[order[0]]), float(rest)))
    return pd.DataFrame(rows, columns=["layer", "groups", "weight of the first", "margin"])


def token_table(trace: Trace, token_bytes: Sequence[bytes], rows: Sequence[int] | None = None) -> pd.DataFrame:
    """One row per token: what it is, its groups and margin in every layer.

    Args:
        trace: the routing.
        token_bytes: the bytes of each token.
        rows: rows of the trace to list, all by default.
    """
    columns: dict[str, object] = {
        "token": np.arange(len(trace.tokens)),
        "spelling": list(trace.tokens),
        "text": [trace.text[start:end] for start, end in trace.offsets.tolist()],
        "id": trace.input_ids,
        "bytes": [raw.hex(" ") for raw in token_bytes],
        "start": trace.offsets[:, 0],
        "end": trace.offsets[:, 1],
    }
    for row in range(len(trace.layers)) if rows is None else rows:
        layer = trace.layers[row]
        order = group_order(trace, row)
        columns[f"layer_{layer}_groups"] = [_joined(groups) for groups in order[:, : trace.config.joined(row)]]
        first = np.take_along_axis(trace.assignment[row], order[:, :1], axis=1)[:, 0]
        columns[f"layer_{layer}_weight"] = np.round(first, 4)
        columns[f"layer_{layer}_margin"] = np.round(margins(trace, row), 4)
    return pd.DataFrame(columns)


def _joined(groups: Sequence[int] | np.ndarray) -> str:
    return " ".join(str(int(group)) for group in groups)
