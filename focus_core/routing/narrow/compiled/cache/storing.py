"""Keys and values into pages, one after another, on a CPU: what `PageStore.add` does, in one pass."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from focus_core.attention.cpu.rows import ROWS
from focus_core.routing.narrow.compiled.machine.widening import wide
from focus_core.routing.narrow.compiled.rows import features_along


class Stored(NamedTuple):
    """The buffers of a `PageStore`, by their names there.

    Keys and values are float32, int16 for bfloat16, or int8 with the scales of rows.

    Attributes:
        keys: (H, R, D).
        values: (H, R, Dv).
        counts: (H, N) float32.
        key_sums: (H, N, D) float32.
        value_sums: (H, N, Dv) float32.
        spread: (H, N, F) float32.
        groups: (H, N) int32.
        starts: (H, N, S) int32.
        key_scales: (H, R, 1) float32; (H, R, 0) without scales.
        value_scales: (H, R, 1) float32.
    """

    keys: np.ndarray
    values: np.ndarray
    counts: np.ndarray
    key_sums: np.ndarray
    value_sums: np.ndarray
    spread: np.ndarray
    groups: np.ndarray
    starts: np.ndarray
    key_scales: np.ndarray
    value_scales: np.ndarray


class NewRows(NamedTuple):
    """New keys and values as they are stored.

    Attributes:
        keys: (H, n, D), of the dtype of the buffers.
        values: (H, n, Dv).
        key_scales: (H, n, 1) float32; (H, n, 0) without scales.
        value_scales: (H, n, 1) float32.
    """

    keys: np.ndarray
    values: np.ndarray
    key_scales: np.ndarray
    value_scales: np.ndarray


@njit(nogil=True, cache=True)
def rows_together(size: int) -> int:
    """How many rows a page takes at once: it may have more than it fills, up to this number less one.

    Args:
        size: keys of a page.
    """
    return min(4, size)


@njit(nogil=True, cache=True)
def rows_of_page(size: int, rounded: bool) -> int:
    """How many rows a full page has: its last key is what the sums have beyond the others, and takes none.

    The same goes for values. Rounded keys are not those of the sums, so each has a row.

    Args:
        size: keys of a page.
        rounded: whether keys and values are stored in 8 bits.
    """
    return size if rounded else size - 1


@njit(nogil=True, cache=True)
def opened(groups: np.ndarray, members: np.ndarray, size: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Pages that new keys open, (H,) int64, and the rows that they take at most, likewise.

    Args:
        groups: (H, n) int64, of the new keys.
        members: (H, K) int64, keys of each group so far.
        size: keys of a page.
        most: rows of a full page.
    """
    together = rows_together(size)
    pages, rows = np.zeros((2, len(groups)), np.int64)
    for head in range(len(groups)):
        number = members[head].copy()
        for group in groups[head]:
            row = number[group] % size
            pages[head] += row == 0
            rows[head] += max(0, min(together, most - row)) * (row % together == 0)
            number[group] += 1
    return pages, rows


@njit(nogil=True, cache=True)
def add_keys(
    groups: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    rows: Any,
    stored: Any,
    directions: np.ndarray,
    slots: np.ndarray,
    first: int,
    size: int,
    members: np.ndarray,
    newest: np.ndarray,
    pages: np.ndarray,
    taken: np.ndarray,
) -> None:
    """Store keys and values in the open pages of their groups; the buffers have room.

    Args:
        groups: (H, n) int64, of the new keys.
        key: (H, n, D), float32 or int16 for bfloat16, of which sums are taken.
        value: (H, n, Dv).
        rows: see `NewRows`.
        stored: see `Stored`, written; so are all others.
        directions: (H, r, D) float32, see `Directions`.
        slots: (H, S) int32, of all keys.
        first: place of the first new key among them.
        size: keys of a page.
        members: (H, K) int64, keys of each group.
        newest: (H, K) int64, the open page of each group.
        pages: (H, 1) int64, pages in use.
        taken: (H, 1) int64, rows that belong to pages.
    """
    together, most = rows_together(size), rows_of_page(size, rows.key_scales.shape[2] > 0)
    about, along = np.empty(key.shape[2], np.float32), np.empty(directions.shape[1], np.float32)
    features = np.empty(stored.spread.shape[2], np.float32)
    for head in range(len(groups)):
        counts, key_sums, spread = stored.counts[head], stored.key_sums[head], stored.spread[head]
        for place in range(groups.shape[1]):
            group = groups[head, place]
            row = members[head, group] % size
            if row == 0:
                newest[head, group] = pages[head, 0]
                stored.groups[head, pages[head, 0]] = group
                pages[head, 0] += 1
            page = newest[head, group]
            members[head, group] += 1
            slots[head, first + place] = page * size + row
            if row > 0:
                _about_mean(key[head, place], key_sums[page], counts[page], about)
                features_along(about, directions[head], along, features)
                _spread_by(spread[page], features, counts[page], len(about) - len(along))
            counts[page] += 1
            _add(key[head, place], key_sums[page])
            _add(value[head, place], stored.value_sums[head, page])
        taken[head, 0] = _take_rows(stored.starts[head, : pages[head, 0]], counts, together, most, taken[head, 0])
        for place in range(groups.shape[1]):
            page, row = divmod(slots[head, first + place], size)
            if row == most:
                continue
            row = stored.starts[head, page, row // together] + row % together
            stored.keys[head, row] = rows.keys[head, place]
            stored.values[head, row] = rows.values[head, place]
            stored.key_scales[head, row] = rows.key_scales[head, place]
            stored.value_scales[head, row] = rows.value_scales[head, place]


@njit(nogil=True, cache=True)
def _take_rows(starts: np.ndarray, counts: np.ndarray, together: int, most: int, taken: int) -> int:
    """Give rows to the pieces of pages that have a key and no row, page after page; rows that are taken then.

    Args:
        starts: (pages, S) int32, written.
        counts: (N,) float32, keys of each page.
        together: rows of a piece.
        most: rows of a full page; its last piece may have fewer than the others.
        taken: rows that pages have so far.
    """
    for page in range(len(starts)):
        for piece in range(-(-min(int(counts[page]), most) // together)):
            if starts[page, piece] < 0:
                starts[page, piece] = taken
                taken += min(together, most - piece * together)
    return taken


@njit(**ROWS)
def _add(vector: np.ndarray, sums: np.ndarray) -> None:
    """Add a vector (D,) to sums."""
    for x in range(len(vector)):
        sums[x] += wide(vector[x])


@njit(**ROWS)
def _about_mean(vector: np.ndarray, sums: np.ndarray, count: np.float32, about: np.ndarray) -> None:
    """Write how far a vector (D,) is from the mean of as many others as the count says."""
    factor = np.float32(1) / count
    for x in range(len(vector)):
        about[x] = wide(vector[x]) - sums[x] * factor


@njit(**ROWS)
def _spread_by(spread: np.ndarray, features: np.ndarray, count: np.float32, others: int) -> None:
    """Change the spread (F,) of a page, see `key_spread`, for one more key.

    Sums of squares about the mean grow by n / (n + 1) times the square about the mean of the n keys before (Welford).

    Args:
        spread: of the keys before.
        features: of how far the key is from their mean.
        count: keys before, n.
        others: components beside the directions.
    """
    last = len(spread) - 1
    share = np.float32(1) / (count + np.float32(1))
    kept = count * share
    grown = kept * share
    for x in range(last):
        spread[x] = spread[x] * kept + features[x] * grown
    rest = max(features[last], np.float32(0)) / np.float32(max(1, others))
    spread[last] = spread[last] * kept + rest * grown
