"""Keys and values into pages, one after another, on a CPU: what `PageStore.add` does, in one pass."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from focus_core.attention.cpu.rows import ROWS
from focus_core.routing.narrow.compiled.machine.widening import narrow, wide
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
    return min(2, size)


@njit(nogil=True, cache=True)
def without_row(rounded: bool) -> int:
    """How many keys of each page have no row: the last one, which is what the sums have beyond the others.

    The same goes for values. Rounded keys are not those of the sums, so each has a row.

    Args:
        rounded: whether keys and values are stored in 8 bits.
    """
    return 0 if rounded else 1


@njit(nogil=True, cache=True)
def opened(groups: np.ndarray, members: np.ndarray, size: int, spared: int) -> tuple[np.ndarray, np.ndarray]:
    """Pages that new keys open, (H,) int64, and the rows that they take at most, likewise.

    Args:
        groups: (H, n) int64, of the new keys.
        members: (H, K) int64, keys of each group so far.
        size: keys of a page.
        spared: see `without_row`.
    """
    together = rows_together(size)
    pages, rows = np.zeros((2, len(groups)), np.int64)
    for head in range(len(groups)):
        number = members[head].copy()
        for group in groups[head]:
            place = number[group] % size
            pages[head] += place == 0
            row = place - spared
            if row >= 0 and row % together == 0:
                rows[head] += min(together, size - spared - row)
            number[group] += 1
    return pages, rows


@njit(nogil=True, cache=True)
def open_pages(
    groups: np.ndarray,
    stored: Any,
    slots: np.ndarray,
    size: int,
    spared: int,
    members: np.ndarray,
    newest: np.ndarray,
    pages: np.ndarray,
    taken: np.ndarray,
) -> None:
    """Give new keys their places in pages, and these their rows; the buffers have room.

    Args:
        groups: (H, n) int64, of the new keys.
        stored: see `Stored`; counts, groups and starts are written.
        slots: (H, n) int32, of the new keys; written, as are all that follow.
        size: keys of a page.
        spared: see `without_row`.
        members: (H, K) int64, keys of each group.
        newest: (H, K) int64, the open page of each group.
        pages: (H, 1) int64, pages in use.
        taken: (H, 1) int64, rows that belong to pages.
    """
    for head in range(len(groups)):
        counts = stored.counts[head]
        for key in range(groups.shape[1]):
            group = groups[head, key]
            place = members[head, group] % size
            if place == 0:
                newest[head, group] = pages[head, 0]
                stored.groups[head, pages[head, 0]] = group
                pages[head, 0] += 1
            page = newest[head, group]
            slots[head, key] = page * size + place
            members[head, group] += 1
            counts[page] += 1
        taken[head, 0] = _take_rows(stored.starts[head, : pages[head, 0]], counts, size, spared, taken[head, 0])


@njit(nogil=True, cache=True)
def _take_rows(starts: np.ndarray, counts: np.ndarray, size: int, spared: int, taken: int) -> int:
    """Give rows to the pieces of pages that need one and have none, page after page; rows that are taken then.

    Args:
        starts: (pages, S) int32, written.
        counts: (N,) float32, keys of each page.
        size: keys of a page; its last piece may have fewer rows than the others.
        spared: see `without_row`.
        taken: rows that pages have so far.
    """
    together = rows_together(size)
    for page in range(len(starts)):
        for piece in range(-(-(int(counts[page]) - spared) // together)):
            if starts[page, piece] < 0:
                starts[page, piece] = taken
                taken += min(together, size - spared - piece * together)
    return taken


@njit(nogil=True, cache=True)
def write_last_keys(stored: Any, slots: np.ndarray, size: int) -> None:
    """Write the last keys of pages that get another one, and their values, from sums that lack the new keys.

    Args:
        stored: see `Stored`, neither rounded nor empty; keys and values are written.
        slots: (H, n) int32, page * P + place of the new keys.
        size: keys of a page.
    """
    together = rows_together(size)
    for head in range(len(slots)):
        known = np.zeros(stored.counts.shape[1], np.bool_)
        for slot in slots[head]:
            page, place = divmod(slot, size)
            if not known[page] and place > 0:
                starts = stored.starts[head, page]
                _write_last(stored.keys[head], stored.key_sums[head, page], starts, together, place - 1)
                _write_last(stored.values[head], stored.value_sums[head, page], starts, together, place - 1)
            known[page] = True


@njit(nogil=True, cache=True)
def _write_last(rows: np.ndarray, sums: np.ndarray, starts: np.ndarray, together: int, last: int) -> None:
    """Write what sums (D,) have beyond the first rows of a page; these are added up in their order, as the sums were.

    Args:
        rows: (R, D), written.
        sums: float32, of the last key as well.
        starts: (S,) int32.
        together: rows of a piece.
        last: place of the last key in its page.
    """
    total = np.zeros(len(sums), np.float32)
    for place in range(last):
        _add(rows[starts[place // together] + place % together], total)
    out = rows[starts[last // together] + last % together]
    for x in range(len(sums)):
        out[x] = narrow(sums[x] - total[x], out[x])


@njit(nogil=True, cache=True)
def add_keys(
    key: np.ndarray, value: np.ndarray, rows: Any, stored: Any, directions: np.ndarray, slots: np.ndarray, size: int
) -> None:
    """Add new keys and values to the sums of their pages, and write those that have a row.

    Args:
        key: (H, n, D), float32 or int16 for bfloat16, of which sums are taken.
        value: (H, n, Dv).
        rows: see `NewRows`.
        stored: see `Stored`, with `open_pages` done; written.
        directions: (H, r, D) float32, see `Directions`.
        slots: (H, n) int32, page * P + place of the new keys.
        size: keys of a page.
    """
    together, spared = rows_together(size), without_row(rows.key_scales.shape[2] > 0)
    about, along = np.empty(key.shape[2], np.float32), np.empty(directions.shape[1], np.float32)
    features = np.empty(stored.spread.shape[2], np.float32)
    for head in range(len(slots)):
        key_sums, spread = stored.key_sums[head], stored.spread[head]
        for new in range(slots.shape[1]):
            page, place = divmod(slots[head, new], size)
            before = np.float32(place)
            if place > 0:
                _about_mean(key[head, new], key_sums[page], before, about)
                features_along(about, directions[head], along, features)
                _spread_by(spread[page], features, before, len(about) - len(along))
            _add(key[head, new], key_sums[page])
            _add(value[head, new], stored.value_sums[head, page])
            if place >= stored.counts[head, page] - spared:
                continue
            row = stored.starts[head, page, place // together] + place % together
            stored.keys[head, row] = rows.keys[head, new]
            stored.values[head, row] = rows.values[head, new]
            stored.key_scales[head, row] = rows.key_scales[head, new]
            stored.value_scales[head, row] = rows.value_scales[head, new]


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
