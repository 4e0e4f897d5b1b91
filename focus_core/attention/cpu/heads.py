"""The tensors that the parts of the `cpu` backend share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Heads:
    """Some key/value heads of one text, all tokens real, and the query heads that read them.

    Attributes:
        query: (Hkv, G * Tq, D), the G heads of one key/value head one after another.
        key: (Hkv, T, D).
        value: (Hkv, T, D).
        num_queries: Tq; the queries are the last tokens.
        scale: factor of the dot products.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    num_queries: int
    scale: float

    @property
    def group(self) -> int:
        """G, query heads per key/value head."""
        return self.query.shape[1] // self.num_queries

    @property
    def first_query(self) -> int:
        """Index of the first query among the tokens."""
        return self.key.shape[1] - self.num_queries

    def rows(self, tokens: Tensor) -> Tensor:
        """Query rows of tokens (..., n), the G heads of a token side by side: (..., n * G); -1 stays -1."""
        heads = torch.arange(self.group, device=tokens.device) * self.num_queries
        rows = tokens[..., None] - self.first_query + heads
        return rows.masked_fill_((tokens < 0)[..., None], -1).flatten(-2)
