"""Bootstrap intervals over whole documents or sentences, from one contingency table for each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from focus_core.analysis.statistics.agreement import adjusted, expected_information, mutual_information

LEVEL = 0.95


class Interval(NamedTuple):
    """A 95% interval."""

    low: float
    high: float


def bootstrap_weights(num_blocks: int, repeats: int, rng: np.random.Generator) -> np.ndarray:
    """(B, D) int64: how often each of D blocks is drawn in each of B resamples with replacement."""
    return rng.multinomial(num_blocks, np.full(num_blocks, 1 / num_blocks), size=repeats)


def resample(tables: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(B, R, C) tables of the resamples, from tables (D, R, C) of the blocks."""
    drawn = np.asarray(weights, dtype=float) @ tables.reshape(len(tables), -1).astype(float)
    return drawn.reshape(len(weights), *tables.shape[1:])


def bootstrap_ami(tables: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(B,) AMI of resamples of blocks.

    The expected mutual information is computed once and scaled with the number of words. Over resamples it moves as
    (R - 1)(C - 1) / 2n to first order. The error is far below the spread of the scores; a test compares it with the
    exact value in every resample.

    Args:
        tables: (D, R, C) one table per block.
        weights: (B, D) from `bootstrap_weights`; use the same ones for scores to be compared.
    """
    whole = tables.sum(0)
    drawn = resample(tables, weights)
    expected = expected_information(whole) * whole.sum() / np.maximum(drawn.sum((1, 2)), 1)
    return adjusted(mutual_information(drawn), expected, drawn)


def interval(score: float, replicates: np.ndarray) -> Interval:
    """The 95% interval of a score: bias-corrected percentiles of its replicates.

    Resampling repeats blocks, which raises mutual information, so plain percentiles lie too high. The bias is the
    distance of the replicates' mean from the score, and is subtracted.

    Args:
        score: the score of the whole sample.
        replicates: (B,) scores of the resamples.
    """
    low, high = np.quantile(replicates, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) - replicates.mean()
    return Interval(float(score + low), float(score + high))
