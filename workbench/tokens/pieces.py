"""Tokens as people read them where a token may hold a part of a character only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from focus_core.analysis.tokens import visible
from focus_core.text import token_bytes

_ESCAPED = 0xDC00
"""Python's "surrogateescape" turns a byte that is no UTF-8 into this plus the byte."""


def spelled(raw: bytes) -> str:
    """The text of some bytes; those of a character that is cut as `<0xE4>`, so that one part differs from another."""
    text = raw.decode("utf-8", "surrogateescape")
    return "".join(f"<0x{ord(c) - _ESCAPED:02X}>" if 0xDC80 <= ord(c) <= 0xDCFF else c for c in text)


def token_names(tokenizer: Any, tokens: Iterable[int]) -> dict[int, str]:
    """The visible text of each token, by its id."""
    ids = sorted(set(tokens))
    return {token: visible(spelled(raw)) for token, raw in zip(ids, token_bytes(tokenizer, ids))}
