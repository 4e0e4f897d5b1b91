"""The steps of prefill in float32, four rows at a time."""

from __future__ import annotations

import numpy as np
from numba import njit

from focus_core.routing.narrow.compiled.layout import Head
from focus_core.routing.narrow.compiled.machine.llvm import LANES
from focus_core.routing.narrow.compiled.machine.tiles import BLOCK
from focus_core.routing.narrow.compiled.machine.vectors import (
    ROWS,
    add_few_values,
    add_values,
    dots,
    few_dots,
    softmax_row,
    softmax_tile,
)
from focus_core.routing.narrow.compiled.state import BATCH, SEEN_BITS, Choice, Span, row_of, seen_by
from focus_core.routing.narrow.compiled.sums import Sums


@njit(nogil=True, cache=True)
def attend_tiles(
    head: Head, begin: int, first: int, last: int, tile: int, end_tile: int, seen: int, rows: Span
) -> None:
    """Add tiles of keys in order of time to the running softmax of some tokens.

    Args:
        head: keys and values.
        begin: first token of the span.
        first: of the tokens, 16 at most.
        last: behind the last one.
        tile: the first one.
        end_tile: behind the last one, `NEAR_TILES` at most.
        seen: keys of the text that the first token sees. If that is all up to itself, each later one sees one more.
        rows: of the span.
    """
    width, value_width, group, spare = rows.query.shape[1], rows.output.shape[1], rows.group, len(rows.query) - BLOCK
    query, output, logits, stride = (
        rows.query.ctypes.data,
        rows.output.ctypes.data,
        rows.near.ctypes.data,
        rows.near.shape[1],
    )
    keys, values = head.key_tiles.ctypes.data, head.value_tiles.ctypes.data
    largest, totals = rows.largest.ctypes.data, rows.totals.ctypes.data
    first_row, last_row, tiles = (first - begin) * group, (last - begin) * group, end_tile - tile
    for number in range(tiles):
        for row in range(first_row, last_row, ROWS):
            r1, r2, r3 = min(row + 1, spare), min(row + 2, spare), min(row + 3, spare)
            out = logits + 4 * ((row - first_row) * stride + number * LANES)
            dots(row, r1, r2, r3, query, width, keys + 4 * LANES * width * (tile + number), out, stride)
    grows = seen > first
    for token in range(first, last):
        count = min((seen + token - first if grows else seen) - tile * LANES, tiles * LANES)
        for row in range((token - begin) * group, (token - begin + 1) * group):
            own = logits + 4 * (row - first_row) * stride
            softmax_row(own, row, largest, totals, output, value_width, count, tiles)
    for number in range(tiles):
        for row in range(first_row, last_row, ROWS):
            r1, r2, r3 = min(row + 1, spare), min(row + 2, spare), min(row + 3, spare)
            weights = logits + 4 * ((row - first_row) * stride + number * LANES)
            at = values + 4 * LANES * value_width * (tile + number)
            add_values(row, r1, r2, r3, weights, stride, at, output, value_width)


@njit(nogil=True, cache=True)
def score_means(first_row: int, last_row: int, pages: int, rows: Span, sums: Sums, choice: Choice) -> None:
    """Write the products of queries and mean keys for the rows of a chunk."""
    width, stride = rows.query.shape[1], choice.logits.shape[1]
    query, logits, spare = rows.query.ctypes.data, choice.logits.ctypes.data, len(rows.query) - BLOCK
    keys = sums.mean_keys.ctypes.data
    # Tile by tile for all rows, so that a tile stays in the first cache.
    for tile in range(-(-pages // LANES)):
        for row in range(first_row, last_row, ROWS):
            r1, r2, r3 = min(row + 1, spare), min(row + 2, spare), min(row + 3, spare)
            out = logits + 4 * ((row - first_row) * stride + tile * LANES)
            dots(row, r1, r2, r3, query, width, keys + 4 * LANES * width * tile, out, stride)


@njit(nogil=True, inline="always")
def weigh_means(first_row: int, row: int, pages: int, rows: Span, choice: Choice) -> None:
    """Turn a row's logits of summaries into weights."""
    own = choice.logits.ctypes.data + 4 * (row - first_row) * choice.logits.shape[1]
    output, largest, totals = rows.output.ctypes.data, rows.largest.ctypes.data, rows.totals.ctypes.data
    softmax_row(own, row, largest, totals, output, rows.output.shape[1], pages, -(-pages // LANES))


@njit(nogil=True, cache=True)
def add_means(first_row: int, last_row: int, pages: int, rows: Span, sums: Sums, choice: Choice) -> None:
    """Add the summaries of pages that are not read, for the rows of a chunk."""
    value_width, stride, tiles = rows.output.shape[1], choice.logits.shape[1], -(-pages // LANES)
    output, logits, spare = rows.output.ctypes.data, choice.logits.ctypes.data, len(rows.query) - BLOCK
    values = sums.mean_values.ctypes.data
    for tile in range(tiles):
        for row in range(first_row, last_row, ROWS):
            r1, r2, r3 = min(row + 1, spare), min(row + 2, spare), min(row + 3, spare)
            weights = logits + 4 * ((row - first_row) * stride + tile * LANES)
            at = values + 4 * LANES * value_width * tile
            add_values(row, r1, r2, r3, weights, stride, at, output, value_width)


@njit(nogil=True, cache=True)
def read_page(head: Head, page: int, number: int, few: bool, rows: Span, choice: Choice) -> None:
    """Attend exactly to the keys of a page that were there, `FEW` at most or more, for its `number` readers."""
    width, value_width, spare = rows.query.shape[1], rows.output.shape[1], len(rows.query) - BLOCK
    query, output, weights = rows.query.ctypes.data, rows.output.ctypes.data, rows.far.ctypes.data
    largest, totals = rows.largest.ctypes.data, rows.totals.ctypes.data
    keys = head.key_pages.ctypes.data + 4 * LANES * width * page
    values, readers = head.value_pages.ctypes.data + 4 * LANES * value_width * page, choice.readers
    for last in range(number, -(-number // ROWS) * ROWS):
        readers[last] = spare << SEEN_BITS  # fills up fours
    # Step by step for many rows, because a row alone waits for each step.
    for first in range(0, number, BATCH):
        end = min(first + BATCH, -(-number // ROWS) * ROWS)
        for place in range(first, end, ROWS):
            r0, r1, r2, r3 = _rows_at(readers, place)
            at = weights + 4 * LANES * (place - first)
            if few:
                few_dots(r0, r1, r2, r3, query, width, keys, at, LANES)
            else:
                dots(r0, r1, r2, r3, query, width, keys, at, LANES)
        for place in range(first, min(end, number)):
            row, seen = row_of(readers[place]), seen_by(readers[place])
            softmax_tile(weights + 4 * LANES * (place - first), row, largest, totals, output, value_width, seen)
        for place in range(first, end, ROWS):
            r0, r1, r2, r3 = _rows_at(readers, place)
            at = weights + 4 * LANES * (place - first)
            if few:
                add_few_values(r0, r1, r2, r3, at, LANES, values, output, value_width)
            else:
                add_values(r0, r1, r2, r3, at, LANES, values, output, value_width)


@njit(nogil=True, cache=True)
def _rows_at(readers: np.ndarray, place: int) -> tuple[np.int64, np.int64, np.int64, np.int64]:
    """Rows of four readers."""
    return row_of(readers[place]), row_of(readers[place + 1]), row_of(readers[place + 2]), row_of(readers[place + 3])
