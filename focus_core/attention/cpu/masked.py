"""All pairs through the CPU flash kernel under a bias, where sparse passes are impossible or slower."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from focus_core.attention.cpu.heads import Heads
from focus_core.attention.cpu.kernel import FAR, LARGE_TILE_ROWS, SMALL_TILE_ROWS, cpu_flash
from focus_core.attention.inputs import AttentionOutput


def write_masked(
    whole: AttentionOutput,
    heads: Heads,
    membership: Tensor,
    query_membership: Tensor,
    *,
    num_sinks: int,
    window: int,
    sliding_window: int | None = None,
) -> None:
    """Attend with blocks of queries to all their keys, under a bias that leaves the kept pairs.

    Args:
        whole: output (Hkv, G * Tq, D) and log-sum-exp (Hkv, G * Tq), overwritten.
        heads: the tensors.
        membership: (T, K) bool.
        query_membership: (Tq, K) bool, the groups that queries read.
        num_sinks: leading tokens that are sinks.
        window: pairs at most this far apart are local.
        sliding_window: pairs at least this far apart are dropped.
    """
    query = heads.query.unflatten(1, (heads.group, heads.num_queries))
    output = whole.output.unflatten(1, (heads.group, heads.num_queries))
    logsumexp = whole.logsumexp.unflatten(1, (heads.group, heads.num_queries))
    key, value = (tensor[:, None].expand(-1, heads.group, -1, -1) for tensor in (heads.key, heads.value))
    in_all, read_by_all = membership.all(0), query_membership.all(0)
    everything = window >= key.shape[2] - 1 or bool((in_all & read_by_all).any())
    everything = everything or bool(membership.any(1).all() and query_membership.all())
    if everything and heads.first_query == 0 and (sliding_window is None or sliding_window >= key.shape[2]):
        output[:], logsumexp[:] = cpu_flash(query, key, value, heads.scale, causal=True)
        return

    dtype = query.dtype
    # A last column that all queries have, and as keys only the sinks.
    query_groups = pad(query_membership.to(dtype), (0, 1), value=1.0)
    key_groups = pad(membership.to(dtype), (0, 1))
    key_groups[:num_sinks] = 1
    rows = LARGE_TILE_ROWS if key.shape[2] > 8 * LARGE_TILE_ROWS else SMALL_TILE_ROWS
    for first in range(0, heads.num_queries, rows):
        last = min(first + rows, heads.num_queries)
        end = heads.first_query + last
        begin = 0
        if sliding_window is not None:
            begin = max(0, heads.first_query + first - sliding_window + 1)
        bias = (query_groups[first:last] @ key_groups[begin:end].mT).clamp_(max=1).sub_(1).mul_(-FAR)
        distance = torch.arange(heads.first_query + first, end)[:, None] - torch.arange(begin, end)
        # Only the last columns can be local or in the future.
        near = max(0, distance.shape[1] - window - (last - first))
        bias[:, near:].masked_fill_(distance[:, near:] <= window, 0.0)
        bias[:, near:].masked_fill_(distance[:, near:] < 0, FAR)
        if sliding_window is not None:
            bias.masked_fill_(distance >= sliding_window, FAR)
        part = cpu_flash(
            query[:, :, first:last],
            key[:, :, begin:end],
            value[:, :, begin:end],
            heads.scale,
            bias=bias[None, None],
        )
        output[:, :, first:last], logsumexp[:, :, first:last] = part
