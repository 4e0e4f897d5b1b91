"""The published router: one set of groups for all heads of a layer, and a token reads the groups it is in."""

from __future__ import annotations

import math
from typing import ClassVar

from focus_core.routing.routers.base import Router


class LayerRouter(Router):
    """One projection (d, d_g) and one set of centroids (K, d_g), as in arXiv 2604.03260.

    A model with L layers trains L (d d_g + K d_g) parameters.
    """

    label: ClassVar[str] = "per layer (as published)"

    @classmethod
    def random_kept(cls, num_groups: int, top_k: int) -> float:
        """Probability that two random sets of k of K groups meet: 1 - C(K - k, k) / C(K, k)."""
        return 1 - math.comb(num_groups - top_k, top_k) / math.comb(num_groups, top_k)
