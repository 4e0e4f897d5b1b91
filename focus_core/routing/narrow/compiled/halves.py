"""The steps of prefill in bfloat16, 16 rows at a time, in matrix units.

Logits are exact products of the given bfloat16 numbers, summed in float32. Mean keys are two of them, upper and lower
bits. Weights and mean values are rounded to bfloat16, as in PyTorch's own kernel.
"""

from __future__ import annotations

import numpy as np
from numba import njit

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
from focus_core.routing.narrow.compiled.state import BATCH, SEEN_BITS, Half, HalfPlaces, Places
from focus_core.routing.narrow.compiled.sums import Sums


@njit(nogil=True, cache=True)
def attend_tiles(
    at: Places, units: HalfPlaces, begin: int, first: int, last: int, tile: int, end_tile: int, seen: int
) -> None:
    """As `single.attend_tiles`."""
    width, value_width, group, tiles, stride = at.width, at.value_width, at.group, end_tile - tile, units.near_stride
    first_row, last_row = (first - begin) * group, (last - begin) * group
    keys = at.key_tiles + 2 * LANES * width * tile
    values = at.value_tiles + 2 * LANES * value_width * tile
    grows = seen > first
    for block in range(first_row, last_row, BLOCK):
        products(at.query + 2 * width * block, 2 * width, width, keys, 1, tiles, at.near, 4 * stride)
        end = min(block + BLOCK, last_row)
        for row in range(block, end):
            later = row // group + begin - first if grows else 0
            count = min(seen + later - tile * LANES, tiles * LANES)
            own, to = at.near + 4 * (row - block) * stride, units.near + 2 * (row - block) * stride
            weigh(own, at.factor, row, at.largest, at.totals, at.output, value_width, count, tiles, to)
        # Behind the last token there are no queries: nobody looks at what those rows get.
        out = at.output + 4 * value_width * block
        add_products(units.near, 2 * stride, tiles, values, out, 4 * value_width, value_width)


@njit(nogil=True, cache=True)
def score_means(at: Places, units: HalfPlaces, first_row: int, last_row: int, pages: int) -> None:
    """As `single.score_means`."""
    width, stride, tiles = at.width, at.logits_stride, -(-pages // LANES)
    for row in range(first_row, last_row, BLOCK):
        query, out = at.query + 2 * width * row, at.logits + 4 * (row - first_row) * stride
        products(query, 2 * width, width, units.mean_keys, 2, tiles, out, 4 * stride)


@njit(nogil=True, inline="always")
def weigh_means(at: Places, units: HalfPlaces, first_row: int, row: int, pages: int) -> None:
    """As `single.weigh_means`."""
    place, tiles = (row - first_row) * at.logits_stride, -(-pages // LANES)
    own, to = at.logits + 4 * place, units.means + 2 * place
    weigh(own, np.float32(1), row, at.largest, at.totals, at.output, at.value_width, pages, tiles, to)


@njit(nogil=True, cache=True)
def add_means(at: Places, units: HalfPlaces, first_row: int, last_row: int, pages: int) -> None:
    """As `single.add_means`."""
    value_width, stride, tiles = at.value_width, at.logits_stride, -(-pages // LANES)
    for row in range(first_row, last_row, BLOCK):
        own, out = units.means + 2 * (row - first_row) * stride, at.output + 4 * value_width * row
        add_products(own, 2 * stride, tiles, units.mean_values, out, 4 * value_width, value_width)


@njit(nogil=True, cache=True)
def read_page(at: Places, units: HalfPlaces, page: int, number: int) -> None:
    """As `single.read_page`."""
    width, value_width = at.width, at.value_width
    keys = at.key_pages + 2 * LANES * width * page
    values = at.value_pages + 2 * LANES * value_width * page
    for first in range(0, number, BATCH):
        count, some = min(BATCH, number - first), at.readers + 4 * first
        gather(some, count, SEEN_BITS, at.query, 2 * width, units.query)
        if count > BLOCK:
            products_of_two(units.query, 2 * width, width, keys, at.far, 4 * LANES)
        else:
            products(units.query, 2 * width, width, keys, 1, 1, at.far, 4 * LANES)
        weigh_readers(
            some, count, SEEN_BITS, at.far, at.factor, at.largest, at.totals, at.output, value_width, units.far
        )
        for place in range(0, count, BLOCK):
            own, out = units.far + 2 * LANES * place, units.sums + 4 * value_width * place
            write_products(own, 2 * LANES, 1, values, out, 4 * value_width, value_width)
        scatter(some, count, SEEN_BITS, units.sums, at.output, 4 * value_width)


@njit(nogil=True, cache=True)
def halve_means(page_of: np.ndarray, summed: int, border: int, pages: int, sums: Sums, half: Half) -> None:
    """Write the means of the pages that the keys from `summed` to the border changed in bfloat16, in whole tiles."""
    tiles = -(-pages // LANES)
    changed = np.zeros(tiles, np.bool_)
    for page in page_of[summed:border]:
        changed[page // LANES] = True
    for tile in range(tiles):
        if changed[tile]:
            keys, values = sums.mean_keys[tile], sums.mean_values[tile]
            upper, lower = half.mean_keys[tile, 0], half.mean_keys[tile, 1]
            halve(keys.ctypes.data, len(keys), 4 * LANES, upper.ctypes.data)
            halve_rest(keys.ctypes.data, len(keys), 4 * LANES, lower.ctypes.data)
            out = half.mean_values[tile]
            halve(values.ctypes.data, len(values), 4 * values.shape[1], out.ctypes.data)
