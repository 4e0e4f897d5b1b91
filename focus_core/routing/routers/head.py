"""Routers per key/value head, where queries choose the groups that they read (docs/method.md; not in the paper).

The published router decides once per layer, for keys and queries of all heads alike. But heads attend to different
tokens, and a token rarely attends to its own kind. Here every key/value head has its own groups. As a key a token is in
one of them, with the usual balance; as a query it chooses any k. Groups do not overlap, so even groups keep k / K of
the distant pairs, whatever queries choose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from focus_core.routing.routers.base import Router

if TYPE_CHECKING:
    from jaxtyping import Float


class HeadRouter(Router):
    """Scores tokens as keys and as queries against the centroids of every key/value head.

    Trainable: `projection` and `query_projection` (H, d, d_g) and `centroids` (H, K, d_g). A model with L layers and H
    key/value heads trains L H (2 d d_g + K d_g) parameters.
    """

    reads_own_groups: ClassVar[bool] = False
    per_head: ClassVar[bool] = True
    label: ClassVar[str] = "per head"

    def __init__(self, hidden_size: int, num_kv_heads: int, **settings: Any) -> None:
        super().__init__(hidden_size, num_kv_heads, **settings)
        # Queries start in the groups of their own token; training moves them.
        self.query_projection = nn.Parameter(self.projection.detach().clone())

    def read(
        self, hidden_states: Float[Tensor, "B T d"], key_weights: Float[Tensor, "N T K"], temperature: float
    ) -> Float[Tensor, "N T K"]:
        """A softmax of each token's scores as a query, without balance."""
        return torch.softmax(self.scores(hidden_states, self.query_projection) / temperature, dim=-1)
