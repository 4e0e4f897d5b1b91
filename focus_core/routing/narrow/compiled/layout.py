"""Keys and values of a text by page and by time, as the compiled kernels read them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from focus_core.routing.narrow.compiled.llvm import LANES


class Head(NamedTuple):
    """One key/value head of a text and the queries that read it; M pages. All float32 but the two of pages.

    Attributes:
        query: (G, T, D), times the scale of the dot products.
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
    key: np.ndarray,
    value: np.ndarray,
    groups: np.ndarray,
    num_groups: int,
    page_size: int,
    sink_tokens: int,
) -> Head:
    """Lay out one head; time and memory grow with T (D + Dv).

    Args:
        query: (G, T, D) float32, scaled.
        key: (T, D) float32.
        value: (T, Dv) float32.
        groups: (T,) int32, 0 to K - 1.
        num_groups: K.
        page_size: keys of a page, 16 at most.
        sink_tokens: first keys, which fill no page.
    """
    length, width = key.shape
    page, place = np.full((2, length), -1, np.int32)
    order = np.empty(length, np.int64)
    most = _number_pages(groups, num_groups, page_size, sink_tokens, page, place, order)
    tiles = -(-length // LANES)
    blocks = [np.zeros((count, width, LANES), np.float32) for count in (most, tiles)]
    values = [np.zeros((count, LANES, value.shape[1]), np.float32) for count in (most, tiles)]
    head = Head(query, key, value, page, order[:most], blocks[0], values[0], blocks[1], values[1])
    _fill(head, place)
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
