"""What a query asks of all pages, and what a page asks of its readers, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from focus_core.routing.narrow.compiled.machine import parting
from focus_core.routing.narrow.compiled.machine.llvm import LANES, MASKED
from focus_core.routing.narrow.compiled.machine.parting import (
    hide,
    mark_erring,
    part_halves,
    part_pages,
    rank,
    readers_of,
)
from focus_core.routing.narrow.compiled.machine.readers import gather, scatter, weigh_readers
from focus_core.routing.narrow.compiled.state import SEEN_BITS

ROWS = 3 * LANES


def lanes(count):
    """Room for so many numbers, in whole tiles."""
    return -(-count // LANES) * LANES


def as_numbers(halves):
    return (halves.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _readers(marks, page, size, out):
    found = 0
    for row in range(0, marks.shape[1], LANES):
        at = marks.ctypes.data + 2 * (page // LANES * marks.shape[1] + row)
        begin, to = row << SEEN_BITS | size, out.ctypes.data + 4 * found
        found += readers_of(at, page % LANES, begin, 1 << SEEN_BITS, to)
    return found


@pytest.fixture(params=[True, False], ids=["packed by one instruction", "one by one"], scope="module")
def readers(request):
    """`_readers` as it is compiled for a processor of either kind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parting, "WIDE", request.param)
        yield njit(_readers)


@settings(deadline=None)  # the first call compiles
@given(seed=st.integers(0, 999), page=st.integers(0, 2 * LANES - 1), share=st.floats(0, 1), size=st.integers(1, 16))
def test_readers_of_a_page_are_the_rows_that_marked_it(readers, seed, page, share, size):
    wanted = np.random.default_rng(seed).random((2 * LANES, ROWS)) < share
    powers = (1 << np.arange(LANES, dtype=np.uint16))[None, :, None]
    marks = (wanted.reshape(2, LANES, ROWS) * powers).sum(1).astype(np.uint16).view(np.int16)
    out = np.full(ROWS + LANES, -1, np.int32)
    found = readers(marks, page, size, out)
    rows = np.flatnonzero(wanted[page])
    np.testing.assert_array_equal(out[:found], rows << SEEN_BITS | size)


@st.composite
def pages(draw):
    """Products, spread, log sizes and sizes of some pages, and the count of these."""
    count, random = draw(st.integers(1, 70)), np.random.default_rng(draw(st.integers(0, 999)))
    sizes = np.zeros(lanes(count), np.float32)
    sizes[:count] = random.integers(1, 17, count)
    products, spread = random.normal(size=(2, lanes(count))).astype(np.float32)
    return products * draw(st.sampled_from([1, 30])), np.abs(spread), sizes, count


@njit
def _rank(products, scores, spread, logs, count, scale, spread_weight, most, count_weight, least):
    return rank(
        products.ctypes.data,
        scores.ctypes.data,
        spread.ctypes.data,
        logs.ctypes.data,
        count,
        np.float32(scale),
        np.float32(spread_weight),
        np.float32(most),
        np.float32(count_weight),
        np.float32(least),
    )


@settings(deadline=None)  # the first call compiles
@given(
    case=pages(),
    least=st.sampled_from([-1e30, 0.0, 200.0]),
    count_weight=st.sampled_from([0.0, 0.5, 1.0]),
    most=st.sampled_from([0.7, np.inf]),
)
def test_scores_become_exponentials(case, least, count_weight, most):
    products, spread, sizes, count = case
    logs, scores, before = np.log(np.maximum(sizes, 1)), np.ones_like(products), products.copy()
    shift, total = _rank(products, scores, spread, logs, count, 0.5, 0.3, most, count_weight, least)
    exact = 0.5 * products.astype(np.float64) + 0.3 * np.minimum(spread, most) + count_weight * logs
    assert shift == pytest.approx(max(exact[:count].max(), least), rel=1e-5)
    expected = np.exp(exact[:count] - shift)
    np.testing.assert_allclose(scores[:count], expected, rtol=1e-5, atol=1e-30)
    np.testing.assert_array_equal(scores[count:], 0)
    assert total == pytest.approx(expected.sum(), rel=1e-5, abs=1e-30)
    np.testing.assert_array_equal(products, before)


@njit
def _part(weights, spread, powers, sizes, square, least, factor, totals, out, marks, half):
    arguments = (
        weights.ctypes.data,
        spread.ctypes.data,
        powers.ctypes.data,
        sizes.ctypes.data,
        len(weights) // LANES,
        np.float32(square),
        np.float32(least),
        np.float32(factor),
        totals.ctypes.data,
        out.ctypes.data,
        marks.ctypes.data,
        marks.shape[1],
    )
    return part_halves(*arguments) if half else part_pages(*arguments)


def marked(marks, row, count):
    return (marks[:, row].view(np.uint16)[:, None] >> np.arange(LANES) & 1).reshape(-1)[:count].astype(bool)


@settings(deadline=None)  # the first call compiles
@given(case=pages(), half=st.booleans(), least=st.floats(0.01, 3))
def test_pages_that_err_are_marked_and_the_others_weighed(case, half, least):
    products, spread, sizes, count = case
    weights, powers = np.exp(-np.abs(products)), sizes**0.25
    weights[count:] = 0
    totals = np.ones(LANES, np.float32)
    out = np.full(len(weights), -1, np.int16 if half else np.float32)
    marks = np.zeros((len(weights) // LANES, 5), np.int16)
    keys = _part(weights, spread, powers, sizes, 0.7, least, 0.5, totals, out, marks, half)
    # A weight at the threshold may fall on either side.
    doubt = weights * (1 + np.float32(0.7) * spread)
    err = marked(marks, 0, len(weights))
    np.testing.assert_array_equal(err[np.abs(doubt - least) > 1e-5], (doubt > least)[np.abs(doubt - least) > 1e-5])
    assert keys == sizes[err].sum()
    kept = np.where(err, 0, weights * powers * 0.5)
    np.testing.assert_allclose(as_numbers(out) if half else out, kept, rtol=2**-8 if half else 1e-6, atol=1e-37)
    np.testing.assert_allclose(totals - 1, kept.reshape(-1, LANES).sum(0), atol=1e-5)
    assert not marks[:, 1:].any()


@njit
def _mark(weights, spread, sizes, count, least, logits, marks):
    keys = mark_erring(
        weights.ctypes.data,
        spread.ctypes.data,
        sizes.ctypes.data,
        count,
        np.float32(0.7),
        np.float32(least),
        marks.ctypes.data,
        marks.shape[1],
    )
    hide(logits.ctypes.data, len(logits) // LANES, marks.ctypes.data, marks.shape[1])
    return keys


@settings(deadline=None)  # the first call compiles
@given(case=pages(), least=st.sampled_from([-1.0, 0.5]))
def test_marked_pages_are_taken_out_of_logits(case, least):
    products, spread, sizes, count = case
    weights, logits = np.exp(-np.abs(products)), products.copy()
    marks = np.zeros((len(weights) // LANES, 1), np.int16)
    keys = _mark(weights, spread, sizes, count, least, logits, marks)
    err = (weights * (1 + np.float32(0.7) * spread) > least) & (np.arange(len(weights)) < count)
    np.testing.assert_array_equal(marked(marks, 0, len(weights)), err)
    assert keys == sizes[err].sum()
    np.testing.assert_array_equal(logits, np.where(err, np.float32(MASKED), products))


@njit
def _gather_and_scatter(readers, count, query, gathered, added, output):
    gather(readers.ctypes.data, count, SEEN_BITS, query.ctypes.data, query.shape[1] * 2, gathered.ctypes.data)
    scatter(readers.ctypes.data, count, SEEN_BITS, added.ctypes.data, output.ctypes.data, output.shape[1] * 4)


@settings(deadline=None)  # the first call compiles
@given(seed=st.integers(0, 99), count=st.integers(0, 20), width=st.sampled_from([32, 64, 96, 192]))
def test_queries_are_gathered_and_sums_scattered(seed, count, width):
    random = np.random.default_rng(seed)
    rows = random.permutation(20)[:count]
    readers = (rows << SEEN_BITS | random.integers(1, 17, count)).astype(np.int32)
    query = random.integers(-999, 999, (20, width)).astype(np.int16)
    added, output = random.normal(size=(2, 20, width)).astype(np.float32)
    gathered, expected = np.zeros_like(query), output.copy()
    expected[rows] += added[:count]
    _gather_and_scatter(readers, count, query, gathered, added, output)
    np.testing.assert_array_equal(gathered[:count], query[rows])
    np.testing.assert_array_equal(output, expected)
    assert not gathered[count:].any()


@njit
def _weigh(readers, logits, factor, largest, totals, output, weights):
    weigh_readers(
        readers.ctypes.data,
        len(readers),
        SEEN_BITS,
        logits.ctypes.data,
        np.float32(factor),
        largest.ctypes.data,
        totals.ctypes.data,
        output.ctypes.data,
        output.shape[1],
        weights.ctypes.data,
    )


@pytest.mark.parametrize("before", [-2.0, -40.0])
def test_readers_weigh_the_keys_that_they_see(before):
    random = np.random.default_rng(0)
    rows, sees = np.array([5, 0, 7, 2]), np.array([1, 16, 9, 16])
    logits = random.normal(size=(4, LANES)).astype(np.float32)
    largest, totals = np.full(8, before, np.float32), np.zeros((8, LANES), np.float32)
    totals[:, 3], output, weights = 1, np.ones((8, 32), np.float32), np.ones((4, LANES), np.int16)
    _weigh((rows << SEEN_BITS | sees).astype(np.int32), logits, 0.5, largest, totals, output, weights)
    expected = np.where(np.arange(LANES) < sees[:, None], np.exp(0.5 * logits.astype(np.float64)), 0)
    np.testing.assert_allclose(as_numbers(weights) * np.exp(largest[rows])[:, None], expected, rtol=2**-8)
    np.testing.assert_allclose(
        np.log(totals.sum(1))[rows] + largest[rows], np.log(expected.sum(1) + np.exp(before)), atol=2e-6
    )
    others = np.setdiff1d(np.arange(8), rows)
    np.testing.assert_array_equal(largest[others], before)
    np.testing.assert_allclose(output, np.exp(before - largest)[:, None].repeat(32, 1), rtol=1e-5)
