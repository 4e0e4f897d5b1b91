"""The compiled loops of `prefill`: attention of some queries of one key/value head."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from focus_core.routing.narrow.compiled.choice import choose_pages, erring_pages
from focus_core.routing.narrow.compiled.layout import Head
from focus_core.routing.narrow.compiled.levels import Levels, budget_of, level_of
from focus_core.routing.narrow.compiled.llvm import LANES
from focus_core.routing.narrow.compiled.ranking import score_pages
from focus_core.routing.narrow.compiled.sums import Sums, no_sums, square, sum_up
from focus_core.routing.narrow.compiled.vectors import ROWS, add_values, dots, softmax_row, softmax_tile

FAR = np.float32(-1e30)
FEW_PAGES = 4.0
"""Pages that are ranked one by one."""
NEAR_TILES = 16
"""Tiles of neighbours whose softmax is taken at once."""
BATCH = 64
"""Readers of a page whose softmax is taken at once, a multiple of `ROWS`."""
SEEN_BITS = 5
"""Lowest bits of a reader, which say how many keys of the page it sees, 16 at most; the others are its row."""


class Settings(NamedTuple):
    """A `Reading` with a share and pages, in numbers that compiled code takes.

    Attributes:
        window: w.
        sink_tokens: first keys that all read.
        chunk: C.
        page_size: P.
        count_weight: weight of the log of a page's size in its score.
        by_error: whether heads have thresholds in place of a share.
    """

    window: int
    sink_tokens: int
    chunk: int
    page_size: int
    count_weight: float
    by_error: bool


class _Rows(NamedTuple):
    """Running softmax of the queries of a span, G rows for each token, and one spare row that fills up fours.

    Attributes:
        query: (R + 1, D).
        output: (R + 1, Dv).
        largest: (R + 1,), see `softmax_row`.
        totals: (R + 1, 16), likewise.
        near: (16 G + 4, 16 times `NEAR_TILES`), scratch.
        far: (`BATCH`, 16), scratch.
        group: G.
    """

    query: np.ndarray
    output: np.ndarray
    largest: np.ndarray
    totals: np.ndarray
    near: np.ndarray
    far: np.ndarray
    group: int


class _Choice(NamedTuple):
    """What queries read.

    Attributes:
        logits: (C G + 4, M) of the summaries, for the rows of a chunk.
        scores: (M,), scratch.
        chosen: (2 M,) int64, scratch.
        readers: (M, R) int32, rows that read a page, see `SEEN_BITS`.
        counts: (M,) int64, how many.
        keys_read: (G,) int64, summed over the queries of a head.
    """

    logits: np.ndarray
    scores: np.ndarray
    chosen: np.ndarray
    readers: np.ndarray
    counts: np.ndarray
    keys_read: np.ndarray


@njit(nogil=True, cache=True)
def attend(
    head: Head,
    settings: Settings,
    levels: Levels,
    spread_weights: np.ndarray,
    start: int,
    stop: int,
    span: int,
    output: np.ndarray,
    logsumexp: np.ndarray,
) -> np.ndarray:
    """Attention of the queries from `start` to `stop`.

    A page waits until the end of a span of tokens, and is then read by all who chose it at once.

    Args:
        head: keys, values and queries.
        settings: of the reading.
        levels: of each query head.
        spread_weights: (G,) float32, of the spread of keys; 0 for none.
        start: first token, a multiple of the chunk.
        stop: behind the last one.
        span: tokens, a multiple of the chunk.
        output: (G, T, Dv), written.
        logsumexp: (G, T), written.

    Returns:
        (G,) int64: pairs with keys of pages that are read.
    """
    group, chunk = len(head.query), settings.chunk
    rows, sums, choice = _scratch(head, span * group, chunk * group)
    summed, pages = settings.sink_tokens, 0
    for begin in range(start, stop, span):
        end = min(begin + span, stop)
        _begin(head, begin, end, rows)
        choice.counts[:] = 0
        for first in range(begin, end, chunk):
            last = min(first + chunk, end)
            border = max(0, first - settings.window) // chunk * chunk
            _attend_near(head, settings, begin, first, last, border, rows)
            if border > summed:
                pages = sum_up(head, summed, border, pages, sums)
                summed = border
            if pages > 0:
                _score_pages(begin, first, last, pages, rows, sums, choice)
                _attend_far(
                    head, settings, levels, spread_weights, begin, first, last, border, pages, rows, sums, choice
                )
        for page in range(pages):
            if choice.counts[page] > 0:
                _read(head, page, rows, choice)
        _finish(begin, end, rows, output, logsumexp)
    return choice.keys_read


@njit(nogil=True, cache=True)
def _scratch(head: Head, num_rows: int, chunk_rows: int) -> tuple[_Rows, Sums, _Choice]:
    group, _, width = head.query.shape
    value_width, most = head.value.shape[1], len(head.key_pages)
    tiles = -(-most // LANES)
    rows = _Rows(
        np.zeros((num_rows + 1, width), np.float32),
        np.zeros((num_rows + 1, value_width), np.float32),
        np.zeros(num_rows + 1, np.float32),
        np.zeros((num_rows + 1, LANES), np.float32),
        np.zeros((LANES * group + ROWS, NEAR_TILES * LANES), np.float32),
        np.zeros((BATCH, LANES), np.float32),
        group,
    )
    sums = no_sums(most, width, value_width)
    choice = _Choice(
        np.zeros((chunk_rows + ROWS, tiles * LANES), np.float32),
        np.zeros(tiles * LANES, np.float32),
        np.zeros(2 * most, np.int64),
        np.zeros((most, -(-num_rows // ROWS) * ROWS), np.int32),
        np.zeros(most, np.int64),
        np.zeros(group, np.int64),
    )
    return rows, sums, choice


@njit(nogil=True, cache=True)
def _begin(head: Head, begin: int, end: int, rows: _Rows) -> None:
    """Take the queries of a span, with nothing attended yet."""
    for token in range(begin, end):
        for member in range(rows.group):
            rows.query[(token - begin) * rows.group + member] = head.query[member, token]
    rows.output[:] = 0
    rows.largest[:], rows.totals[:] = FAR, 0


@njit(nogil=True, cache=True)
def _finish(begin: int, end: int, rows: _Rows, output: np.ndarray, logsumexp: np.ndarray) -> None:
    """Write the results of a span."""
    for member in range(rows.group):
        for token in range(begin, end):
            row, total = (token - begin) * rows.group + member, np.float32(0)
            for lane in range(LANES):
                total += rows.totals[row, lane]
            factor = np.float32(1) / total
            for column in range(rows.output.shape[1]):
                output[member, token, column] = rows.output[row, column] * factor
            logsumexp[member, token] = rows.largest[row] + np.log(total)


@njit(nogil=True, cache=True)
def _attend_near(head: Head, settings: Settings, begin: int, first: int, last: int, border: int, rows: _Rows) -> None:
    """Window, extended to the border, and sinks, for the tokens of a chunk."""
    for token in range(first, last, LANES):
        stop, own = min(token + LANES, last), token // LANES + 1
        for tile in range(border // LANES, own, NEAR_TILES):
            _attend_tiles(head, begin, token, stop, tile, min(tile + NEAR_TILES, own), token + 1, rows)
        sinks = min(settings.sink_tokens, border)
        for tile in range(0, -(-sinks // LANES), NEAR_TILES):
            tiles = min(tile + NEAR_TILES, -(-sinks // LANES))
            _attend_tiles(head, begin, token, stop, tile, tiles, sinks, rows)


@njit(nogil=True, cache=True)
def _attend_tiles(
    head: Head, begin: int, first: int, last: int, tile: int, end_tile: int, seen: int, rows: _Rows
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
    width, value_width, group, spare = rows.query.shape[1], rows.output.shape[1], rows.group, len(rows.query) - 1
    query, output, logits, stride = (
        rows.query.ctypes.data,
        rows.output.ctypes.data,
        rows.near.ctypes.data,
        rows.near.shape[1],
    )
    first_row, last_row, tiles = (first - begin) * group, (last - begin) * group, end_tile - tile
    for number in range(tiles):
        for row in range(first_row, last_row, ROWS):
            r1, r2, r3 = min(row + 1, spare), min(row + 2, spare), min(row + 3, spare)
            out = logits + 4 * ((row - first_row) * stride + number * LANES)
            dots(row, r1, r2, r3, query, width, head.key_tiles[tile + number].ctypes.data, out, stride)
    grows = seen > first
    for token in range(first, last):
        count = min((seen + token - first if grows else seen) - tile * LANES, tiles * LANES)
        for row in range((token - begin) * group, (token - begin + 1) * group):
            own = logits + 4 * (row - first_row) * stride
            largest, totals = rows.largest.ctypes.data, rows.totals.ctypes.data
            softmax_row(own, row, largest, totals, output, value_width, count, tiles)
    for number in range(tiles):
        for row in range(first_row, last_row, ROWS):
            r1, r2, r3 = min(row + 1, spare), min(row + 2, spare), min(row + 3, spare)
            weights = logits + 4 * ((row - first_row) * stride + number * LANES)
            values = head.value_tiles[tile + number].ctypes.data
            add_values(row, r1, r2, r3, weights, stride, values, output, value_width)


@njit(nogil=True, cache=True)
def _score_pages(begin: int, first: int, last: int, pages: int, rows: _Rows, sums: Sums, choice: _Choice) -> None:
    """Write the products of queries and mean keys for the tokens of a chunk."""
    width, stride = rows.query.shape[1], choice.logits.shape[1]
    query, logits, spare = rows.query.ctypes.data, choice.logits.ctypes.data, len(rows.query) - 1
    first_row, last_row = (first - begin) * rows.group, (last - begin) * rows.group
    # Tile by tile for all rows, so that a tile stays in the first cache.
    for tile in range(-(-pages // LANES)):
        for row in range(first_row, last_row, ROWS):
            r1, r2, r3 = min(row + 1, spare), min(row + 2, spare), min(row + 3, spare)
            out = logits + 4 * ((row - first_row) * stride + tile * LANES)
            dots(row, r1, r2, r3, query, width, sums.mean_keys[tile].ctypes.data, out, stride)


@njit(nogil=True, cache=True)
def _attend_far(
    head: Head,
    settings: Settings,
    levels: Levels,
    spread_weights: np.ndarray,
    begin: int,
    first: int,
    last: int,
    border: int,
    pages: int,
    rows: _Rows,
    sums: Sums,
    choice: _Choice,
) -> None:
    """Choose the pages that the tokens of a chunk read, and add the summaries of the others."""
    value_width, stride = rows.output.shape[1], choice.logits.shape[1]
    output, largest, totals = rows.output.ctypes.data, rows.largest.ctypes.data, rows.totals.ctypes.data
    first_row, last_row, logits = (first - begin) * rows.group, (last - begin) * rows.group, choice.logits.ctypes.data
    spare = len(rows.query) - 1
    distant = max(0, border - settings.sink_tokens)
    tiles, few = -(-pages // LANES), FEW_PAGES * settings.page_size
    scores, spread, logs = choice.scores.ctypes.data, sums.spread.ctypes.data, sums.log_sizes.ctypes.data
    chosen = choice.chosen
    for row in range(first_row, last_row):
        own, member, token = logits + 4 * (row - first_row) * stride, row % rows.group, begin + row // rows.group
        length = square(rows.query[row])
        weight = spread_weights[member] * length
        score_pages(own, scores, spread, logs, tiles, weight, np.float32(settings.count_weight))
        already = min(border, settings.sink_tokens) + max(0, token - settings.window - border)
        if settings.by_error:
            threshold, near = level_of(levels, member, np.float32(distant + already)), np.float32(0)
            for lane in range(LANES):
                near += rows.totals[row, lane]
            number = erring_pages(choice.scores, sums.spread, pages, threshold, length, rows.largest[row], near, chosen)
        else:
            budget = budget_of(levels, member, distant, already)
            number = choose_pages(choice.scores, sums.sizes, head.order, pages, few, budget, chosen)
        keys_read = 0
        for place in range(number):
            page = chosen[place]
            size = int(sums.sizes[page])
            choice.logits[row - first_row, page] = FAR
            choice.readers[page, choice.counts[page]] = row << SEEN_BITS | size
            choice.counts[page] += 1
            keys_read += size
        choice.keys_read[member] += keys_read
        softmax_row(own, row, largest, totals, output, value_width, pages, tiles)
    for tile in range(tiles):
        for row in range(first_row, last_row, ROWS):
            r1, r2, r3 = min(row + 1, spare), min(row + 2, spare), min(row + 3, spare)
            weights = logits + 4 * ((row - first_row) * stride + tile * LANES)
            add_values(row, r1, r2, r3, weights, stride, sums.mean_values[tile].ctypes.data, output, value_width)


@njit(nogil=True, cache=True)
def _read(head: Head, page: int, rows: _Rows, choice: _Choice) -> None:
    """Attend exactly to the keys of a page that were there, for all rows that chose it."""
    width, value_width, spare = rows.query.shape[1], rows.output.shape[1], len(rows.query) - 1
    query, output, weights = rows.query.ctypes.data, rows.output.ctypes.data, rows.far.ctypes.data
    largest, totals = rows.largest.ctypes.data, rows.totals.ctypes.data
    keys, values = head.key_pages[page].ctypes.data, head.value_pages[page].ctypes.data
    readers, number = choice.readers[page], choice.counts[page]
    for last in range(number, -(-number // ROWS) * ROWS):
        readers[last] = spare << SEEN_BITS  # fills up fours
    # Step by step for many rows, because a row alone waits for each step.
    for first in range(0, number, BATCH):
        end = min(first + BATCH, -(-number // ROWS) * ROWS)
        for place in range(first, end, ROWS):
            r0, r1, r2, r3 = _rows_at(readers, place)
            dots(r0, r1, r2, r3, query, width, keys, weights + 4 * LANES * (place - first), LANES)
        for place in range(first, min(end, number)):
            row, seen = np.int64(readers[place] >> SEEN_BITS), np.int64(readers[place] & ((1 << SEEN_BITS) - 1))
            softmax_tile(weights + 4 * LANES * (place - first), row, largest, totals, output, value_width, seen)
        for place in range(first, end, ROWS):
            r0, r1, r2, r3 = _rows_at(readers, place)
            at = weights + 4 * LANES * (place - first)
            add_values(r0, r1, r2, r3, at, LANES, values, output, value_width)
    choice.counts[page] = 0


@njit(nogil=True, cache=True)
def _rows_at(readers: np.ndarray, place: int) -> tuple[np.int64, np.int64, np.int64, np.int64]:
    """Rows of four readers."""
    return (
        np.int64(readers[place] >> SEEN_BITS),
        np.int64(readers[place + 1] >> SEEN_BITS),
        np.int64(readers[place + 2] >> SEEN_BITS),
        np.int64(readers[place + 3] >> SEEN_BITS),
    )
