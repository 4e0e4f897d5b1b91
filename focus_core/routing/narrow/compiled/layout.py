"""Keys and values of a text by page and by time, as the compiled kernels read them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from focus_core.routing.narrow.compiled.features import write_features
from focus_core.routing.narrow.compiled.machine.llvm import LANES
from focus_core.routing.narrow.compiled.machine.memory import empty
from focus_core.routing.narrow.compiled.machine.widening import square_of_row


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
        directions: (r, D) float32, see `Directions`; r is 0 without.
        features: (T, r + F), what each key has along them, and its `key_features`.
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
    directions: np.ndarray
    features: np.ndarray


def unfilled(
    query: np.ndarray,
    first: int,
    scale: float,
    key: np.ndarray,
    value: np.ndarray,
    num_groups: int,
    page_size: int,
    directions: np.ndarray,
) -> Head:
    """One head with room for as many pages as there can be; `filled` writes them.

    Args:
        query: (T, H, D), see `Head`.
        first: of its heads.
        scale: factor of the dot products.
        key: (T, D), float32 or the bits of bfloat16 in int16.
        value: (T, Dv), likewise.
        num_groups: K.
        page_size: keys of a page, 16 at most.
        directions: (r, D) float32.
    """
    (length, width), value_width, half = key.shape, value.shape[1], key.dtype == np.int16
    most, tiles = length // page_size + num_groups, -(-length // LANES)
    scales = (1.0, scale) if half else (scale, 1.0)
    shapes = ((width // 2, LANES, 2), (LANES // 2, value_width, 2)) if half else ((width, LANES), (LANES, value_width))
    pages, in_time = ([empty((count, *shape), key.dtype) for shape in shapes] for count in (most, tiles))
    page, order = np.empty(length, np.int32), np.empty(most, np.int64)
    before, after = np.float32(scales[0]), np.float32(scales[1])
    count = len(directions)
    features = empty((length, count + count * (count + 1) // 2 + 1))
    laid_out = pages[0], pages[1], in_time[0], in_time[1]
    return Head(query, first, before, after, key, value, page, order, *laid_out, directions, features)


def filled(head: Head, groups: np.ndarray, num_groups: int, page_size: int, sink_tokens: int) -> Head:
    """Lay out the keys and values of one head; time and memory grow with T (D + Dv).

    One call of compiled code: a thread that asks for Python's lock again and again waits for the others.

    Args:
        head: from `unfilled`.
        groups: (T,) int32, 0 to K - 1.
        num_groups: K.
        page_size: as in `unfilled`.
        sink_tokens: first keys, which fill no page.
    """
    key, value, laid_out = head.key, head.value, (head.key_pages, head.key_tiles, head.value_pages, head.value_tiles)
    half = key.dtype == np.int16
    if len(head.directions):
        write_features(key, head.directions, np.float32(1), False, head.features)
    else:
        _write_squares(key, head.features)
    if half:
        # Two dimensions of a key are copied at once, and two values are written.
        key, value = key.view(np.int32), value.view(np.uint16)
        laid_out = tuple(part.view(np.uint32)[..., 0] for part in laid_out)
    settings = num_groups, page_size, sink_tokens, head.page, head.order
    count = _fill(key, value, groups, *settings, *laid_out)
    return head._replace(
        order=head.order[:count], key_pages=head.key_pages[:count], value_pages=head.value_pages[:count]
    )


@njit(nogil=True, cache=True)
def _write_squares(key: np.ndarray, features: np.ndarray) -> None:
    for token in range(len(key)):
        features[token, 0] = square_of_row(key, token)


@njit(nogil=True, cache=True)
def _fill(
    key: np.ndarray,
    value: np.ndarray,
    groups: np.ndarray,
    num_groups: int,
    page_size: int,
    sink_tokens: int,
    page: np.ndarray,
    order: np.ndarray,
    key_pages: np.ndarray,
    key_tiles: np.ndarray,
    value_pages: np.ndarray,
    value_tiles: np.ndarray,
) -> int:
    """Write all that is written of a head; the number of pages. In bfloat16 two dimensions of a key are one number."""
    members, count = _number_pages(groups, num_groups, page_size, sink_tokens, page, order)
    in_time = _in_time(len(key))
    _gather_keys(key, members[:count], key_pages)
    _gather_keys(key, in_time, key_tiles)
    for of, values in ((members[:count], value_pages), (in_time, value_tiles)):
        # Known while this is compiled: one of the two is.
        if value.itemsize == 2:
            _gather_value_pairs(value, of, values)
        else:
            _gather_values(value, of, values)
    return count


@njit(nogil=True, cache=True)
def _number_pages(
    groups: np.ndarray, num_groups: int, page_size: int, sink_tokens: int, page: np.ndarray, order: np.ndarray
) -> tuple[np.ndarray, int]:
    """Write the page of each key and the order of pages; the keys of pages (M, 16), -1 for none, and their number."""
    newest, counts = np.full(num_groups, -1, np.int32), np.zeros(num_groups, np.int64)
    members, pages = np.full((len(order), LANES), -1, np.int32), 0
    page[:sink_tokens] = -1
    for token in range(sink_tokens, len(groups)):
        group = groups[token]
        place = counts[group] % page_size
        if place == 0:
            newest[group] = pages
            order[pages] = np.int64(group) * len(groups) + counts[group]
            pages += 1
        page[token] = newest[group]
        members[newest[group], place] = token
        counts[group] += 1
    return members, pages


@njit(nogil=True, cache=True)
def _in_time(length: int) -> np.ndarray:
    """(T / 16, 16): all keys in their order, -1 behind the last one."""
    tiles = -(-length // LANES)
    found = np.full(tiles * LANES, -1, np.int32)
    for token in range(length):
        found[token] = token
    return found.reshape(tiles, LANES)


@njit(nogil=True, cache=True)
def _gather_keys(key: np.ndarray, members: np.ndarray, keys: np.ndarray) -> None:
    """Write the columns of 16 keys side by side, block by block: a block fits the first cache."""
    tokens = np.empty(LANES, np.int64)
    for block in range(len(members)):
        count = 0
        for lane in range(LANES):
            count += members[block, lane] >= 0
            tokens[lane] = max(members[block, lane], 0)
        for column in range(key.shape[1]):
            for lane in range(LANES):
                keys[block, column, lane] = key[tokens[lane], column]
        if count < LANES:
            for column in range(key.shape[1]):
                keys[block, column, count:] = 0


@njit(nogil=True, cache=True)
def _gather_values(value: np.ndarray, members: np.ndarray, values: np.ndarray) -> None:
    """Write 16 values one after another, block by block."""
    for block in range(len(members)):
        for lane in range(LANES):
            token = members[block, lane]
            for column in range(value.shape[1]):
                values[block, lane, column] = value[token, column] if token >= 0 else np.float32(0)


@njit(nogil=True, cache=True)
def _gather_value_pairs(value: np.ndarray, members: np.ndarray, values: np.ndarray) -> None:
    """Write 16 values in twos, the numbers of both beside each other, as one of 32 bits; block by block."""
    for block in range(len(members)):
        for pair in range(LANES // 2):
            first, second = members[block, 2 * pair], members[block, 2 * pair + 1]
            if second >= 0:
                for column in range(value.shape[1]):
                    upper = np.uint32(value[second, column]) << np.uint32(16)
                    values[block, pair, column] = upper | np.uint32(value[first, column])
            elif first >= 0:
                for column in range(value.shape[1]):
                    values[block, pair, column] = value[first, column]
            else:
                values[block, pair] = 0
