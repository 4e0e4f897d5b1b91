"""Tokens of a trace as people read them: visible text, groups in order, margins."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from focus_core.analysis.routed_text import RoutedText


def visible(text: str) -> str:
    """A short text with its blanks and control characters made visible, for tables and titles."""
    if text.isprintable():  # most are, and a look at every character is slow for thousands of tokens
        return text.replace(" ", "·")
    marks = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"}
    return "".join(
        marks.get(c) or (f"⟨U+{ord(c):04X}⟩" if unicodedata.category(c) in ("Cc", "Cf", "Co") else c) for c in text
    )


_ESCAPED = 0xDC00
"""Python's "surrogateescape" turns a byte that is no UTF-8 into this plus the byte."""


def spelled(raw: bytes) -> str:
    """The text of some bytes; those of a character that is cut as `<0xE4>`, so that one part differs from another."""
    text = raw.decode("utf-8", "surrogateescape")
    return "".join(f"<0x{ord(c) - _ESCAPED:02X}>" if 0xDC80 <= ord(c) <= 0xDCFF else c for c in text)


def token_text(trace: RoutedText, token: int) -> str:
    """The characters of a token as they can be shown, or the vocabulary's spelling if it has none."""
    start, end = trace.offsets[token]
    return visible(trace.text[start:end]) if end > start else trace.tokens[token]


def context(trace: RoutedText, token: int, around: int = 28) -> str:
    """A token between brackets, with the text around it on one line."""
    start, end = (int(edge) for edge in trace.offsets[token])
    while start < end - 1 and trace.text[start] == " ":
        start += 1
    before, after = trace.text[max(0, start - around) : start], trace.text[end : end + around]
    return visible(f"{before}[{trace.text[start:end]}]{after}").replace("·", " ")


def group_order(trace: RoutedText, layer: int) -> np.ndarray:
    """(T, K) int64 groups of each token from the largest to the smallest weight, ties to the lower number.

    Narrow groups follow their balanced scores, whose order is the same.
    """
    strength = trace.balanced_scores(layer)
    if strength is None:
        return np.argsort(-trace.assignment[layer], axis=-1, kind="stable")
    order = np.argsort(-strength, axis=-1, kind="stable")
    # A tie of weights in float32 decides before scores do.
    first = order == trace.groups[layer][:, None]
    return np.take_along_axis(order, np.argsort(~first, axis=-1, kind="stable"), axis=-1)


def margins(trace: RoutedText, layer: int) -> np.ndarray:
    """(T,) float32 weight of the last group joined minus that of the first group not joined; see `margin_of`.

    0 is a tie between the two. Infinite where all K groups are joined, or none. For narrow groups it is the best
    balanced score minus the second best.
    """
    k = trace.config.key_top_k_of(layer)
    strength = trace.balanced_scores(layer)
    strength = trace.assignment[layer] if strength is None else strength
    if not 0 < k < strength.shape[1]:
        return np.full(strength.shape[0], np.inf, dtype=np.float32)
    ranked = -np.sort(-strength, axis=-1)
    return ranked[:, k - 1] - ranked[:, k]


def margin_of(trace: RoutedText) -> str:
    """The quantity whose difference a margin is: "weight", or "score" with narrow groups."""
    return "weight" if trace.potentials is None else "score"


def numbers(groups: Sequence[int] | np.ndarray) -> str:
    """Group numbers as one string, "3 5"."""
    return " ".join(str(int(group)) for group in groups)
