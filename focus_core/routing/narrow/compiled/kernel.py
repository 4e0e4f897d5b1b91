"""The compiled loops of `prefill`: attention of some queries of one key/value head."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from focus_core.routing.narrow.compiled import halves, single
from focus_core.routing.narrow.compiled.choice import EVERYTHING, choose_pages
from focus_core.routing.narrow.compiled.features import write_features
from focus_core.routing.narrow.compiled.layout import Head
from focus_core.routing.narrow.compiled.levels import Levels, budget_of, level_at
from focus_core.routing.narrow.compiled.machine.llvm import FEW, LANES
from focus_core.routing.narrow.compiled.machine.parting import (
    hide,
    mark_erring,
    part_halves,
    part_pages,
    rank,
    readers_of,
)
from focus_core.routing.narrow.compiled.machine.ranking import number_at, score_pages, sum_at
from focus_core.routing.narrow.compiled.machine.tiles import configure, copy, restore
from focus_core.routing.narrow.compiled.machine.vectors import MARGIN
from focus_core.routing.narrow.compiled.machine.widening import narrow, square_of_row
from focus_core.routing.narrow.compiled.state import (
    CHOOSING,
    NEAR_TILES,
    SEEN_BITS,
    Choice,
    Half,
    HalfPlaces,
    Places,
    Span,
    half_places_of,
    places_of,
)
from focus_core.routing.narrow.compiled.sums import Sums, forget, sum_up
from focus_core.routing.narrow.directions import COUNTED

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
    chunk, at, units = settings.chunk, places_of(head, rows, sums, choice), None
    if half is not None:
        units = half_places_of(half)
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
            _attend_near(at, units, settings, begin, first, last, border)
            if border > summed:
                keys = head.key, head.value, head.features, head.page
                pages = sum_up(*keys, summed, border, pages, settings.count_weight, sums)
                if half is not None:
                    halves.halve_means(head.page, summed, border, pages, sums, half)
                summed = border
            if pages > 0:
                choice.seen[(first - begin) // chunk, :pages] = sums.sizes[:pages]
                seen = _Seen(begin, first, last, border, pages)
                if settings.by_error:
                    _summarise(at, units, settings, seen, levels, spread_weights, choice.keys_read)
                else:
                    _summarise_by_share(at, units, settings, seen, levels, spread_weights, head.order, sums, choice)
        _read_pages(at, units, pages, end - begin, chunk, settings.page_size <= FEW, choice.seen)
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
    if len(head.directions) == 0:
        for row in range((end - begin) * group):
            squares[row] = square_of_row(query, row) * square_of_factor
    else:
        write_features(query[: (end - begin) * group], head.directions, head.factor, True, rows.features)
    rows.output[:] = 0
    rows.largest[:], rows.totals[:] = FAR, 0


@njit(nogil=True, cache=True)
def _read_pages(
    at: Places, units: HalfPlaces | None, pages: int, tokens: int, chunk: int, few: bool, seen: np.ndarray
) -> None:
    """Have the rows of the tokens of a span read the pages that they chose; `seen` is that of `Choice`."""
    for page in range(pages):
        marks, number = at.marks + 2 * at.num_rows * (page // LANES), 0
        for first in range(0, tokens, chunk):
            size = seen[first // chunk, page]
            for row in range(first * at.group, min(first + chunk, tokens) * at.group, LANES):
                reader, out = row << SEEN_BITS | size, at.readers + 4 * number
                number += readers_of(marks + 2 * row, page % LANES, reader, 1 << SEEN_BITS, out)
        if number > 0:
            if units is None:
                single.read_page(at, page, number, few)
            else:
                halves.read_page(at, units, page, number)


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
    at: Places, units: HalfPlaces | None, settings: Settings, begin: int, first: int, last: int, border: int
) -> None:
    """Window, extended to the border, and sinks, for the tokens of a chunk."""
    for token in range(first, last, LANES):
        stop, own = min(token + LANES, last), token // LANES + 1
        for tile in range(border // LANES, own, NEAR_TILES):
            _attend_tiles(at, units, begin, token, stop, tile, min(tile + NEAR_TILES, own), token + 1)
        sinks = min(settings.sink_tokens, border)
        for tile in range(0, -(-sinks // LANES), NEAR_TILES):
            _attend_tiles(at, units, begin, token, stop, tile, min(tile + NEAR_TILES, -(-sinks // LANES)), sinks)


@njit(nogil=True, inline="always")
def _attend_tiles(
    at: Places, units: HalfPlaces | None, begin: int, token: int, stop: int, tile: int, end_tile: int, seen: int
) -> None:
    if units is None:
        single.attend_tiles(at, begin, token, stop, tile, end_tile, seen)
    else:
        halves.attend_tiles(at, units, begin, token, stop, tile, end_tile, seen)


class _Seen(NamedTuple):
    """The tokens of a chunk, and what they have before them.

    Attributes:
        begin: first token of the span.
        first: of the chunk.
        last: behind its last one.
        border: keys beyond it are distant from all of them, if they are no sinks.
        pages: that have begun.
    """

    begin: int
    first: int
    last: int
    border: int
    pages: int


@njit(nogil=True, cache=True)
def _summarise(
    at: Places,
    units: HalfPlaces | None,
    settings: Settings,
    seen: _Seen,
    levels: Levels,
    spread_weights: np.ndarray,
    keys_read: np.ndarray,
) -> None:
    """Have the tokens of a chunk read the pages that err above thresholds, and add the summaries of the others."""
    pages, tiles, group, stride = seen.pages, -(-seen.pages // LANES), at.group, at.logits_stride
    sinks, factor, count_weight = min(seen.border, settings.sink_tokens), at.factor, np.float32(settings.count_weight)
    distant, near_end = max(0, seen.border - settings.sink_tokens), seen.border + settings.window
    # Fields are taken out of loops: taking one counts a reference to it, which is slow.
    tables, places, steps = levels.tables, levels.places, levels.steps
    begin, end = (seen.first - seen.begin) * group, (seen.last - seen.begin) * group
    token, member = seen.first, 0
    # Few rows at a time, so that their logits stay in the cache.
    for first_row in range(begin, end, CHOOSING):
        last_row = min(first_row + CHOOSING, end)
        _score_means(at, units, first_row, last_row, pages)
        for row in range(first_row, last_row):
            most, totals, place = number_at(at.largest, row), at.totals + 4 * LANES * row, (row - first_row) * stride
            square, spread, counted = _spread_of(at, row, place)
            own, mark, weight = at.logits + 4 * place, at.marks + 2 * row, spread_weights[member] * square
            already = sinks + max(0, token - near_end)
            threshold = level_at(tables, places, steps, member, np.float32(distant + already))
            weights = factor, weight, counted, count_weight
            shift, together = rank(own, at.page_scores, spread, at.log_sizes, pages, *weights, most)
            level = np.float32((together + sum_at(totals) * np.exp(most - shift)) * np.exp(threshold))
            # The exponentials become weights, unless a score is so large that these would lose what others say.
            everything, soon = threshold <= EVERYTHING, shift <= most + np.float32(MARGIN)
            if soon and not everything:
                share = np.exp(shift - most)
                keys = _part_pages(at, units, spread, tiles, square, level, share, totals, place, mark)
            else:
                least = np.float32(-1) if everything else level
                keys = mark_erring(at.page_scores, spread, at.sizes, pages, square, least, mark, at.num_rows)
                score_pages(own, at.page_scores, spread, at.log_sizes, tiles, *weights)
                hide(own, tiles, mark, at.num_rows)
                _weigh_means(at, units, first_row, row, pages)
            keys_read[member] += int(keys)
            member += 1
            if member == group:
                token, member = token + 1, 0
        _add_means(at, units, first_row, last_row, pages)


@njit(nogil=True, inline="always")
def _spread_of(at: Places, row: int, place: int) -> tuple[np.float32, int, np.float32]:
    """A number, where those are with which it makes the variances of all pages' logits for a row, and how much of these
    is counted at most.
    """
    if at.num_features == 0:
        return number_at(at.squares, row), at.spread, np.float32(np.inf)
    return np.float32(1), at.variances + 4 * place, np.float32(COUNTED)


@njit(nogil=True, inline="always")
def _part_pages(
    at: Places,
    units: HalfPlaces | None,
    spread: int,
    tiles: int,
    square: np.float32,
    level: np.float32,
    share: np.float32,
    totals: int,
    place: int,
    mark: int,
) -> np.float32:
    scores, powers, sizes, num_rows = at.page_scores, at.powers, at.sizes, at.num_rows
    if units is None:
        out = at.logits + 4 * place
        return part_pages(scores, spread, powers, sizes, tiles, square, level, share, totals, out, mark, num_rows)
    else:
        out = units.means + 2 * place
        return part_halves(scores, spread, powers, sizes, tiles, square, level, share, totals, out, mark, num_rows)


@njit(nogil=True, cache=True)
def _summarise_by_share(
    at: Places,
    units: HalfPlaces | None,
    settings: Settings,
    seen: _Seen,
    levels: Levels,
    spread_weights: np.ndarray,
    order: np.ndarray,
    sums: Sums,
    choice: Choice,
) -> None:
    """Have the tokens of a chunk read the best pages within their budgets, and add the summaries of the others."""
    pages, tiles, group = seen.pages, -(-seen.pages // LANES), at.group
    sinks, count_weight = min(seen.border, settings.sink_tokens), np.float32(settings.count_weight)
    distant, near_end = max(0, seen.border - settings.sink_tokens), seen.border + settings.window
    few, end = FEW_PAGES * settings.page_size, (seen.last - seen.begin) * group
    marks, sizes, keys_read, weights, chosen, page_scores = (
        choice.marks,
        sums.sizes,
        choice.keys_read,
        choice.logits,
        choice.chosen,
        choice.page_scores,
    )
    for first_row in range((seen.first - seen.begin) * group, end, CHOOSING):
        last_row = min(first_row + CHOOSING, end)
        _score_means(at, units, first_row, last_row, pages)
        for row in range(first_row, last_row):
            member, place = row % group, row - first_row
            square, spread, counted = _spread_of(at, row, place * at.logits_stride)
            own, weight = at.logits + 4 * place * at.logits_stride, spread_weights[member] * square
            score_pages(own, at.page_scores, spread, at.log_sizes, tiles, at.factor, weight, counted, count_weight)
            already = sinks + max(0, seen.begin + row // group - near_end)
            budget = budget_of(levels, member, distant, already)
            for read in range(choose_pages(page_scores, sizes, order, pages, few, budget, chosen)):
                page = chosen[read]
                marks[page // LANES, row] |= np.int16(1) << np.int16(page % LANES)
                keys_read[member] += int(sizes[page])
                weights[place, page] = FAR
            _weigh_means(at, units, first_row, row, pages)
        _add_means(at, units, first_row, last_row, pages)


@njit(nogil=True, inline="always")
def _score_means(at: Places, units: HalfPlaces | None, first_row: int, last_row: int, pages: int) -> None:
    if units is None:
        single.score_means(at, first_row, last_row, pages)
    else:
        halves.score_means(at, units, first_row, last_row, pages)
    if at.num_features > 0:
        single.score_spread(at, first_row, last_row, pages)


@njit(nogil=True, inline="always")
def _weigh_means(at: Places, units: HalfPlaces | None, first_row: int, row: int, pages: int) -> None:
    if units is None:
        single.weigh_means(at, first_row, row, pages)
    else:
        halves.weigh_means(at, units, first_row, row, pages)


@njit(nogil=True, inline="always")
def _add_means(at: Places, units: HalfPlaces | None, first_row: int, last_row: int, pages: int) -> None:
    if units is None:
        single.add_means(at, first_row, last_row, pages)
    else:
        halves.add_means(at, units, first_row, last_row, pages)
