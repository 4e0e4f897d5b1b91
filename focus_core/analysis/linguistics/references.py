"""Reference groupings for alignment scores: chance, balance, token identity, position and frequency.

n words, tags and groups as int64 codes, L layers, K groups. Scores are AMI (`analysis.statistics.agreement`).
"""

from __future__ import annotations

import numpy as np
from scipy.stats import random_table

from focus_core.analysis.statistics.agreement import (
    adjusted,
    ami,
    contingency,
    expected_information,
    mutual_information,
)

_CELLS_AT_ONCE = 4_000_000
_ORDERS = 100


def permuted_scores(table: np.ndarray, repeats: int, rng: np.random.Generator) -> np.ndarray:
    """AMI after shuffling groups over words: the permutation null.

    The table of a shuffle follows the multivariate hypergeometric distribution with the same margins. Such tables are
    drawn directly (Patefield's algorithm, scipy.stats.random_table).

    Args:
        table: (R, K) counts of tags and groups.
        repeats: B shuffles.
        rng: source of randomness.

    Returns:
        (B,) float64.
    """
    tables = permuted_tables(table, repeats, rng)
    return adjusted(mutual_information(tables), expected_information(table), table)


def permuted_tables(table: np.ndarray, repeats: int, rng: np.random.Generator) -> np.ndarray:
    """(B, R, K) random tables with the margins of `table`."""
    drawn = random_table(table.sum(1), table.sum(0)).rvs(repeats, random_state=rng)
    return np.asarray(drawn).astype(np.int64)


def within_type_scores(
    tags: np.ndarray,
    types: np.ndarray,
    groups: np.ndarray,
    num_tags: int,
    num_groups: int,
    repeats: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """AMI after shuffling tags among the occurrences of the same type only.

    Shuffles keep the association with spelling. Only a score above them shows that groups follow a word's part of
    speech in context. Equal to the real score where a group is a function of the type.

    Args:
        tags: (n,) codes.
        types: (n,) codes.
        groups: (L, n) codes.
        num_tags: R.
        num_groups: K.
        repeats: B shuffles, the same for all layers.
        rng: source of randomness.

    Returns:
        (L, B) float64.
    """
    free = _has_two_values(types, tags)
    order = np.flatnonzero(free)
    order = order[np.argsort(types[order], kind="stable")]
    fixed = contingency(tags[~free], groups[:, ~free], num_tags, num_groups)
    full = contingency(tags, groups, num_tags, num_groups)
    expected = np.asarray([expected_information(table) for table in full])
    scores = np.empty((len(groups), repeats))
    at_once = max(1, _CELLS_AT_ONCE // max(1, len(order)))
    for start in range(0, repeats, at_once):
        size = min(at_once, repeats - start)
        keys = types[order] + rng.random((size, len(order)))  # sorting them shuffles inside each type
        shuffled = tags[order][np.argsort(keys, axis=1)]
        for layer, row in enumerate(groups[:, order]):
            tables = fixed[layer] + contingency(shuffled, row, num_tags, num_groups)
            scores[layer, start : start + size] = adjusted(mutual_information(tables), expected[layer], tables)
    return scores


def identity_groups(groups: np.ndarray, types: np.ndarray, folds: np.ndarray, num_groups: int) -> np.ndarray:
    """The token-identity baseline: each word gets the majority group of its type in the other folds.

    A word of a type that no other fold has keeps its own group. It then contributes the same to both scores and nothing
    to their gap. Where groups are a function of the type, the gap is 0.

    Args:
        groups: (L, n) codes.
        types: (n,) codes.
        folds: (n,) codes of documents, or of the halves of one text.
        num_groups: K.

    Returns:
        (L, n) int64.
    """
    type_folds = np.unique(types * (int(folds.max()) + 1) + folds, return_inverse=True)[1].reshape(-1)
    found = groups.copy()
    for row, chosen in zip(groups, found):
        everywhere = contingency(types, row, int(types.max()) + 1, num_groups)
        here = contingency(type_folds, row, int(type_folds.max()) + 1, num_groups)
        votes = everywhere[types] - here[type_folds]
        seen = votes.max(1) > 0
        chosen[seen] = votes[seen].argmax(1)
    return found


def control_tags(tags: np.ndarray, types: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(n,) one random tag for each type, drawn from the tags' own distribution (control task).

    A grouping that only memorises types also agrees with random tags. Selectivity is the real score less this one
    (Hewitt and Liang 2019, aclanthology.org/D19-1275).
    """
    return rng.choice(tags, size=int(types.max()) + 1)[types]


def balance_ceiling(tags: np.ndarray, num_groups: int, rng: np.random.Generator) -> float:
    """AMI of words sorted by tag and cut into K equal groups: the ceiling under perfect balance.

    The cut depends on the order of the tags; the best of 100 random orders is taken.
    """
    counts = np.bincount(tags)
    counts = counts[counts > 0]
    total = int(counts.sum())
    edges = np.arange(num_groups + 1) * total // num_groups
    best = -1.0
    for _ in range(_ORDERS):
        ends = np.cumsum(counts[rng.permutation(len(counts))])
        starts = np.concatenate(([0], ends[:-1]))
        overlap = np.minimum(ends[:, None], edges[None, 1:]) - np.maximum(starts[:, None], edges[None, :-1])
        best = max(best, ami(np.maximum(overlap, 0)))
    return best


def position_groups(positions: np.ndarray, num_groups: int) -> np.ndarray:
    """(n,) int64: K equal groups by position in the document, early to late."""
    return _equal_groups(positions, num_groups)


def frequency_groups(types: np.ndarray, num_groups: int) -> np.ndarray:
    """(n,) int64: K groups, as equal as whole types allow, by how often a type occurs here, rare to frequent."""
    counts = np.bincount(types)
    by_type = np.argsort(counts, kind="stable")
    middle = np.cumsum(counts[by_type]) - counts[by_type] / 2
    group = np.empty(len(counts), dtype=np.int64)
    group[by_type] = np.minimum((middle * num_groups / counts.sum()).astype(np.int64), num_groups - 1)
    return group[types]


def _equal_groups(values: np.ndarray, num_groups: int) -> np.ndarray:
    group = np.empty(len(values), dtype=np.int64)
    group[np.argsort(values, kind="stable")] = np.arange(len(values)) * num_groups // len(values)
    return group


def _has_two_values(types: np.ndarray, values: np.ndarray) -> np.ndarray:
    """(n,) bool: the word's type occurs with more than one value."""
    pairs = np.unique(np.stack((types, values), axis=1), axis=0)
    return np.bincount(pairs[:, 0], minlength=int(types.max()) + 1)[types] > 1
