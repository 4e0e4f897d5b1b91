"""Cuts texts into blocks of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from focus_core.errors import FocusError
from focus_core.text.tokens import opening_tokens, tokenize


class TooShortError(FocusError):
    """No text is long enough for one block.

    Attributes:
        longest: tokens of the longest text.
    """

    def __init__(self, longest: int, length: int) -> None:
        few = f"The longest text has {longest:,} tokens, fewer than one block of {length:,}"
        super().__init__(f"{few}: give a longer text or shorten the blocks.")
        self.longest = longest


def token_blocks(tokenizer: Any, texts: Iterable[str], length: int, *, max_blocks: int | None = None) -> np.ndarray:
    """Cut texts into non-overlapping blocks of tokens, in order, each after the `opening_tokens`, if there are any.

    A block never holds two texts; an incomplete block at the end of a text is dropped.

    Args:
        tokenizer: a fast tokenizer of Transformers.
        texts: one string per file; may be a generator, only one text is held at a time.
        length: tokens per block, the opening included.
        max_blocks: number of blocks to keep, evenly spaced over all of them; None for all.

    Returns:
        (N, length) int64.

    Raises:
        TooShortError: no text is long enough for one block.
        FocusError: `length` or `max_blocks` is below 1.
    """
    if length < 1 or (max_blocks is not None and max_blocks < 1):
        raise FocusError("Block length and number of blocks must be at least 1.")
    opening = _opening(tokenizer, length)
    parts, longest = [], 0
    for text in texts:
        ids = np.asarray(tokenize(tokenizer, text)["input_ids"], dtype=np.int64)
        longest = max(longest, len(ids))
        parts.append(opened(ids, opening, length))
    blocks = np.concatenate(parts) if parts else np.empty((0, length), dtype=np.int64)
    if len(blocks) == 0:
        raise TooShortError(longest, length)
    return blocks[evenly_spaced(len(blocks), max_blocks)]


def document_blocks(tokenizer: Any, texts: Iterable[str], length: int) -> list[np.ndarray]:
    """The blocks of each text alone, as `token_blocks` cuts them: (N, length) int64, N = 0 for one that is too short.

    Raises:
        FocusError: `length` is below 1 or leaves no room after the opening.
    """
    opening = _opening(tokenizer, length)
    ids = (np.asarray(tokenize(tokenizer, text)["input_ids"], dtype=np.int64) for text in texts)
    return [opened(each, opening, length) for each in ids]


def evenly_spaced(count: int, wanted: int | None) -> np.ndarray:
    """Indices of at most `wanted` of so many blocks, the first and the last among them; all when None."""
    if wanted is None or wanted >= count:
        return np.arange(count)
    return np.linspace(0, count - 1, wanted).round().astype(np.int64)


def opened(ids: np.ndarray, opening: Sequence[int], length: int) -> np.ndarray:
    """(N, length) int64: blocks of one text's tokens (n,), each after the opening; the rest of the text is dropped."""
    own = length - len(opening)
    blocks = ids[: len(ids) // own * own].reshape(-1, own)
    return np.concatenate([np.tile(np.array(opening, dtype=np.int64), (len(blocks), 1)), blocks], axis=1)


def _opening(tokenizer: Any, length: int) -> list[int]:
    opening = opening_tokens(tokenizer)
    if len(opening) >= length:
        raise FocusError(f"A block of {length} holds no text after the tokenizer's own opening: give longer blocks.")
    return opening


def token_windows(
    tokenizer: Any, texts: Iterable[str], length: int, stride: int, *, max_blocks: int | None = None
) -> np.ndarray:
    """Blocks of tokens that start every `stride` tokens, for scoring with overlapping context.

    Args:
        tokenizer: a fast tokenizer of Transformers.
        texts: one string per file.
        length: tokens per block.
        stride: from 1 to `length`; at `length` the result is that of `token_blocks`.
        max_blocks: number of blocks to keep, evenly spaced over all of them; None for all.

    Returns:
        (N, length) int64; a block never holds two texts.

    Raises:
        FocusError: as `token_blocks`, or a stride out of range.
    """
    if not 1 <= stride <= length:
        raise FocusError(f"The stride is {stride} and a block has {length} tokens: choose 1 to {length}.")
    if stride == length:
        return token_blocks(tokenizer, texts, length, max_blocks=max_blocks)
    parts, opening = [], _opening(tokenizer, length)
    own = length - len(opening)
    stride = min(stride, own)
    for text in texts:
        ids = np.asarray(tokenize(tokenizer, text)["input_ids"], dtype=np.int64)
        if len(ids) >= own:
            windows = np.lib.stride_tricks.sliding_window_view(ids, own)[::stride]
            parts.append(opened(windows.ravel(), opening, length))
    if not parts:
        raise FocusError(f"No text has {length:,} tokens: give a longer one or shorten the blocks.")
    blocks = np.concatenate(parts)
    return blocks[evenly_spaced(len(blocks), max_blocks)]
