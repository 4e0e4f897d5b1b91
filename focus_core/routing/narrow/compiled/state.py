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
CHOOSING = 32
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
        output: (R + 16, Dv) float32.
        largest: (R + 16,) float32, see `softmax_row`.
        totals: (R + 16, 16) float32, likewise.
        near: (16 G + 16, 16 times `NEAR_TILES`) float32, scratch.
        far: (`BATCH`, 16) float32, scratch.
        group: G.
    """

    query: np.ndarray
    squares: np.ndarray
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
        page_scores: (M,) float32, scratch.
        chosen: (2 M,) int64, scratch.
        marks: (M / 16, R) int16, a bit for each of 16 pages: whether a row reads it; the lowest is of the first page.
        seen: (S, M) int32, keys of each page that the rows of a chunk see, for the chunks of a span.
        readers: (R + 16,) int32, of one page, see `SEEN_BITS`; scratch.
        keys_read: (G,) int64, summed over the queries of a head.
    """

    logits: np.ndarray
    page_scores: np.ndarray
    chosen: np.ndarray
    marks: np.ndarray
    seen: np.ndarray
    readers: np.ndarray
    keys_read: np.ndarray


def scratch(head: Head, group: int, most: int, num_rows: int, chunks: int) -> tuple[Span, Sums, Choice]:
    """Room for a span of R rows, in S chunks, of a head that G query heads read, with at most M pages."""
    width, value_width, every, places = head.key.shape[1], head.value.shape[1], num_rows + BLOCK, _places(most)
    rows = Span(
        zeros((every, width), head.query.dtype),
        zeros(every),
        empty((every, value_width)),
        empty(every),
        empty((every, LANES)),
        empty((LANES * group + BLOCK, NEAR_TILES * LANES)),
        empty((BATCH, LANES)),
        group,
    )
    choice = Choice(
        empty((CHOOSING + BLOCK, places)),
        empty(places),
        empty(2 * most, np.int64),
        empty((places // LANES, -(-num_rows // LANES) * LANES), np.int16),
        empty((chunks, most), np.int32),
        empty(every, np.int32),
        zeros(group, np.int64),
    )
    return rows, no_sums(most, width, value_width), choice


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


@njit(nogil=True, inline="always")
def row_of(reader: int) -> np.int64:
    """Row of a reader."""
    return np.int64(reader >> SEEN_BITS)


@njit(nogil=True, inline="always")
def seen_by(reader: int) -> np.int64:
    """Keys of the page that a reader sees."""
    return np.int64(reader & ((1 << SEEN_BITS) - 1))
