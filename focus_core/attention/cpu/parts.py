"""The two parts of the `cpu` backend: causal passes over member lists, and the band beside them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from focus_core.attention.cpu.heads import Heads
from focus_core.attention.cpu.kernel import FAR, SMALL_TILE_ROWS, block_tokens, cpu_flash, folded
from focus_core.attention.inputs import AttentionOutput
from focus_core.attention.lists import MemberLists
from focus_core.attention.merge import merge_, merge_rows_, take_rows

BUCKET_PAIRS = 600_000
"""Largest number of pairs wasted on padding to save the calls of one more bucket."""

BUCKET_TOKENS = 1 << 13
"""Largest number of tokens of the lists in one bucket, a bound on its memory; two lists of any length fit.

Half of it where lists are disjoint, because those are merged at once.
"""

BIAS_ELEMENTS = 1 << 20
"""Band biases held at a time."""


def add_band(
    whole: AttentionOutput, heads: Heads, membership: Tensor, query_membership: Tensor, num_sinks: int, window: int
) -> None:
    """Write the attention of local pairs that have no group in common and no sink as key.

    Blocks of queries attend to strips of keys; both are views. The bias of a block is one matrix product: the number of
    groups that two tokens share, scaled by `FAR`.

    Args:
        whole: output (Hkv, G * Tq, D) and log-sum-exp (Hkv, G * Tq), overwritten; in a row without such pairs the
            log-sum-exp is around `FAR`.
        heads: the tensors.
        membership: (T, K) bool.
        query_membership: (Tq, K) bool, the groups that queries read.
        num_sinks: leading tokens that are sinks.
        window: pairs at most this far apart are local.
    """
    dtype, num_queries = heads.query.dtype, heads.num_queries
    window = min(window, heads.key.shape[1] - 1)
    block = 32 if window < 1024 else SMALL_TILE_ROWS
    strip = window + block
    at_once = max(1, BIAS_ELEMENTS // (block * strip))

    distance = torch.arange(block)[:, None] + window - torch.arange(strip)
    outside = torch.zeros(block, strip, dtype=dtype).masked_fill_((distance < 0) | (distance > window), FAR)
    # A last column that all queries have, and as keys the sinks and the padding of the first and last strip.
    query_groups = pad(query_membership.to(dtype), (0, 1), value=1.0) * FAR
    key_groups = pad(membership.to(dtype), (0, 1))
    key_groups[:num_sinks] = 1

    query = heads.query.unflatten(1, (heads.group, num_queries))
    output = whole.output.unflatten(1, (heads.group, num_queries))
    logsumexp = whole.logsumexp.unflatten(1, (heads.group, num_queries))
    for first in range(0, num_queries, at_once * block):
        last = min(first + at_once * block, num_queries)
        count = -(-(last - first) // block)
        spare = count * block - (last - first)
        begin, end = heads.first_query + first - window, heads.first_query + last
        edge = (max(0, -begin), spare)
        begin = max(0, begin)
        keys = pad(key_groups[begin:end], (0, 0, *edge), value=1.0).unfold(0, strip, block)
        rows = pad(query_groups[first:last], (0, 0, 0, spare)).unflatten(0, (count, block))
        bias = torch.baddbmm(outside, rows, keys)[:, None]
        for head in range(heads.key.shape[0]):
            key, value = (
                pad(tensor[head, begin:end], (0, 0, *edge)).unfold(0, strip, block).mT[:, None]
                for tensor in (heads.key, heads.value)
            )
            part = cpu_flash(
                pad(query[head, :, first:last], (0, 0, 0, spare)).unflatten(1, (count, block)).transpose(0, 1),
                key.expand(-1, heads.group, -1, -1),
                value.expand(-1, heads.group, -1, -1),
                heads.scale,
                bias=bias,
            )
            for target, source in ((output, part.output), (logsumexp, part.logsumexp)):
                target[head, :, first:last] = source.transpose(0, 1).flatten(1, 2)[:, : last - first]


def add_lists(whole: AttentionOutput, heads: Heads, lists: MemberLists, num_sinks: int) -> None:
    """Add (or subtract) a causal pass over every list of one order, the sinks prepended to each.

    Lists of similar length share calls. They are padded at their ends, where causality hides the padding.

    Args:
        whole: output (Hkv, G * Tq, D) and log-sum-exp (Hkv, G * Tq), changed in place.
        heads: the tensors.
        lists: tokens counted after the sinks.
        num_sinks: leading tokens that are sinks.
    """
    tokens = (lists.tokens + num_sinks).split(lists.lengths)
    sinks = torch.arange(num_sinks)
    one_by_one = heads.first_query > 0
    allowance = 0 if one_by_one else BUCKET_PAIRS // (heads.query.shape[0] * heads.group)
    for bucket in _buckets(lists.lengths, allowance, BUCKET_TOKENS // (2 if lists.disjoint else 1)):
        members = [torch.cat([sinks, tokens[i]]) for i in bucket]
        first = num_sinks
        if one_by_one:
            first = max(num_sinks, int(torch.searchsorted(members[0], heads.first_query)))
            if first == members[0].numel():
                continue
        index = torch.nn.utils.rnn.pad_sequence(members, batch_first=True, padding_value=-1)
        for rows, part in _causal_pass(heads, index, first):
            _merge_lists(whole, rows, part, lists)


def _causal_pass(heads: Heads, index: Tensor, first: int) -> Iterator[tuple[Tensor, AttentionOutput]]:
    """Causal attention within each row of ``index`` (L, n), queries from place ``first`` on.

    Blocks of queries, all heads of a token side by side, see the keys of their span (a few blocks) under a causal bias.
    The keys before the span are added without a bias.

    Yields:
        Rows (L, m) of the queries, -1 for padding, and their attention (Hkv, L, m, ...).
    """
    kv_heads, group = heads.key.shape[0], heads.group
    count, total = index.shape
    batch = (kv_heads * count, -1, heads.query.shape[2])
    flat = index.clamp(min=0).flatten()
    key, value = (take_rows(tensor, flat).view(batch) for tensor in (heads.key, heads.value))
    block, span = block_tokens(total, group, kv_heads * count)
    bias = _causal_bias(block, -(-min(span, total) // block) * block, group, heads.query.dtype)
    for begin in range(first // span * span, total, span):
        end = min(begin + span, total)
        begin_query = max(first, begin)
        rows = heads.rows(index[:, begin_query:end])
        query = take_rows(heads.query, rows.clamp(min=0).flatten()).view(batch)
        parts = []
        for a in range(begin, end, block):
            b = min(a + block, end)
            skipped = max(first - a, 0)
            if skipped >= b - a:
                continue
            parts.append(
                folded(
                    query[:, (a + skipped - begin_query) * group : (b - begin_query) * group],
                    key[:, begin:b],
                    value[:, begin:b],
                    heads.scale,
                    bias=bias[skipped * group : (b - a) * group, bias.shape[1] - block - (a - begin) :][:, : b - begin],
                )
            )
        part = parts[0]
        if len(parts) > 1:
            part = AttentionOutput(*(torch.cat(tensors, dim=1) for tensors in zip(*parts)))
        if begin:
            before = folded(query, key[:, :begin], value[:, :begin], heads.scale)
            merge_(before, part)
            part = before
        yield rows, AttentionOutput(*(tensor.unflatten(0, (kv_heads, count)) for tensor in part))


def _merge_lists(whole: AttentionOutput, rows: Tensor, part: AttentionOutput, lists: MemberLists) -> None:
    """Merge (Hkv, L, m, ...) into the rows (L, m) of the whole; a token may be in several of the lists."""
    if lists.disjoint and len(rows) > 1:
        rows, part = rows.reshape(1, -1), AttentionOutput(*(tensor.flatten(1, 2)[:, None] for tensor in part))
    for number, chosen in enumerate(rows):
        one = AttentionOutput(part.output[:, number], part.logsumexp[:, number])
        real = (chosen >= 0).nonzero()[:, 0]
        if real.numel() < chosen.numel():
            one = AttentionOutput(take_rows(one.output, real), one.logsumexp.index_select(1, real))
        merge_rows_(whole, chosen[real], one, sign=lists.sign)


@lru_cache(maxsize=4)
def _causal_bias(tokens: int, span: int, group: int, dtype: torch.dtype) -> Tensor:
    """(tokens * G, span) bias: the last ``tokens`` columns causal, those before open."""
    bias = torch.zeros(tokens, span, dtype=dtype)
    bias[:, span - tokens :].masked_fill_(torch.ones(tokens, tokens, dtype=torch.bool).triu_(1), FAR)
    return bias.repeat_interleave(group, dim=0)


def _buckets(lengths: list[int], allowance: float, most_tokens: int) -> list[list[int]]:
    """Lists that share calls, longest first; two of any length, more up to ``most_tokens``.

    Padding a list may waste ``allowance`` pairs per head, or 2% of its work: a call over several lists is shared more
    evenly between threads.
    """
    buckets: list[list[int]] = []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        longest = lengths[buckets[-1][0]] if buckets else 0
        waste = (longest**2 - lengths[number] ** 2) / 2
        fits = buckets and (len(buckets[-1]) < 2 or (len(buckets[-1]) + 1) * longest <= most_tokens)
        if fits and allowance and waste < max(allowance, 0.01 * longest**2):
            buckets[-1].append(number)
        else:
            buckets.append([number])
    return buckets
