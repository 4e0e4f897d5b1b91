"""Tags that a group holds more or less often than chance: residuals and tests of each tag and group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import false_discovery_control, hypergeom

MIN_EXPECTED = 5.0
"""Cells with a smaller expected count are neither shown nor tested."""


@dataclass(frozen=True)
class CellTests:
    """Every cell of L tables of R tags by K groups; NaN where the expected count is too small.

    Attributes:
        observed: (L, R, K) int64 counts.
        expected: (L, R, K) counts to expect by chance.
        residual: (L, R, K) adjusted Pearson residuals, standard normal by chance.
        q_value: (L, R, K) two-sided permutation p-values, adjusted for the false discovery rate over all cells of
            all layers (Benjamini and Hochberg).
    """

    observed: np.ndarray
    expected: np.ndarray
    residual: np.ndarray
    q_value: np.ndarray


def cell_tests(tables: np.ndarray) -> CellTests:
    """Test every cell by permutation, exactly.

    Shuffling groups over words makes a cell's count hypergeometric. The p-value is twice the smaller tail of that
    distribution, which needs no shuffles.

    Args:
        tables: (L, R, K) counts.
    """
    total = tables.sum((1, 2), keepdims=True).astype(float)
    rows, columns = tables.sum(2, keepdims=True).astype(float), tables.sum(1, keepdims=True).astype(float)
    safe = np.maximum(total, 1)
    expected = rows * columns / safe
    usable = expected >= MIN_EXPECTED
    variance = expected * (1 - rows / safe) * (1 - columns / safe)
    usable &= variance > 0
    residual = np.full(tables.shape, np.nan)
    residual[usable] = (tables - expected)[usable] / np.sqrt(variance[usable])
    q_value = np.full(tables.shape, np.nan)
    if usable.any():
        shape = tables.shape
        given = [np.broadcast_to(part, shape)[usable] for part in (tables, total, rows, columns)]
        low, high = hypergeom.cdf(*given), hypergeom.sf(given[0] - 1, *given[1:])
        q_value[usable] = false_discovery_control(np.minimum(1.0, 2 * np.minimum(low, high)))
    return CellTests(tables, expected, residual, q_value)
