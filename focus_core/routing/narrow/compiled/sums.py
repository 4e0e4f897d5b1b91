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
        features: (M, r + F), sums of what keys have along the directions, and of their features; see `Head`.
        spread: (M / 16, F, 16), see `key_spread`; with directions F is rounded up to an even number.
        mean_keys: (M / 16, D, 16).
        mean_values: (M / 16, 16, Dv).
    """

    keys: np.ndarray
    values: np.ndarray
    sizes: np.ndarray
    log_sizes: np.ndarray
    powers: np.ndarray
    features: np.ndarray
    spread: np.ndarray
    mean_keys: np.ndarray
    mean_values: np.ndarray


def no_sums(most: int, width: int, value_width: int, directions: int) -> Sums:
    """Sums over nothing, for M pages, keys of D and values of Dv numbers, and r directions."""
    features, tiles = directions * (directions + 1) // 2 + 1, -(-most // LANES)
    return Sums(
        zeros((most, width)),
        zeros((most, value_width)),
        zeros(tiles * LANES),
        zeros(tiles * LANES),
        zeros(tiles * LANES),
        zeros((most, directions + features)),
        zeros((tiles, features + features % 2 if directions else 1, LANES)),
        zeros((tiles, width, LANES)),
        zeros((tiles, LANES, value_width)),
    )


@njit(nogil=True, cache=True)
def forget(sums: Sums) -> None:
    """Sum over nothing again."""
    sums.keys[:], sums.values[:], sums.sizes[:], sums.features[:] = 0, 0, 0, 0


@njit(nogil=True, cache=True)
def sum_up(
    key: np.ndarray,
    value: np.ndarray,
    features: np.ndarray,
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
    _add_rows(features[summed:border], new, sums.features)
    for page in new:
        sums.sizes[page] += 1
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
        _spread(sums, int(page), factor)
    return pages


@njit(nogil=True, cache=True)
def _spread(sums: Sums, page: int, factor: np.float32) -> None:
    """Take the spread of a page from its sums; `factor` is 1 over its keys."""
    width, every, tile, lane = sums.keys.shape[1], sums.features.shape[1], page // LANES, page % LANES
    rest = sums.features[page, every - 1] * factor - square_of_row(sums.keys, page) * factor * factor
    count = 0  # of directions: r + r (r + 1) / 2 + 1 numbers are summed
    while count * (count + 3) // 2 + 1 < every:
        count += 1
    place = count
    for first in range(count):
        mean = sums.features[page, first] * factor
        rest += mean * mean
        for second in range(first, count):
            other = sums.features[page, second] * factor
            sums.spread[tile, place - count, lane] = sums.features[page, place] * factor - mean * other
            place += 1
    sums.spread[tile, place - count, lane] = max(rest, np.float32(0)) / np.float32(max(1, width - count))


@njit(nogil=True, cache=True)
def _add_rows(vectors: np.ndarray, page: np.ndarray, sums: np.ndarray) -> None:
    """Add each vector (n, D) to the sum of its page, (M, D)."""
    for token in range(len(vectors)):
        number = page[token]
        for column in range(vectors.shape[1]):
            sums[number, column] += wide(vectors[token, column])
