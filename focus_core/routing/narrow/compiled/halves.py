"""The steps of prefill in bfloat16, 16 rows at a time, in matrix units.

Logits are exact products of the given bfloat16 numbers, summed in float32. Mean keys are two of them, upper and lower
bits. Weights and mean values are rounded to bfloat16, as in PyTorch's own kernel.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from focus_core.routing.narrow.compiled.layout import Head
from focus_core.routing.narrow.compiled.machine.llvm import LANES
from focus_core.routing.narrow.compiled.machine.readers import gather, scatter, weigh_readers
from focus_core.routing.narrow.compiled.machine.tiles import (
    BLOCK,
    add_products,
    halve,
    halve_rest,
    products,
    products_of_two,
    weigh,
    write_products,
)
from focus_core.routing.narrow.compiled.state import BATCH, SEEN_BITS, Choice, Half, Span
from focus_core.routing.narrow.compiled.sums import Sums


@njit(nogil=True, cache=True)
def attend_tiles(
    head: Head, begin: int, first: int, last: int, tile: int, end_tile: int, seen: int, rows: Span, half: Half
) -> None:
    """As `single.attend_tiles`."""
    width, value_width, group, tiles = rows.query.shape[1], rows.output.shape[1], rows.group, end_tile - tile
    first_row, last_row, stride = (first - begin) * group, (last - begin) * group, half.near.shape[1]
    logits, weights = rows.near.ctypes.data, half.near.ctypes.data
    query, output = rows.query.ctypes.data, rows.output.ctypes.data
    keys = head.key_tiles.ctypes.data + 2 * LANES * width * tile
    values = head.value_tiles.ctypes.data + 2 * LANES * value_width * tile
    largest, totals = rows.largest.ctypes.data, rows.totals.ctypes.data
    grows, factor = seen > first, head.factor
    for block in range(first_row, last_row, BLOCK):
        products(query + 2 * width * block, 2 * width, width, keys, 1, tiles, logits, 4 * stride)
        end = min(block + BLOCK, last_row)
        for row in range(block, end):
            later = row // group + begin - first if grows else 0
            count = min(seen + later - tile * LANES, tiles * LANES)
            own, to = logits + 4 * (row - block) * stride, weights + 2 * (row - block) * stride
            weigh(own, factor, row, largest, totals, output, value_width, count, tiles, to)
        if end - block < BLOCK:
            half.near[end - block :] = 0
        add_products(weights, 2 * stride, tiles, values, output + 4 * value_width * block, 4 * value_width, value_width)


@njit(nogil=True, cache=True)
def score_means(first_row: int, last_row: int, pages: int, rows: Span, half: Half, choice: Choice) -> None:
    """As `single.score_means`."""
    width, stride, tiles = rows.query.shape[1], choice.logits.shape[1], -(-pages // LANES)
    query, logits, keys = rows.query.ctypes.data, choice.logits.ctypes.data, half.mean_keys.ctypes.data
    for row in range(first_row, last_row, BLOCK):
        out = logits + 4 * (row - first_row) * stride
        products(query + 2 * width * row, 2 * width, width, keys, 2, tiles, out, 4 * stride)


@njit(nogil=True, inline="always")
def weigh_means(first_row: int, row: int, pages: int, rows: Span, half: Half, choice: Choice) -> None:
    """As `single.weigh_means`."""
    at = (row - first_row) * choice.logits.shape[1]
    own, to = choice.logits.ctypes.data + 4 * at, half.means.ctypes.data + 2 * at
    output, largest, totals = rows.output.ctypes.data, rows.largest.ctypes.data, rows.totals.ctypes.data
    weigh(own, np.float32(1), row, largest, totals, output, rows.output.shape[1], pages, -(-pages // LANES), to)


@njit(nogil=True, cache=True)
def add_means(first_row: int, last_row: int, pages: int, rows: Span, half: Half, choice: Choice) -> None:
    """As `single.add_means`."""
    value_width, stride, tiles = rows.output.shape[1], choice.logits.shape[1], -(-pages // LANES)
    output, weights, values = rows.output.ctypes.data, half.means.ctypes.data, half.mean_values.ctypes.data
    half.means[last_row - first_row : -(-(last_row - first_row) // BLOCK) * BLOCK] = 0
    for row in range(first_row, last_row, BLOCK):
        own, out = weights + 2 * (row - first_row) * stride, output + 4 * value_width * row
        add_products(own, 2 * stride, tiles, values, out, 4 * value_width, value_width)


@njit(nogil=True, cache=True)
def read_page(head: Head, page: int, number: int, rows: Span, half: Half, choice: Choice) -> None:
    """As `single.read_page`."""
    width, value_width = rows.query.shape[1], rows.output.shape[1]
    query, output = rows.query.ctypes.data, rows.output.ctypes.data
    largest, totals = rows.largest.ctypes.data, rows.totals.ctypes.data
    gathered, logits, weights, added = (
        half.query.ctypes.data,
        rows.far.ctypes.data,
        half.far.ctypes.data,
        half.sums.ctypes.data,
    )
    keys = head.key_pages.ctypes.data + 2 * LANES * width * page
    values, readers = head.value_pages.ctypes.data + 2 * LANES * value_width * page, choice.readers.ctypes.data
    for first in range(0, number, BATCH):
        count, some = min(BATCH, number - first), readers + 4 * first
        gather(some, count, SEEN_BITS, query, 2 * width, gathered)
        if count > BLOCK:
            products_of_two(gathered, 2 * width, width, keys, logits, 4 * LANES)
        else:
            products(gathered, 2 * width, width, keys, 1, 1, logits, 4 * LANES)
        weigh_readers(some, count, SEEN_BITS, logits, head.factor, largest, totals, output, value_width, weights)
        for place in range(0, count, BLOCK):
            own, out = weights + 2 * LANES * place, added + 4 * value_width * place
            write_products(own, 2 * LANES, 1, values, out, 4 * value_width, value_width)
        scatter(some, count, SEEN_BITS, added, output, 4 * value_width)


@njit(nogil=True, cache=True)
def halve_means(head: Head, summed: int, border: int, pages: int, sums: Sums, half: Half) -> None:
    """Write the means of the pages that the keys from `summed` to the border changed in bfloat16, in whole tiles."""
    tiles = -(-pages // LANES)
    changed = np.zeros(tiles, np.bool_)
    for page in head.page[summed:border]:
        changed[page // LANES] = True
    for tile in range(tiles):
        if changed[tile]:
            keys, values = sums.mean_keys[tile], sums.mean_values[tile]
            upper, lower = half.mean_keys[tile, 0], half.mean_keys[tile, 1]
            halve(keys.ctypes.data, len(keys), 4 * LANES, upper.ctypes.data)
            halve_rest(keys.ctypes.data, len(keys), 4 * LANES, lower.ctypes.data)
            out = half.mean_values[tile]
            halve(values.ctypes.data, len(values), 4 * values.shape[1], out.ctypes.data)
