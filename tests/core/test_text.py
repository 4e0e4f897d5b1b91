"""Texts in: reading, character spans that tile the text, bytes of tokens, blocks."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from focus_core.errors import FocusError
from focus_core.text import (
    CORPUS_SUFFIXES,
    JSONL_SUFFIXES,
    decode_text,
    encode,
    find_texts,
    opening_tokens,
    read_text,
    tidy_offsets,
    token_blocks,
    token_bytes,
    token_windows,
    trim_offsets,
)
from focus_core.training.stream import Source, TokenStream

AWKWARD = [
    "Hello  world",
    "a 👩‍👩‍👧 b🏳️‍🌈",
    "中文字符 test",
    "مرحبا بالعالم ٣",
    "cafe\u0301 a\u0300",
    "a\r\nb\tc\r\r\n",
    "a\0b",
    "   leading and trailing  \n\n",
    "\u200b\u200d\ufeffx",
    "𝔘𝔫𝔦",
    "<|im_start|>user",
    "don't 12  345",
    "x" * 5000,
]


def words_only() -> PreTrainedTokenizerFast:
    """A tokenizer whose spans leave out white space, as BERT's and Llama 3's do."""
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")


def check_tiling(text: str, offsets: np.ndarray) -> None:
    """Spans are in order, equal or disjoint, and together are the text."""
    spans = list(dict.fromkeys(map(tuple, offsets.tolist())))
    assert "".join(text[start:end] for start, end in spans) == text
    assert all(first[1] == second[0] for first, second in pairwise(spans))
    assert all(start < end for start, end in spans)
    assert (np.diff(offsets[:, 0]) >= 0).all()


@pytest.mark.parametrize("text", AWKWARD)
def test_spans_tile_awkward_texts(default_model, text):
    tokenizer = default_model.tokenizer
    encoding = encode(tokenizer, text)
    assert encoding.input_ids.dtype == encoding.offsets.dtype == np.int64
    assert encoding.input_ids.shape == (len(encoding.tokens),) == encoding.offsets.shape[:1]
    check_tiling(text, encoding.offsets)
    assert b"".join(token_bytes(tokenizer, encoding.input_ids)).decode() == text


def is_covered(tokenizer, text: str) -> bool:
    """Whether the vocabulary has a token for each byte; SmolLM2's lacks some control characters."""
    alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)
    vocabulary = tokenizer.get_vocab()
    return all(character in vocabulary for piece, _ in alphabet for character in piece)


@settings(deadline=None, max_examples=200)
@given(text=st.text(min_size=1, max_size=80).filter(str.strip))
def test_spans_tile_any_text(default_model, byte_tokenizer, text):
    for tokenizer in (default_model.tokenizer, byte_tokenizer):
        if not is_covered(tokenizer, text):
            with suppress(FocusError):  # nothing is left of it
                check_tiling(text, encode(tokenizer, text).offsets)
            continue
        encoding = encode(tokenizer, text)
        check_tiling(text, encoding.offsets)
        pieces = token_bytes(tokenizer, encoding.input_ids)
        assert b"".join(pieces) == text.encode()
        for start, end in set(map(tuple, encoding.offsets.tolist())):
            shared = [piece for piece, span in zip(pieces, encoding.offsets.tolist()) if span == [start, end]]
            assert b"".join(shared) == text[start:end].encode()  # a span is exactly its tokens' bytes


@given(text=st.text(alphabet="aB ?\n", min_size=1, max_size=30).filter(str.strip))
def test_spans_of_a_tokenizer_that_drops_spaces(text):
    check_tiling(text, encode(words_only(), text).offsets)


@given(data=st.data(), length=st.integers(1, 12))
def test_tidy_offsets_on_any_spans(data, length):
    count = data.draw(st.integers(1, 8))
    starts = sorted(data.draw(st.lists(st.integers(0, length), min_size=count, max_size=count)))
    ends = [data.draw(st.integers(start, length)) for start in starts]
    check_tiling("x" * length, tidy_offsets(np.array(list(zip(starts, ends))), length))


def test_parts_of_one_character_share_its_span(byte_tokenizer):
    encoding = encode(byte_tokenizer, "a🥖b")
    assert encoding.offsets.tolist() == [[0, 1], *[[1, 2]] * 4, [2, 3]]


def test_trimmed_spans_are_the_words():
    text = " two  words\n"
    offsets = np.array([[0, 4], [4, 11], [11, 12]])
    trimmed = trim_offsets(text, offsets)
    assert [text[start:end] for start, end in trimmed] == ["two", "words", ""]
    assert offsets.tolist() == [[0, 4], [4, 11], [11, 12]]


def test_no_special_tokens_are_added(byte_tokenizer):
    assert encode(byte_tokenizer, "ab").input_ids.shape == (2,)


@pytest.mark.parametrize("text", ["", "   ", "\n\t"])
def test_empty_texts(byte_tokenizer, text):
    with pytest.raises(FocusError, match="empty"):
        encode(byte_tokenizer, text)


def test_too_long_a_text_says_how_long(byte_tokenizer):
    assert len(encode(byte_tokenizer, "x" * 1500, max_tokens=1500).tokens) == 1500
    with pytest.raises(FocusError, match=r"1,501 tokens .* 1,500"):
        encode(byte_tokenizer, "x" * 1501, max_tokens=1500)


def test_half_a_surrogate_pair(byte_tokenizer):
    with pytest.raises(FocusError, match="surrogate"):
        encode(byte_tokenizer, "a\ud83d")


def test_a_text_past_the_models_limit_gives_no_warning(byte_tokenizer, caplog):
    byte_tokenizer.model_max_length = 10
    try:
        encode(byte_tokenizer, "x" * 100)
    finally:
        byte_tokenizer.model_max_length = int(1e30)
    assert not caplog.records


def test_byte_pieces_of_sentencepiece():
    vocabulary = {"<unk>": 0, "▁bread": 1, "<0xF0>": 2, "<0x9F>": 3, "é": 4}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>")))
    assert token_bytes(tokenizer, [1, 2, 3, 4]) == [b" bread", b"\xf0", b"\x9f", "é".encode()]


def test_blocks_keep_the_order_and_never_mix_texts(byte_tokenizer):
    texts = ["a" * 10 + "b" * 3, "c" * 3, "d" * 8]
    blocks = token_blocks(byte_tokenizer, iter(texts), 4)
    assert blocks.dtype == np.int64
    assert ["".join(byte_tokenizer.convert_ids_to_tokens(row)) for row in blocks] == [
        "aaaa",
        "aaaa",
        "aabb",
        "dddd",
        "dddd",
    ]


@given(count=st.integers(1, 40), wanted=st.integers(1, 50))
def test_max_blocks_are_spread_over_the_whole(byte_tokenizer, count, wanted):
    text = "".join(chr(65 + index) * 2 for index in range(count))
    blocks = token_blocks(byte_tokenizer, [text], 2, max_blocks=wanted)
    chosen = [ord(byte_tokenizer.convert_ids_to_tokens(int(row[0]))) - 65 for row in blocks]
    assert len(chosen) == min(count, wanted) == len(set(chosen)) and chosen == sorted(chosen)
    if wanted > 1:
        assert (chosen[0], chosen[-1]) == (0, count - 1)
        assert max(np.diff(chosen), default=1) - min(np.diff(chosen), default=1) <= 1


def test_every_block_begins_as_the_tokenizer_begins_a_text(byte_tokenizer, opening_tokenizer):
    assert opening_tokens(byte_tokenizer) == [] and opening_tokens(opening_tokenizer) == [0]
    text = "abcdefghij"
    plain = byte_tokenizer(text)["input_ids"]
    blocks = token_blocks(opening_tokenizer, [text, "klm"], 4)
    assert blocks[:3].tolist() == [[0, *plain[start : start + 3]] for start in (0, 3, 6)] and len(blocks) == 4
    windows = token_windows(opening_tokenizer, [text], 4, 2)
    assert windows.tolist() == [[0, *plain[start : start + 3]] for start in (0, 2, 4, 6)]
    stream = TokenStream([Source(None, "hf")], opening_tokenizer, 4)
    assert stream.opening == [0]
    with pytest.raises(FocusError, match="longer blocks"):
        token_blocks(opening_tokenizer, [text], 1)


def test_a_text_is_encoded_after_the_opening_where_asked(byte_tokenizer, opening_tokenizer):
    plain, whole = encode(byte_tokenizer, "ab c"), encode(opening_tokenizer, "ab c", opening=True)
    assert whole.input_ids.tolist() == [0, *plain.input_ids.tolist()]
    assert whole.offsets.tolist() == [[0, 0], *plain.offsets.tolist()] and whole.tokens == ("<s>", *plain.tokens)
    assert encode(opening_tokenizer, "<s>ab c", opening=True).input_ids.tolist() == whole.input_ids.tolist()
    assert encode(byte_tokenizer, "ab c", opening=True).tokens == plain.tokens
    with pytest.raises(FocusError, match="5 tokens"):
        encode(opening_tokenizer, "ab c", max_tokens=4, opening=True)
    with pytest.raises(FocusError, match="empty"):
        encode(opening_tokenizer, " ", opening=True)


def test_texts_too_short_for_a_block(byte_tokenizer):
    with pytest.raises(FocusError, match="3 tokens"):
        token_blocks(byte_tokenizer, ["ab", "abc"], 4)
    with pytest.raises(FocusError, match="at least 1"):
        token_blocks(byte_tokenizer, ["abc"], 0)


def test_reading(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffLine one\r\nzwei ü\n".encode())
    assert read_text(path) == "Line one\r\nzwei ü\n"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"\xef\xbb\xbf", "empty"),
        (b"\x89PNG\r\n\0\0", "binary"),
        ("grün".encode("latin-1"), "UTF-8"),
        ("text".encode("utf-16"), "UTF-16"),
    ],
)
def test_files_that_are_no_text(data, reason):
    with pytest.raises(FocusError, match=reason) as failure:
        decode_text(data, "notes.txt")
    assert str(failure.value).startswith("notes.txt") and "\n" not in str(failure.value)


def test_tables_in_a_folder_that_are_left_out_are_told_in_one_line(tmp_path, caplog):
    for name in ("a.txt", "b.jsonl", "c.JSONL", "d.parquet", ".e.jsonl"):
        (tmp_path / name).write_text("text")
    assert find_texts(tmp_path, tables=JSONL_SUFFIXES) == [tmp_path / "a.txt"]
    left = f"Files of the folder {tmp_path} are left out, 2 .jsonl and 1 .parquet: to read them,"
    assert caplog.messages == [f"{left} name the .jsonl files themselves."]
    caplog.clear()
    assert find_texts(tmp_path) == [tmp_path / "a.txt"]
    assert caplog.messages == [f"{left} write their texts into .txt files."]
    caplog.clear()
    assert len(find_texts(tmp_path, suffixes=CORPUS_SUFFIXES)) == 4 and not caplog.messages


def test_finding_texts(tmp_path):
    for name in ("b/two.txt", "b/one.md", "b/.hidden/x.txt", "b/picture.png", "a.log"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    found = find_texts([tmp_path / "a.log", tmp_path / "b", tmp_path / "b" / "two.txt"])
    assert [path.name for path in found] == ["a.log", "one.md", "two.txt"]
    for missing in ([], [tmp_path / "c"], [tmp_path / "b" / ".hidden" / "y"]):
        with pytest.raises(FocusError):
            find_texts(missing)
    for name in ("c.jsonl", "d.Parquet"):
        (tmp_path / name).write_text("x")
        assert find_texts(tmp_path / name, suffixes=CORPUS_SUFFIXES) == [tmp_path / name]
        assert find_texts(tmp_path / name, tables=(".jsonl", ".parquet")) == [tmp_path / name]
        with pytest.raises(FocusError, match="is a table of texts, and plain text is read here"):
            find_texts(tmp_path / name)
    with pytest.raises(FocusError, match="only `focus train --trainer` streams"):
        find_texts("hf:org/name")
    with pytest.raises(FocusError, match="folder"):
        read_text(tmp_path / "b")
    with pytest.raises(FocusError, match="no file"):
        read_text(tmp_path / "c")
