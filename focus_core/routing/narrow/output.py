"""What the faster ways of attention over narrow groups give for whole texts."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Prefill(NamedTuple):
    """Attention of whole texts.

    Attributes:
        output: (B, H, T, Dv).
        logsumexp: (B, H, T), summaries included; float32 (float64 for float64 inputs).
        pairs_read: (B, H) int64, pairs with keys of pages that are read.
    """

    output: Tensor
    logsumexp: Tensor
    pairs_read: Tensor
