"""How much of a benchmark item the gate can meet, and how much of it routing removed."""

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
        removed: of these, pairs that routing dropped, mean over layers; 0 unless routing is hard (the soft gate weighs
            pairs and drops none).
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

    The model's own sliding window, where it has one, is not taken off: shares are of full causal attention.

    Args:
        num_tokens: T, at least 1.
        config: window and sinks in force.
        layers: per layer (T, 2 H K) bool: the groups of tokens as keys in all H heads of its router, then those
            that they read; empty where nothing is removed.
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
