"""Input and result of every backend: one checked problem, and output with log-sum-exp."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor


class AttentionOutput(NamedTuple):
    """Result of an attention call.

    Attributes:
        output: (B, H, Tq, Dv), the query's dtype; 0 where a query has no key.
        logsumexp: (B, H, Tq), natural logarithm of the softmax denominator, float32 (float64 for float64
            inputs); -inf where a query has no key.
    """

    output: Tensor
    logsumexp: Tensor


@dataclass(frozen=True)
class AttentionInputs:
    """A checked attention problem; `focus_core.attention.focus_attention` documents the fields.

    Defaults are filled in: ``positions``, ``query_membership`` and ``scale`` are never None. ``reads_own_groups`` is
    True where the caller gave no ``query_membership``. Shapes, dtypes and devices agree.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    membership: Tensor
    query_membership: Tensor
    reads_own_groups: bool
    positions: Tensor
    window: int
    sink_tokens: int
    sliding_window: int | None
    scale: float
    softcap: float | None

    @property
    def query_positions(self) -> Tensor:
        """(B, Tq) int64: positions of the queries, which are the last Tq tokens."""
        return self.positions[:, self.num_keys - self.num_queries :]

    @property
    def num_queries(self) -> int:
        """Tq, the number of queries."""
        return self.query.shape[2]

    @property
    def num_keys(self) -> int:
        """T, the number of keys."""
        return self.key.shape[2]

    @property
    def heads_per_key(self) -> int:
        """Query heads that share one key/value head; 1 without grouped-query attention."""
        return self.query.shape[1] // self.key.shape[1]

    @property
    def needs_grad(self) -> bool:
        """Whether autograd would record this call."""
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (self.query, self.key, self.value))

    @cached_property
    def has_padding(self) -> bool:
        """Whether some token is padding."""
        return bool((self.positions < 0).any())

    @cached_property
    def consecutive(self) -> bool:
        """Whether the positions of the real tokens of every row count up by one."""
        real = self.positions >= 0
        last = self.positions.max(dim=1).values
        first = self.positions.masked_fill(~real, torch.iinfo(torch.int64).max).min(dim=1).values
        return bool(((last - first + 1 == real.sum(1)) | ~real.any(1)).all())


def kept_mask(inputs: AttentionInputs, first: int = 0, last: int | None = None) -> Tensor:
    """The keys that queries ``first`` to ``last`` (exclusive) attend to, straight from the definition.

    Args:
        inputs: the problem.
        first: index of the first query, 0..Tq.
        last: index after the last query, None for Tq.

    Returns:
        (B, last - first, T) bool, memory proportional to that size.
    """
    last = inputs.num_queries if last is None else last
    offset = inputs.num_keys - inputs.num_queries
    index = torch.arange(inputs.num_keys, device=inputs.key.device)
    query_index = index[offset + first : offset + last, None]
    query_position = inputs.positions[:, offset + first : offset + last, None]
    key_position = inputs.positions[:, None, :]
    distance = query_position - key_position

    membership = inputs.membership.to(torch.float32)
    shared = inputs.query_membership[:, first:last].to(torch.float32) @ membership.mT > 0
    kept = (distance <= inputs.window) | (key_position < inputs.sink_tokens) | shared
    kept &= (index <= query_index) & (query_position >= 0) & (key_position >= 0)
    if inputs.sliding_window is not None:
        kept &= distance < inputs.sliding_window
    return kept
