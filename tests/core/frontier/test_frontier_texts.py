"""Kinds of text in a folder, and their blocks."""

import numpy as np
import pytest

from focus_core.errors import FocusError
from focus_core.frontier.texts import cut, find_kinds, one_document
from focus_core.text import token_blocks


def write(path, text="words " * 40):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_every_file_and_every_subfolder_is_a_kind(tmp_path):
    write(tmp_path / "wiki.txt")
    write(tmp_path / "v1.2-code" / "b.txt")
    write(tmp_path / "v1.2-code" / "deep" / "a.txt")
    write(tmp_path / "v1.2-code" / ".hidden" / "c.txt")
    write(tmp_path / "v1.2-code" / "README.md")
    write(tmp_path / "README.md")
    write(tmp_path / ".cache" / "x.txt")
    found = {kind.name: [file.name for file in kind.files] for kind in find_kinds(tmp_path)}
    assert found == {"v1.2-code": ["b.txt", "a.txt"], "wiki": ["wiki.txt"]}


def test_folders_that_are_no_kinds_are_refused(tmp_path):
    with pytest.raises(FocusError, match="no folder"):
        find_kinds(tmp_path / "gone")
    with pytest.raises(FocusError, match="holds no kind of text"):
        find_kinds(tmp_path)
    (tmp_path / "web").mkdir()
    with pytest.raises(FocusError, match=r"web has no \.txt files"):
        find_kinds(tmp_path)
    write(tmp_path / "web" / "a.txt")
    write(tmp_path / "web.txt")
    with pytest.raises(FocusError, match="a file and a folder for the kind 'web'"):
        find_kinds(tmp_path)


def test_blocks_are_spread_over_all_documents(tmp_path, byte_tokenizer):
    files = [write(tmp_path / f"{name}.txt", f"{name} " * 40) for name in "abc"]
    write(tmp_path / "short.txt", "x")
    sample = cut(byte_tokenizer, [*files, tmp_path / "short.txt"], 16, 3)
    every = token_blocks(byte_tokenizer, [file.read_text() for file in files], 16)
    assert sample.available == len(every) and sample.documents == ("a.txt", "b.txt", "c.txt")
    np.testing.assert_array_equal(sample.blocks, every[[0, round((len(every) - 1) / 2), len(every) - 1]])
    whole = cut(byte_tokenizer, files, 16, 1000)
    np.testing.assert_array_equal(whole.blocks, every)


def test_a_kind_that_is_too_short_gives_fewer_blocks_or_none(tmp_path, byte_tokenizer):
    file = write(tmp_path / "a.txt", "x" * 40)
    assert len(cut(byte_tokenizer, [file], 16, 5).blocks) == 2
    none = cut(byte_tokenizer, [file], 64, 5)
    assert none.blocks.shape == (0, 64) and none.documents == () and none.available == 0
    with pytest.raises(FocusError, match="at least 1"):
        cut(byte_tokenizer, [file], 16, 0)


def test_one_document_is_warned_of():
    assert one_document(["a", "b"]) == "" and one_document([]) == ""
    assert one_document(["a", "a"]) == "All blocks come from one document (a): the intervals are about it alone."
