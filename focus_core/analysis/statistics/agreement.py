"""How well groups and tags agree, from their contingency table alone.

Every function reads a table of R tags by C groups. Permutations keep both margins, and the expected mutual information
depends on nothing else. A thousand permuted or resampled tables therefore cost about as much as one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.special import xlogy
from sklearn.metrics.cluster import expected_mutual_information


@dataclass(frozen=True)
class Agreement:
    """Agreement of a grouping with tags. All but `ami` and `ari` grow with the number of groups.

    Attributes:
        ami: adjusted mutual information (arithmetic mean of the entropies): 0 by chance, 1 the same partition.
        ari: adjusted Rand index.
        homogeneity: 1 if every group holds one tag.
        completeness: 1 if every tag lies in one group.
        v_measure: their harmonic mean.
        many_to_one: accuracy if every group is read as its most frequent tag.
        one_to_one: accuracy under the best pairing of groups with tags (Hungarian method).
    """

    ami: float
    ari: float
    homogeneity: float
    completeness: float
    v_measure: float
    many_to_one: float
    one_to_one: float


def contingency(rows: np.ndarray, columns: np.ndarray, num_rows: int, num_columns: int) -> np.ndarray:
    """(..., R, C) int64 counts of each pair of codes.

    Args:
        rows: (..., n) int codes below `num_rows`; leading axes broadcast with those of `columns`.
        columns: (..., n) int codes below `num_columns`.
        num_rows: R.
        num_columns: C.
    """
    rows, columns = np.broadcast_arrays(rows, columns)
    leading, size = rows.shape[:-1], num_rows * num_columns
    count = int(np.prod(leading, dtype=np.int64))
    codes = (rows * num_columns + columns).reshape(count, -1) + np.arange(count)[:, None] * size
    return np.bincount(codes.ravel(), minlength=count * size).reshape(*leading, num_rows, num_columns)


def grouped_contingency(
    rows: np.ndarray, columns: np.ndarray, blocks: np.ndarray, num_rows: int, num_columns: int, num_blocks: int
) -> np.ndarray:
    """(D, R, C) int64: one table for each of D blocks (documents, sentences); blocks is (n,)."""
    codes = (blocks * num_rows + rows) * num_columns + columns
    size = num_blocks * num_rows * num_columns
    return np.bincount(codes, minlength=size).reshape(num_blocks, num_rows, num_columns)


def entropy(counts: np.ndarray) -> np.ndarray:
    """(...) entropy in nats of the distributions (..., R) given as counts; 0 for an empty one."""
    total = counts.sum(-1)
    safe = np.maximum(total, 1)
    return np.log(safe) - xlogy(counts, counts).sum(-1) / safe


def mutual_information(tables: np.ndarray) -> np.ndarray:
    """(...) mutual information in nats of tables (..., R, C) of counts, not adjusted for chance."""
    joint = entropy(tables.reshape(*tables.shape[:-2], -1))
    return np.maximum(entropy(tables.sum(-1)) + entropy(tables.sum(-2)) - joint, 0.0)


def expected_information(table: np.ndarray) -> float:
    """Mutual information in nats to expect by chance, given the margins of one (R, C) table (scikit-learn's)."""
    used = _used(table)
    return float(expected_mutual_information(used, int(used.sum()))) if used.size else 0.0


def adjusted(information: np.ndarray, expected: np.ndarray | float, tables: np.ndarray) -> np.ndarray:
    """(...) AMI from mutual information, its expectation, and the margins of tables (..., R, C).

    1 where the margins leave no room for disagreement (one class, or single units only), as in scikit-learn.
    """
    ceiling = (entropy(tables.sum(-1)) + entropy(tables.sum(-2))) / 2
    room = ceiling - expected
    no_room = np.abs(room) < 1e-12
    return np.where(no_room, 1.0, (information - expected) / np.where(no_room, 1.0, room))


def ami(table: np.ndarray) -> float:
    """Adjusted mutual information of one (R, C) table; equals scikit-learn's on the labels behind it."""
    return float(adjusted(mutual_information(table), expected_information(table), table))


def agreement(table: np.ndarray) -> Agreement:
    """Every measure of one (R, C) table of counts, rows tags and columns groups."""
    total = max(1, int(table.sum()))
    information = float(mutual_information(table))
    tags, groups = float(entropy(table.sum(1))), float(entropy(table.sum(0)))
    homogeneity = information / tags if tags > 0 else 1.0
    completeness = information / groups if groups > 0 else 1.0
    both = homogeneity + completeness
    matched = table[linear_sum_assignment(table, maximize=True)].sum()
    return Agreement(
        ami=ami(table),
        ari=_adjusted_rand(table),
        homogeneity=homogeneity,
        completeness=completeness,
        v_measure=2 * homogeneity * completeness / both if both > 0 else 0.0,
        many_to_one=float(table.max(0).sum() / total),
        one_to_one=float(matched / total),
    )


def sharing_lift(tables: np.ndarray, overlap: np.ndarray) -> np.ndarray:
    """(...) lift of same-tag pairs sharing a group: their rate of sharing over that of all pairs.

    For k > 1 a word lies in several groups, which a table of single groups cannot describe; pairs can. 1 is chance.

    Args:
        tables: (..., R, S) counts of each tag with each of S membership sets.
        overlap: (S, S) bool, whether two sets have a group in common.
    """
    linked = tables @ overlap.astype(float)
    totals = tables.sum(-2)
    own = tables.sum((-2, -1))  # a word is no pair with itself
    same_sharing = (tables * linked).sum((-2, -1)) - own
    same = (tables.sum(-1) ** 2.0).sum(-1) - own
    all_sharing = (totals * (totals @ overlap.astype(float))).sum(-1) - own
    every = own * (own - 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return (same_sharing / same) / (all_sharing / every)


def membership_sets(membership: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Membership of n units in K groups as codes of the S distinct sets, and which sets overlap.

    Args:
        membership: (n, K) bool.

    Returns:
        (n,) int64 codes and (S, S) bool.
    """
    sets, codes = np.unique(membership, axis=0, return_inverse=True)
    counts = sets.astype(np.int64)
    return codes.reshape(-1).astype(np.int64), (counts @ counts.T) > 0


def _used(table: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(table[table.sum(1) > 0][:, table.sum(0) > 0], dtype=np.int64)


def _adjusted_rand(table: np.ndarray) -> float:
    """Hubert and Arabie's index, from pairs; 1 where both sides agree trivially."""

    def pairs(counts: np.ndarray) -> float:
        counts = counts.astype(float)
        return float((counts * (counts - 1)).sum() / 2)

    total = pairs(np.asarray([table.sum()]))
    tags, groups, both = pairs(table.sum(1)), pairs(table.sum(0)), pairs(table)
    if total == 0:
        return 1.0
    expected, ceiling = tags * groups / total, (tags + groups) / 2
    return 1.0 if ceiling == expected else (both - expected) / (ceiling - expected)
