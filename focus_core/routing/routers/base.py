"""The base of all routers: scores against centroids (arXiv 2604.03260, eq. 1), potentials of calibrated balance."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from focus_core.errors import FocusError

if TYPE_CHECKING:
    from jaxtyping import Float

    from focus_core.routing.narrow.directions import Directions

SCORES = ("cosine", "dot")


class Router(nn.Module):
    """Scores the tokens that enter one attention layer against group centroids, in H heads of its own.

    A kind of router defines its parameters and, where queries choose their groups, `read`. Results have the heads in
    the batch, those of one text one after another: N = B * H.

    Attributes:
        num_heads: H; 1 where all heads of the layer share the groups.
        cosine: scores are cosines, else dot products.
        projection: (d, d_g) or (H, d, d_g), of tokens as keys; none where `from_keys`.
        centroids: (K, d_g) or (H, K, d_g); (H, K, D) where `from_keys`.
        potential: (K,) or (H, K), the column log-potentials of calibrated balance; a buffer, never trained.
        reads_own_groups: class attribute, whether a token reads the groups it is in. Else a token is in one group as a
            key, and chooses k groups as a query.
        per_head: class attribute, whether each key/value head has groups of its own.
        from_keys: class attribute, whether it sees the layer's keys before position encoding in place of the hidden
            states, and queries choose by the summaries of groups.
        trained_by_gate: class attribute, whether it can be trained through the soft gate.
        stored_dtype: class attribute, dtype of the values on disk.
        label: class attribute, the kind's name where people choose.
    """

    reads_own_groups: ClassVar[bool] = True
    per_head: ClassVar[bool] = False
    from_keys: ClassVar[bool] = False
    trained_by_gate: ClassVar[bool] = True
    stored_dtype: ClassVar[torch.dtype] = torch.float32
    label: ClassVar[str]
    num_heads: int
    cosine: bool
    projection: nn.Parameter
    centroids: nn.Parameter
    potential: Tensor

    def __init__(
        self,
        hidden_size: int,
        num_kv_heads: int,
        *,
        num_groups: int,
        route_dim: int,
        score: str,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.cosine = score == "cosine"
        self.num_heads = num_kv_heads if self.per_head else 1
        heads = (num_kv_heads,) if self.per_head else ()
        if self.from_keys:
            route_dim = hidden_size
        else:
            projection = torch.randn(*heads, hidden_size, route_dim, generator=generator) * hidden_size**-0.5
            self.projection = nn.Parameter(projection)
        centroids = torch.randn(*heads, num_groups, route_dim, generator=generator)
        if not self.cosine:
            centroids = centroids * route_dim**-0.5
        self.centroids = nn.Parameter(centroids)
        self.register_buffer("potential", torch.zeros(*heads, num_groups))

    def forward(self, hidden_states: Float[Tensor, "B T d"]) -> Float[Tensor, "N T K"]:
        """Scores S = (h W_g) C^T of tokens as keys, in float32 whatever the dtype of the model.

        With cosine scores h is normalised over its width and both factors to unit length, so S lies in [-1, 1]. A
        router then cannot defeat Sinkhorn by larger logits (docs/method.md).
        """
        return self.scores(hidden_states, self.projection)

    def scores(self, hidden_states: Float[Tensor, "B T d"], projection: Tensor) -> Float[Tensor, "N T K"]:
        """Scores of tokens projected by (d, d_g) or (H, d, d_g) against the centroids, float32."""
        with torch.autocast(hidden_states.device.type, enabled=False):
            hidden_states = hidden_states.float()
            if self.cosine:
                hidden_states = F.layer_norm(hidden_states, hidden_states.shape[-1:])
            # One product for all heads: (B, T, d) (d, H d_g).
            heads = projection.float().reshape(self.num_heads, *projection.shape[-2:])
            routes = hidden_states @ heads.transpose(0, 1).flatten(1)
            routes = routes.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            centroids = self.centroids.float().reshape(self.num_heads, *self.centroids.shape[-2:])
            if self.cosine:
                routes, centroids = F.normalize(routes, dim=-1), F.normalize(centroids, dim=-1)
            return (routes @ centroids.mT).flatten(0, 1)

    def read(
        self, hidden_states: Float[Tensor, "B T d"], key_weights: Float[Tensor, "N T K"], temperature: float
    ) -> Float[Tensor, "N T K"]:
        """Weight of each group for each token as a query; `key_weights` where tokens read the groups they are in."""
        return key_weights

    def head_thresholds(self, mean: float) -> tuple[float, ...]:
        """The log of the error above which each query head reads a page, where the mean share of pairs is `mean`.

        With A numbers of keys in `FocusConfig.shares_at`, those for the first of them, then those for the next.

        Raises:
            FocusError: no such thresholds were measured.
        """
        raise FocusError("These routers have no thresholds: set by_error=False, or fit them with focus fit.")

    def spread_weights(self) -> tuple[float, ...]:
        """The weight of the spread of keys in the summaries that each query head sees.

        Raises:
            FocusError: no such weights were fitted.
        """
        raise FocusError("These routers have no weights of spread: set count_spread=False, or fit them with focus fit.")

    def directions_of_spread(self, count: int) -> Directions:
        """Directions in which the spread of keys is told apart.

        Args:
            count: r.

        Raises:
            FocusError: no such directions were fitted.
        """
        raise FocusError(
            f"These routers have no {count} directions of spread: set spread_directions=0, or fit them with focus fit."
        )

    def keep_heads(self, first: int, count: int) -> None:
        """Keep `count` of the H heads from `first` on, where routers are per head: the others are another process's."""
        for values in (*self.parameters(), self.potential):
            values.data = values.data[first : first + count].clone()
        self.num_heads = count

    @classmethod
    def key_top_k(cls, top_k: int) -> int:
        """Groups that a token is in, where tokens read k."""
        return top_k if cls.reads_own_groups else 1

    @classmethod
    def random_kept(cls, num_groups: int, top_k: int) -> float:
        """Probability that random, even groups keep a distant pair: 1 - C(K - m, k) / C(K, k).

        A key is in m of K groups (`key_top_k`) and a query reads k: 1 - C(K - k, k) / C(K, k) as published, k / K where
        a key is in one group.
        """
        return 1 - math.comb(num_groups - cls.key_top_k(top_k), top_k) / math.comb(num_groups, top_k)
