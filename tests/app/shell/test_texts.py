from __future__ import annotations

import os
import re

import pytest

from focus_core.errors import FocusError
from focus_core.text import read_text
from workbench.shell.texts import PART_CHARACTERS, in_folder, parts, samples, uploaded
from workbench.views.quality.records import find_records
from workbench.views.quality.tables import find_results


def test_the_samples_are_there_and_readable():
    found = samples()
    assert {"story", "news", "dialogue", "code", "multilingual"} <= set(found)
    for sample in found.values():
        assert sample.title and sample.description and sample.read().strip()


def test_the_story_is_long_and_its_names_return_far_apart():
    text = samples()["story"].read()
    assert len(text.split()) >= 3000
    for name in ("Saltmere", "Ottoline", "Jory", "Constancy", "Widow"):
        places = [match.start() for match in re.finditer(name, text)]
        assert len(places) >= 5 and places[-1] - places[0] > len(text) // 2


@pytest.mark.parametrize("data", [b"", b"  \n", b"\x89PNG\r\n\x00\x00", b"caf\xe9", "a".encode("utf-16")])
def test_files_that_are_no_text_are_refused_with_a_sentence(data):
    with pytest.raises(FocusError, match=r"The file notes\.txt"):
        uploaded(data, "notes.txt")


def test_an_uploaded_text_keeps_its_characters():
    assert uploaded("\ufeffשלום 🥖\r\n".encode(), "a.txt") == "שלום 🥖\r\n"


def test_a_folder_lists_its_texts_by_their_path_in_it(tmp_path):
    (tmp_path / "letters").mkdir()
    for name in ("b.txt", "letters/a.md", "c.pdf", ".hidden.txt"):
        (tmp_path / name).write_text("some words")
    assert {name: path.read_text() for name, path in in_folder(str(tmp_path)).items()} == {
        "b.txt": "some words",
        "letters/a.md": "some words",
    }
    with pytest.raises(FocusError, match="There is no folder"):
        in_folder(str(tmp_path / "b.txt"))
    with pytest.raises(FocusError, match=r"no \.txt or \.md files"):
        (tmp_path / "empty").mkdir()
        in_folder(str(tmp_path / "empty"))


def test_pipes_among_texts_and_records_are_never_waited_for(tmp_path):
    (tmp_path / "b.txt").write_text("some words")
    for name in ("a.txt", "a.json"):
        os.mkfifo(tmp_path / name)
    found = in_folder(str(tmp_path))
    assert found.pop("b.txt").read_text() == "some words"
    for path in found.values():
        with pytest.raises(FocusError, match="not a regular file"):
            read_text(path)
    pipe = tmp_path / "a.json"
    assert find_records([pipe]) == [] and [name for name, _ in find_results([pipe]).skipped] == ["a.json"]


@pytest.mark.parametrize("mark", ["\n\n", "\n", " ", ""])
def test_parts_of_a_long_file_are_cut_where_it_pauses_and_lose_nothing(mark):
    text = (("x" * 97 + mark) * 900)[:80_000]
    found = parts(text)
    assert "".join(found) == text and len(found) > 3
    assert all(PART_CHARACTERS // 2 < len(part) <= PART_CHARACTERS * 5 // 4 for part in found[:-1])
    assert all(part.endswith(mark) for part in found[:-1])
    assert parts("short") == ["short"] and parts("") == [""]
