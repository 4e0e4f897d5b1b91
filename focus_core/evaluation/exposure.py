"""Gate exposure of a benchmark item: the pairs that routing could remove, and those that it removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from focus_core.attention import kept_pairs
from focus_core.routing.config import FocusConfig
from focus_core.routing.layer import heads_in_batch


@dataclass(frozen=True)
class Exposure:
    """Causal (query, key) pairs of one text, in one layer on average.

    Attributes:
        tokens: length of the text.
        causal: pairs that full attention computes.
        distant: of these, pairs further apart than the window: all that routing could drop.
        removed: of these, pairs that routing dropped, mean over layers. 0 unless routing is hard: the soft gate drops
            none.
    """

    tokens: int
    causal: int
    distant: int
    removed: float

    @property
    def distant_share(self) -> float:
        """Gate exposure: distant over causal pairs."""
        return self.distant / self.causal

    @property
    def removed_share(self) -> float:
        """Removed over causal pairs."""
        return self.removed / self.causal


def exposure(num_tokens: int, config: FocusConfig, layers: Sequence[Tensor] = ()) -> Exposure:
    """Count the pairs of one text.

    Shares are of full causal attention, even where the model has a sliding window of its own.

    Args:
        num_tokens: T, at least 1.
        config: window and sinks in force.
        layers: for each layer (T, 2 H K) bool, for the H heads of its router: groups of tokens as keys, then groups
            that they read as queries. Empty where nothing is removed.
    """
    beyond = max(0, num_tokens - 1 - config.window)
    causal, distant = num_tokens * (num_tokens + 1) // 2, beyond * (beyond + 1) // 2
    removed = 0.0
    if distant and len(layers):
        keys, queries = (
            heads_in_batch(part, part.shape[-1] // config.num_groups)
            for part in torch.stack(list(layers)).chunk(2, dim=-1)
        )
        window, sink_tokens = config.window, config.sink_tokens
        counts = kept_pairs(keys, query_membership=queries, window=window, sink_tokens=sink_tokens)
        removed = float((counts.distant - counts.distant_kept).double().mean())
    return Exposure(num_tokens, causal, distant, removed)
