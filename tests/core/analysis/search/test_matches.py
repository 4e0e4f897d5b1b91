"""The tokens that a word, a pattern, a part of speech or an entity type stands for."""

from __future__ import annotations

import time

import numpy as np
import pytest

from focus_core import FocusError
from focus_core.analysis.linguistics.corpus.tagging import ENTITIES, tag_entities, tag_text
from focus_core.analysis.search import matches as module
from focus_core.analysis.search.matches import (
    entity_matches,
    matching_tokens,
    pattern_matches,
    tag_matches,
    word_matches,
)

TEXT = "Nora Finch sailed to Scotland. Nora\nFinch saw finches; NORA slept.\n\nHer lamp (old) burnt."


def pieces(spans: np.ndarray) -> list[str]:
    return [TEXT[start:end] for start, end in spans]


def test_words_are_whole_in_any_case_and_phrases_cross_lines():
    assert pieces(word_matches(TEXT, "nora")) == ["Nora", "Nora", "NORA"]
    assert pieces(word_matches(TEXT, " nora  finch ")) == ["Nora Finch", "Nora\nFinch"]
    assert pieces(word_matches(TEXT, "(old)")) == ["(old)"] and not len(word_matches(TEXT, "finche"))
    with pytest.raises(FocusError, match="no word"):
        word_matches(TEXT, "  ")


def test_patterns_are_regular_expressions():
    assert pieces(pattern_matches(TEXT, r"\b[A-Z]\w+")) == ["Nora", "Finch", "Scotland", "Nora", "Finch", "NORA", "Her"]
    assert pieces(pattern_matches(TEXT, r"^F\w*|x*")) == ["Finch"]
    for bad in ("(", "[a", "*"):
        with pytest.raises(FocusError, match="cannot be read"):
            pattern_matches(TEXT, bad)
    for bad in ("", "a" * 201):
        with pytest.raises(FocusError, match="pattern"):
            pattern_matches(TEXT, bad)


@pytest.mark.parametrize("pattern", ["(a|aa)+$", "(((a{1,100}){1,100}){1,100})Z"])
def test_a_pattern_that_would_take_years_is_refused_in_time(pattern, monkeypatch):
    monkeypatch.setattr(module, "SECONDS", 0.2)
    began = time.monotonic()
    with pytest.raises(FocusError, match=r"more than 0\.2 seconds"):
        pattern_matches("a" * 60 + "!", pattern)
    assert time.monotonic() - began < 5


def test_tokens_match_by_their_characters():
    text = "a  bcd\n\nef"
    offsets = np.array([[0, 0], [0, 1], [1, 2], [2, 4], [4, 6], [6, 8], [8, 10]])
    for spans, expected in (
        ([[3, 6]], [3, 4]),  # "bcd" in two tokens
        ([[1, 3]], [2]),  # blanks belong to tokens of blanks, not to the one that begins with one
        ([[6, 7]], [5]),
        ([[0, 1], [9, 10]], [1, 6]),
        (np.zeros((0, 2), dtype=int), []),
    ):
        assert np.flatnonzero(matching_tokens(text, offsets, np.asarray(spans))).tolist() == expected


def test_parts_of_speech_and_entities_are_spacys():
    tagged = tag_text(TEXT)
    expected = [word for word, tag in zip(tagged.words, tagged.tags) if tag == "PROPN"]
    assert pieces(tag_matches(tagged, "PROPN")) == expected and "Scotland" in expected
    found = tag_entities(TEXT)
    assert "Scotland" in pieces(entity_matches(found, "GPE")) and set(found.kinds) <= set(ENTITIES)
    assert not len(entity_matches(found, "MONEY"))
