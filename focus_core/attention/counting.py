"""Exact counts of the pairs that a routing keeps, without a (T, T) array."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from focus_core.attention.validate import checked_positions
from focus_core.errors import FocusError

CHUNK_ELEMENTS = 1 << 22
"""Counters held at a time."""


class PairCounts(NamedTuple):
    """Numbers of (query, key) pairs, each (B,) int64.

    Attributes:
        causal: pairs of full attention: both real, key not after the query, inside ``sliding_window``.
        local: of these, pairs at most ``window`` apart; always kept.
        distant: of these, pairs further apart (``causal - local``), sink columns included.
        distant_kept: distant pairs that are kept: the key is a sink or in a group that the query reads.
        distant_sink: distant pairs with a sink as key.
    """

    causal: Tensor
    local: Tensor
    distant: Tensor
    distant_kept: Tensor
    distant_sink: Tensor

    @property
    def kept(self) -> Tensor:
        """(B,) int64: all pairs that are computed."""
        return self.local + self.distant_kept

    @property
    def kept_share(self) -> Tensor:
        """(B,) float64: kept over causal pairs, 1 where there are none; its inverse bounds any speed-up."""
        return torch.where(self.causal > 0, self.kept / self.causal.clamp(min=1).double(), 1.0)


def kept_pairs(
    membership: Tensor,
    *,
    query_membership: Tensor | None = None,
    window: int,
    sink_tokens: int = 0,
    positions: Tensor | None = None,
    sliding_window: int | None = None,
    num_queries: int | None = None,
) -> PairCounts:
    """Count the pairs that `focus_attention` computes with the same arguments.

    Tokens with equal membership sets are interchangeable, so one running count per distinct set is enough. Time grows
    with T times the number of distinct sets; memory is bounded by chunks of queries.

    Args:
        membership: (B, T, K) bool, any device.
        query_membership: (B, T, K) bool, the groups that tokens read as queries; None for those they are in.
        window: pairs at most this far apart are local.
        sink_tokens: tokens with a position below this are kept by every later query.
        positions: (B, T) int64, -1 for padding; default 0..T-1.
        sliding_window: the model's own window, as in `focus_attention`.
        num_queries: number of tokens at the end that are queries; default all.

    Returns:
        Counts per batch row, on the device of the membership.

    Raises:
        FocusError: shapes or values that do not fit.
    """
    positions = checked_positions(membership, positions)
    if query_membership is not None and query_membership.shape != membership.shape:
        raise FocusError(
            f"query_membership is {tuple(query_membership.shape)} and membership {tuple(membership.shape)}: "
            "give both the same shape."
        )
    rows = [
        _count_row(
            groups,
            reads,
            position,
            window=window,
            sink_tokens=sink_tokens,
            sliding_window=sliding_window,
            num_queries=num_queries,
        )
        for groups, reads, position in zip(
            membership, membership if query_membership is None else query_membership, positions
        )
    ]
    counts = torch.tensor(rows, dtype=torch.int64, device=membership.device).reshape(-1, 5)
    return PairCounts(*counts.unbind(1))


def _count_row(
    membership: Tensor,
    reads: Tensor,
    positions: Tensor,
    *,
    window: int,
    sink_tokens: int,
    sliding_window: int | None,
    num_queries: int | None,
) -> list[int]:
    total = positions.numel()
    real = positions >= 0
    first_query = int(real[: total - (total if num_queries is None else num_queries)].sum())
    membership, reads, positions = membership[real], reads[real], positions[real].contiguous()
    if not positions.numel() > first_query:
        return [0] * 5
    sets, set_of = torch.unique(membership, dim=0, return_inverse=True)
    reads, reads_of = torch.unique(reads, dim=0, return_inverse=True)
    shares = (reads.float() @ sets.float().T > 0).to(torch.int64)

    # Keys are ordered by position, so "closer than d" is a range of ranks.
    queries = torch.arange(first_query, positions.numel(), device=positions.device)
    query_position = positions[queries]
    begin = torch.zeros_like(queries)
    if sliding_window is not None:
        begin = torch.searchsorted(positions, query_position - sliding_window, right=True)
    split = torch.searchsorted(positions, query_position - window).clamp(max=queries + 1).maximum(begin)
    sinks = torch.searchsorted(positions, torch.as_tensor(sink_tokens, device=positions.device))
    causal = queries + 1 - begin
    distant = split - begin
    distant_sink = (split.minimum(sinks) - begin).clamp(min=0)

    # A pair of a query with a distant key after the sinks is kept if the groups it reads meet the key's set. Counted
    # from the number of keys of each set before `split`, minus those before `begin` (all after the sinks).
    begin, split = begin.maximum(sinks), split.maximum(sinks)
    grouped = 0
    step = max(1, CHUNK_ELEMENTS // sets.shape[0])
    one_hot = torch.nn.functional.one_hot
    for edge, sign in ((split, 1), (begin, -1)):
        seen, before = 0, torch.zeros(sets.shape[0], dtype=torch.int64, device=positions.device)
        for start in range(0, queries.numel(), step):
            limits = edge[start : start + step]
            low = int(limits[0])
            before = before + torch.bincount(set_of[seen:low], minlength=sets.shape[0])
            within = one_hot(set_of[low : int(limits[-1])], sets.shape[0]).cumsum(0)
            table = torch.cat([before[None], before + within])
            grouped += sign * int((table[limits - low] * shares[reads_of[queries[start : start + step]]]).sum())
            seen = low
    return [
        int(causal.sum()),
        int((causal - distant).sum()),
        int(distant.sum()),
        int(distant_sink.sum()) + grouped,
        int(distant_sink.sum()),
    ]
