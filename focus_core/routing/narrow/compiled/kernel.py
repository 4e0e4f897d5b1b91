"""The compiled loops of `prefill`: attention of some queries of one key/value head."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from focus_core.routing.narrow.compiled.choice import choose_pages
from focus_core.routing.narrow.compiled.layout import Head
from focus_core.routing.narrow.compiled.vectors import LANES, ROWS, add_values, dots, softmax_row

FAR = np.float32(-1e30)
FEW_PAGES = 4.0
"""Pages that are ranked one by one."""


class Settings(NamedTuple):
    """A `Reading` with a share and pages, in numbers that compiled code takes.

    Attributes:
        window: w.
        sink_tokens: first keys that all read.
        chunk: C.
        page_size: P.
        count_weight: weight of the log of a page's size in its score.
    """

    window: int
    sink_tokens: int
    chunk: int
    page_size: int
    count_weight: float


class _Rows(NamedTuple):
    """Running softmax of the queries of a span, G rows for each token, and one spare row that fills up fours.

    Attributes:
        query: (R + 1, D).
        output: (R + 1, Dv).
        state: (R + 1, 2), see `softmax_row`.
        weights: (4, 16), scratch.
        group: G.
    """

    query: np.ndarray
    output: np.ndarray
    state: np.ndarray
    weights: np.ndarray
    group: int


class _Sums(NamedTuple):
    """Sums and means over the distant keys of each page so far.

    Attributes:
        keys: (M, D), sums.
        values: (M, Dv), sums.
        sizes: (M,) float32, keys.
        log_sizes: (M,).
        mean_keys: (M / 16, D, 16).
        mean_values: (M / 16, 16, Dv).
    """

    keys: np.ndarray
    values: np.ndarray
    sizes: np.ndarray
    log_sizes: np.ndarray
    mean_keys: np.ndarray
    mean_values: np.ndarray


class _Choice(NamedTuple):
    """What queries read.

    Attributes:
        logits: (C G + 4, M) of the summaries, for the rows of a chunk.
        scores: (M,), scratch.
        chosen: (2 M,) int64, scratch.
        readers: (M, R) int32, rows that read a page.
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
    shares: np.ndarray,
    start: int,
    stop: int,
    span: int,
    output: np.ndarray,
    logsumexp: np.ndarray,
) -> np.ndarray:
    """Attention of the queries from `start` to `stop`.

    A full page waits until the end of a span of tokens, and is read by all who chose it at once. A page that may still
    grow is read at the end of the chunk.

    Args:
        head: keys, values and queries.
        settings: of the reading.
        shares: (G,) float32, of the keys beyond the window, for each query head.
        start: first token, a multiple of the chunk.
        stop: behind the last one.
        span: tokens, a multiple of the chunk.
        output: (G, T, Dv), written.
        logsumexp: (G, T), written.

    Returns:
        (G,) int64: pairs with keys of pages that are read.
    """
    group, most, chunk = len(head.query), len(head.key_pages), settings.chunk
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
                pages = _sum_up(head, summed, border, pages, sums)
                summed = border
            if pages > 0:
                _attend_far(head, settings, shares, begin, first, last, border, pages, rows, sums, choice)
                for page in range(pages):
                    if choice.counts[page] > 0 and sums.sizes[page] < settings.page_size:
                        _read(head, page, int(sums.sizes[page]), rows, choice)
        for page in range(most):
            if choice.counts[page] > 0:
                _read(head, page, settings.page_size, rows, choice)
        for token in range(begin, end):
            for member in range(group):
                row = (token - begin) * group + member
                output[member, token] = rows.output[row] / rows.state[row, 1]
                logsumexp[member, token] = rows.state[row, 0] + np.log(rows.state[row, 1])
    return choice.keys_read


@njit(nogil=True, cache=True)
def _scratch(head: Head, num_rows: int, chunk_rows: int) -> tuple[_Rows, _Sums, _Choice]:
    group, _, width = head.query.shape
    value_width, most = head.value.shape[1], len(head.key_pages)
    tiles = -(-most // LANES)
    rows = _Rows(
        np.zeros((num_rows + 1, width), np.float32),
        np.zeros((num_rows + 1, value_width), np.float32),
        np.zeros((num_rows + 1, 2), np.float32),
        np.zeros((ROWS, LANES), np.float32),
        group,
    )
    sums = _Sums(
        np.zeros((most, width), np.float32),
        np.zeros((most, value_width), np.float32),
        np.zeros(tiles * LANES, np.float32),
        np.zeros(tiles * LANES, np.float32),
        np.zeros((tiles, width, LANES), np.float32),
        np.zeros((tiles, LANES, value_width), np.float32),
    )
    choice = _Choice(
        np.zeros((chunk_rows + ROWS, tiles * LANES), np.float32),
        np.zeros(tiles * LANES, np.float32),
        np.zeros(2 * most, np.int64),
        np.zeros((most, num_rows), np.int32),
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
    rows.state[:, 0], rows.state[:, 1] = FAR, 0


@njit(nogil=True, cache=True)
def _attend_tile(
    first: int,
    number: int,
    readers: np.ndarray,
    count: int,
    ahead: int,
    keys: np.ndarray,
    values: np.ndarray,
    rows: _Rows,
) -> None:
    """Add a tile of keys to the running softmax of some rows.

    Args:
        first: the rows from here on, if there are no readers.
        number: of rows.
        readers: (number,) or more int32, the rows; or (0,).
        count: keys that are there, 16 at most.
        ahead: keys that the first token of the span may see; each later token sees one more.
        keys: (D, 16).
        values: (16, Dv).
        rows: of the span.
    """
    width, value_width, spare = rows.query.shape[1], rows.output.shape[1], len(rows.query) - 1
    query, output, state = rows.query.ctypes.data, rows.output.ctypes.data, rows.state.ctypes.data
    weights, listed = rows.weights.ctypes.data, len(readers) > 0
    for place in range(0, number, ROWS):
        r0 = r1 = r2 = r3 = spare
        r0 = np.int64(readers[place]) if listed else first + place
        if place + 1 < number:
            r1 = np.int64(readers[place + 1]) if listed else first + place + 1
        if place + 2 < number:
            r2 = np.int64(readers[place + 2]) if listed else first + place + 2
        if place + 3 < number:
            r3 = np.int64(readers[place + 3]) if listed else first + place + 3
        dots(r0, r1, r2, r3, query, width, keys.ctypes.data, weights, LANES)
        softmax_row(weights, r0, state, output, value_width, min(count, ahead + r0 // rows.group))
        softmax_row(weights + 64, r1, state, output, value_width, min(count, ahead + r1 // rows.group))
        softmax_row(weights + 128, r2, state, output, value_width, min(count, ahead + r2 // rows.group))
        softmax_row(weights + 192, r3, state, output, value_width, min(count, ahead + r3 // rows.group))
        add_values(r0, r1, r2, r3, weights, LANES, values.ctypes.data, output, value_width)


@njit(nogil=True, cache=True)
def _attend_near(head: Head, settings: Settings, begin: int, first: int, last: int, border: int, rows: _Rows) -> None:
    """Window, extended to the border, and sinks, for the tokens of a chunk."""
    nobody = np.zeros(0, np.int32)
    for tile in range(border // LANES, -(-last // LANES)):
        row = (max(first, tile * LANES) - begin) * rows.group
        number, ahead = (last - begin) * rows.group - row, begin - tile * LANES + 1
        _attend_tile(row, number, nobody, LANES, ahead, head.key_tiles[tile], head.value_tiles[tile], rows)
    sinks, row, number = min(settings.sink_tokens, border), (first - begin) * rows.group, (last - first) * rows.group
    for tile in range(-(-sinks // LANES)):
        count = min(LANES, sinks - tile * LANES)
        _attend_tile(row, number, nobody, count, LANES, head.key_tiles[tile], head.value_tiles[tile], rows)


@njit(nogil=True, cache=True)
def _sum_up(head: Head, summed: int, border: int, pages: int, sums: _Sums) -> int:
    """Add the keys from `summed` to the border; the number of pages that have begun."""
    new = head.page[summed:border]
    _add_rows(head.key[summed:border], new, sums.keys)
    _add_rows(head.value[summed:border], new, sums.values)
    for page in new:
        sums.sizes[page] += 1
        pages = max(pages, page + 1)
    if len(new) > pages:
        # Where many keys come at once, it is cheaper to go through all pages.
        new = np.arange(pages).astype(np.int32)
    for page in new:
        tile, lane, factor = page // LANES, page % LANES, np.float32(1) / sums.sizes[page]
        sums.log_sizes[page] = np.log(sums.sizes[page])
        for column in range(sums.keys.shape[1]):
            sums.mean_keys[tile, column, lane] = sums.keys[page, column] * factor
        for column in range(sums.values.shape[1]):
            sums.mean_values[tile, lane, column] = sums.values[page, column] * factor
    return pages


@njit(nogil=True, cache=True)
def _add_rows(vectors: np.ndarray, page: np.ndarray, sums: np.ndarray) -> None:
    """Add each vector (n, D) to the sum of its page, (M, D)."""
    for token in range(len(vectors)):
        number = page[token]
        for column in range(vectors.shape[1]):
            sums[number, column] += vectors[token, column]


@njit(nogil=True, cache=True)
def _attend_far(
    head: Head,
    settings: Settings,
    shares: np.ndarray,
    begin: int,
    first: int,
    last: int,
    border: int,
    pages: int,
    rows: _Rows,
    sums: _Sums,
    choice: _Choice,
) -> None:
    """Choose the pages that the tokens of a chunk read, and add the summaries of the others."""
    width, value_width, stride = rows.query.shape[1], rows.output.shape[1], choice.logits.shape[1]
    query, output, state = rows.query.ctypes.data, rows.output.ctypes.data, rows.state.ctypes.data
    first_row, last_row, logits = (first - begin) * rows.group, (last - begin) * rows.group, choice.logits.ctypes.data
    spare = len(rows.query) - 1
    # Tile by tile for all rows, so that a tile stays in the first cache.
    for tile in range(-(-pages // LANES)):
        for row in range(first_row, last_row, ROWS):
            r1, r2, r3 = min(row + 1, spare), min(row + 2, spare), min(row + 3, spare)
            out = logits + 4 * ((row - first_row) * stride + tile * LANES)
            dots(row, r1, r2, r3, query, width, sums.mean_keys[tile].ctypes.data, out, stride)
    distant = max(0, border - settings.sink_tokens)
    for row in range(first_row, last_row):
        own, token = choice.logits[row - first_row], begin + row // rows.group
        for page in range(pages):
            choice.scores[page] = own[page] + np.float32(settings.count_weight) * sums.log_sizes[page]
            own[page] += sums.log_sizes[page]
        already = min(border, settings.sink_tokens) + max(0, token - settings.window - border)
        budget = shares[row % rows.group] * np.float32(distant + already) - np.float32(already)
        few = FEW_PAGES * settings.page_size
        number = choose_pages(choice.scores, sums.sizes, head.order, pages, few, budget, choice.chosen)
        for page in choice.chosen[:number]:
            own[page] = FAR
            choice.readers[page, choice.counts[page]] = row
            choice.counts[page] += 1
            choice.keys_read[row % rows.group] += int(sums.sizes[page])
        softmax_row(own.ctypes.data, row, state, output, value_width, pages)
    for tile in range(-(-pages // LANES)):
        for row in range(first_row, last_row, ROWS):
            r1, r2, r3 = min(row + 1, spare), min(row + 2, spare), min(row + 3, spare)
            weights = logits + 4 * ((row - first_row) * stride + tile * LANES)
            add_values(row, r1, r2, r3, weights, stride, sums.mean_values[tile].ctypes.data, output, value_width)


@njit(nogil=True, cache=True)
def _read(head: Head, page: int, count: int, rows: _Rows, choice: _Choice) -> None:
    """Attend exactly to the first keys of a page, for all rows that chose it."""
    readers = choice.readers[page]
    _attend_tile(0, choice.counts[page], readers, count, LANES, head.key_pages[page], head.value_pages[page], rows)
    choice.counts[page] = 0
