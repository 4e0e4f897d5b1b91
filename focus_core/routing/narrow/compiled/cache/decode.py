"""Attention of the last tokens of a cached text over narrow groups, on a CPU in float32; keys may be bfloat16.

Everything that a query reads lies in rows side by side: sinks and window, the keys of a page, the sums of all pages.
Loops run along rows, which Numba turns into vector instructions; exponentials are a polynomial for the same reason.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from focus_core.attention.cpu.rows import ROWS, exponential_parts
from focus_core.routing.narrow.compiled.cache.last_keys import last_logits, last_weights
from focus_core.routing.narrow.compiled.cache.storing import rows_together, without_row
from focus_core.routing.narrow.compiled.choice import FEW, choose_pages, erring_pages
from focus_core.routing.narrow.compiled.levels import Levels, budget_of, level_of
from focus_core.routing.narrow.compiled.machine.llvm import LANES
from focus_core.routing.narrow.compiled.machine.team import in_team, take
from focus_core.routing.narrow.compiled.machine.widening import square as square_of
from focus_core.routing.narrow.compiled.rows import (
    add_near,
    add_rows,
    add_stored,
    dots,
    features_of_query,
    find_stretches,
    near_logits,
    stored_logits,
)
from focus_core.routing.narrow.directions import COUNTED


@njit(**ROWS)
def _exponentials(values: np.ndarray, largest: np.float32, powers: np.ndarray, factors: np.ndarray) -> None:
    """exp(value - largest) in place, as a product of two numbers, see `exponential_parts`.

    Args:
        values: (n,) float32, at most `largest`.
        largest: of the values.
        powers: (n,) int32, scratch.
        factors: the memory of `powers` as float32.
    """
    for i in range(len(values)):
        values[i], power = exponential_parts(values[i], largest)
        powers[i] = np.int32(power)
    for i in range(len(values)):
        values[i] *= factors[i]


@njit(**ROWS)
def _sum(values: np.ndarray) -> np.float32:
    total = np.float32(0)
    for i in range(len(values)):
        total += values[i]
    return total


@njit(**ROWS)
def _exponential_sum(values: np.ndarray, largest: np.float32) -> np.float32:
    """Sum of exp(value - largest)."""
    total = np.float32(0)
    for i in range(len(values)):
        total += np.exp(values[i] - largest)
    return total


@njit(nogil=True, cache=True)
def _erring(
    scores: np.ndarray, variances: np.ndarray, count: int, threshold: float, near: np.ndarray, chosen: np.ndarray
) -> int:
    """`erring_pages` beside the logits of near keys."""
    largest = _largest(near)
    return erring_pages(scores, variances, count, threshold, largest, _exponential_sum(near, largest), chosen)


@njit(nogil=True, cache=True, fastmath=True)
def _largest(values: np.ndarray) -> np.float32:
    found = values[0]
    for i in range(len(values)):
        found = max(found, values[i])
    return found


@njit(**ROWS)
def _scores(
    sum_logits: np.ndarray,
    counts: np.ndarray,
    logs: np.ndarray,
    variances: np.ndarray,
    weight: np.float32,
    spread_weight: np.float32,
    most: np.float32,
    logits: np.ndarray,
    scores: np.ndarray,
) -> None:
    """Of dot products with sums, write logits of summaries without the log of sizes, and scores."""
    for page in range(len(counts)):
        logits[page] = sum_logits[page] / counts[page] + spread_weight * min(variances[page], most)
        scores[page] = logits[page] + weight * logs[page]


@njit(**ROWS)
def _variances(
    query: np.ndarray,
    directions: np.ndarray,
    spread: np.ndarray,
    along: np.ndarray,
    features: np.ndarray,
    variances: np.ndarray,
) -> None:
    """Variances of the logits of the keys of pages.

    Args:
        query: (D,) float32, scaled.
        directions: (r, D).
        spread: (R, F), of pages.
        along: (r,) float32, scratch.
        features: (F,) float32, scratch.
        variances: (R,) float32 or more, written.
    """
    if len(along) == 0:
        square = square_of(query)
        for page in range(len(spread)):
            variances[page] = square * spread[page, 0]
        return
    features_of_query(query, directions, along, features)
    dots(features, spread, variances)


@njit(nogil=True, cache=True)
def _used(counts: np.ndarray) -> int:
    """Pages in use, which come first."""
    used = len(counts)
    while used > 0 and counts[used - 1] == 0:
        used -= 1
    return used


@njit(nogil=True, cache=True)
def _describe(
    counts: np.ndarray,
    groups: np.ndarray,
    log_of: np.ndarray,
    sizes: np.ndarray,
    logs: np.ndarray,
    order: np.ndarray,
) -> None:
    """Write sizes in whole tiles, logs of sizes, and which of two pages with equal scores is first."""
    most = len(order)
    sizes[:] = 0
    for page in range(len(counts)):
        sizes[page], logs[page] = counts[page], log_of[int(counts[page])]
        order[page] = np.int64(groups[page]) * most + page


@njit(nogil=True, cache=True)
def _softmax(
    logits: np.ndarray,
    near: int,
    end: int,
    read: np.ndarray,
    sizes: np.ndarray,
    spared: int,
    sum_logits: np.ndarray,
    powers: np.ndarray,
    factors: np.ndarray,
) -> tuple[np.float32, np.float32]:
    """Turn logits into weights in place; their largest, and the sum of the weights.

    Weights of summaries become those of sums. For pages that are read they are 0, or those of their last keys, see
    `last_weights`.

    Args:
        logits: (n,) float32 of near keys, of the rows of pages that are read, page after page, and of summaries.
        near: how many are of near keys.
        end: where those of summaries begin.
        read: pages that are read.
        sizes: (R,) float32 keys of each page.
        spared: keys of each page that have no row, see `without_row`.
        sum_logits: (R,) float32 or more, dot products with the sums of pages.
        powers: (n,) int32 or more, scratch.
        factors: the memory of `powers` as float32.
    """
    rows, summaries = logits[near:end], logits[end:]
    if spared:
        last_logits(read, sizes, sum_logits, rows, summaries)
    else:
        for page in read:
            summaries[page] = np.float32(-1e30)
    largest = _largest(logits)
    _exponentials(logits, largest, powers[: len(logits)], factors)
    if not spared:
        for page in read:
            summaries[page] = np.float32(0)
    total = _sum(logits)
    for page in range(len(summaries)):
        summaries[page] /= sizes[page]
    if spared:
        last_weights(read, sizes, rows, summaries)
    return largest, total


@njit(nogil=True, cache=True)
def attend_pages(
    taken: np.ndarray,
    query: np.ndarray,
    page_keys: np.ndarray,
    page_values: np.ndarray,
    counts: np.ndarray,
    key_sums: np.ndarray,
    value_sums: np.ndarray,
    spread: np.ndarray,
    groups: np.ndarray,
    starts: np.ndarray,
    key_scales: np.ndarray,
    value_scales: np.ndarray,
    directions: np.ndarray,
    size: int,
    near_keys: np.ndarray,
    near_values: np.ndarray,
    sinks: int,
    first: int,
    stop: int,
    token: int,
    window: int,
    border: int,
    distant: int,
    tables: np.ndarray,
    places: np.ndarray,
    steps: np.ndarray,
    spread_weights: np.ndarray,
    count_weight: np.float32,
    by_error: bool,
    scale: np.float32,
    output: np.ndarray,
    logsumexp: np.ndarray,
) -> None:
    """Attention of n queries with one border: `attend_stored` with a budget in pairs, and pages as parts.

    Args:
        taken: (1,) int64, query heads that threads have begun to compute; each takes the next one until none is left.
        query: (Hq, n, D); query heads that share a key/value head are side by side.
        page_keys: (H, R, D) float32, or int16 for the bits of bfloat16, as all keys and values; or int8.
        page_values: (H, R, Dv).
        counts: (H, N) float32, 0 from the first unused page on.
        key_sums: (H, N, D).
        value_sums: (H, N, Dv).
        spread: (H, N, F) float32, see `key_spread`.
        groups: (H, N) int32.
        starts: (H, N, S) int32, where the rows of each page begin, see `PageStore`.
        key_scales: (H, R, 1) float32, of the rows of int8 keys; (H, R, 0) without.
        value_scales: (H, R, 1) float32.
        directions: (H, r, D) float32, of the spread.
        size: keys of a page.
        near_keys: (H, M, D), sinks first.
        near_values: (H, M, Dv).
        sinks: number of sinks.
        first: place of the first key of the window.
        stop: place after the key of the last query.
        token: place of the first query in the text.
        window: w.
        border: of these queries, see `Reading.border`.
        distant: keys in pages.
        tables: (A, Hq), see `Levels`; so are places and steps.
        places: (A - 1,).
        steps: (A - 1,).
        spread_weights: (Hq,) float32, of the spread of keys in the logit of a summary; 0 for none.
        count_weight: weight of the log of a page's size in its score.
        by_error: whether `tables` are of thresholds, not of a share.
        scale: factor of the dot products.
        output: (Hq, n, Dv), written.
        logsumexp: (Hq, n), written.
    """
    repeats, num_queries = len(query) // len(page_keys), query.shape[1]
    most, together, levels = counts.shape[1], rows_together(size), Levels(tables, places, steps)
    spared = without_row(key_scales.shape[2] > 0)
    log_of = np.log(np.arange(size + 1).astype(np.float32))
    sum_logits, mean_logits, logs = np.empty((3, most), np.float32)
    # In whole tiles, for `choose_pages` and `erring_pages`.
    scores, all_sizes, variances = np.zeros((3, -(-most // LANES) * LANES), np.float32)
    order, chosen = np.empty(most, np.int64), np.empty(2 * most, np.int64)
    stretches = np.empty((2, most * starts.shape[2]), np.int64)
    weights = np.empty(near_keys.shape[1] + most * size + most, np.float32)
    powers = np.empty(len(weights), np.int32)
    factors = powers.view(np.float32)
    scaled, most_counted = np.empty(query.shape[2], np.float32), np.float32(COUNTED if directions.shape[1] else np.inf)
    along, features = np.empty(directions.shape[1], np.float32), np.empty(spread.shape[2], np.float32)
    described = -1
    while True:
        row = int(take(taken.ctypes.data))
        if row >= len(query):
            break
        head = row // repeats
        used = _used(counts[head])
        sizes, sums = counts[head, :used], key_sums[head, :used]
        if head != described:
            described = head
            _describe(sizes, groups[head], log_of, all_sizes, logs, order)
        for place in range(num_queries):
            scaled[:] = query[row, place] * scale
            dots(scaled, sums, sum_logits)
            _variances(scaled, directions[head], spread[head, :used], along, features, variances)
            _scores(
                sum_logits,
                sizes,
                logs,
                variances,
                count_weight,
                spread_weights[row],
                most_counted,
                mean_logits,
                scores,
            )
            already = min(border, sinks) + max(0, token + place - window - border)
            own = stop - num_queries + place + 1
            # Logits: sinks, window, rows of pages that are read, summaries.
            near = near_logits(scaled, near_keys[head, :own], sinks, first, weights)
            if by_error:
                level = level_of(levels, row, np.float32(distant + already))
                read = _erring(scores, variances, used, level, weights[:near], chosen)
            else:
                budget = budget_of(levels, row, distant, already)
                read = choose_pages(scores, all_sizes, order, used, float(FEW * size), float(budget), chosen)
            lying = stretches[:, : find_stretches(chosen[:read], sizes, starts[head], together, spared, stretches)]
            end = near + stored_logits(scaled, page_keys[head], key_scales[head], lying, weights[near:])
            weights[end : end + used] = mean_logits[:used] + logs[:used]
            largest, total = _softmax(
                weights[: end + used], near, end, chosen[:read], sizes, spared, sum_logits, powers, factors
            )

            found = output[row, place]
            found[:] = np.float32(0)
            add_near(weights, near_values[head, :own], sinks, first, found)
            add_stored(weights[near:], page_values[head], value_scales[head], lying, found)
            add_rows(weights[end:], value_sums[head, :used], found)
            found /= total
            logsumexp[row, place] = largest + np.log(total)


@njit(nogil=True, cache=True)
def attend_in_team(threads: int, *arguments: Any) -> None:
    """`attend_pages` in so many threads."""
    in_team(attend_pages, threads, arguments)
