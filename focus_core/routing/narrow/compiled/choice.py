"""Which pages a query reads: the ranking and the budget of `Reading.choose`, without a sort."""

from __future__ import annotations

import numpy as np
from numba import njit

FEW = 4
"""Pages' worth of keys that are ranked one by one."""
ROUNDS = 40
"""Halvings at most; equal scores are parted by no number of them."""
OUTLYING = 10
"""Standard deviations to the first bounds; fewer than 1 in 100 scores are beyond, whatever they are."""


@njit(nogil=True, fastmath=True, cache=True)
def _keys_above(scores: np.ndarray, sizes: np.ndarray, count: int, threshold: np.float32) -> np.float32:
    total = np.float32(0)
    for page in range(count):
        total += sizes[page] if scores[page] > threshold else np.float32(0)
    return total


@njit(nogil=True, fastmath=True, cache=True)
def _spread(scores: np.ndarray, count: int) -> tuple[float, float]:
    """Mean and standard deviation."""
    total = square = np.float32(0)
    for page in range(count):
        total += scores[page]
        square += scores[page] * scores[page]
    mean = total / count
    return float(mean), float(max(square / count - mean * mean, np.float32(0)) ** 0.5)


@njit(nogil=True, cache=True)
def choose_pages(
    scores: np.ndarray,
    sizes: np.ndarray,
    order: np.ndarray,
    count: int,
    few: float,
    budget: float,
    chosen: np.ndarray,
) -> int:
    """Pages to read: those ranked so high that the larger half of the last one is within the budget.

    A score that nearly parts them is found by halving, each time with one pass over all scores. The pages that are
    still open are then ranked.

    Args:
        scores: (M,) float32, of each page.
        sizes: (M,) float32, its keys, above 0.
        order: (M,) int64; of equal scores the smaller order comes first.
        count: pages that are there, M at most.
        few: keys that pages may have together to be ranked one by one.
        budget: in keys.
        chosen: (2 M,) int64; the pages are written to its beginning, the rest is scratch.

    Returns:
        Number of chosen pages.
    """
    if count == 0 or budget <= 0:
        return 0
    # Pages above `high` fit into the budget together, those above `low` do not. So the former are read, pages at or
    # below `low` are not, and those between are open.
    mean, deviation = _spread(scores, count)
    low, high = np.float32(mean - OUTLYING * deviation - 1), np.float32(mean + OUTLYING * deviation + 1)
    too_many, fits = _keys_above(scores, sizes, count, low), _keys_above(scores, sizes, count, high)
    if fits > budget:
        low, too_many, high, fits = high, fits, np.float32(np.inf), np.float32(0)
    elif too_many <= budget:
        low, too_many, high, fits = np.float32(-np.inf), np.float32(np.inf), low, too_many
    for _ in range(ROUNDS):
        middle = np.float32(0.5) * (low + high)
        if too_many - fits <= few or not low < middle < high:
            break
        keys = _keys_above(scores, sizes, count, middle)
        if keys > budget:
            low, too_many = middle, keys
        else:
            high, fits = middle, keys
    return _rank(scores, sizes, order, count, low, high, budget - float(fits), chosen)


@njit(nogil=True, cache=True)
def _rank(
    scores: np.ndarray,
    sizes: np.ndarray,
    order: np.ndarray,
    count: int,
    low: np.float32,
    high: np.float32,
    budget: float,
    chosen: np.ndarray,
) -> int:
    """Write all pages above `high`, and of those above `low` the first ones that the rest of the budget allows."""
    above = 0
    for page in range(count):
        chosen[above] = page
        above += scores[page] > low
    read, still_open, ranked = 0, 0, chosen[count:]
    for page in chosen[:above]:
        if scores[page] > high:
            chosen[read] = page
            read += 1
            continue
        place = still_open
        while place > 0 and _before(page, ranked[place - 1], scores, order):
            ranked[place] = ranked[place - 1]
            place -= 1
        ranked[place] = page
        still_open += 1
    keys = 0.0
    for page in ranked[:still_open]:
        if keys + 0.5 * sizes[page] > budget:
            break
        keys += sizes[page]
        chosen[read] = page
        read += 1
    return read


@njit(nogil=True, cache=True)
def _before(page: int, other: int, scores: np.ndarray, order: np.ndarray) -> bool:
    if scores[page] == scores[other]:
        return order[page] < order[other]
    return scores[page] > scores[other]
