"""Reads texts and corpora, and turns them into token ids, character spans and token blocks."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from focus_core.errors import FocusError
from focus_core.left_out import tell_left_out
from focus_core.reading import read_bytes, regular

TEXT_SUFFIXES = (".txt", ".md")
"""Suffixes of text files in a folder; a file given by name may have any suffix but those of tables."""
JSONL_SUFFIXES = (".jsonl", ".ndjson")
TABLE_SUFFIXES = (*JSONL_SUFFIXES, ".parquet")
"""Suffixes of tables with a text in each row, which only some callers read."""
_IS_TABLE = "{} is a table of texts, and plain text is read here: write its texts into .txt files."
CORPUS_SUFFIXES = (*TEXT_SUFFIXES, *TABLE_SUFFIXES)


class TooShortError(FocusError):
    """No text is long enough for one block.

    Attributes:
        longest: tokens of the longest text.
    """

    def __init__(self, longest: int, length: int) -> None:
        few = f"The longest text has {longest:,} tokens, fewer than one block of {length:,}"
        super().__init__(f"{few}: give a longer text or shorten the blocks.")
        self.longest = longest


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


def decode_text(data: bytes, name: str) -> str:
    """Decode the content of a text file. Other encodings than UTF-8 are refused, never guessed.

    Args:
        data: the bytes; a UTF-8 byte order mark is dropped, line ends are kept.
        name: name of the file in an error.

    Raises:
        FocusError: empty, binary, or not UTF-8.
    """
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise FocusError(f"{name} is UTF-16 text: save it as UTF-8 and try again.")
    if b"\0" in data:
        raise FocusError(f"{name} is a binary file: give a plain text file in UTF-8.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FocusError(
            f"{name} is not UTF-8 text (byte {error.start:,} cannot be read): save it as UTF-8 and try again."
        ) from error
    if not text.strip():
        raise FocusError(f"{name} is empty: give a file with some text in it.")
    return text


def read_text(path: str | Path) -> str:
    """Read a UTF-8 text file.

    Raises:
        FocusError: missing, not readable, empty, binary, not UTF-8, or a table of texts by its suffix.
    """
    path = Path(path)
    if path.suffix.lower() in TABLE_SUFFIXES:
        raise FocusError(_IS_TABLE.format(path))
    try:
        data = read_bytes(path)
    except FileNotFoundError as error:
        raise FocusError(f"There is no file {path}: check the path.") from error
    except PermissionError as error:
        raise FocusError(f"{path} cannot be read: you have no permission.") from error
    return decode_text(data, str(path))


def find_texts(
    paths: str | Path | Iterable[str | Path],
    *,
    unread: list[OSError] | None = None,
    suffixes: tuple[str, ...] = TEXT_SUFFIXES,
    tables: tuple[str, ...] = (),
) -> list[Path]:
    """Text files from a list of files and folders, or from a single one.

    Args:
        paths: files with any suffix; and folders, searched for files with one of `suffixes` in sorted order. Hidden
            files are left out.
        unread: where given, folders that cannot be listed are added to it, and pipes and broken links count as texts,
            so that reading them names the fault. Otherwise all three are left out.
        suffixes: of the files to find in folders.
        tables: suffixes of the tables that the caller reads where they are named, beside those among `suffixes`.

    Returns:
        The files in the order given, each once.

    Raises:
        FocusError: a path does not exist, there is no text at all, or a table where only plain text is read.
    """
    found: dict[Path, None] = {}
    for path in map(Path, [paths] if isinstance(paths, (str, Path)) else paths):
        if path.is_dir():
            inside = sorted(_text_files(path, unread, suffixes))
            if not inside:
                raise FocusError(no_texts(path, suffixes))
            tables_left = tuple(each for each in TABLE_SUFFIXES if each not in suffixes)
            tell_left_out(path, (each.name for each in _text_files(path, None, tables_left)), tables)
            found.update(dict.fromkeys(inside))
        elif not path.exists():
            hub = f"{path} is a data set of the hub: only `focus train --trainer` streams those."
            raise FocusError(
                hub if str(path).startswith("hf:") else f"There is no file or folder {path}: check the path."
            )
        elif path.suffix.lower() in TABLE_SUFFIXES and path.suffix.lower() not in (*suffixes, *tables):
            raise FocusError(_IS_TABLE.format(path))
        else:
            found[regular(path)] = None
    if not found:
        raise FocusError("No text was given: name at least one file or folder.")
    return list(found)


def no_texts(folder: str | Path, suffixes: tuple[str, ...] = TEXT_SUFFIXES) -> str:
    """The error for a folder in which there is no file to read."""
    return f"The folder {folder} has no {' or '.join(suffixes)} files: name the files themselves."


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
    batch = _tokenize(tokenizer, text)
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
        ids = np.asarray(_tokenize(tokenizer, text)["input_ids"], dtype=np.int64)
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
    ids = (np.asarray(_tokenize(tokenizer, text)["input_ids"], dtype=np.int64) for text in texts)
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
        ids = np.asarray(_tokenize(tokenizer, text)["input_ids"], dtype=np.int64)
        if len(ids) >= own:
            windows = np.lib.stride_tricks.sliding_window_view(ids, own)[::stride]
            parts.append(opened(windows.ravel(), opening, length))
    if not parts:
        raise FocusError(f"No text has {length:,} tokens: give a longer one or shorten the blocks.")
    blocks = np.concatenate(parts)
    return blocks[evenly_spaced(len(blocks), max_blocks)]


def _tokenize(tokenizer: Any, text: str) -> Any:
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


def _text_files(root: Path, unread: list[OSError] | None, suffixes: tuple[str, ...]) -> Iterator[Path]:
    """The text files below a folder that are not hidden, see `find_texts`."""
    for folder, subfolders, names in os.walk(root, onerror=None if unread is None else unread.append):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        for path in (Path(folder, name) for name in names if name.lower().endswith(suffixes)):
            if not path.name.startswith(".") and (unread is not None or path.is_file()):
                yield path


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
