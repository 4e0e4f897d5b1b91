"""Texts: read from files, turned into tokens with character spans, cut into blocks."""

from focus_core.text.blocks import (
    TooShortError,
    document_blocks,
    evenly_spaced,
    opened,
    token_blocks,
    token_windows,
)
from focus_core.text.files import (
    CORPUS_SUFFIXES,
    JSONL_SUFFIXES,
    TABLE_SUFFIXES,
    TEXT_SUFFIXES,
    decode_text,
    find_texts,
    no_texts,
    read_text,
)
from focus_core.text.tokens import (
    Encoding,
    check_characters,
    check_length,
    encode,
    opening_tokens,
    tidy_offsets,
    token_bytes,
    trim_offsets,
)

__all__ = [
    "CORPUS_SUFFIXES",
    "JSONL_SUFFIXES",
    "TABLE_SUFFIXES",
    "TEXT_SUFFIXES",
    "Encoding",
    "TooShortError",
    "check_characters",
    "check_length",
    "decode_text",
    "document_blocks",
    "encode",
    "evenly_spaced",
    "find_texts",
    "no_texts",
    "opened",
    "opening_tokens",
    "read_text",
    "tidy_offsets",
    "token_blocks",
    "token_bytes",
    "token_windows",
    "trim_offsets",
]
