"""Many narrow groups per key/value head, of keys before position encoding; queries choose by running means.

Nothing of a query is stored: it ranks groups by the mean keys of the text so far (docs/method.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from focus_core.errors import FocusError
from focus_core.routing.routers.base import Router

if TYPE_CHECKING:
    from jaxtyping import Float


class NarrowRouter(Router):
    """Scores keys against the centroids (H, K, D) of every key/value head; `fit_narrow` sets them.

    A model with L layers has L H K (D + 1) values.
    """

    reads_own_groups: ClassVar[bool] = False
    per_head: ClassVar[bool] = True
    from_keys: ClassVar[bool] = True
    trained_by_gate: ClassVar[bool] = False
    stored_dtype: ClassVar[torch.dtype] = torch.float16
    label: ClassVar[str] = "per head, narrow groups with summaries"

    def forward(self, hidden_states: Float[Tensor, "B H T D"]) -> Float[Tensor, "N T K"]:
        """Scores of keys before position encoding, float32: cosines, or "dot" for the nearest centroid.

        Args:
            hidden_states: the keys, not the states that they are made of.
        """
        key, centroids = hidden_states.float(), self.centroids.float()
        if self.cosine:
            return (F.normalize(key, dim=-1) @ F.normalize(centroids, dim=-1).mT).flatten(0, 1)
        return (key @ centroids.mT - centroids.square().sum(-1)[:, None] / 2).flatten(0, 1)

    def read(
        self, hidden_states: Float[Tensor, "B T d"], key_weights: Float[Tensor, "N T K"], temperature: float
    ) -> Float[Tensor, "N T K"]:
        """Refused: no weights of queries exist."""
        raise FocusError(
            "Queries of narrow groups choose by the text before them, not by weights of their own: "
            "use routers of another kind for what shows those weights."
        )
