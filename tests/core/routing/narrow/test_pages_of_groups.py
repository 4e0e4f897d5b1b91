"""Pages of narrow groups against a plain loop; later tokens never move a key to another page."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from focus_core.errors import FocusError
from focus_core.routing.narrow.pages import pages
from focus_core.routing.narrow.reading import Reading


@given(groups=st.lists(st.integers(0, 4), min_size=1, max_size=60), size=st.integers(1, 9), first=st.integers(0, 6))
def test_pages_are_runs_of_arrivals(groups, size, first):
    found = pages(torch.tensor([[groups]]), 5, size, first)
    seen: Counter[int] = Counter()
    expected = []
    for place, group in enumerate(groups):
        if place >= first:
            expected.append((group, seen[group] // size))
            seen[group] += 1
    numbers = {part: number for number, part in enumerate(sorted(set(expected)))}
    if len(groups) > first:
        assert found.of[0, 0, first:].tolist() == [numbers[part] for part in expected]
        assert found.total == len(numbers)


@given(groups=st.lists(st.integers(0, 3), min_size=8, max_size=40), cut=st.integers(5, 8))
def test_later_keys_move_no_key_to_another_page(groups, cut):
    whole, early = (pages(torch.tensor([[part]]), 4, 3, 2).of[0, 0, 2:] for part in (groups, groups[:cut]))
    together = whole[: cut - 2]
    assert torch.equal(together[:, None] == together, early[:, None] == early)


def test_whole_groups_are_the_groups():
    groups = torch.tensor([[[2, 0, 1, 1]]])
    found = pages(groups, 3, None)
    assert found.of is groups and found.total == 3


def test_a_page_without_keys_is_refused():
    with pytest.raises(FocusError, match="page_size is 0"):
        Reading(window=1, sink_tokens=0, share=0.1, page_size=0)
