"""Evenly spaced passages of a long text, cut at word borders."""

from __future__ import annotations

from typing import Any

import numpy as np

from focus_core.text import encode, opening_tokens


def passages(tokenizer: Any, text: str, length: int, count: int) -> list[str]:
    """Cut a text into pieces of at most `length` tokens and keep some, evenly spaced.

    Args:
        tokenizer: a fast tokenizer of Transformers.
        text: of any length; a shorter text is one piece.
        length: tokens, the tokenizer's own opening included.
        count: pieces to keep; 0 for all.

    Returns:
        The pieces in order; a word that a cut would split is left out.

    Raises:
        FocusError: empty text.
    """
    offsets = encode(tokenizer, text).offsets
    length = max(1, length - len(opening_tokens(tokenizer)))
    starts = np.arange(0, max(1, len(offsets) - length // 2), length)
    if count and count < len(starts):
        starts = starts[np.linspace(0, len(starts) - 1, count).round().astype(np.int64)]
    pieces = []
    for first in starts.tolist():
        last = min(first + length, len(offsets)) - 1
        low, high = int(offsets[first, 0]), int(offsets[last, 1])
        piece = text[low:high]
        if low > 0 and not text[low - 1].isspace() and not piece[:1].isspace():
            piece = piece[_first_space(piece) :]
        if high < len(text) and not text[high].isspace() and not piece[-1:].isspace():
            piece = piece[: len(piece) - _first_space(piece[::-1])]
        if piece.strip():
            pieces.append(piece)
    return pieces


def _first_space(text: str) -> int:
    return next((index for index, character in enumerate(text) if character.isspace()), 0)
