"""The router of one attention layer: scores, balanced assignment, top-k membership (arXiv 2604.03260, eq. 1)."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from focus_core.routing.config import FocusConfig
from focus_core.routing.sinkhorn import potential_softmax, sinkhorn


class Router(nn.Module):
    """Projects hidden states into the routing space and scores them against the group centroids.

    Trainable: `projection` (d, d_g) and `centroids` (K, d_g), shared by all heads of the layer, so a model with L
    layers trains L (d d_g + K d_g) numbers. The column potentials of calibrated routing are a buffer, estimated
    after training and never trained.

    Args:
        hidden_size: d, width of the hidden states that enter the attention block.
        config: settings.
        generator: source of the initial values (CPU).
    """

    num_heads = 1
    potential: Tensor

    def __init__(self, hidden_size: int, config: FocusConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.cosine = config.score == "cosine"
        projection = torch.randn(hidden_size, config.route_dim, generator=generator) * hidden_size**-0.5
        centroids = torch.randn(config.num_groups, config.route_dim, generator=generator)
        if config.score == "dot":
            centroids = centroids * config.route_dim**-0.5
        self.projection = nn.Parameter(projection)
        self.centroids = nn.Parameter(centroids)
        self.register_buffer("potential", torch.zeros(config.num_groups))

    def forward(self, hidden_states: Float[Tensor, "B T d"]) -> Float[Tensor, "B T K"]:
        """Scores S = (h W_g) C^T in float32, whatever the dtype of the model.

        With cosine scores h is normalised over its width and both factors to unit length, so S lies in [-1, 1] and a
        router cannot outgrow Sinkhorn by scaling its logits (docs/method.md).
        """
        with torch.autocast(hidden_states.device.type, enabled=False):
            hidden_states = hidden_states.float()
            if self.cosine:
                hidden_states = F.layer_norm(hidden_states, hidden_states.shape[-1:])
            routes = hidden_states @ self.projection.float()
            centroids = self.centroids.float()
            if self.cosine:
                routes, centroids = F.normalize(routes, dim=-1), F.normalize(centroids, dim=-1)
            return routes @ centroids.T

    def assign(
        self, scores: Float[Tensor, "B T K"], config: FocusConfig, valid: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B T K"]:
        """Soft assignment g of each token to groups, balanced as `config.balance` says; rows sum to 1."""
        if config.balance == "sequence":
            rounds = config.sinkhorn_rounds
            return sinkhorn(scores, temperature=config.temperature, rounds=rounds, valid=valid)
        potential = self.potential if config.balance == "calibrated" else torch.zeros_like(self.potential)
        return potential_softmax(scores, potential, config.temperature)

    def read(self, hidden_states: Tensor, config: FocusConfig) -> None:
        """None: tokens read the groups they are in. `focus_core.routing.head_router.HeadRouter` chooses."""
        return None


def top_k_membership(assignment: Float[Tensor, "B T K"], top_k: int) -> Bool[Tensor, "B T K"]:
    """Membership of hard routing: True for the `top_k` largest assignments of each token; 0 for none."""
    chosen = assignment.topk(top_k, dim=-1).indices
    return torch.zeros_like(assignment, dtype=torch.bool).scatter_(-1, chosen, True)


def memberships(
    assignment: Float[Tensor, "N T K"], reading: Float[Tensor, "N T K"] | None, top_k: int
) -> tuple[Bool[Tensor, "N T K"], Bool[Tensor, "N T K"]]:
    """Groups of tokens as keys and as queries in hard routing: the same k, or one to be found in and k to read."""
    if reading is None:
        member = top_k_membership(assignment, top_k)
        return member, member
    return top_k_membership(assignment, 1), top_k_membership(reading, top_k)


def group_sizes(assignment: Float[Tensor, "N T K"], num_heads: int = 1) -> Int[Tensor, "H K"]:
    """Tokens whose first group is each, for every head of its own router; N = B * H."""
    first = F.one_hot(assignment.argmax(-1), assignment.shape[-1])
    return first.unflatten(0, (-1, num_heads)).sum((0, 2))


def affinity(
    query_assignment: Float[Tensor, "B Tq K"], key_assignment: Float[Tensor, "B T K"]
) -> Float[Tensor, "B Tq T"]:
    """Pair affinity a_ij = g_i . g_j, between 0 and 1."""
    return query_assignment @ key_assignment.transpose(-1, -2)
