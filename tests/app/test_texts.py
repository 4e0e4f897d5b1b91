from __future__ import annotations

import re

import pytest

from focus_core.errors import FocusError
from workbench.texts import samples, uploaded


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
