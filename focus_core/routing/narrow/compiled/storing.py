"""Keys and values into pages, one after another, on a CPU: what `PageStore.add` does, in one pass."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from focus_core.attention.cpu.rows import ROWS
from focus_core.routing.narrow.compiled.machine.widening import wide


class Stored(NamedTuple):
    """The buffers of a `PageStore`, by their names there.

    Keys and values are float32, int16 for bfloat16, or int8 with the scales of rows; without these P is 0 in scales.

    Attributes:
        keys: (H, N, P, D).
        values: (H, N, P, Dv).
        counts: (H, N) float32.
        key_sums: (H, N, D) float32.
        value_sums: (H, N, Dv) float32.
        spread: (H, N) float32.
        groups: (H, N) int32.
        key_scales: (H, N, P) float32.
        value_scales: (H, N, P) float32.
    """

    keys: np.ndarray
    values: np.ndarray
    counts: np.ndarray
    key_sums: np.ndarray
    value_sums: np.ndarray
    spread: np.ndarray
    groups: np.ndarray
    key_scales: np.ndarray
    value_scales: np.ndarray


class NewRows(NamedTuple):
    """New keys and values as they are stored.

    Attributes:
        keys: (H, n, D), of the dtype of the buffers.
        values: (H, n, Dv).
        key_scales: (H, n) float32; (H, 0) without scales.
        value_scales: (H, n) float32.
    """

    keys: np.ndarray
    values: np.ndarray
    key_scales: np.ndarray
    value_scales: np.ndarray


@njit(nogil=True, cache=True)
def pages_opened(groups: np.ndarray, members: np.ndarray, size: int) -> np.ndarray:
    """(H,) int64: pages that new keys open.

    Args:
        groups: (H, n) int64, of the new keys.
        members: (H, K) int64, keys of each group so far.
        size: keys of a page.
    """
    opened = np.zeros(len(groups), np.int64)
    for head in range(len(groups)):
        number = members[head].copy()
        for group in groups[head]:
            if number[group] % size == 0:
                opened[head] += 1
            number[group] += 1
    return opened


@njit(nogil=True, cache=True)
def add_keys(
    groups: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    rows: Any,
    stored: Any,
    squares: np.ndarray,
    slots: np.ndarray,
    first: int,
    members: np.ndarray,
    newest: np.ndarray,
    pages: np.ndarray,
) -> None:
    """Store keys and values in the open pages of their groups; the buffers have room.

    Args:
        groups: (H, n) int64, of the new keys.
        key: (H, n, D), float32 or int16 for bfloat16, of which sums are taken.
        value: (H, n, Dv).
        rows: see `NewRows`.
        stored: see `Stored`, written; so are all others.
        squares: (H, N) float32, sums of the squared lengths of keys.
        slots: (H, S) int32, of all keys.
        first: place of the first new key among them.
        members: (H, K) int64, keys of each group.
        newest: (H, K) int64, the open page of each group.
        pages: (H, 1) int64, pages in use.
    """
    size = stored.keys.shape[2]
    for head in range(len(groups)):
        counts, key_sums, spread = stored.counts[head], stored.key_sums[head], stored.spread[head]
        for place in range(groups.shape[1]):
            group = groups[head, place]
            row = members[head, group] % size
            if row == 0:
                if newest[head, group] >= 0:
                    _spread(newest[head, group], counts, squares[head], key_sums, spread)
                newest[head, group] = pages[head, 0]
                stored.groups[head, pages[head, 0]] = group
                pages[head, 0] += 1
            page = newest[head, group]
            members[head, group] += 1
            slots[head, first + place] = page * size + row
            stored.keys[head, page, row] = rows.keys[head, place]
            stored.values[head, page, row] = rows.values[head, place]
            if rows.key_scales.shape[1]:
                stored.key_scales[head, page, row] = rows.key_scales[head, place]
                stored.value_scales[head, page, row] = rows.value_scales[head, place]
            counts[page] += 1
            squares[head, page] += _added(key[head, place], key_sums[page])
            _added(value[head, place], stored.value_sums[head, page])
        for group in groups[head]:
            _spread(newest[head, group], counts, squares[head], key_sums, spread)


@njit(**ROWS)
def _added(vector: np.ndarray, sums: np.ndarray) -> np.float32:
    """Add a vector (D,) to sums; its squared length."""
    square = np.float32(0)
    for x in range(len(vector)):
        number = wide(vector[x])
        sums[x] += number
        square += number * number
    return square


@njit(**ROWS)
def _spread(page: int, counts: np.ndarray, squares: np.ndarray, sums: np.ndarray, spread: np.ndarray) -> None:
    """Take the spread of a page from its sums; see `key_spread`."""
    total, width = np.float32(0), sums.shape[1]
    for x in range(width):
        mean = sums[page, x] / counts[page]
        total += mean * mean
    spread[page] = max(squares[page] / counts[page] - total, np.float32(0)) / np.float32(width)
