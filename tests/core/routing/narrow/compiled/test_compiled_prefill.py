"""The compiled prefill against the definition of narrow groups, and its parts against plain NumPy and PyTorch."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from reading_budgets import readings

from focus_core.routing.narrow.attention import narrow_attention
from focus_core.routing.narrow.compiled import prefill as compiled
from focus_core.routing.narrow.compiled.choice import choose_pages
from focus_core.routing.narrow.compiled.machine import vectors
from focus_core.routing.narrow.compiled.machine.llvm import LANES
from focus_core.routing.narrow.compiled.machine.vectors import ROWS, add_values, dots, softmax_row, softmax_tile
from focus_core.routing.narrow.reading import Reading
from focus_core.routing.narrow.reference import narrow_reference


def problem(length, *, kv_heads=2, repeats=2, num_groups=4, width=8, value_width=16, size=2.0, seed=0, batch=1):
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(batch, kv_heads * repeats, length, width, generator=generator) * size
    key = torch.randn(batch, kv_heads, length, width, generator=generator)
    value = torch.randn(batch, kv_heads, length, value_width, generator=generator)
    groups = torch.randint(0, num_groups, (batch, kv_heads, length), generator=generator)
    return query, key, value, groups, num_groups


def definition(tensors, reading, scale):
    wide = [part.double() if torch.is_tensor(part) and part.is_floating_point() else part for part in tensors]
    return narrow_reference(*wide, reading, scale=scale)


def agree(tensors, reading, scale=0.4, atol=2e-5):
    assert compiled.supported(*tensors[:3], reading, None)
    found = narrow_attention(*tensors, reading, scale=scale)
    expected = definition(tensors, reading, scale)
    assert torch.allclose(found.output.double(), expected.output, atol=atol)
    assert torch.allclose(found.logsumexp.double(), expected.logsumexp, atol=atol)
    assert torch.equal(found.pairs.kept, expected.exact.sum((-1, -2)))


@st.composite
def cases(draw):
    kv_heads, repeats = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    width = draw(st.sampled_from([2, 8, 14]))
    reading = draw(readings(kv_heads, repeats, width))
    tensors = problem(
        draw(st.integers(1, 150)),
        kv_heads=kv_heads,
        repeats=repeats,
        num_groups=draw(st.integers(1, 9)),
        width=width,
        value_width=draw(st.sampled_from([16, 48])),
        seed=draw(st.integers(0, 99)),
        batch=draw(st.integers(1, 2)),
    )
    return tensors, reading


@settings(max_examples=50, deadline=None)  # the definition takes most of a second for a long one
@given(case=cases())
def test_it_equals_the_definition(case):
    agree(*case)


def test_many_spans_and_parts_equal_the_chunked_form_in_float64():
    tensors = problem(1000, repeats=9, num_groups=7)
    reading = Reading(50, 4, 16, share=0.153, count_weight=1.0, page_size=16)
    found = narrow_attention(*tensors, reading, scale=0.4)
    wide = [part.double() if torch.is_tensor(part) and part.is_floating_point() else part for part in tensors]
    expected = narrow_attention(*wide, reading, scale=0.4)
    assert torch.allclose(found.output.double(), expected.output, atol=2e-5)
    assert torch.allclose(found.logsumexp.double(), expected.logsumexp, atol=2e-5)
    assert torch.equal(found.pairs.kept, expected.pairs.kept)


@pytest.mark.parametrize("scale", [4.0, 40.0])
def test_large_logits_neither_overflow_nor_vanish(scale):
    # Logits of hundreds: what was added before must shrink when a larger one comes.
    agree(problem(200, size=3.0), Reading(16, 4, 16, share=0.31, count_weight=1.0, page_size=8), scale, atol=1e-3)


def test_equal_scores_go_to_the_first_group():
    query, key, value, groups, num_groups = problem(150, num_groups=5)
    # All keys are equal, and so are the scores of all pages: sums of halves are exact.
    key = torch.full_like(key, 0.5)
    agree((query, key, value, groups, num_groups), Reading(8, 2, 16, share=0.37, page_size=4))


def test_threads_give_the_same_numbers():
    tensors = problem(700)
    reading = Reading(32, 4, 16, share=0.2, count_weight=1.0, page_size=16)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(narrow_attention(*tensors, reading, scale=0.4))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(each.output, found[0].output) for each in found[1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("which", [(0, 1, 2), (1,), (2,)])
def test_the_heads_of_a_token_may_lie_side_by_side(dtype, which):
    tensors = problem(300, batch=2)
    own = [part.to(dtype) for part in tensors[:3]]
    # As models have them: (B, T, H, D) in memory.
    laid = [part.transpose(1, 2).contiguous().transpose(1, 2) if n in which else part for n, part in enumerate(own)]
    reading = Reading(32, 4, 16, share=0.2, page_size=16)
    found, expected = (narrow_attention(*parts, *tensors[3:], reading, scale=0.4) for parts in (laid, own))
    assert torch.equal(found.output, expected.output) and torch.equal(found.logsumexp, expected.logsumexp)
    assert all(torch.equal(part, given) for part, given in zip(laid, own))


def test_an_error_in_one_head_reaches_the_caller(monkeypatch):
    def fails(*_):
        raise MemoryError("no room for a head")

    monkeypatch.setattr(compiled, "filled", fails)
    with pytest.raises(MemoryError, match="no room for a head"):
        narrow_attention(*problem(300), Reading(32, 4, 16, share=0.2, page_size=16), scale=0.4)


def test_bfloat16_is_the_rounded_result():
    half = [part.bfloat16() if part.is_floating_point() else part for part in problem(120)[:4]]
    reading = Reading(16, 4, 16, share=0.2, page_size=16)
    exact = narrow_attention(
        *(part.float() if part.is_floating_point() else part for part in half), 4, reading, scale=0.4
    )
    found = narrow_attention(*half, 4, reading, scale=0.4)
    assert torch.equal(found.output, exact.output.bfloat16())


def test_calls_that_it_does_not_take_run_without_it(monkeypatch):
    tensors = problem(60)
    query, key, value, groups, num_groups = tensors
    reading = Reading(16, 4, 16, share=0.2, page_size=16)
    others = [
        (tensors, reading, 30.0),
        (tensors, dataclasses.replace(reading, chunk=8), None),
        (tensors, dataclasses.replace(reading, page_size=17), None),
        (tensors, dataclasses.replace(reading, page_size=None), None),
        (tensors, Reading(16, 4, 16, top_k=2), None),
        ((query.double(), key.double(), value.double(), groups, num_groups), reading, None),
        ((query, key, value[..., :10], groups, num_groups), reading, None),
        ((query, key, value.clone().requires_grad_(), groups, num_groups), reading, None),
    ]
    monkeypatch.setattr(compiled, "prefill", None)
    for changed, settings_, softcap in others:
        found = narrow_attention(*changed, settings_, scale=0.4, softcap=softcap)
        wide = [part.detach().double() if part.is_floating_point() else part for part in changed[:4]]
        expected = narrow_reference(*wide, num_groups, settings_, scale=0.4, softcap=softcap)
        assert torch.allclose(found.output.double(), expected.output, atol=2e-5)


@settings(deadline=None)
@given(data=st.data())
def test_chosen_pages_are_those_of_the_ranking(data):
    count = data.draw(st.integers(0, 80))
    number = st.integers(-3, 3).map(float) if data.draw(st.booleans()) else st.floats(-1e4, 1e4, width=32)
    scores = np.array(data.draw(st.lists(number, min_size=count, max_size=count)), np.float32)
    sizes = np.array(data.draw(st.lists(st.integers(1, 16), min_size=count, max_size=count)), np.float32)
    already, share = data.draw(st.integers(0, 30)), data.draw(st.floats(0, 1))
    reading = Reading(window=0, sink_tokens=0, share=share, page_size=16)
    wide = torch.from_numpy(scores).double(), torch.from_numpy(sizes).double()
    expected = reading.choose(*wide, torch.tensor(float(already), dtype=torch.float64))
    chosen = np.zeros(2 * count, np.int64)
    budget = float(np.float32(share) * np.float32(sizes.sum() + already) - np.float32(already))
    scores, sizes = (np.pad(numbers, (0, -count % LANES)) for numbers in (scores, sizes))
    number_read = choose_pages(scores, sizes, np.arange(count), count, 64.0, budget, chosen)
    assert set(chosen[:number_read]) == set(expected.nonzero().flatten().tolist())


def _one_tile(rows, query, keys, values, logits, weights, largest, totals, output, count, alone):
    """All three kernels on one tile, with results between them."""
    r0, r1, r2, r3 = rows
    dots(r0, r1, r2, r3, query.ctypes.data, query.shape[1], keys.ctypes.data, logits.ctypes.data, LANES)
    weights[:] = logits
    for number in range(ROWS):
        at = weights[number].ctypes.data
        base, sums, out, width = largest.ctypes.data, totals.ctypes.data, output.ctypes.data, output.shape[1]
        if alone:
            softmax_tile(at, rows[number], base, sums, out, width, count)
        else:
            softmax_row(at, rows[number], base, sums, out, width, count, 1)
    add_values(r0, r1, r2, r3, weights.ctypes.data, LANES, values.ctypes.data, output.ctypes.data, output.shape[1])


@pytest.fixture(params=[True, False], ids=["a register for a vector", "several"], scope="module")
def one_tile(request):
    """`_one_tile` as it is compiled for a processor of either kind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectors, "WIDE", request.param)
        yield njit(_one_tile)


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("seen", [-2.0, -40.0])
@pytest.mark.parametrize(("count", "columns"), [(1, 32), (15, 16), (16, 48)])
def test_kernels_equal_numpy(one_tile, count, columns, seen, alone):
    random, sizes = np.random.default_rng(0), ((9, 6), (16, 6), (16, columns))
    query, keys, values = (random.normal(size=size).astype(np.float32) for size in sizes)
    rows = np.array([7, 0, 3, 4])
    logits, weights = np.zeros((ROWS, LANES), np.float32), np.zeros((ROWS, LANES), np.float32)
    # Rows have seen a logit with weight 1 and a value of ones; -40 is so far below that all is counted anew.
    largest, totals, output = (
        np.full(9, seen, np.float32),
        np.zeros((9, LANES), np.float32),
        np.ones((9, columns), np.float32),
    )
    totals[:, 3] = 1
    one_tile(rows, query, np.ascontiguousarray(keys.T), values, logits, weights, largest, totals, output, count, alone)
    expected = query[rows].astype(np.float64) @ keys.T
    np.testing.assert_allclose(logits, expected, atol=1e-6)
    kept = np.concatenate([expected[:, :count], np.full((ROWS, 1), seen)], 1)
    whole = np.exp(kept).sum(1)
    sums = totals[rows].sum(1, keepdims=True)
    np.testing.assert_allclose(np.log(sums[:, 0]) + largest[rows], np.log(whole), atol=2e-6)
    all_values = np.concatenate([values[:count], np.ones((1, columns))])
    np.testing.assert_allclose(output[rows] / sums, np.exp(kept) @ all_values / whole[:, None], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(weights[:, count:], 0)
    untouched = np.setdiff1d(np.arange(9), rows)
    np.testing.assert_array_equal(output[untouched], 1)
