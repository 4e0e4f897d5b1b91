"""Token ids of a text, their character spans and bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from focus_core.errors import FocusError


class Encoding(NamedTuple):
    """A tokenised text of T tokens.

    Attributes:
        input_ids: (T,) int64 token ids.
        offsets: (T, 2) int64 character spans [start, end) in the text. Together they cover every character;
            any two are either equal or disjoint, in order. A space before a word belongs to the word's span.
            Tokens that share a character (a byte-level vocabulary cuts an emoji in three) share one span.
            The tokenizer's own opening, where asked for, has empty spans at 0.
        tokens: (T,) the vocabulary's own spelling of each token.
    """

    input_ids: np.ndarray
    offsets: np.ndarray
    tokens: tuple[str, ...]


def encode(tokenizer: Any, text: str, *, max_tokens: int | None = None, opening: bool = False) -> Encoding:
    """Tokenise one text, without added special tokens except the `opening_tokens`, if chosen.

    Special tokens spelt out in the text (such as ``<|im_start|>``) are recognised.

    Args:
        tokenizer: a fast tokenizer of Transformers.
        text: the text.
        max_tokens: longest accepted text, in tokens.
        opening: begin with the tokenizer's `opening_tokens`, unless the text spells them out. They stand for no
            characters and have empty spans.

    Raises:
        FocusError: the text is empty, too long, or holds half of a surrogate pair.
    """
    if not text.strip():
        raise FocusError("The text is empty: give at least one word.")
    batch = tokenize(tokenizer, text)
    ids = np.asarray(batch["input_ids"], dtype=np.int64)
    before = opening_tokens(tokenizer) if opening else []
    if ids[: len(before)].tolist() == before:
        before = []
    check_length(len(before) + len(ids), max_tokens)
    if len(ids) == 0:
        raise FocusError("The text has no tokens: it holds nothing but characters that the tokenizer drops.")
    offsets = tidy_offsets(np.asarray(batch["offset_mapping"], dtype=np.int64), len(text))
    return Encoding(
        np.concatenate([np.array(before, dtype=np.int64), ids]),
        np.concatenate([np.zeros((len(before), 2), dtype=np.int64), offsets]),
        (*tokenizer.convert_ids_to_tokens(before), *batch.tokens()),
    )


def check_length(count: int, max_tokens: int | None) -> None:
    """Refuse a text of more tokens than are accepted.

    Args:
        count: tokens of the text, the opening included.
        max_tokens: the most that are accepted; None for any number.

    Raises:
        FocusError: too many.
    """
    if max_tokens is not None and count > max_tokens:
        raise FocusError(f"The text has {count:,} tokens and the limit here is {max_tokens:,}: shorten or split it.")


def tidy_offsets(offsets: np.ndarray, length: int) -> np.ndarray:
    """Turn a tokenizer's spans into spans that cover the text: any two equal or disjoint, in order.

    Overlapping spans, as of the parts of one character, become their union. Gaps, as of the space before a word, go to
    the token that follows, or to the last one at the end. Empty spans, as of a tokenizer's own mark, join a neighbour.

    Args:
        offsets: (T, 2) int64 spans as the tokenizer gives them, T >= 1.
        length: characters in the text.

    Returns:
        (T, 2) int64.
    """
    ends = np.maximum.accumulate(offsets[:, 1])
    before = ends[:-1]
    is_first = np.ones(len(ends), dtype=bool)
    is_first[1:] = (offsets[1:, 0] >= before) & (ends[1:] > before) & (before > 0)
    span = np.cumsum(is_first) - 1
    span_ends = ends[np.append(np.flatnonzero(is_first)[1:] - 1, len(ends) - 1)]
    span_ends[-1] = length
    span_starts = np.concatenate(([0], span_ends[:-1]))
    return np.stack((span_starts[span], span_ends[span]), axis=1)


def trim_offsets(text: str, offsets: np.ndarray) -> np.ndarray:
    """The spans without the white space at either end, for alignment with words.

    Args:
        text: the text the spans point into.
        offsets: (T, 2) int64, as in `Encoding`.

    Returns:
        (T, 2) int64. A span of white space alone becomes empty, at its end.
    """
    trimmed = offsets.copy()
    for row in trimmed:
        piece = text[row[0] : row[1]]
        row[0] = row[1] - len(piece.lstrip())
        row[1] = max(row[0], row[1] - (len(piece) - len(piece.rstrip())))
    return trimmed


def token_bytes(tokenizer: Any, ids: Sequence[int] | np.ndarray) -> list[bytes]:
    """The bytes each token stands for; joined, they are the UTF-8 form of the text.

    Characters that the tokenizer drops have no bytes: SmolLM2's vocabulary has no token for some control characters.
    Exact for byte-level vocabularies (GPT-2, Llama 3, SmolLM) and for the byte pieces of SentencePiece ones (`<0xE2>`).
    Other tokens give the UTF-8 form of their spelling, with the word mark as a space.

    Args:
        tokenizer: a fast tokenizer of Transformers.
        ids: (T,) token ids.
    """
    added = tokenizer.get_added_vocab()
    byte_level = "ByteLevel" in str(tokenizer.backend_tokenizer.decoder)
    pieces = tokenizer.convert_ids_to_tokens([int(token) for token in ids])
    return [_piece_bytes(piece, byte_level and piece not in added) for piece in pieces]


def opening_tokens(tokenizer: Any) -> list[int]:
    """Ids of the tokens that a tokenizer puts before any text: the `<bos>` of Gemma and Llama, none for GPT-2.

    Models that were trained with them perform worse without them, so every block of a corpus begins with them.

    Args:
        tokenizer: a fast tokenizer of Transformers.
    """
    plain, whole = (tokenizer("a", add_special_tokens=special)["input_ids"] for special in (False, True))
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return list(whole[:start])
    return []


def tokenize(tokenizer: Any, text: str) -> Any:
    """What a tokenizer gives for a text without special tokens of its own, character spans included.

    Raises:
        FocusError: the text holds half of a surrogate pair.
    """
    try:
        # Not verbose: a text may be longer than the model's limit here, and the warning would mislead.
        return tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    except (UnicodeEncodeError, TypeError):
        check_characters(text)
        raise


def check_characters(text: str) -> None:
    """Refuse bytes of a command line that are no text, which Python spells as half of a surrogate pair.

    Raises:
        FocusError: the text holds one.
    """
    if re.search("[\ud800-\udfff]", text):
        raise FocusError("The text holds half of a surrogate pair, which is no character: remove it.")


def _piece_bytes(piece: str | None, byte_level: bool) -> bytes:
    if piece is None:  # an id beyond the vocabulary
        return b""
    if byte_level:
        table = _byte_of_character()
        return b"".join(table.get(character, character.encode()) for character in piece)
    if match := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", piece):
        return bytes.fromhex(match[1])
    return piece.replace("▁", " ").encode()


@cache
def _byte_of_character() -> dict[str, bytes]:
    """GPT-2's alphabet for bytes: printable ones stand for themselves, the others for U+0100 and up, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    table = {chr(byte): bytes([byte]) for byte in printable}
    return table | {chr(0x100 + index): bytes([byte]) for index, byte in enumerate(others)}
