"""Which pages a query reads: the ranking and the budget of `Reading.choose` without a sort, or its thresholds."""

from __future__ import annotations

import numpy as np
from numba import njit

from focus_core.routing.narrow.compiled.machine.llvm import LANES
from focus_core.routing.narrow.compiled.machine.ranking import above, erring, exponentials, keys_above, lowest, moments

EVERYTHING = -1e3
"""Thresholds at or below this are of full attention."""
FEW = 4
"""Pages' worth of keys that are ranked one by one."""
ROUNDS = 40
"""Narrowings at most; equal scores are parted by no number of them."""
OUTLYING = 10
"""Standard deviations to the first bounds; fewer than 1 in 100 scores are beyond, whatever they are."""
WORD = 64
NEAREST = 0.05
"""A step goes at least this part of the way between the bounds, so that no distribution makes steps ever smaller."""


@njit(nogil=True, cache=True)
def erring_pages(
    scores: np.ndarray,
    variances: np.ndarray,
    count: int,
    threshold: float,
    largest: np.float32,
    total: np.float32,
    chosen: np.ndarray,
) -> int:
    """Pages to read: those whose summaries would err by more than a threshold, see `Reading.choose`.

    Args:
        scores: (M,) float32, of each page; M is a multiple of 16. Changed.
        variances: (M,) float32, of the logits of the keys of each page.
        count: pages that are there, M at most.
        threshold: log of an error.
        largest: of the keys that are attended exactly in any case, the logit whose weight is 1.
        total: their weights together.
        chosen: (count,) or more int64, written.

    Returns:
        Number of chosen pages.
    """
    if count == 0:
        return 0
    if threshold <= EVERYTHING:
        for page in range(count):
            chosen[page] = page
        return count
    shift, pages = exponentials(scores.ctypes.data, count, -(-count // LANES), largest)
    level = np.float32((pages + total * np.exp(largest - shift)) * np.exp(threshold))
    read = 0
    for first in range(0, count, LANES):
        at = 4 * first
        bits = erring(scores.ctypes.data + at, variances.ctypes.data + at, np.float32(1), level)
        while bits != 0:
            chosen[read] = first + lowest(bits)
            bits &= bits - 1
            read += 1
    return read


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

    A score that nearly parts them is found with few passes over all scores: a normal distribution says where to look
    first, and the keys above the bounds found so far say where next. The pages that are still open are then ranked.

    Args:
        scores: (M,) float32, of each page; M is a multiple of 16, and scores are finite.
        sizes: (M,) float32, its keys; 0 from place `count` on, and above 0 before.
        order: (count,) or more int64; of equal scores the smaller order comes first.
        count: pages that are there, M at most.
        few: keys that pages may have together to be ranked one by one.
        budget: in keys.
        chosen: (2 count,) or more int64; the pages are written to its beginning, the rest is scratch.

    Returns:
        Number of chosen pages.
    """
    if count == 0 or budget <= 0:
        return 0
    # Pages above `high` fit into the budget together, those above `low` do not. So the former are read, pages at or
    # below `low` are not, and those between are open.
    at, sizes_at, tiles = scores.ctypes.data, sizes.ctypes.data, -(-count // LANES)
    keys, total, square = moments(at, sizes_at, tiles)
    mean = total / keys
    deviation = np.sqrt(max(square / keys - mean * mean, np.float32(0)))
    infinite = np.float32(np.inf)
    low, high, too_many, fits = -infinite, infinite, infinite, np.float32(0)
    middle = np.float32(mean + _normal_above(budget / keys) * deviation)
    step = 0.25 * deviation + 1e-6 * abs(mean) + 1e-30
    for _ in range(ROUNDS):
        higher = keys_above(at, sizes_at, tiles, middle)
        if higher > budget:
            low, too_many = middle, higher
        else:
            high, fits = middle, higher
        if too_many - fits <= few:
            break
        if low == -infinite or high == infinite:
            # Ever longer steps until both bounds are known.
            middle = np.float32(low + step if high == infinite else high - step)
            step *= 4
            if not abs(middle - mean) <= OUTLYING * deviation:
                break
        else:
            # Both bounds shall come near the budget, so the aim is a little beyond it, on the side of the farther one.
            aim = budget - 0.25 * few if too_many - budget < budget - fits else budget + 0.25 * few
            part = min(max((too_many - aim) / (too_many - fits), NEAREST), 1 - NEAREST)
            middle = np.float32(low + part * (high - low))
            if not low < middle < high:
                break
    return _rank(scores, sizes, order, count, low, high, budget - float(fits), chosen)


@njit(nogil=True, cache=True)
def _normal_above(part: float) -> float:
    """What a part of a normal distribution is above, within 0.0005 (Abramowitz and Stegun, 26.2.23)."""
    tail = max(min(part, 1 - part), 1e-6)
    t = np.sqrt(-2 * np.log(tail))
    z = t - (2.515517 + t * (0.802853 + t * 0.010328)) / (1 + t * (1.432788 + t * (0.189269 + t * 0.001308)))
    return z if part < 0.5 else -z


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
    # Open pages are ranked behind the first `count` places.
    read, still_open = 0, count
    # As many pages at once as an integer has bits: when there are none left is hard to foresee for a processor.
    for first in range(0, count, WORD):
        bits = high_bits = np.int64(0)
        for part in range(min(WORD, count - first + LANES - 1) // LANES):
            at = scores.ctypes.data + 4 * (first + part * LANES)
            bits |= above(at, low) << (part * LANES)
            high_bits |= above(at, high) << (part * LANES)
        if first + WORD > count:
            bits &= (1 << (count - first)) - 1
        open_bits = bits & ~high_bits
        bits &= high_bits
        while bits != 0:
            chosen[read] = first + lowest(bits)
            bits &= bits - 1
            read += 1
        while open_bits != 0:
            page, place = first + lowest(open_bits), still_open
            open_bits &= open_bits - 1
            while place > count and _before(page, chosen[place - 1], scores, order):
                chosen[place] = chosen[place - 1]
                place -= 1
            chosen[place] = page
            still_open += 1
    keys = 0.0
    for place in range(count, still_open):
        page = chosen[place]
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
