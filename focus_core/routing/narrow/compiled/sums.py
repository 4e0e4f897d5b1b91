"""Running sums over the pages of a text, as the compiled loops of prefill keep them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from focus_core.routing.narrow.compiled.machine.llvm import LANES
from focus_core.routing.narrow.compiled.machine.memory import zeros
from focus_core.routing.narrow.compiled.machine.widening import square_of_row, wide


class Sums(NamedTuple):
    """Sums and means over the distant keys of each page so far.

    Attributes:
        keys: (M, D), sums.
        values: (M, Dv), sums.
        sizes: (M,) float32, keys.
        log_sizes: (M,).
        powers: (M,), sizes to the power of one less the weight of a page's size in its score.
        squares: (M,), sums of the squared lengths of keys.
        spread: (M,), the variance of keys about their mean, see `summaries.key_spread`.
        mean_keys: (M / 16, D, 16).
        mean_values: (M / 16, 16, Dv).
    """

    keys: np.ndarray
    values: np.ndarray
    sizes: np.ndarray
    log_sizes: np.ndarray
    powers: np.ndarray
    squares: np.ndarray
    spread: np.ndarray
    mean_keys: np.ndarray
    mean_values: np.ndarray


def no_sums(most: int, width: int, value_width: int) -> Sums:
    """Sums over nothing, for M pages, keys of D and values of Dv numbers."""
    tiles = -(-most // LANES)
    return Sums(
        zeros((most, width)),
        zeros((most, value_width)),
        zeros(tiles * LANES),
        zeros(tiles * LANES),
        zeros(tiles * LANES),
        zeros(most),
        zeros(tiles * LANES),
        zeros((tiles, width, LANES)),
        zeros((tiles, LANES, value_width)),
    )


@njit(nogil=True, cache=True)
def forget(sums: Sums) -> None:
    """Sum over nothing again."""
    sums.keys[:], sums.values[:], sums.sizes[:], sums.squares[:] = 0, 0, 0, 0


@njit(nogil=True, cache=True)
def sum_up(
    key: np.ndarray,
    value: np.ndarray,
    page_of: np.ndarray,
    summed: int,
    border: int,
    pages: int,
    count_weight: float,
    sums: Sums,
) -> int:
    """Add the keys from `summed` to the border; the number of pages that have begun."""
    new = page_of[summed:border]
    _add_rows(key[summed:border], new, sums.keys)
    _add_rows(value[summed:border], new, sums.values)
    for token, page in enumerate(new):
        sums.sizes[page] += 1
        sums.squares[page] += square_of_row(key, summed + token)
        pages = max(pages, page + 1)
    if len(new) > pages:
        # Where many keys come at once, it is cheaper to go through all pages.
        new = np.arange(pages).astype(np.int32)
    for page in new:
        tile, lane, factor = page // LANES, page % LANES, np.float32(1) / sums.sizes[page]
        sums.log_sizes[page] = np.log(sums.sizes[page])
        sums.powers[page] = np.exp((1 - count_weight) * sums.log_sizes[page])
        for column in range(sums.keys.shape[1]):
            sums.mean_keys[tile, column, lane] = sums.keys[page, column] * factor
        for column in range(sums.values.shape[1]):
            sums.mean_values[tile, lane, column] = sums.values[page, column] * factor
        variance = sums.squares[page] * factor - square_of_row(sums.keys, int(page)) * factor * factor
        sums.spread[page] = max(variance, np.float32(0)) / np.float32(sums.keys.shape[1])
    return pages


@njit(nogil=True, cache=True)
def _add_rows(vectors: np.ndarray, page: np.ndarray, sums: np.ndarray) -> None:
    """Add each vector (n, D) to the sum of its page, (M, D)."""
    for token in range(len(vectors)):
        number = page[token]
        for column in range(vectors.shape[1]):
            sums[number, column] += wide(vectors[token, column])
