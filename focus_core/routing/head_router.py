"""Routers per key/value head, where what a token reads is chosen apart from where it is found (docs/method.md).

The published router decides once per layer, for keys and queries of all heads alike. Heads differ in what they look
for, and a token rarely looks for its own kind. Here every key/value head has its own groups: as a key a token is in
one of them, balanced as ever, and as a query it chooses any k. Groups do not overlap, so k of K groups are k / K of
the distant pairs, whatever queries choose, as long as groups are even.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from focus_core.routing.config import FocusConfig
from focus_core.routing.sinkhorn import potential_softmax, sinkhorn


class HeadRouter(nn.Module):
    """Scores tokens as keys and as queries against the centroids of every key/value head.

    Trainable: `projection` and `query_projection` (H, d, d_g) and `centroids` (H, K, d_g), so a model with L layers
    and H key/value heads trains L H (2 d d_g + K d_g) numbers. Results have the heads in the batch, those of one text
    one after another: N = B * H.

    Args:
        hidden_size: d, width of the hidden states that enter the attention block.
        num_heads: H, key/value heads.
        config: settings.
        generator: source of the initial values (CPU).
    """

    potential: Tensor

    def __init__(self, hidden_size: int, num_heads: int, config: FocusConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.cosine = config.score == "cosine"
        projection = torch.randn(num_heads, hidden_size, config.route_dim, generator=generator) * hidden_size**-0.5
        centroids = torch.randn(num_heads, config.num_groups, config.route_dim, generator=generator)
        if config.score == "dot":
            centroids = centroids * config.route_dim**-0.5
        # A token first looks for its own kind; training finds what it needs instead.
        self.projection = nn.Parameter(projection)
        self.query_projection = nn.Parameter(projection.clone())
        self.centroids = nn.Parameter(centroids)
        self.register_buffer("potential", torch.zeros(num_heads, config.num_groups))

    def forward(self, hidden_states: Float[Tensor, "B T d"]) -> Float[Tensor, "N T K"]:
        """Scores of tokens as keys, float32; with cosine scores between -1 and 1, see `Router`."""
        return self._scores(hidden_states, self.projection)

    def assign(
        self, scores: Float[Tensor, "N T K"], config: FocusConfig, valid: Bool[Tensor, "N T"] | None = None
    ) -> Float[Tensor, "N T K"]:
        """Soft assignment of keys to groups, balanced in each head as `config.balance` says; rows sum to 1."""
        if config.balance == "sequence":
            return sinkhorn(scores, temperature=config.temperature, rounds=config.sinkhorn_rounds, valid=valid)
        potential = self.potential if config.balance == "calibrated" else torch.zeros_like(self.potential)
        return potential_softmax(scores, potential.repeat(len(scores) // self.num_heads, 1), config.temperature)

    def read(self, hidden_states: Float[Tensor, "B T d"], config: FocusConfig) -> Float[Tensor, "N T K"]:
        """How much each token wants to read each group: a softmax of its scores as a query, without balance."""
        return torch.softmax(self._scores(hidden_states, self.query_projection) / config.temperature, dim=-1)

    def _scores(self, hidden_states: Tensor, projection: Tensor) -> Tensor:
        with torch.autocast(hidden_states.device.type, enabled=False):
            hidden_states = hidden_states.float()
            if self.cosine:
                hidden_states = F.layer_norm(hidden_states, hidden_states.shape[-1:])
            # One product for all heads: (B, T, d) (d, H d_g).
            flat = projection.float().transpose(0, 1).flatten(1)
            routes = (hidden_states @ flat).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            centroids = self.centroids.float()
            if self.cosine:
                routes, centroids = F.normalize(routes, dim=-1), F.normalize(centroids, dim=-1)
            return (routes @ centroids.mT).flatten(0, 1)


def heads_in_groups(tensor: Tensor, num_heads: int) -> Tensor:
    """(B * H, T, K) to (B, T, H * K), one row per token, as the cache keeps it."""
    return tensor.unflatten(0, (-1, num_heads)).transpose(1, 2).flatten(2)


def heads_in_batch(tensor: Tensor, num_heads: int) -> Tensor:
    """(B, T, H * K) to (B * H, T, K): the inverse of `heads_in_groups`."""
    return tensor.unflatten(2, (num_heads, -1)).transpose(1, 2).flatten(0, 1)
