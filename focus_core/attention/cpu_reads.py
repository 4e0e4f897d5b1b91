"""The group part of the `cpu` backend where queries choose what they read: each group's readers over its members.

A key is in one group at most, so nothing is counted twice and every part is added. Readers and members are different
tokens, both in the order of the text: a block of readers sees all members before it without a bias, and those among
it under one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from focus_core.attention.cpu_heads import Heads
from focus_core.attention.cpu_kernel import CALL_PAIRS, FAR, LARGE_TILE_ROWS, MERGE_PAIRS, folded
from focus_core.attention.inputs import AttentionOutput
from focus_core.attention.merge import merge_, merge_rows_, take_rows

ONE_CALL_KEYS = 1024
"""Members up to which a block of readers sees all of them under one bias, which saves a call and a merge."""

SINK_QUERIES = 1 << 13
"""Queries whose sinks are added at a time."""


def reads_cost(membership: Tensor, reads: Tensor, num_sinks: int, heads: int) -> float:
    """What `add_reads` costs for so many query heads, in pairs at the large tile's rate.

    Args:
        membership: (T, K) bool, at most one group per token after the sinks.
        reads: (Tq, K) bool.
        num_sinks: leading tokens that are sinks.
        heads: query heads.
    """
    before = membership.to(torch.int32)
    before[:num_sinks] = 0
    visible = before.cumsum(0)[membership.shape[0] - reads.shape[0] :]
    pairs = float((visible * reads).sum())
    entries = float(reads.sum()) + reads.shape[0]
    block = -(-LARGE_TILE_ROWS // heads)
    # Half of a block's own members lie in the future of a reader.
    waste = float(reads.sum()) * block / 2
    calls = 2 * (entries / block + reads.shape[1])
    return heads * (pairs + waste + MERGE_PAIRS * entries) + calls * CALL_PAIRS


def add_sinks(whole: AttentionOutput, heads: Heads, queries: Tensor, num_sinks: int) -> None:
    """Add the pairs of some queries with the sinks.

    Args:
        whole: output (Hkv, G * Tq, D) and log-sum-exp (Hkv, G * Tq), changed in place.
        heads: the tensors.
        queries: (n,) int64 tokens.
        num_sinks: leading tokens that are sinks.
    """
    if num_sinks == 0 or queries.numel() == 0:
        return
    for some in queries.split(SINK_QUERIES):
        bias = torch.zeros(some.numel(), num_sinks, dtype=heads.query.dtype)
        bias.masked_fill_(torch.arange(num_sinks) > some[:, None], FAR)
        rows = heads.rows(some)
        part = folded(
            take_rows(heads.query, rows),
            heads.key[:, :num_sinks],
            heads.value[:, :num_sinks],
            heads.scale,
            bias=bias.repeat_interleave(heads.group, dim=0),
        )
        merge_rows_(whole, rows, part)


def add_reads(whole: AttentionOutput, heads: Heads, membership: Tensor, reads: Tensor, num_sinks: int) -> None:
    """Add every group's members for those who read it, the sinks left out.

    Args:
        whole: output (Hkv, G * Tq, D) and log-sum-exp (Hkv, G * Tq), changed in place.
        heads: the tensors.
        membership: (T, K) bool, at most one group per token after the sinks.
        reads: (Tq, K) bool, the groups that queries read.
        num_sinks: leading tokens that are sinks.
    """
    block = -(-LARGE_TILE_ROWS // heads.group)
    for group in range(membership.shape[1]):
        members = membership[num_sinks:, group].nonzero()[:, 0] + num_sinks
        readers = reads[:, group].nonzero()[:, 0] + heads.first_query
        # How many members each reader may see; those that see none have nothing to add.
        visible = torch.searchsorted(members, readers, right=True)
        readers, visible = readers[visible > 0], visible[visible > 0]
        if readers.numel() == 0:
            continue
        key, value = (take_rows(tensor, members) for tensor in (heads.key, heads.value))
        for some, limits in zip(readers.split(block), visible.split(block)):
            rows = heads.rows(some)
            query = take_rows(heads.query, rows)
            before, last = int(limits[0]), int(limits[-1])
            if last <= ONE_CALL_KEYS:
                before = 0
            part = None
            if last > before:
                bias = torch.zeros(some.numel(), last - before, dtype=query.dtype)
                bias.masked_fill_(torch.arange(before, last) >= limits[:, None], FAR)
                bias = bias.repeat_interleave(heads.group, dim=0)
                part = folded(query, key[:, before:last], value[:, before:last], heads.scale, bias=bias)
            if before:
                prefix = folded(query, key[:, :before], value[:, :before], heads.scale)
                if part is not None:
                    merge_(prefix, part)
                part = prefix
            assert part is not None
            merge_rows_(whole, rows, part)
