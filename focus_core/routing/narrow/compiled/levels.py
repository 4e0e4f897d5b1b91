"""The threshold or the share of each query, as `level_at` and `Reading.choose` take it, in compiled code."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numba import njit


class Levels(NamedTuple):
    """Thresholds of the G query heads of a key/value head, as `level_at` takes them; or the share of all.

    Attributes:
        tables: (A, G) float32.
        places: (A - 1,) float32, all but the last.
        steps: (A - 1,) float32, one over the way from each place to the next.
    """

    tables: np.ndarray
    places: np.ndarray
    steps: np.ndarray


@lru_cache(maxsize=64)
def levels_between(places: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Places and steps of `Levels`; remembered, since every decoded token asks in every layer."""
    found = np.array(places, np.float32)
    return found[:-1], np.array([1 / (last - first) for first, last in pairwise(places)], np.float32)


@njit(nogil=True, cache=True)
def level_of(levels: Levels, member: int, beyond: np.float32) -> float:
    """What `reading.level_at` gives one query head, rounded alike."""
    return level_at(levels.tables, levels.places, levels.steps, member, beyond)


@njit(nogil=True, inline="always")
def level_at(tables: np.ndarray, places: np.ndarray, steps: np.ndarray, member: int, beyond: np.float32) -> float:
    """`level_of`, for loops that take the fields of `Levels` before they begin."""
    found = tables[0, member]
    for place in range(len(places)):
        along = min(max((beyond - places[place]) * steps[place], np.float32(0)), np.float32(1))
        found += along * (tables[place + 1, member] - tables[place, member])
    return found


@njit(nogil=True, cache=True)
def budget_of(levels: Levels, member: int, distant: int, already: int) -> float:
    """Keys of pages that a query may read, as in `Reading.choose`: float32.

    Args:
        levels: shares.
        member: query head.
        distant: keys in pages.
        already: keys beyond the window that the query attends exactly in any case.
    """
    beyond: Any = np.float32(distant + already)
    return level_of(levels, member, beyond) * beyond - np.float32(already)
