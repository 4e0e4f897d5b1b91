"""The compiled step of a cached text against the same step under a mask."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import pytest
import torch
from reading_budgets import some_directions

from focus_core.attention.cpu import threads
from focus_core.routing.narrow.cache import attention
from focus_core.routing.narrow.cache.attention import Near, attend_masked, attend_stored
from focus_core.routing.narrow.cache.text import CachedText
from focus_core.routing.narrow.compiled.machine.team import has_team
from focus_core.routing.narrow.reading import Reading


def stored(length, reading, *, width=24, value_width=20, num_groups=9, dtype=torch.float32, seed=0):
    """A text of two key/value heads, and what its last tokens attend to beside pages."""
    generator = torch.Generator().manual_seed(seed)
    key = torch.randn(2, length, width, generator=generator).to(dtype)
    value = torch.randn(2, length, value_width, generator=generator).to(dtype)
    groups = torch.randint(0, num_groups, (2, length), generator=generator)
    groups[1] = groups[1].clamp(max=2)  # heads with unlike numbers of pages
    text = CachedText(key, value, num_groups, reading.page_size or 4, reading.sink_tokens, None, reading.directions)
    text.fill(key, value, groups, None, reading)
    return text.pages, Near(text.near_keys, text.near_values, text.first, text.length, text.border, text.sinks)


def queries(count, width=24, dtype=torch.float32, seed=1):
    return (2 * torch.randn(6, count, width, generator=torch.Generator().manual_seed(seed))).to(dtype)


@pytest.mark.parametrize("length", [1, 3, 4, 20, 21, 35, 50, 77, 200, 463, 1000])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.15, 0.5, 1.0])
@pytest.mark.parametrize("page_size", [1, 5, 16])
@pytest.mark.parametrize("shares_at", [None, (), (20, 300)])
def test_the_step_equals_that_under_a_mask(length, share, page_size, shares_at):
    # Every other length with directions.
    own = some_directions(2, 24, 3) if length % 2 else None
    weights = (0.0, 0.3, 0.02, 1.0, 0.15, 0.4)
    budget: dict[str, Any] = {"share": share}
    if shares_at is not None:
        levels = (-2.0, -9.0, 0.0, -4.4, -3.0, -5.7)
        thresholds = levels + levels[::-1] if shares_at else levels
        budget |= {"thresholds": thresholds, "shares_at": shares_at, "spread": weights}
    reading = Reading(13, 3, 4, page_size=page_size, count_weight=0.5, directions=own, **budget)
    pages, near = stored(length, reading, seed=length)
    # Queries of one chunk, up to the last token.
    query = queries(1 + (length - 1) % 4)
    found = attend_stored(query, pages, near, reading, 0.3, None)
    expected = attend_masked(query, pages, near, reading, 0.3, None)
    assert torch.allclose(found.output, expected.output, atol=1e-5)
    assert torch.allclose(found.logsumexp, expected.logsumexp, atol=1e-5)


@pytest.fixture(params=["PyTorch's threads", "Python's threads"])
def way(request, monkeypatch):
    monkeypatch.setattr(attention, "_ALONE", 0)
    if request.param == "Python's threads":
        monkeypatch.setattr(threads, "_openmp", lambda: None)
    elif not has_team():
        pytest.skip("PyTorch does not run on GNU OpenMP here.")
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("length", [1, 30, 700])
@pytest.mark.parametrize("number", [1, 2, 4, 7])
def test_threads_share_the_query_heads(way, number, length):
    reading = Reading(window=13, sink_tokens=3, chunk=4, share=0.2, page_size=8)
    pages, near = stored(length, reading)
    expected = attend_masked(queries(1), pages, near, reading, 0.3, None)
    torch.set_num_threads(number)
    for _ in range(3):
        found = attend_stored(queries(1), pages, near, reading, 0.3, None)
        assert torch.allclose(found.output, expected.output, atol=1e-5)
        assert torch.allclose(found.logsumexp, expected.logsumexp, atol=1e-5)


@pytest.mark.skipif(sys.platform == "win32", reason="Processes are not forked there.")
def test_a_forked_process_attends_too(way, holds_in_a_fork):
    reading = Reading(window=13, sink_tokens=3, chunk=4, share=0.2, page_size=8)
    pages, near = stored(700, reading)
    torch.set_num_threads(2)
    expected = attend_stored(queries(1), pages, near, reading, 0.3, None).output
    again = partial(attend_stored, queries(1), pages, near, reading, 0.3, None)
    assert holds_in_a_fork(lambda: torch.equal(again().output, expected))


def test_bfloat16_is_read_as_it_is_stored():
    reading = Reading(window=13, sink_tokens=3, chunk=4, share=0.2, page_size=8)
    pages, near = stored(500, reading, dtype=torch.bfloat16)
    assert (pages.keys.dtype, pages.key_sums.dtype) == (torch.bfloat16, torch.float32)
    query = queries(2, dtype=torch.bfloat16)
    found = attend_stored(query, pages, near, reading, 0.3, None)
    expected = attend_masked(query.float(), pages, near, reading, 0.3, None)
    assert (found.output.dtype, found.logsumexp.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(found.output, attend_stored(query.float(), pages, near, reading, 0.3, None).output.bfloat16())
    assert torch.allclose(found.logsumexp, expected.logsumexp, atol=1e-5)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.45])
def test_of_equal_scores_the_first_group_wins(share):
    reading = Reading(window=5, sink_tokens=0, chunk=4, share=share, page_size=4)
    pages, near = stored(300, reading)
    pages.key_sums.zero_()
    query = queries(1)
    found = attend_stored(query, pages, near, reading, 0.3, None)
    expected = attend_masked(query, pages, near, reading, 0.3, None)
    assert torch.allclose(found.output, expected.output, atol=1e-5)


@pytest.mark.parametrize("far", [-80.0, 80.0])
def test_extreme_logits_neither_overflow_nor_vanish(far):
    reading = Reading(window=13, sink_tokens=3, chunk=4, share=0.2, page_size=8)
    pages, near = stored(400, reading)
    found = attend_stored(far * queries(1), pages, near, reading, 1.0, None)
    expected = attend_masked(far * queries(1), pages, near, reading, 1.0, None)
    assert torch.allclose(found.output, expected.output, atol=1e-4)
    assert torch.allclose(found.logsumexp, expected.logsumexp, rtol=1e-5)
