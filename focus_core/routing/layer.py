"""`LayerRouting`: scores, weights and groups of the tokens of a call in one layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from focus_core.attention import PairCounts, kept_pairs
from focus_core.errors import FocusError
from focus_core.routing.balance import assign, groups_of
from focus_core.routing.config import FocusConfig
from focus_core.routing.narrow.attention import narrow_pairs, narrow_reads
from focus_core.routing.narrow.directions import Directions
from focus_core.routing.narrow.grouping import groups_of_keys
from focus_core.routing.narrow.reading import Reading
from focus_core.routing.narrow.rotary import before_rotation
from focus_core.routing.routers import Router

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


class KeyQuery(NamedTuple):
    """Groups of tokens as keys and as queries, (N, T, K) each; one tensor where tokens read the groups they are in."""

    keys: Tensor
    queries: Tensor


@dataclass(frozen=True, eq=False)
class HeadVectors:
    """Queries and keys of a layer, for routers that group keys.

    Attributes:
        query: (B, Hq, T, D), position-encoded.
        key: (B, H, T, D), position-encoded.
        scale: factor of the dot products.
        softcap: the model's cap of its logits, or None.
        position_embeddings: with which the layer rotated the keys, None without.
    """

    query: Tensor
    key: Tensor
    scale: float
    softcap: float | None
    position_embeddings: tuple[Tensor, Tensor] | None = None

    @cached_property
    def plain_key(self) -> Tensor:
        """(B, H, T, D), keys before position encoding."""
        return before_rotation(self.key, self.position_embeddings)


@dataclass(frozen=True, eq=False)
class LayerRouting:
    """The routing of one layer for the new tokens of a call; observers, rules and analyses take this one object.

    Scores and weights are computed on first access and then kept. An observer may set the router's potentials before it
    reads weights, as calibration does; the layer then uses them. N = B * H: the heads of the router are in the batch,
    those of one text one after another.

    Attributes:
        layer: index of the decoder layer.
        router: its router, with H heads.
        config: settings in force.
        top_k: k of this layer, the groups that a token reads.
        hidden_states: (B, T, d) that enter the attention block.
        valid: (N, T) bool, False for padding; None if every token is real.
        sliding_window: the model's own window in this layer, in tokens; None without.
        vectors: queries and keys of the call, where the router groups keys; else None.
    """

    layer: int
    router: Router
    config: FocusConfig
    top_k: int
    hidden_states: Float[Tensor, "B T d"]
    valid: Bool[Tensor, "N T"] | None = None
    sliding_window: int | None = None
    vectors: HeadVectors | None = None

    @cached_property
    def scores(self) -> Float[Tensor, "N T K"]:
        """Scores of tokens as keys before balance, float32."""
        return self.router(self._head_vectors().plain_key if self.router.from_keys else self.hidden_states)

    @cached_property
    def key_weights(self) -> Float[Tensor, "N T K"]:
        """Soft assignment of tokens as keys, balanced as the settings say; rows sum to 1."""
        return assign(self.router, self.scores, self.config, self.valid)

    @cached_property
    def key_groups(self) -> Int[Tensor, "N T"]:
        """The group of each token as a key, where it is in one."""
        if "key_weights" in vars(self):
            return self.key_weights.argmax(-1)
        if self.router.from_keys:
            vectors = self._head_vectors()
            return groups_of_keys(self.router, vectors.key, vectors.position_embeddings, self.config).flatten(0, 1)
        return groups_of(self.router, self.scores, self.config, self.valid)

    @cached_property
    def query_weights(self) -> Float[Tensor, "N T K"]:
        """Weight of each group for tokens as queries; `key_weights` itself where they read the groups they are in."""
        return self.router.read(self.hidden_states, self.key_weights, self.config.temperature)

    @property
    def weights(self) -> KeyQuery:
        """Both soft weights."""
        return KeyQuery(self.key_weights, self.query_weights)

    def membership(self, top_k: int | None = None) -> KeyQuery:
        """Hard routing, (N, T, K) bool: the groups that tokens are in, and those that they read.

        Args:
            top_k: k; that of the layer when None. 0 leaves local pairs and sinks.
        """
        top_k = self.top_k if top_k is None else top_k
        keys = self.key_membership(top_k)
        if self.router.reads_own_groups:
            return KeyQuery(keys, keys)
        return KeyQuery(keys, top_k_membership(self.query_weights, top_k))

    def key_membership(self, top_k: int | None = None) -> Bool[Tensor, "N T K"]:
        """The groups that tokens are in where they read `top_k`; that of the layer when None."""
        return top_k_membership(self.key_weights, self.router.key_top_k(self.top_k if top_k is None else top_k))

    def reading(self, config: FocusConfig | None = None, top_k: int | None = None) -> Reading:
        """How queries read narrow groups.

        Args:
            config: window, sinks, borders and budget; those in force when None.
            top_k: groups to read in place of the budget in force; None for that.
        """
        config = self.config if config is None else config
        if top_k is not None:
            return reading_of(config, top_k, spread=self._spread(config), directions=self._directions(config))
        budget = config.read_share, self._thresholds(config)
        spread, directions = self._spread(config), self._directions(config)
        return reading_of(config, self.top_k, *budget, spread=spread, directions=directions)

    def _thresholds(self, config: FocusConfig) -> tuple[float, ...] | None:
        if config.read_share is None or not config.by_error:
            return None
        return self.router.head_thresholds(config.read_share)

    def _spread(self, config: FocusConfig) -> tuple[float, ...] | None:
        return self.router.spread_weights() if config.count_spread else None

    @property
    def directions(self) -> Directions | None:
        """In which the spread of keys is told apart, by the settings in force; None for none."""
        return self._directions(self.config)

    def _directions(self, config: FocusConfig) -> Directions | None:
        return self.router.directions_of_spread(config.spread_directions) if config.spread_directions else None

    def pair_counts(self, config: FocusConfig | None = None, top_k: int | None = None) -> PairCounts:
        """Pairs that hard routing keeps inside the model's own window, one count for each of the N rows.

        With narrow groups there is one for each query head, (B * Hq,).

        Args:
            config: window and sinks; those in force when None.
            top_k: as in `membership`.
        """
        config = self.config if config is None else config
        if self.router.from_keys:
            return self._narrow_pairs(self.reading(config, top_k))
        keys, queries = self.membership(top_k)
        return kept_pairs(
            keys,
            query_membership=queries,
            window=config.window,
            sink_tokens=config.sink_tokens,
            sliding_window=self.sliding_window,
        )

    def narrow_reads(self, row: int) -> tuple[Tensor, Tensor]:
        """What queries of narrow groups read: (T,) the part of each key, (G, T, P) bool the parts each query reads.

        Args:
            row: one of the N; its G query heads share the keys.
        """
        vectors, heads = self._head_vectors(), self.router.num_heads
        text, head = divmod(row, heads)
        groups = self.key_groups[row][None, None]
        query = vectors.query[text].unflatten(0, (heads, -1))[head][None]
        reading = self.reading().of_row(row, query.shape[1])
        key = vectors.key[text, head][None, None]
        settings = {"scale": vectors.scale, "softcap": vectors.softcap}
        parts, reads = narrow_reads(query, key, groups, self.key_weights.shape[-1], reading, **settings)
        return parts[0, 0], reads[0]

    def _narrow_pairs(self, reading: Reading) -> PairCounts:
        vectors = self._head_vectors()
        if self.sliding_window is not None:
            everything = torch.ones(1, vectors.key.shape[2], 1, dtype=torch.bool, device=vectors.key.device)
            counts = kept_pairs(everything, window=reading.window, sliding_window=self.sliding_window)
            return PairCounts(*(count.expand(vectors.query.shape[:2].numel()) for count in counts))
        groups = self.key_groups.unflatten(0, (-1, self.router.num_heads))
        num_groups = self.key_weights.shape[-1]
        settings = {"scale": vectors.scale, "softcap": vectors.softcap}
        counts = narrow_pairs(vectors.query, vectors.key, groups, num_groups, reading, **settings)
        return PairCounts(*(count.flatten() for count in counts))

    def _head_vectors(self) -> HeadVectors:
        if self.vectors is None:
            raise FocusError(
                "Groups of keys are known inside the attention call alone: read them from an observer or a rule."
            )
        return self.vectors

    def group_sizes(self) -> Int[Tensor, "H K"]:
        """Number of tokens with each group as their first, for every head of the router."""
        first = F.one_hot(self.key_groups, self.key_weights.shape[-1])
        return first.unflatten(0, (-1, self.router.num_heads)).sum((0, 2))


@lru_cache(maxsize=256)
def reading_of(
    config: FocusConfig,
    top_k: int,
    share: float | None = None,
    thresholds: tuple[float, ...] | None = None,
    spread: tuple[float, ...] | None = None,
    directions: Directions | None = None,
) -> Reading:
    """The settings of a reading with this budget; one object for all calls, since every decoded token asks for it."""
    return Reading(
        window=config.window,
        sink_tokens=config.sink_tokens,
        chunk=config.chunk,
        top_k=top_k,
        share=share,
        thresholds=thresholds,
        shares_at=() if thresholds is None else config.shares_at,
        spread=spread,
        directions=directions,
        count_weight=config.count_weight,
        page_size=config.page_size,
        full_below=config.full_below,
    )


def top_k_membership(weights: Float[Tensor, "N T K"], top_k: int) -> Bool[Tensor, "N T K"]:
    """True for the `top_k` largest weights of each token; `top_k` 0 marks none."""
    chosen = weights.topk(top_k, dim=-1).indices
    return torch.zeros_like(weights, dtype=torch.bool).scatter_(-1, chosen, True)


def heads_in_groups(tensor: Tensor, num_heads: int) -> Tensor:
    """(B * H, T, K) to (B, T, H * K), one row per token, as the cache keeps it."""
    return tensor.unflatten(0, (-1, num_heads)).transpose(1, 2).flatten(2)


def heads_in_batch(tensor: Tensor, num_heads: int) -> Tensor:
    """(B, T, H * K) to (B * H, T, K): the inverse of `heads_in_groups`."""
    return tensor.unflatten(2, (num_heads, -1)).transpose(1, 2).flatten(0, 1)
