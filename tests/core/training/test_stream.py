"""Streamed corpora: formats, order, shares of processes, memory."""

import json
from itertools import islice

import numpy as np
import pandas as pd
import pytest
import torch
from accelerate.data_loader import IterableDatasetShard

from focus_core import FocusError
from focus_core.training.stream import Source, TokenStream, documents, find_sources

TEXTS = [" ".join(f"{name}{number}" for number in range(60)) for name in "abcde"]


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.txt").write_text(TEXTS[0])
    (folder / "b.jsonl").write_text("\n".join(json.dumps({"id": 1, "text": text}) for text in TEXTS[1:3]) + "\n\n")
    pd.DataFrame({"content": TEXTS[3:], "n": [1, 2]}).to_parquet(folder / "c.parquet")
    (folder / "ignored.csv").write_text("x")
    return folder


def first(stream, count):
    return [item["input_ids"].tolist() for item in islice(iter(stream), count)]


def test_every_format_gives_its_texts(corpus):
    sources = find_sources([corpus, corpus / "a.txt", "hf:org/name:part"])
    assert [source.path.name for source in sources[:3]] == ["a.txt", "b.jsonl", "c.parquet"]
    assert sources[3:] == [Source(None, "org/name:part")]
    assert list(documents(sources[:3])) == TEXTS


def test_a_pass_holds_every_block_once_and_the_next_is_in_another_order(corpus, byte_tokenizer):
    stream = TokenStream(find_sources([corpus]), byte_tokenizer, 32, buffer=4)
    expected = [
        byte_tokenizer(text)["input_ids"][start : start + 32]
        for text in TEXTS
        for start in range(0, len(text) - 31, 32)
    ]
    one, two = first(stream, len(expected)), first(stream, 2 * len(expected))[len(expected) :]
    assert sorted(one) == sorted(two) == sorted(expected)
    assert one != two
    assert one != expected
    assert first(stream, 30) == first(stream, 30)
    other = TokenStream(find_sources([corpus]), byte_tokenizer, 32, buffer=4, seed=1)
    assert first(other, len(expected)) != one
    assert stream.sample(1000).shape == (len(expected), 32)


def test_blocks_of_the_stream_begin_with_the_tokenizers_opening(corpus, byte_tokenizer):
    stream = TokenStream(find_sources([corpus]), byte_tokenizer, 32)
    stream.opening = [7]
    plain = byte_tokenizer(TEXTS[0])["input_ids"]
    found = next(iter(stream.blocks(range(len(stream.sources)))))
    assert found.tolist() == [7, *plain[:31]]


def test_shares_of_processes_are_together_what_one_would_see(corpus, byte_tokenizer):
    stream = TokenStream(find_sources([corpus]), byte_tokenizer, 32)
    whole = first(stream, 8)
    shares = [
        first(IterableDatasetShard(stream, batch_size=2, num_processes=2, process_index=rank), 4) for rank in (0, 1)
    ]
    assert shares[0] == whole[0:2] + whole[4:6]
    assert shares[1] == whole[2:4] + whole[6:8]


def test_only_a_buffer_is_held(byte_tokenizer, monkeypatch):
    """An endless source would never come to its first block if it were read whole."""
    from focus_core.training import stream as module

    def endless(sources):
        while True:
            yield TEXTS[0]

    monkeypatch.setattr(module, "documents", endless)
    stream = TokenStream([Source(None, "endless")], byte_tokenizer, 32, buffer=8)
    assert len(first(stream, 20)) == 20


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.jsonl", b"{not json}\n", "Line 1"),
        ("x.jsonl", b'{"title": "t"}\n', "no column"),
        ("x.jsonl", b'{"text": 3}\n', "Line 1"),
        ("x.jsonl", b'{"text": "\xff"}\n', "Line 1"),
        ("x.jsonl", b"[" * 100_000, "Line 1"),
        ("x.parquet", b"PAR1 no", "damaged"),
        ("x.parquet", b"PAR1" + b"\0" * 99 + b"PAR1", "damaged"),
        ("x.txt", b"short", "No text has"),
    ],
)
def test_bad_data_is_one_sentence(tmp_path, byte_tokenizer, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FocusError, match=message):
        first(TokenStream(find_sources([tmp_path / name]), byte_tokenizer, 32), 1)


def test_a_table_of_numbers_is_one_sentence(tmp_path, byte_tokenizer):
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table({"text": [1, 2, 3]}), tmp_path / "x.parquet")
    with pytest.raises(FocusError, match=r"The column text of .* holds no texts"):
        first(TokenStream(find_sources([tmp_path / "x.parquet"]), byte_tokenizer, 32), 1)


def test_missing_data_is_one_sentence(tmp_path):
    with pytest.raises(FocusError, match="no file or folder"):
        find_sources([tmp_path / "nothing"])
    with pytest.raises(FocusError, match="has no"):
        find_sources([tmp_path])
    with pytest.raises(FocusError, match="No text"):
        find_sources([])


def test_a_hub_data_set_streams(tmp_path, byte_tokenizer):
    """The real library on a local folder, which it takes for a data set."""
    pytest.importorskip("datasets")
    folder = tmp_path / "set"
    folder.mkdir()
    pd.DataFrame({"text": TEXTS}).to_parquet(folder / "train.parquet")
    assert list(documents(find_sources([f"hf:{folder}"]))) == TEXTS
    with pytest.raises(FocusError, match="cannot be streamed"):
        list(documents(find_sources([f"hf:{tmp_path / 'nothing'}"])))
    assert torch.is_tensor(TokenStream(find_sources([f"hf:{folder}"]), byte_tokenizer, 32).sample(2))
    assert np.asarray(first(TokenStream(find_sources([f"hf:{folder}"]), byte_tokenizer, 32), 3)).shape == (3, 32)
