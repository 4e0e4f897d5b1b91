"""What keys and queries have along directions of spread, for many of them at once."""

from __future__ import annotations

import numpy as np
from numba import njit

from focus_core.routing.narrow.compiled.machine.llvm import LANES
from focus_core.routing.narrow.compiled.machine.vectors import ROWS, dots
from focus_core.routing.narrow.compiled.machine.widening import wide


@njit(nogil=True, fastmath=True, cache=True)
def write_features(
    vectors: np.ndarray, directions: np.ndarray, factor: np.float32, of_queries: bool, out: np.ndarray
) -> None:
    """Write the features of vectors, four at a time.

    Args:
        vectors: (n, D), float32 or the bits of bfloat16, D even.
        directions: (r, D) float32, r from 1 to 16.
        factor: of the vectors.
        of_queries: `query_features`, (n, F); else what keys have along the directions, and their `key_features`.
        out: (n, F) or (n, r + F) float32, written; there may be room for more.
    """
    count, width = directions.shape
    tile = np.zeros((width, LANES), np.float32)
    tile[:, :count] = directions.T
    rooms = np.zeros((ROWS, width), np.float32), np.empty((ROWS, LANES), np.float32), np.empty(ROWS, np.float32)
    _write_features(vectors, tile, count, factor, of_queries, *rooms, out)


@njit(nogil=True, fastmath=True, cache=True)
def _write_features(
    vectors: np.ndarray,
    tile: np.ndarray,
    count: int,
    factor: np.float32,
    of_queries: bool,
    own: np.ndarray,
    along: np.ndarray,
    squares: np.ndarray,
    out: np.ndarray,
) -> None:
    """`write_features`, with arrays that the caller holds: addresses do not keep them.

    Args:
        vectors: (n, D).
        tile: (D, 16), directions side by side.
        count: of them, r.
        factor: of the vectors.
        of_queries: as in `write_features`.
        own: (4, D), scratch.
        along: (4, 16), scratch.
        squares: (4,), scratch.
        out: written.
    """
    width = own.shape[1]
    own_at, tile_at, along_at = own.ctypes.data, tile.ctypes.data, along.ctypes.data
    for first in range(0, len(vectors), ROWS):
        last = min(first + ROWS, len(vectors))
        for row in range(first, last):
            total = np.float32(0)
            for column in range(width):
                number = wide(vectors[row, column]) * factor
                own[row - first, column] = number
                total += number * number
            squares[row - first] = total
        dots(0, 1, 2, 3, own_at, width, tile_at, along_at, LANES)
        for row in range(first, last):
            member, rest, place = row - first, squares[row - first], 0
            if not of_queries:
                for direction in range(count):
                    out[row, direction] = along[member, direction]
                place = count
            for one in range(count):
                number = along[member, one]
                rest -= number * number
                out[row, place] = number * number
                # Each product of two different directions stands for two of the matrix.
                number = number + number if of_queries else number
                for other in range(one + 1, count):
                    out[row, place + other - one] = number * along[member, other]
                place += count - one
            out[row, place] = rest
