"""The published router: one set of groups for all heads of a layer, and a token reads the groups it is in."""

from __future__ import annotations

from typing import ClassVar

from focus_core.routing.routers.base import Router


class LayerRouter(Router):
    """One projection (d, d_g) and one set of centroids (K, d_g), as in arXiv 2604.03260.

    A model with L layers trains L (d d_g + K d_g) parameters.
    """

    label: ClassVar[str] = "per layer (as published)"
