"""What the compiled loops of prefill keep for a span of queries, and where a call finds it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from focus_core.routing.narrow.compiled.layout import Head
from focus_core.routing.narrow.compiled.machine.llvm import LANES
from focus_core.routing.narrow.compiled.machine.memory import empty, zeros
from focus_core.routing.narrow.compiled.machine.tiles import BLOCK, configuration
from focus_core.routing.narrow.compiled.sums import Sums, no_sums

NEAR_TILES = 16
"""Tiles of neighbours whose softmax is taken at once."""
BATCH = 32
"""Readers of a page whose softmax is taken at once, twice `BLOCK`."""
CHOOSING = 48
"""Rows that choose at once, a multiple of `BLOCK`."""
SEEN_BITS = 5
"""Lowest bits of a reader, which say how many keys of the page it sees, 16 at most; the others are its row."""


class Half(NamedTuple):
    """Weights, queries and sums on their way to and from the matrix units.

    Attributes:
        near: (16, 16 times `NEAR_TILES`) int16, weights of neighbours.
        means: (`CHOOSING` + 16, M) int16, weights of summaries.
        far: (`BATCH`, 16) int16, weights of the keys of a page.
        query: (`BATCH`, D) int16, the readers of a page.
        sums: (`BATCH`, Dv) float32, what they get.
        mean_keys: (M / 16, 2, D / 2, 16, 2) int16, upper and lower bits.
        mean_values: (M / 16, 8, Dv, 2) int16.
        shapes: see `configuration`.
    """

    near: np.ndarray
    means: np.ndarray
    far: np.ndarray
    query: np.ndarray
    sums: np.ndarray
    mean_keys: np.ndarray
    mean_values: np.ndarray
    shapes: np.ndarray


class Span(NamedTuple):
    """Running softmax of the queries of a span, G rows for each token, and spare ones that fill up blocks.

    Attributes:
        query: (R + 16, D), of the head's type.
        squares: (R + 16,) float32, squared lengths, times the squared scale.
        features: (R + 16, F) float32, see `query_features`, F even; (R + 16, 0) without directions.
        output: (R + 16, Dv) float32.
        largest: (R + 16,) float32, see `softmax_row`.
        totals: (R + 16, 16) float32, likewise.
        near: (16 G + 16, 16 times `NEAR_TILES`) float32, scratch.
        far: (`BATCH`, 16) float32, scratch.
        group: G.
    """

    query: np.ndarray
    squares: np.ndarray
    features: np.ndarray
    output: np.ndarray
    largest: np.ndarray
    totals: np.ndarray
    near: np.ndarray
    far: np.ndarray
    group: int


class Choice(NamedTuple):
    """What queries read.

    Attributes:
        logits: (`CHOOSING` + 16, M) float32, of the summaries, for rows that choose.
        variances: (`CHOOSING` + 16, M) float32, of the logits of the keys of pages; (0, M) without directions.
        page_scores: (M,) float32, scratch.
        chosen: (2 M,) int64, scratch.
        marks: (M / 16, R) int16, a bit for each of 16 pages: whether a row reads it; the lowest is of the first page.
        seen: (S, M) int32, keys of each page that the rows of a chunk see, for the chunks of a span.
        readers: (R + 16,) int32, of one page, see `SEEN_BITS`; scratch.
        keys_read: (G,) int64, summed over the queries of a head.
    """

    logits: np.ndarray
    variances: np.ndarray
    page_scores: np.ndarray
    chosen: np.ndarray
    marks: np.ndarray
    seen: np.ndarray
    readers: np.ndarray
    keys_read: np.ndarray


class Places(NamedTuple):
    """Where the steps of prefill find arrays: addresses in bytes, and their widths in numbers.

    A call that is given arrays counts references to each of them, in locked instructions that other threads wait for;
    these are plain numbers. Names are those of `Head`, `Span`, `Sums` and `Choice`.
    """

    group: int
    spare: int
    width: int
    value_width: int
    factor: np.float32
    query: int
    squares: int
    features: int
    num_features: int
    output: int
    largest: int
    totals: int
    near: int
    near_stride: int
    far: int
    key_tiles: int
    value_tiles: int
    key_pages: int
    value_pages: int
    mean_keys: int
    mean_values: int
    spread: int
    log_sizes: int
    powers: int
    sizes: int
    logits: int
    logits_stride: int
    variances: int
    page_scores: int
    marks: int
    num_rows: int
    readers: int


class HalfPlaces(NamedTuple):
    """`Places` of the arrays of `Half`."""

    near: int
    near_stride: int
    means: int
    far: int
    query: int
    sums: int
    mean_keys: int
    mean_values: int


@njit(nogil=True, cache=True)
def places_of(head: Head, rows: Span, sums: Sums, choice: Choice) -> Places:
    """Addresses, which hold while the caller has these arrays."""
    return Places(
        rows.group,
        len(rows.query) - BLOCK,
        rows.query.shape[1],
        rows.output.shape[1],
        head.factor,
        rows.query.ctypes.data,
        rows.squares.ctypes.data,
        rows.features.ctypes.data,
        rows.features.shape[1],
        rows.output.ctypes.data,
        rows.largest.ctypes.data,
        rows.totals.ctypes.data,
        rows.near.ctypes.data,
        rows.near.shape[1],
        rows.far.ctypes.data,
        head.key_tiles.ctypes.data,
        head.value_tiles.ctypes.data,
        head.key_pages.ctypes.data,
        head.value_pages.ctypes.data,
        sums.mean_keys.ctypes.data,
        sums.mean_values.ctypes.data,
        sums.spread.ctypes.data,
        sums.log_sizes.ctypes.data,
        sums.powers.ctypes.data,
        sums.sizes.ctypes.data,
        choice.logits.ctypes.data,
        choice.logits.shape[1],
        choice.variances.ctypes.data,
        choice.page_scores.ctypes.data,
        choice.marks.ctypes.data,
        choice.marks.shape[1],
        choice.readers.ctypes.data,
    )


@njit(nogil=True, cache=True)
def half_places_of(half: Half) -> HalfPlaces:
    """Addresses, which hold while the caller has these arrays."""
    return HalfPlaces(
        half.near.ctypes.data,
        half.near.shape[1],
        half.means.ctypes.data,
        half.far.ctypes.data,
        half.query.ctypes.data,
        half.sums.ctypes.data,
        half.mean_keys.ctypes.data,
        half.mean_values.ctypes.data,
    )


def scratch(head: Head, group: int, most: int, num_rows: int, chunks: int) -> tuple[Span, Sums, Choice]:
    """Room for a span of R rows, in S chunks, of a head that G query heads read, with at most M pages."""
    width, value_width, every, places = head.key.shape[1], head.value.shape[1], num_rows + BLOCK, _places(most)
    directions, spread = len(head.directions), head.features.shape[1] - len(head.directions)
    rows = Span(
        zeros((every, width), head.query.dtype),
        zeros(every),
        zeros((every, spread + spread % 2 if directions else 0)),
        empty((every, value_width)),
        empty(every),
        empty((every, LANES)),
        empty((LANES * group + BLOCK, NEAR_TILES * LANES)),
        empty((BATCH, LANES)),
        group,
    )
    choice = Choice(
        empty((CHOOSING + BLOCK, places)),
        empty((CHOOSING + BLOCK if directions else 0, places)),
        empty(places),
        empty(2 * most, np.int64),
        empty((places // LANES, -(-num_rows // LANES) * LANES), np.int16),
        empty((chunks, most), np.int32),
        empty(every, np.int32),
        zeros(group, np.int64),
    )
    return rows, no_sums(most, width, value_width, directions), choice


def half_scratch(head: Head, most: int) -> Half:
    """Room for the matrix units."""
    width, value_width, places = head.key.shape[1], head.value.shape[1], _places(most)
    return Half(
        empty((BLOCK, NEAR_TILES * LANES), np.int16),
        empty((CHOOSING + BLOCK, places), np.int16),
        zeros((BATCH, LANES), np.int16),
        zeros((BATCH, width), np.int16),
        empty((BATCH, value_width)),
        zeros((places // LANES, 2, width // 2, LANES, 2), np.int16),
        zeros((places // LANES, LANES // 2, value_width, 2), np.int16),
        configuration(),
    )


def _places(most: int) -> int:
    """Room for all pages in whole tiles, an even number, so that rows of weights in 2 bytes fill cache lines."""
    return -(-most // (2 * LANES)) * 2 * LANES
