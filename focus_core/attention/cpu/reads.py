"""The group part of the `cpu` backend where queries choose groups: each group's readers over its members.

A key is in one group at most, so no pair is counted twice and every part is added. Readers and members are different
tokens, both in the order of the text. A block of readers sees all members before it without a bias, and the members
inside its range under a bias.
"""

from __future__ import annotations

import torch
from torch import Tensor

from focus_core.attention.cpu.heads import Heads
from focus_core.attention.cpu.kernel import BLOCKS_PER_SPAN, CALL_PAIRS, FAR, MERGE_PAIRS, folded
from focus_core.attention.inputs import AttentionOutput
from focus_core.attention.merge import merge_, merge_rows_, take_rows

ONE_CALL_KEYS = 512
"""Members up to which a span of readers sees all of them under one bias, which saves a call and a merge."""

BLOCK_ROWS = 1024
"""Rows of a block: four large tiles, which two or four threads share evenly."""

SINK_QUERIES = 1 << 13
"""Number of queries that get their sinks at a time."""


def reads_cost(membership: Tensor, reads: Tensor, num_sinks: int, heads: int) -> float:
    """Cost of `add_reads` for a number of query heads, in pairs at the large tile's rate.

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
    block = max(1, BLOCK_ROWS // heads)
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
    """Add the members of every group to the attention of its readers, sinks left out.

    Args:
        whole: output (Hkv, G * Tq, D) and log-sum-exp (Hkv, G * Tq), changed in place.
        heads: the tensors.
        membership: (T, K) bool, at most one group per token after the sinks.
        reads: (Tq, K) bool, the groups that queries read.
        num_sinks: leading tokens that are sinks.
    """
    block = max(1, BLOCK_ROWS // heads.group)
    for group in range(membership.shape[1]):
        members = membership[num_sinks:, group].nonzero()[:, 0] + num_sinks
        readers = reads[:, group].nonzero()[:, 0] + heads.first_query
        # Number of members that each reader may see; readers of none are left out.
        visible = torch.searchsorted(members, readers, right=True)
        readers, visible = readers[visible > 0], visible[visible > 0]
        if readers.numel() == 0:
            continue
        key, value = (take_rows(tensor, members) for tensor in (heads.key, heads.value))
        for some, limits in zip(readers.split(block * BLOCKS_PER_SPAN), visible.split(block * BLOCKS_PER_SPAN)):
            rows = heads.rows(some)
            merge_rows_(whole, rows, _span(take_rows(heads.query, rows), key, value, limits, block, heads))


def _span(query: Tensor, key: Tensor, value: Tensor, limits: Tensor, block: int, heads: Heads) -> AttentionOutput:
    """Attention of a span of readers: members that all of them see, then blocks under a bias.

    Args:
        query: (Hkv, n * G, D) of n readers.
        key: (Hkv, m, D) of all members.
        value: (Hkv, m, D) of all members.
        limits: (n,) members that each reader sees, ascending, at least 1.
        block: readers of a block.
        heads: for group and scale.
    """
    # All but the last of the members that every reader sees; the last keeps the blocks from being empty.
    common = int(limits[0]) - 1 if int(limits[-1]) > ONE_CALL_KEYS else 0
    far, none = (torch.tensor(number, dtype=query.dtype) for number in (FAR, 0.0))
    parts = []
    for first in range(0, limits.numel(), block):
        own = limits[first : first + block].to(torch.int32).repeat_interleave(heads.group)
        last = int(own[-1])
        bias = torch.zeros(own.numel(), last - common, dtype=query.dtype)
        seen = int(own[0])
        bias[:, seen - common :] = torch.where(torch.arange(seen, last, dtype=torch.int32) >= own[:, None], far, none)
        rows = slice(first * heads.group, first * heads.group + own.numel())
        parts.append(folded(query[:, rows], key[:, common:last], value[:, common:last], heads.scale, bias=bias))
    part = parts[0] if len(parts) == 1 else AttentionOutput(*(torch.cat(tensors, dim=1) for tensors in zip(*parts)))
    if common:
        before = folded(query, key[:, :common], value[:, :common], heads.scale)
        merge_(before, part)
        part = before
    return part
