"""Prefill in the matrix units of a processor against the definition of narrow groups, and its steps against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from reading_budgets import readings

from focus_core.routing.narrow.attention import narrow_attention
from focus_core.routing.narrow.compiled import prefill as compiled
from focus_core.routing.narrow.compiled.machine.llvm import LANES
from focus_core.routing.narrow.compiled.machine.memory import LINE, empty, zeros
from focus_core.routing.narrow.compiled.machine.tiles import (
    BLOCK,
    add_products,
    configuration,
    configure,
    halve,
    halve_rest,
    products,
    restore,
    weigh,
    write_products,
)
from focus_core.routing.narrow.reading import Reading
from focus_core.routing.narrow.reference import narrow_reference

needs_units = pytest.mark.skipif(
    not compiled.matrix_units(), reason="This processor has no matrix units for bfloat16 (AMX)."
)


def problem(length, *, kv_heads=2, repeats=2, num_groups=4, width=64, value_width=64, size=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(1, kv_heads * repeats, length, width, generator=generator) * size
    key = torch.randn(1, kv_heads, length, width, generator=generator)
    value = torch.randn(1, kv_heads, length, value_width, generator=generator)
    groups = torch.randint(0, num_groups, (1, kv_heads, length), generator=generator)
    return query.bfloat16(), key.bfloat16(), value.bfloat16(), groups, num_groups


def wide(tensors):
    return [part.double() if torch.is_tensor(part) and part.is_floating_point() else part for part in tensors]


def agree(found, output, logsumexp, kept, atol=0.03):
    """Equal up to the rounding of weights and values, but for rare queries that read one page more or less.

    Scores are exact up to about 1e-5, so two pages that are as good as each other may change places.
    """
    far = (found.output.double() - output).abs().amax(-1) > atol
    far |= (found.logsumexp.double() - logsumexp).abs() > 1e-3
    assert far.sum() <= 1 + 0.01 * far.numel()
    assert ((found.pairs.kept - kept).abs() <= LANES * far.sum()).all()


@st.composite
def cases(draw):
    kv_heads, repeats = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    width = draw(st.sampled_from([64, 128]))
    reading = draw(readings(kv_heads, repeats, width))
    tensors = problem(
        draw(st.integers(1, 150)),
        kv_heads=kv_heads,
        repeats=repeats,
        num_groups=draw(st.integers(1, 9)),
        width=width,
        value_width=draw(st.sampled_from([64, 128])),
        seed=draw(st.integers(0, 99)),
    )
    return tensors, reading


@needs_units
@settings(max_examples=50, deadline=None)  # the definition takes most of a second for a long one
@given(case=cases())
def test_it_equals_the_definition(case):
    tensors, reading = case
    found = narrow_attention(*tensors, reading, scale=0.11)
    expected = narrow_reference(*wide(tensors), reading, scale=0.11)
    agree(found, expected.output, expected.logsumexp, expected.exact.sum((-1, -2)))


@needs_units
@pytest.mark.parametrize("repeats", [9, 40])  # fewer rows of a span than usual, or more
@pytest.mark.parametrize("thresholds", [True, False])
def test_many_spans_and_parts_equal_the_chunked_form_in_float64(repeats, thresholds):
    tensors = problem(1000, repeats=repeats, num_groups=7)
    heads = 2 * repeats
    own = {"thresholds": (-5.0,) * heads, "spread": (0.5,) * heads} if thresholds else {}
    reading = Reading(50, 4, 64, share=0.153, page_size=16, **own)
    found = narrow_attention(*tensors, reading, scale=0.125)
    expected = narrow_attention(*wide(tensors), reading, scale=0.125)
    agree(found, expected.output, expected.logsumexp, expected.pairs.kept)


@needs_units
@pytest.mark.parametrize("thresholds", [True, False])
def test_large_logits_neither_overflow_nor_vanish(thresholds):
    # Logits of hundreds: what was added before must shrink when a larger one comes.
    tensors = problem(200, size=30.0)
    own = {"thresholds": (-2.0,) * 4} if thresholds else {}
    reading = Reading(16, 4, 16, share=0.31, page_size=8, **own)
    found = narrow_attention(*tensors, reading, scale=0.5)
    expected = narrow_reference(*wide(tensors), reading, scale=0.5)
    far = (found.output.double() - expected.output).abs().amax(-1) > 0.05
    assert far.sum() <= 0.02 * far.numel()
    assert found.output.isfinite().all()


@needs_units
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


def test_without_units_the_result_is_that_of_float32_rounded(monkeypatch):
    monkeypatch.setattr(compiled, "matrix_units", lambda: False)
    tensors = problem(300)
    reading = Reading(32, 4, 16, share=0.2, page_size=16)
    single = narrow_attention(
        *(part.float() if torch.is_tensor(part) and part.is_floating_point() else part for part in tensors),
        reading,
        scale=0.1,
    )
    assert torch.equal(narrow_attention(*tensors, reading, scale=0.1).output, single.output.bfloat16())


@needs_units
def test_products_of_pytorch_stay_right_beside_it():
    one, other = (torch.randn(64, 64, generator=torch.Generator().manual_seed(seed)).bfloat16() for seed in (0, 1))
    before = one @ other
    for _ in range(2):
        narrow_attention(*problem(200), Reading(32, 4, 16, share=0.2, page_size=16), scale=0.1)
        assert torch.equal(one @ other, before)


def bits(numbers):
    """The upper halves of float32, and the numbers of bfloat16 that they are."""
    halves = np.ascontiguousarray(numbers, np.float32).view(np.uint32) >> 16
    return halves.astype(np.uint16).view(np.int16), (halves << 16).astype(np.uint32).view(np.float32)


def as_numbers(halves):
    return (halves.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


@njit
def _tile_steps(shapes, query, keys, logits, weights, stored, values, output, fresh, parts):
    tiles, stride = logits.shape[1] // LANES, weights.shape[1]
    configure(shapes.ctypes.data)
    width, value_width = query.shape[1], output.shape[1]
    at, row = stored.ctypes.data, 4 * value_width
    products(query.ctypes.data, 2 * width, width, keys.ctypes.data, parts, tiles, logits.ctypes.data, 4 * LANES * tiles)
    add_products(weights.ctypes.data, 2 * stride, tiles, at, output.ctypes.data, row, value_width)
    write_products(weights.ctypes.data, 2 * stride, tiles, at, fresh.ctypes.data, row, value_width)
    restore(shapes.ctypes.data)


@needs_units
@pytest.mark.parametrize("tiles", [1, 2, 5])
@pytest.mark.parametrize("parts", [1, 2])
def test_tiles_equal_numpy(tiles, parts):
    random = np.random.default_rng(0)
    width, value_width, keys_seen = 96, 128, tiles * LANES
    query, query_read = bits(random.normal(size=(BLOCK, width)))
    keys, keys_read = bits(random.normal(size=(tiles, parts, LANES, width)))
    values, values_read = bits(random.normal(size=(keys_seen, value_width)))
    weights, weights_read = bits(random.random((BLOCK, keys_seen)))
    stored = values.reshape(tiles, LANES // 2, 2, value_width).swapaxes(-1, -2).copy()
    laid = keys.reshape(tiles, parts, LANES, width // 2, 2).swapaxes(2, 3).copy()
    logits, fresh = np.zeros((BLOCK, keys_seen), np.float32), np.ones((BLOCK, value_width), np.float32)
    output = random.normal(size=(BLOCK, value_width)).astype(np.float32)
    expected = output + weights_read @ values_read
    _tile_steps(configuration(), query, laid, logits, weights, stored, values, output, fresh, parts)
    np.testing.assert_allclose(logits, query_read @ keys_read.sum(1).reshape(keys_seen, width).T, atol=1e-4)
    np.testing.assert_allclose(output, expected, atol=1e-4)
    np.testing.assert_allclose(fresh, weights_read @ values_read, atol=1e-4)


@njit
def _halve(rows, upper, lower):
    halve(rows.ctypes.data, len(rows), 4 * rows.shape[1], upper.ctypes.data)
    halve_rest(rows.ctypes.data, len(rows), 4 * rows.shape[1], lower.ctypes.data)


def test_halves_are_the_nearest_numbers_and_keep_what_is_left():
    rows = np.random.default_rng(0).normal(size=(6, 48)).astype(np.float32)
    upper, lower = np.zeros((3, 48, 2), np.int16), np.zeros((3, 48, 2), np.int16)
    _halve(rows, upper, lower)
    pairs = rows.reshape(3, 2, 48).swapaxes(1, 2)
    np.testing.assert_array_equal(as_numbers(upper), torch.from_numpy(pairs).bfloat16().float().numpy())
    np.testing.assert_allclose(as_numbers(upper) + as_numbers(lower), pairs, rtol=2**-16)


@njit
def _weigh(logits, factor, largest, totals, output, count, weights):
    tiles = logits.shape[1] // LANES
    for row in range(len(logits)):
        at, to = logits[row].ctypes.data, weights[row].ctypes.data
        base, sums, out = largest.ctypes.data, totals.ctypes.data, output.ctypes.data
        weigh(at, np.float32(factor), row, base, sums, out, output.shape[1], count, tiles, to)


@pytest.mark.parametrize("seen", [-2.0, -40.0])
@pytest.mark.parametrize("count", [1, 17, 32])
def test_weights_in_bfloat16_are_those_of_numpy(count, seen):
    logits = np.random.default_rng(0).normal(size=(4, 2 * LANES)).astype(np.float32)
    largest, totals, output = np.full(4, seen, np.float32), np.zeros((4, LANES), np.float32), np.ones((4, 32), "f4")
    totals[:, 3] = 1
    weights = np.ones((4, 2 * LANES), np.int16)
    _weigh(logits, 0.5, largest, totals, output, count, weights)
    expected = np.exp(0.5 * logits[:, :count].astype(np.float64))
    whole = expected.sum(1) + np.exp(seen)
    np.testing.assert_allclose(np.log(totals.sum(1)) + largest, np.log(whole), atol=2e-6)
    np.testing.assert_allclose(as_numbers(weights)[:, :count] * np.exp(largest)[:, None], expected, rtol=2**-8)
    np.testing.assert_array_equal(weights[:, count:], 0)
    np.testing.assert_allclose(output, np.exp(seen - largest)[:, None].repeat(32, 1), rtol=1e-5)


@given(shape=st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple), kind=st.sampled_from(["f4", "i2", "i8"]))
def test_memory_begins_at_a_line(shape, kind):
    for make in (empty, zeros):
        found = make(shape, np.dtype(kind))
        assert found.ctypes.data % LINE == 0
        assert found.shape == shape
        assert found.dtype == kind
        assert found.flags.c_contiguous
    assert not zeros(shape, np.dtype(kind)).any()
