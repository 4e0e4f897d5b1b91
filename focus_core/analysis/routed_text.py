"""The routing of one text as plain arrays, which tables, displays and statistics read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from focus_core.analysis.reading import PartsRead
from focus_core.routing.config import FocusConfig
from focus_core.routing.layer import top_k_membership
from focus_core.routing.routers import ROUTERS


@dataclass(frozen=True)
class Provenance:
    """The model and routers behind a trace; shown beside every number.

    Attributes:
        model: name, folder or hub id of the base model.
        model_revision: hash that identifies its weights, short.
        routers: "untrained" or the name of the saved routers.
        routers_hash: hash of the router weights, short.
        trained: False for routers that were only initialised.
        base_matches: False for routers that were trained on other weights of the same architecture.
    """

    model: str
    model_revision: str
    routers: str
    routers_hash: str
    trained: bool
    base_matches: bool = True


def how_made(router: str, *, trained: bool) -> str:
    """How routers of a kind got their values, in a word: "trained", or "fitted" where no training is for them."""
    return ("trained" if ROUTERS[router].trained_by_gate else "fitted") if trained else "UNTRAINED"


@dataclass(frozen=True)
class RoutedText:
    """Routing of one text, as CPU arrays; `focus_core.analysis.trace.Trace` adds the display in notebooks.

    L layers with routers, T tokens, K groups. Routers per key/value head are traced in one head at a time. In such a
    head a token is in one group as a key, and chooses the groups that it reads as a query. With narrow groups each of
    the G query heads of that key/value head chooses for itself, and one of them is shown.

    Attributes:
        text: the analysed text.
        input_ids: (T,) int64 token ids.
        offsets: (T, 2) int64 character span [start, end) of each token in `text`. Tokens that are parts of one
            character carry that character's span; the tokenizer's own opening (a `<bos>`) has empty ones.
        tokens: (T,) the vocabulary's own spelling of each token.
        layers: (L,) index of each traced decoder layer in the model.
        scores: (L, T, K) float32 router scores before balancing.
        assignment: (L, T, K) float32 balanced soft assignment, rows sum to 1.
        membership: (L, T, K) bool, the groups that each token is in (`config.key_top_k_of(row)` of them); sink tokens
            are not marked here.
        config: the settings in force.
        provenance: model and routers.
        head: the traced key/value head of routers per head, else None.
        token_bytes: (T,) the bytes of each token; empty if they are not known.
        sliding_windows: (L,) the base model's own window in each traced layer, in tokens; None where it has none, and
            empty for none anywhere.
        parts: (L,) what queries of narrow groups read, None for a layer with a window of the model's own; None for
            other routers.
        query_head: the query head that is shown, 0 to G - 1 of the key/value head; None unless groups are narrow.
        potentials: (L, K) float32 that balance adds to scores / tau, of narrow groups; else None.
        head_groups: (L, H, T) int16, the first group of each token in every key/value head, H of them or 1 where heads
            share their groups; None where it was not recorded.
        families: (L, K) int64, a family of alike groups for each group, the largest first; None for 16 groups or fewer.
    """

    text: str
    input_ids: np.ndarray
    offsets: np.ndarray
    tokens: tuple[str, ...]
    layers: tuple[int, ...]
    scores: np.ndarray
    assignment: np.ndarray
    membership: np.ndarray
    config: FocusConfig
    provenance: Provenance
    head: int | None = None
    query_weights: np.ndarray | None = None
    token_bytes: tuple[bytes, ...] = ()
    sliding_windows: tuple[int | None, ...] = ()
    parts: tuple[PartsRead | None, ...] | None = None
    query_head: int | None = None
    potentials: np.ndarray | None = None
    families: np.ndarray | None = None
    head_groups: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.query_weights is None and self.parts is None:
            object.__setattr__(self, "query_weights", self.assignment)

    @property
    def reads_own_groups(self) -> bool:
        """Whether tokens read the groups they are in, as published."""
        return ROUTERS[self.config.router].reads_own_groups

    def sliding_window(self, row: int) -> int | None:
        """The model's own window in a traced layer, in tokens: it reads nothing that far back. None without one."""
        return self.sliding_windows[row] if self.sliding_windows else None

    @cached_property
    def query_membership(self) -> np.ndarray:
        """(L, T, K) bool, read-only: the groups that each token reads; at least one page of them with narrow groups."""
        if self.reads_own_groups:
            return self.membership
        if self.query_weights is None:
            reads = np.stack([self.groups_read(row) for row in range(len(self.layers))])
        else:
            reads = query_memberships(self.query_weights, self.config)
        reads.setflags(write=False)
        return reads

    @property
    def reader(self) -> str:
        """The query head on show in words, "query head 2 of key/value head 1"; empty unless groups are narrow."""
        return "" if self.query_head is None else f"query head {self.query_head} of key/value head {self.head}"

    def balanced_scores(self, row: int) -> np.ndarray | None:
        """(T, K) float32 of one layer: scores with what balance adds, in units of scores; None where they are weights.

        Narrow groups are decided by these. Their weights, a softmax at tau, are 0 or 1 to many digits.
        """
        if self.potentials is None:
            return None
        return self.scores[row] + self.config.temperature * self.potentials[row]

    def groups_read(self, row: int) -> np.ndarray:
        """(T, K) bool: `query_membership` of one layer alone; all groups where a window of the model's own is read."""
        if self.parts is None:
            return self.query_membership[row]
        parts, first = self.parts[row], self.config.sink_tokens
        if parts is None:
            return np.ones(self.membership.shape[1:], dtype=bool)
        group_of = np.zeros(8 * parts.packed.shape[-1], dtype=np.int64)
        group_of[parts.part_of[first:]] = self.groups[row, first:]
        read = parts.parts_read(self.query_head or 0, slice(None))
        return read.astype(np.float32) @ np.eye(self.config.num_groups, dtype=np.float32)[group_of] > 0

    @cached_property
    def groups(self) -> np.ndarray:
        """(L, T) int64, read-only: each token's first group, the one with the largest assignment."""
        groups = self.assignment.argmax(axis=-1)
        groups.setflags(write=False)
        return groups


def key_memberships(assignment: Tensor | np.ndarray, config: FocusConfig) -> np.ndarray:
    """(L, T, K) bool: the groups that tokens are in under hard routing, every layer at its own k.

    Args:
        assignment: (L, T, K) float, of all routed layers in their order.
        config: k, or the plan of it.
    """
    return _memberships(assignment, [config.key_top_k_of(row) for row in range(len(assignment))])


def query_memberships(query_weights: Tensor | np.ndarray, config: FocusConfig) -> np.ndarray:
    """(L, T, K) bool: the groups that tokens read under hard routing, every layer at its own k.

    Args:
        query_weights: (L, T, K) float, of all routed layers in their order.
        config: k, or the plan of it.
    """
    return _memberships(query_weights, [config.top_k_of(row) for row in range(len(query_weights))])


def _memberships(weights: Tensor | np.ndarray, top_k: list[int]) -> np.ndarray:
    layers = torch.tensor(weights) if isinstance(weights, np.ndarray) else weights
    return torch.cat([top_k_membership(each[None], k) for each, k in zip(layers, top_k)]).numpy()
