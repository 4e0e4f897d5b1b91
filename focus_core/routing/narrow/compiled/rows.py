"""Logits of a query over the keys of a cache, and weighted sums of its values.

Loops run along rows, which Numba turns into vector instructions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from focus_core.attention.cpu.rows import ROWS
from focus_core.routing.narrow.compiled.machine.widening import wide

if TYPE_CHECKING:
    from focus_core.routing.narrow.directions import Directions


@njit(**ROWS)
def dots(query: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    """Dot products of a query (D,) with rows (n, D), four at a time."""
    count, width = rows.shape
    place = 0
    while place + 4 <= count:
        row0, row1, row2, row3 = rows[place], rows[place + 1], rows[place + 2], rows[place + 3]
        sum0 = sum1 = sum2 = sum3 = np.float32(0)
        for x in range(width):
            sum0 += query[x] * wide(row0[x])
            sum1 += query[x] * wide(row1[x])
            sum2 += query[x] * wide(row2[x])
            sum3 += query[x] * wide(row3[x])
        out[place], out[place + 1], out[place + 2], out[place + 3] = sum0, sum1, sum2, sum3
        place += 4
    for last in range(place, count):
        row, total = rows[last], np.float32(0)
        for x in range(width):
            total += query[x] * wide(row[x])
        out[last] = total


@njit(**ROWS)
def add_rows(weights: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    """Add weighted rows (n, Dv) to `out` (Dv,), four at a time."""
    count, width = rows.shape
    place = 0
    while place + 4 <= count:
        row0, row1, row2, row3 = rows[place], rows[place + 1], rows[place + 2], rows[place + 3]
        w0, w1, w2, w3 = weights[place], weights[place + 1], weights[place + 2], weights[place + 3]
        for x in range(width):
            out[x] += w0 * wide(row0[x]) + w1 * wide(row1[x]) + w2 * wide(row2[x]) + w3 * wide(row3[x])
        place += 4
    for last in range(place, count):
        row, weight = rows[last], weights[last]
        for x in range(width):
            out[x] += weight * wide(row[x])


@njit(nogil=True, cache=True)
def near_logits(query: np.ndarray, keys: np.ndarray, sinks: int, first: int, out: np.ndarray) -> int:
    """Dot products of a query (D,) with sinks and window; their number.

    Args:
        query: (D,) float32.
        keys: (n, D), near keys up to the query's own.
        sinks: number of sinks.
        first: place of the first key of the window.
        out: written.
    """
    begin = min(sinks, len(keys))
    dots(query, keys[:begin], out)
    dots(query, keys[first:], out[begin:])
    return begin + max(0, len(keys) - first)


@njit(nogil=True, cache=True)
def add_near(weights: np.ndarray, values: np.ndarray, sinks: int, first: int, out: np.ndarray) -> None:
    """Add the weighted values (n, Dv) of sinks and window to `out`; otherwise as `near_logits`."""
    begin = min(sinks, len(values))
    add_rows(weights[:begin], values[:begin], out)
    add_rows(weights[begin:], values[first:], out)


@njit(nogil=True, cache=True)
def find_stretches(
    chosen: np.ndarray, sizes: np.ndarray, starts: np.ndarray, together: int, spared: int, found: np.ndarray
) -> int:
    """Where the rows of some pages lie, page after page: how many stretches of rows side by side.

    Args:
        chosen: numbers of these pages.
        sizes: (R,) float32 keys of each page.
        starts: (N, S) int32, see `PageStore`.
        together: rows of a piece.
        spared: keys of each page that have no row, see `without_row`.
        found: (2, n) int64, written: the first row of each stretch, and the number of its rows.
    """
    count = 0
    for page in chosen:
        left = int(sizes[page]) - spared
        for piece in range(-(-left // together)):
            start, rows = starts[page, piece], min(left, together)
            left -= rows
            if count and found[0, count - 1] + found[1, count - 1] == start:
                found[1, count - 1] += rows
            else:
                found[0, count], found[1, count] = start, rows
                count += 1
    return count


@njit(nogil=True, cache=True)
def stored_logits(
    query: np.ndarray, keys: np.ndarray, scales: np.ndarray, stretches: np.ndarray, out: np.ndarray
) -> int:
    """Dot products of a query (D,) with stored keys, times the scales of these, where they have some; their number.

    Args:
        query: (D,) float32.
        keys: (R, D).
        scales: (R, 1), or (R, 0) for none.
        stretches: (2, n), see `find_stretches`.
        out: written.
    """
    end = 0
    for stretch in range(stretches.shape[1]):
        start, rows = stretches[:, stretch]
        dots(query, keys[start : start + rows], out[end:])
        if scales.shape[1]:
            for row in range(rows):
                out[end + row] *= scales[start + row, 0]
        end += rows
    return end


@njit(nogil=True, cache=True)
def add_stored(
    weights: np.ndarray, values: np.ndarray, scales: np.ndarray, stretches: np.ndarray, out: np.ndarray
) -> None:
    """Add weighted stored values (R, Dv) to `out`; otherwise as `stored_logits`, which has the order of weights."""
    end = 0
    for stretch in range(stretches.shape[1]):
        start, rows = stretches[:, stretch]
        if scales.shape[1]:
            for row in range(rows):
                weights[end + row] *= scales[start + row, 0]
        add_rows(weights[end:], values[start : start + rows], out)
        end += rows


def directions_of(directions: Directions | None, heads: int, width: int) -> np.ndarray:
    """(H, r, D) float32: directions for compiled code, of so many heads and components; r is 0 without."""
    return np.zeros((heads, 0, width), np.float32) if directions is None else directions.rows


@njit(**ROWS)
def features_along(vector: np.ndarray, directions: np.ndarray, along: np.ndarray, features: np.ndarray) -> None:
    """`key_features` of a vector (D,).

    Args:
        vector: float32.
        directions: (r, D).
        along: (r,), written: what the vector has along the directions.
        features: (F,), written.
    """
    dots(vector, directions, along)
    rest, place = np.float32(0), 0
    for x in range(len(vector)):
        rest += vector[x] * vector[x]
    for first in range(len(along)):
        rest -= along[first] * along[first]
        for second in range(first, len(along)):
            features[place] = along[first] * along[second]
            place += 1
    features[place] = rest


@njit(**ROWS)
def features_of_query(query: np.ndarray, directions: np.ndarray, along: np.ndarray, features: np.ndarray) -> None:
    """`query_features` of a scaled query (D,); otherwise as `features_along`."""
    features_along(query, directions, along, features)
    place = 0
    for first in range(len(along)):
        for second in range(first + 1, len(along)):
            features[place + second - first] *= np.float32(2)  # two of the matrix
        place += len(along) - first
