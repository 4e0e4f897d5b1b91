"""Whether groups persist over depth: agreement of layers, flow between two, and churn of tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from focus_core.analysis.statistics.agreement import (
    adjusted,
    contingency,
    expected_information,
    mutual_information,
)
from focus_core.analysis.statistics.matching import match_groups

LEVEL = 0.95


def layer_agreement(groups: np.ndarray, num_groups: int) -> np.ndarray:
    """Adjusted mutual information of every pair of layers.

    Args:
        groups: (L, T) int64, first group of each token in each layer.
        num_groups: K.

    Returns:
        (L, L) float64, symmetric, 1 on the diagonal. Independent groups of these sizes give 0, equal groups under
        any numbers 1. Equals scikit-learn's `adjusted_mutual_info_score`.
    """
    num_layers = len(groups)
    result = np.eye(num_layers)
    for first in range(num_layers - 1):
        tables = contingency(groups[first], groups[first + 1 :], num_groups, num_groups)
        expected = np.array([expected_information(table) for table in tables])
        scores = adjusted(mutual_information(tables), expected, tables)
        result[first, first + 1 :] = result[first + 1 :, first] = scores
    return result


def chance_band(
    first: np.ndarray, second: np.ndarray, num_groups: int, *, repeats: int = 200, seed: int = 0
) -> tuple[float, float]:
    """The middle 95% of the adjusted mutual information when one layer's groups are shuffled over the tokens.

    Args:
        first: (T,) int64 groups.
        second: (T,) int64 groups.
        num_groups: K.
        repeats: shuffles.
        seed: of the shuffles.

    Returns:
        Lower and upper edge, around 0.
    """
    rng = np.random.default_rng(seed)
    shuffled = rng.permuted(np.broadcast_to(second, (repeats, len(second))), axis=1)
    tables = contingency(first, shuffled, num_groups, num_groups)
    # A shuffle keeps both margins, so all tables share one expectation.
    scores = adjusted(mutual_information(tables), expected_information(tables[0]), tables)
    low, high = np.quantile(scores, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


@dataclass(frozen=True)
class Churn:
    """How tokens change groups from layer to layer, after matching the groups of neighbouring layers.

    Attributes:
        changed: (L - 1, T) bool, whether the token leaves its matched group at each step.
        by_chance: (L - 1,) float64 share that changes when the next layer's groups are shuffled over the tokens and
            matched again, mean of the shuffles.
    """

    changed: np.ndarray
    by_chance: np.ndarray

    @property
    def of_steps(self) -> np.ndarray:
        """(L - 1,) float64 share of tokens that change at each step."""
        return self.changed.mean(axis=1)

    @property
    def of_tokens(self) -> np.ndarray:
        """(T,) float64 share of steps at which each token changes; 0 if there is one layer."""
        return self.changed.mean(axis=0) if len(self.changed) else np.zeros(self.changed.shape[1])


def churn(groups: np.ndarray, num_groups: int, *, repeats: int = 10, seed: int = 0) -> Churn:
    """Follow tokens through the layers.

    Groups of neighbouring layers are paired by the Hungarian method. It finds some overlap even between unrelated
    groups; `by_chance` measures that.

    Args:
        groups: (L, T) int64, first group of each token in each layer.
        num_groups: K.
        repeats: shuffles per step for the chance level.
        seed: of the shuffles.
    """
    rng = np.random.default_rng(seed)
    steps, num_tokens = max(0, len(groups) - 1), groups.shape[1]
    changed, by_chance = np.zeros((steps, num_tokens), dtype=bool), np.zeros(steps)
    for step in range(steps):
        here, after = groups[step], groups[step + 1]
        changed[step] = _moved(here, after, num_groups)
        by_chance[step] = np.mean([_moved(here, rng.permutation(after), num_groups).mean() for _ in range(repeats)])
    return Churn(changed, by_chance)


def _moved(here: np.ndarray, after: np.ndarray, num_groups: int) -> np.ndarray:
    partner = match_groups(contingency(here, after, num_groups, num_groups))
    return partner[after] != here
