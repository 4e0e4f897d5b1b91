"""The steps of prefill in float32, four rows at a time."""

from __future__ import annotations

from numba import njit

from focus_core.routing.narrow.compiled.machine.llvm import LANES
from focus_core.routing.narrow.compiled.machine.ranking import int_at
from focus_core.routing.narrow.compiled.machine.vectors import (
    ROWS,
    add_few_values,
    add_values,
    dots,
    few_dots,
    softmax_row,
    softmax_tile,
)
from focus_core.routing.narrow.compiled.state import BATCH, SEEN_BITS, Places


@njit(nogil=True, cache=True)
def attend_tiles(at: Places, begin: int, first: int, last: int, tile: int, end_tile: int, seen: int) -> None:
    """Add tiles of keys in order of time to the running softmax of some tokens.

    Args:
        at: keys, values, and rows of the span.
        begin: first token of the span.
        first: of the tokens, 16 at most.
        last: behind the last one.
        tile: the first one.
        end_tile: behind the last one, `NEAR_TILES` at most.
        seen: keys of the text that the first token sees. If that is all up to itself, each later one sees one more.
    """
    width, value_width, stride, spare = at.width, at.value_width, at.near_stride, at.spare
    first_row, last_row, tiles = (first - begin) * at.group, (last - begin) * at.group, end_tile - tile
    for number in range(tiles):
        keys = at.key_tiles + 4 * LANES * width * (tile + number)
        for row in range(first_row, last_row, ROWS):
            r1, r2, r3 = min(row + 1, spare), min(row + 2, spare), min(row + 3, spare)
            out = at.near + 4 * ((row - first_row) * stride + number * LANES)
            dots(row, r1, r2, r3, at.query, width, keys, out, stride)
    grows = seen > first
    for token in range(first, last):
        count = min((seen + token - first if grows else seen) - tile * LANES, tiles * LANES)
        for row in range((token - begin) * at.group, (token - begin + 1) * at.group):
            own = at.near + 4 * (row - first_row) * stride
            softmax_row(own, row, at.largest, at.totals, at.output, value_width, count, tiles)
    for number in range(tiles):
        values = at.value_tiles + 4 * LANES * value_width * (tile + number)
        for row in range(first_row, last_row, ROWS):
            r1, r2, r3 = min(row + 1, spare), min(row + 2, spare), min(row + 3, spare)
            weights = at.near + 4 * ((row - first_row) * stride + number * LANES)
            add_values(row, r1, r2, r3, weights, stride, values, at.output, value_width)


@njit(nogil=True, cache=True)
def score_means(at: Places, first_row: int, last_row: int, pages: int) -> None:
    """Write the products of queries and mean keys for the rows of a chunk."""
    _multiply(at, first_row, last_row, pages, at.query, at.width, at.mean_keys, at.logits)


@njit(nogil=True, cache=True)
def score_spread(at: Places, first_row: int, last_row: int, pages: int) -> None:
    """Write the variances of the logits of the keys of pages for the rows of a chunk, with directions."""
    _multiply(at, first_row, last_row, pages, at.features, at.num_features, at.spread, at.variances)


@njit(nogil=True, inline="always")
def _multiply(
    at: Places, first_row: int, last_row: int, pages: int, vectors: int, width: int, tiles: int, out: int
) -> None:
    """Write the products of some rows of vectors (R, W) and what pages have (M / 16, W, 16)."""
    stride, spare = at.logits_stride, at.spare
    # Tile by tile for all rows, so that a tile stays in the first cache.
    for number in range(-(-pages // LANES)):
        tile = tiles + 4 * LANES * width * number
        for row in range(first_row, last_row, ROWS):
            r1, r2, r3 = min(row + 1, spare), min(row + 2, spare), min(row + 3, spare)
            to = out + 4 * ((row - first_row) * stride + number * LANES)
            dots(row, r1, r2, r3, vectors, width, tile, to, stride)


@njit(nogil=True, inline="always")
def weigh_means(at: Places, first_row: int, row: int, pages: int) -> None:
    """Turn a row's logits of summaries into weights."""
    own = at.logits + 4 * (row - first_row) * at.logits_stride
    softmax_row(own, row, at.largest, at.totals, at.output, at.value_width, pages, -(-pages // LANES))


@njit(nogil=True, cache=True)
def add_means(at: Places, first_row: int, last_row: int, pages: int) -> None:
    """Add the summaries of pages that are not read, for the rows of a chunk."""
    value_width, stride, spare = at.value_width, at.logits_stride, at.spare
    for tile in range(-(-pages // LANES)):
        values = at.mean_values + 4 * LANES * value_width * tile
        for row in range(first_row, last_row, ROWS):
            r1, r2, r3 = min(row + 1, spare), min(row + 2, spare), min(row + 3, spare)
            weights = at.logits + 4 * ((row - first_row) * stride + tile * LANES)
            add_values(row, r1, r2, r3, weights, stride, values, at.output, value_width)


@njit(nogil=True, cache=True)
def read_page(at: Places, page: int, number: int, few: bool) -> None:
    """Attend exactly to the keys of a page that were there, `FEW` at most or more, for its `number` readers."""
    width, value_width, spare, weights = at.width, at.value_width, at.spare, at.far
    keys = at.key_pages + 4 * LANES * width * page
    values = at.value_pages + 4 * LANES * value_width * page
    # Step by step for many rows, because a row alone waits for each step.
    for first in range(0, number, BATCH):
        end = min(first + BATCH, number)
        for place in range(first, end, ROWS):
            r0, r1, r2, r3 = _rows_at(at.readers, place, number, spare)
            to = weights + 4 * LANES * (place - first)
            if few:
                few_dots(r0, r1, r2, r3, at.query, width, keys, to, LANES)
            else:
                dots(r0, r1, r2, r3, at.query, width, keys, to, LANES)
        for place in range(first, end):
            reader = int_at(at.readers, place)
            row, seen = reader >> SEEN_BITS, reader & ((1 << SEEN_BITS) - 1)
            own = weights + 4 * LANES * (place - first)
            softmax_tile(own, row, at.largest, at.totals, at.output, value_width, seen)
        for place in range(first, end, ROWS):
            r0, r1, r2, r3 = _rows_at(at.readers, place, number, spare)
            own = weights + 4 * LANES * (place - first)
            if few:
                add_few_values(r0, r1, r2, r3, own, LANES, values, at.output, value_width)
            else:
                add_values(r0, r1, r2, r3, own, LANES, values, at.output, value_width)


@njit(nogil=True, inline="always")
def _rows_at(readers: int, place: int, number: int, spare: int) -> tuple[int, int, int, int]:
    """Rows of four readers; the spare row fills up the last ones."""
    return (
        int_at(readers, place) >> SEEN_BITS,
        int_at(readers, place + 1) >> SEEN_BITS if place + 1 < number else spare,
        int_at(readers, place + 2) >> SEEN_BITS if place + 2 < number else spare,
        int_at(readers, place + 3) >> SEEN_BITS if place + 3 < number else spare,
    )
