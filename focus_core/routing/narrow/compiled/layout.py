"""Keys and values of a text by page and by time, as the compiled kernels read them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from focus_core.routing.narrow.compiled.machine.llvm import LANES
from focus_core.routing.narrow.compiled.machine.memory import zeros


class Head(NamedTuple):
    """One key/value head of a text and the queries that read it; M pages. All float32 but the two of pages.

    For matrix units all are bits of bfloat16, in int16. Two dimensions of a key lie beside each other, and so do two
    values: pages and tiles of keys are (..., D / 2, 16, 2), of values (..., 8, Dv, 2).

    Attributes:
        query: (T, H, D), of all heads of the text.
        first: the first one that reads this head.
        scale: of queries before products; 1 in bfloat16.
        factor: of products: 1, or in bfloat16 the scale.
        key: (T, D).
        value: (T, Dv).
        page: (T,) int32, the page of each key, numbered as they begin; -1 for sinks.
        order: (M,) int64, which page comes first where scores are equal: by group, then by age.
        key_pages: (M, D, 16), the members of each page.
        value_pages: (M, 16, Dv).
        key_tiles: (T / 16, D, 16), keys in order of time.
        value_tiles: (T / 16, 16, Dv).
    """

    query: np.ndarray
    first: int
    scale: np.float32
    factor: np.float32
    key: np.ndarray
    value: np.ndarray
    page: np.ndarray
    order: np.ndarray
    key_pages: np.ndarray
    value_pages: np.ndarray
    key_tiles: np.ndarray
    value_tiles: np.ndarray


def laid_out(
    query: np.ndarray,
    first: int,
    scale: float,
    key: np.ndarray,
    value: np.ndarray,
    groups: np.ndarray,
    num_groups: int,
    page_size: int,
    sink_tokens: int,
) -> Head:
    """Lay out one head; time and memory grow with T (D + Dv).

    Args:
        query: (T, H, D), see `Head`.
        first: of its heads.
        scale: factor of the dot products.
        key: (T, D), float32 or the bits of bfloat16 in int16.
        value: (T, Dv), likewise.
        groups: (T,) int32, 0 to K - 1.
        num_groups: K.
        page_size: keys of a page, 16 at most.
        sink_tokens: first keys, which fill no page.
    """
    length, width = key.shape
    page, place = np.full((2, length), -1, np.int32)
    order = np.empty(length, np.int64)
    most = _number_pages(groups, num_groups, page_size, sink_tokens, page, place, order)
    tiles, value_width = -(-length // LANES), value.shape[1]
    half = key.dtype == np.int16
    scales = (np.float32(1), np.float32(scale)) if half else (np.float32(scale), np.float32(1))
    shapes = ((width // 2, LANES, 2), (LANES // 2, value_width, 2)) if half else ((width, LANES), (LANES, value_width))
    keys, values = ([zeros((count, *shape), key.dtype) for count in (most, tiles)] for shape in shapes)
    head = Head(query, first, *scales, key, value, page, order[:most], keys[0], values[0], keys[1], values[1])
    (_fill_halves if half else _fill)(head, place)
    return head


@njit(nogil=True, cache=True)
def _number_pages(
    groups: np.ndarray,
    num_groups: int,
    page_size: int,
    sink_tokens: int,
    page: np.ndarray,
    place: np.ndarray,
    order: np.ndarray,
) -> int:
    """Write page, place and order; the number of pages."""
    newest, members = np.full(num_groups, -1, np.int32), np.zeros(num_groups, np.int64)
    pages = 0
    for token in range(sink_tokens, len(groups)):
        group = groups[token]
        if members[group] % page_size == 0:
            newest[group] = pages
            order[pages] = np.int64(group) * len(groups) + members[group]
            pages += 1
        page[token], place[token] = newest[group], members[group] % page_size
        members[group] += 1
    return pages


@njit(nogil=True, cache=True)
def _fill(head: Head, place: np.ndarray) -> None:
    """Copy keys and values to their pages and tiles."""
    for token in range(len(head.page)):
        tile, lane = token // LANES, token % LANES
        number, slot = head.page[token], place[token]
        for column in range(head.key.shape[1]):
            head.key_tiles[tile, column, lane] = head.key[token, column]
            if number >= 0:
                head.key_pages[number, column, slot] = head.key[token, column]
        for column in range(head.value.shape[1]):
            head.value_tiles[tile, lane, column] = head.value[token, column]
            if number >= 0:
                head.value_pages[number, slot, column] = head.value[token, column]


def _fill_halves(head: Head, place: np.ndarray) -> None:
    """Copy keys and values in bfloat16 to their pages and tiles."""
    # Two dimensions of a key are copied at once.
    key, tiles, pages = (part.view(np.int32) for part in (head.key, head.key_tiles, head.key_pages))
    _copy_halves(key, tiles[..., 0], pages[..., 0], head.value, head.value_tiles, head.value_pages, head.page, place)


@njit(nogil=True, cache=True)
def _copy_halves(
    key: np.ndarray,
    key_tiles: np.ndarray,
    key_pages: np.ndarray,
    value: np.ndarray,
    value_tiles: np.ndarray,
    value_pages: np.ndarray,
    page: np.ndarray,
    place: np.ndarray,
) -> None:
    """Keys are pairs of dimensions: (T, D / 2), and (..., D / 2, 16)."""
    for token in range(len(page)):
        tile, lane = token // LANES, token % LANES
        number, slot = page[token], place[token]
        for pair in range(key.shape[1]):
            key_tiles[tile, pair, lane] = key[token, pair]
            if number >= 0:
                key_pages[number, pair, slot] = key[token, pair]
        for column in range(value.shape[1]):
            value_tiles[tile, lane // 2, column, lane % 2] = value[token, column]
            if number >= 0:
                value_pages[number, slot // 2, column, slot % 2] = value[token, column]
