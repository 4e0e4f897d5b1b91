"""Tokens as people read them where a token may hold a part of a character only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from focus_core.analysis.tokens import spelled, visible
from focus_core.text import token_bytes


def token_names(tokenizer: Any, tokens: Iterable[int]) -> dict[int, str]:
    """The visible text of each token, by its id."""
    ids = sorted(set(tokens))
    return {token: visible(spelled(raw)) for token, raw in zip(ids, token_bytes(tokenizer, ids))}
