from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from focus_core.analysis.display.cells import build_cells, page_of, paginate
from focus_core.analysis.tokens import visible


def tile(text, spans):
    return build_cells(text, np.asarray(spans, dtype=np.int64).reshape(-1, 2))


@st.composite
def texts_with_spans(draw):
    """A text and spans like a byte-level tokenizer's: they tile the text, and some characters are several tokens."""
    text = draw(st.text(min_size=1, max_size=60))
    cuts = sorted({0, len(text), *draw(st.lists(st.integers(0, len(text)), max_size=20))})
    spans = []
    for start, end in itertools.pairwise(cuts):
        spans += [(start, end)] * draw(st.integers(1, 3))
    return text, spans


@given(texts_with_spans())
def test_every_character_is_drawn_once_and_every_token_has_one_cell(case):
    text, spans = case
    cells = tile(text, spans)
    assert "".join(text[cell.start : cell.end] for cell in cells) == text
    assert [token for cell in cells for token in cell.tokens] == list(range(len(spans)))


@given(texts_with_spans(), st.integers(1, 20))
def test_pages_hold_all_cells_in_order_and_find_every_token(case, size):
    cells = tile(*case)
    pages = paginate(cells, size)
    assert [i for first, last in pages for i in range(first, last)] == list(range(len(cells)))
    for token in range(len(case[1])):
        first, last = pages[page_of(cells, pages, token)]
        assert any(token in cell.tokens for cell in cells[first:last])


def test_an_emoji_of_three_tokens_is_one_cell():
    cells = tile("a🥖b", [(0, 1), (1, 2), (1, 2), (1, 2), (2, 3)])
    assert [cell.tokens for cell in cells] == [(0,), (1, 2, 3), (4,)]


@pytest.mark.parametrize("sequence", ["👩‍🍳", "👍🏽", "🇵🇹", "e\u0301", "❤\ufe0f", "ने"])
def test_one_visible_character_is_one_cell(sequence):
    text = f"x{sequence}y"
    cells = tile(text, [(i, i + 1) for i in range(len(text))])
    assert [text[c.start : c.end] for c in cells] == ["x", sequence, "y"]


def test_two_flags_are_two_cells():
    text = "🇵🇹🇯🇵"
    assert [c.tokens for c in tile(text, [(i, i + 1) for i in range(4)])] == [(0, 1), (2, 3)]


def test_characters_without_a_token_and_tokens_without_characters_are_drawn():
    cells = tile("abc", [(0, 0), (0, 1), (2, 3)])
    assert [(c.start, c.end, c.tokens) for c in cells] == [
        (0, 0, (0,)),
        (0, 1, (1,)),
        (1, 2, ()),
        (2, 3, (2,)),
    ]


def test_invisible_characters_are_named():
    assert visible("a b\n\u202e\x00") == "a·b⏎⟨U+202E⟩⟨U+0000⟩"
