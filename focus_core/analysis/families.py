"""Families of alike groups: what colours stand for where there are more groups than colours."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SINGLE_COLORS = 16
"""Up to so many groups each have a colour of their own."""
FAMILIES = 12
"""Families of a layer with more groups, at most."""


def group_families(centroids: Sequence[np.ndarray]) -> np.ndarray | None:
    """(L, K) int64 family of each group of L layers, by Ward's hierarchical clustering of its centroids.

    Families are numbered by the number of their groups, the largest first, ties by their lowest group. They follow from
    the routers alone, so that they are the same for every text.

    Args:
        centroids: (K, D) float of each layer.

    Returns:
        None for `SINGLE_COLORS` groups or fewer.
    """
    if not len(centroids) or len(centroids[0]) <= SINGLE_COLORS:
        return None
    from scipy.cluster.hierarchy import fcluster, linkage  # a third of a second, for routers of many groups alone

    return np.stack([_numbered(fcluster(linkage(each, "ward"), FAMILIES, "maxclust")) for each in centroids])


def _numbered(labels: np.ndarray) -> np.ndarray:
    _, first, codes, sizes = np.unique(labels, return_index=True, return_inverse=True, return_counts=True)
    place = np.empty(len(sizes), dtype=np.int64)
    place[np.lexsort((first, -sizes))] = np.arange(len(sizes))
    return place[codes]
