"""The compiled loops of `prefill`: attention of some queries of one key/value head."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from focus_core.routing.narrow.compiled import halves, single
from focus_core.routing.narrow.compiled.choice import EVERYTHING, choose_pages
from focus_core.routing.narrow.compiled.layout import Head
from focus_core.routing.narrow.compiled.levels import Levels, budget_of, level_at
from focus_core.routing.narrow.compiled.machine.llvm import FEW, LANES
from focus_core.routing.narrow.compiled.machine.parting import mark_erring, part_halves, part_pages, rank, readers_of
from focus_core.routing.narrow.compiled.machine.ranking import score_pages, sum_at
from focus_core.routing.narrow.compiled.machine.tiles import configure, copy, restore
from focus_core.routing.narrow.compiled.machine.vectors import MARGIN
from focus_core.routing.narrow.compiled.machine.widening import narrow, square_of_row
from focus_core.routing.narrow.compiled.state import CHOOSING, NEAR_TILES, SEEN_BITS, Choice, Half, Span
from focus_core.routing.narrow.compiled.sums import Sums, forget, sum_up

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
        by_error: whether heads have thresholds in place of a share.
    """

    window: int
    sink_tokens: int
    chunk: int
    page_size: int
    count_weight: float
    by_error: bool


@njit(nogil=True, cache=True)
def attend(
    head: Head,
    settings: Settings,
    levels: Levels,
    spread_weights: np.ndarray,
    start: int,
    stop: int,
    span: int,
    rows: Span,
    sums: Sums,
    choice: Choice,
    half: Half | None,
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
        rows: of a span, G times its tokens.
        sums: room for them.
        choice: with room for the pages.
        half: room for the matrix units, with a head in bfloat16; None with one in float32.
        output: (T, H, Dv), float32 or the bits of bfloat16; the heads that read this one are written.
        logsumexp: (H, T), likewise.

    Returns:
        (G,) int64: pairs with keys of pages that are read.
    """
    chunk = settings.chunk
    if half is not None:
        configure(half.shapes.ctypes.data)
    forget(sums)
    choice.keys_read[:] = 0
    summed, pages = settings.sink_tokens, 0
    for begin in range(start, stop, span):
        end = min(begin + span, stop)
        _begin(head, begin, end, rows, half)
        choice.marks[:] = 0
        for first in range(begin, end, chunk):
            last = min(first + chunk, end)
            border = max(0, first - settings.window) // chunk * chunk
            _attend_near(head, settings, begin, first, last, border, rows, half)
            if border > summed:
                pages = sum_up(head, summed, border, pages, settings.count_weight, sums)
                if half is not None:
                    halves.halve_means(head, summed, border, pages, sums, half)
                summed = border
            if pages > 0:
                choice.seen[(first - begin) // chunk, :pages] = sums.sizes[:pages]
                _summarise(
                    head, settings, levels, spread_weights, begin, first, last, border, pages, rows, sums, half, choice
                )
        for page in range(pages):
            number = _find_readers(page, end - begin, chunk, rows.group, choice)
            if number > 0:
                if half is None:
                    single.read_page(head, page, number, settings.page_size <= FEW, rows, choice)
                else:
                    halves.read_page(head, page, number, rows, half, choice)
        _finish(head.first, begin, end, rows, output, logsumexp)
    if half is not None:
        restore(half.shapes.ctypes.data)
    return choice.keys_read.copy()


@njit(nogil=True, cache=True)
def _begin(head: Head, begin: int, end: int, rows: Span, half: Half | None) -> None:
    """Take the queries of a span, with nothing attended yet."""
    given, first, scale, group = head.query, head.first, head.scale, rows.group
    query, squares, square_of_factor, width = rows.query, rows.squares, head.factor * head.factor, head.query.shape[2]
    given_at, query_at = given.ctypes.data, query.ctypes.data
    for token in range(begin, end):
        for member in range(group):
            row = (token - begin) * group + member
            if half is None:
                for column in range(width):
                    query[row, column] = given[token, first + member, column] * scale
            else:
                start = given_at + 2 * width * (token * given.shape[1] + first + member)
                copy(start, query_at + 2 * width * row, 2 * width)
    for row in range((end - begin) * group):
        squares[row] = square_of_row(query, row) * square_of_factor
    rows.output[:] = 0
    rows.largest[:], rows.totals[:] = FAR, 0


@njit(nogil=True, cache=True)
def _find_readers(page: int, tokens: int, chunk: int, group: int, choice: Choice) -> int:
    """Write which rows of the tokens of a span read a page, and how many of its keys they see; the number of these."""
    marks, readers, seen = choice.marks, choice.readers, choice.seen
    at, out, number = marks.ctypes.data + 2 * marks.shape[1] * (page // LANES), readers.ctypes.data, 0
    for first in range(0, tokens, chunk):
        size = seen[first // chunk, page]
        for row in range(first * group, min(first + chunk, tokens) * group, LANES):
            reader = row << SEEN_BITS | size
            number += readers_of(at + 2 * row, page % LANES, reader, 1 << SEEN_BITS, out + 4 * number)
    return number


@njit(nogil=True, cache=True)
def _finish(first: int, begin: int, end: int, rows: Span, output: np.ndarray, logsumexp: np.ndarray) -> None:
    """Write the results of a span."""
    sums, totals, largest, group = rows.output, rows.totals, rows.largest, rows.group
    like = output[0, 0, 0]
    for token in range(begin, end):
        for member in range(group):
            row, total = (token - begin) * group + member, np.float32(0)
            for lane in range(LANES):
                total += totals[row, lane]
            factor = np.float32(1) / total
            for column in range(sums.shape[1]):
                output[token, first + member, column] = narrow(sums[row, column] * factor, like)
            logsumexp[first + member, token] = largest[row] + np.log(total)


@njit(nogil=True, cache=True)
def _attend_near(
    head: Head, settings: Settings, begin: int, first: int, last: int, border: int, rows: Span, half: Half | None
) -> None:
    """Window, extended to the border, and sinks, for the tokens of a chunk."""
    for token in range(first, last, LANES):
        stop, own = min(token + LANES, last), token // LANES + 1
        for tile in range(border // LANES, own, NEAR_TILES):
            tiles = min(tile + NEAR_TILES, own)
            if half is None:
                single.attend_tiles(head, begin, token, stop, tile, tiles, token + 1, rows)
            else:
                halves.attend_tiles(head, begin, token, stop, tile, tiles, token + 1, rows, half)
        sinks = min(settings.sink_tokens, border)
        for tile in range(0, -(-sinks // LANES), NEAR_TILES):
            tiles = min(tile + NEAR_TILES, -(-sinks // LANES))
            if half is None:
                single.attend_tiles(head, begin, token, stop, tile, tiles, sinks, rows)
            else:
                halves.attend_tiles(head, begin, token, stop, tile, tiles, sinks, rows, half)


@njit(nogil=True, cache=True)
def _summarise(
    head: Head,
    settings: Settings,
    levels: Levels,
    spread_weights: np.ndarray,
    begin: int,
    first: int,
    last: int,
    border: int,
    pages: int,
    rows: Span,
    sums: Sums,
    half: Half | None,
    choice: Choice,
) -> None:
    """Choose the pages that the tokens of a chunk read, and add the summaries of the others."""
    sinks, count_weight = min(border, settings.sink_tokens), np.float32(settings.count_weight)
    distant, few = max(0, border - settings.sink_tokens), FEW_PAGES * settings.page_size
    end = (last - begin) * rows.group
    # Few rows at a time, so that their logits stay in the cache.
    for first_row in range((first - begin) * rows.group, end, CHOOSING):
        last_row = min(first_row + CHOOSING, end)
        seen = _Seen(begin, first_row, last_row, sinks, distant, border + settings.window, pages)
        if half is None:
            single.score_means(first_row, last_row, pages, rows, sums, choice)
        else:
            halves.score_means(first_row, last_row, pages, rows, half, choice)
        if settings.by_error:
            _choose_by_error(seen, count_weight, head.factor, levels, spread_weights, rows, sums, half, choice)
        else:
            _choose_by_share(seen, count_weight, head, few, levels, spread_weights, rows, sums, half, choice)
        if half is None:
            single.add_means(first_row, last_row, pages, rows, sums, choice)
        else:
            halves.add_means(first_row, last_row, pages, rows, half, choice)


class _Seen(NamedTuple):
    """What the rows of a chunk have before them.

    Attributes:
        begin: first token of the span.
        first_row: of the chunk.
        last_row: behind its last one.
        sinks: keys that all attend to whatever they read.
        distant: keys in pages.
        near_end: token from which on keys between the window and the border are beyond the window.
        pages: that have begun.
    """

    begin: int
    first_row: int
    last_row: int
    sinks: int
    distant: int
    near_end: int
    pages: int


@njit(nogil=True, cache=True)
def _choose_by_error(
    seen: _Seen,
    count_weight: np.float32,
    factor: np.float32,
    levels: Levels,
    spread_weights: np.ndarray,
    rows: Span,
    sums: Sums,
    half: Half | None,
    choice: Choice,
) -> None:
    """Have the rows of a chunk read the pages that err above their thresholds, and weigh the other summaries."""
    # Fields are taken out of loops: taking one counts a reference to it, which is slow.
    group, pages, tiles, stride = rows.group, seen.pages, -(-seen.pages // LANES), choice.logits.shape[1]
    squares, largest, totals, tables = rows.squares, rows.largest, rows.totals, levels.tables
    marks, sizes, keys_read, weights = choice.marks, sums.sizes, choice.keys_read, choice.logits
    logits, scores, sums_at = weights.ctypes.data, choice.page_scores.ctypes.data, totals.ctypes.data
    spread, logs, powers, sizes_at = (
        sums.spread.ctypes.data,
        sums.log_sizes.ctypes.data,
        sums.powers.ctypes.data,
        sizes.ctypes.data,
    )
    places, steps, marks_at, num_rows, halves_at = (
        levels.places,
        levels.steps,
        marks.ctypes.data,
        marks.shape[1],
        logits,
    )
    if half is not None:
        halves_at = half.means.ctypes.data
    token, member = seen.begin + seen.first_row // group, seen.first_row % group
    for row in range(seen.first_row, seen.last_row):
        square, place, most, total_at = squares[row], row - seen.first_row, largest[row], sums_at + 4 * LANES * row
        own, weight, mark = logits + 4 * place * stride, spread_weights[member] * square, marks_at + 2 * row
        already = seen.sinks + max(0, token - seen.near_end)
        threshold = level_at(tables, places, steps, member, np.float32(seen.distant + already))
        shift, together = rank(own, scores, spread, logs, pages, factor, weight, count_weight, most)
        level = np.float32((together + sum_at(total_at) * np.exp(most - shift)) * np.exp(threshold))
        # The exponentials become weights, unless a score is so large that these would lose what others say.
        everything, soon = threshold <= EVERYTHING, shift <= most + np.float32(MARGIN)
        if soon and not everything:
            share = np.exp(shift - most)
            if half is None:
                keys = part_pages(
                    scores, spread, powers, sizes_at, tiles, square, level, share, total_at, own, mark, num_rows
                )
            else:
                out = halves_at + 2 * place * stride
                keys = part_halves(
                    scores, spread, powers, sizes_at, tiles, square, level, share, total_at, out, mark, num_rows
                )
        else:
            keys = mark_erring(scores, spread, sizes_at, tiles, square, level, mark, num_rows)
            if everything:
                keys = _mark_all(row, pages, sizes, marks)
            score_pages(own, scores, spread, logs, tiles, factor, weight, count_weight)
            for page in range(pages):
                if marks[page // LANES, row] >> page % LANES & 1:
                    weights[place, page] = FAR
            if half is None:
                single.weigh_means(seen.first_row, row, pages, rows, choice)
            else:
                halves.weigh_means(seen.first_row, row, pages, rows, half, choice)
        keys_read[member] += int(keys)
        member += 1
        if member == group:
            token, member = token + 1, 0


@njit(nogil=True, cache=True)
def _mark_all(row: int, pages: int, sizes: np.ndarray, marks: np.ndarray) -> np.float32:
    """Mark all pages for a row; their keys."""
    keys = np.float32(0)
    for page in range(pages):
        marks[page // LANES, row] |= np.int16(1) << np.int16(page % LANES)
        keys += sizes[page]
    return keys


@njit(nogil=True, cache=True)
def _choose_by_share(
    seen: _Seen,
    count_weight: np.float32,
    head: Head,
    few: float,
    levels: Levels,
    spread_weights: np.ndarray,
    rows: Span,
    sums: Sums,
    half: Half | None,
    choice: Choice,
) -> None:
    """Have the rows of a chunk read the best pages within their budgets, and weigh the other summaries."""
    begin, group, tiles, stride = seen.begin, rows.group, -(-seen.pages // LANES), choice.logits.shape[1]
    marks, sizes, keys_read, weights, chosen, squares, page_scores, order, factor = (
        choice.marks,
        sums.sizes,
        choice.keys_read,
        choice.logits,
        choice.chosen,
        rows.squares,
        choice.page_scores,
        head.order,
        head.factor,
    )
    logits, scores = weights.ctypes.data, page_scores.ctypes.data
    spread, logs = sums.spread.ctypes.data, sums.log_sizes.ctypes.data
    for row in range(seen.first_row, seen.last_row):
        member, place = row % group, row - seen.first_row
        weight = spread_weights[member] * squares[row]
        score_pages(logits + 4 * place * stride, scores, spread, logs, tiles, factor, weight, count_weight)
        already = seen.sinks + max(0, begin + row // group - seen.near_end)
        budget = budget_of(levels, member, seen.distant, already)
        for read in range(choose_pages(page_scores, sizes, order, seen.pages, few, budget, chosen)):
            page = chosen[read]
            marks[page // LANES, row] |= np.int16(1) << np.int16(page % LANES)
            keys_read[member] += int(sizes[page])
            weights[place, page] = FAR
        if half is None:
            single.weigh_means(seen.first_row, row, seen.pages, rows, choice)
        else:
            halves.weigh_means(seen.first_row, row, seen.pages, rows, half, choice)
