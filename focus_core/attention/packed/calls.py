"""Sparse passes from two standard kernels: one over packed sequences, one over blocks under a bias.

Shared by `varlen`, `flash` and `flash_merge`. Member lists, packed one after another, go through one variable-length
causal call per order. The rest of the band goes through batched blocks, and both are merged by log-sum-exp. Kernels are
arguments, so that the packing is tested on machines without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from focus_core.attention.cpu.kernel import FAR
from focus_core.attention.inputs import AttentionInputs, AttentionOutput
from focus_core.attention.lists import MemberLists, member_lists
from focus_core.attention.merge import merge_rows_

BLOCK = 64
"""Queries per block of the band."""

BIAS_ELEMENTS = 1 << 25
"""Band biases held at a time."""


class Packed(NamedTuple):
    """Sequences one after another, for one call.

    Attributes:
        query: (Nq, H, D).
        key: (Nk, Hkv, D).
        value: (Nk, Hkv, D).
        query_starts: (L + 1,) int32 start of each sequence in the queries, and their end.
        key_starts: (L + 1,) int32.
        longest_query: tokens of the longest sequence.
        longest_key: the same of the keys.
        causal: query r of a sequence with q queries and n keys sees keys 0..n - q + r, so both are aligned at their
            ends; otherwise it sees all of its sequence.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    query_starts: Tensor
    key_starts: Tensor
    longest_query: int
    longest_key: int
    causal: bool = True


PackedKernel = Callable[[Packed, float], AttentionOutput]
"""Packed sequences and scale to output (Nq, H, D) and log-sum-exp (Nq, H)."""

BiasKernel = Callable[[Tensor, Tensor, Tensor, Tensor, float], AttentionOutput]
"""query (B, H, R, D), key and value (B, H, N, D), bias (B, 1, R, N) and scale to output and log-sum-exp."""


def packed_attention(inputs: AttentionInputs, causal_kernel: PackedKernel, bias_kernel: BiasKernel) -> AttentionOutput:
    """Exact attention from the two kernels; memory grows with T."""
    output = torch.zeros_like(inputs.query, memory_format=torch.contiguous_format)
    logsumexp = torch.full(inputs.query.shape[:3], float("-inf"), device=inputs.query.device)
    offset = inputs.num_keys - inputs.num_queries
    for row in range(inputs.query.shape[0]):
        real = (inputs.positions[row] >= 0).nonzero()[:, 0]
        places = real[real >= offset] - offset
        if places.numel() == 0:
            continue
        query = inputs.query[row].index_select(1, places)
        key, value = (tensor[row].index_select(1, real) for tensor in (inputs.key, inputs.value))
        membership = inputs.membership[row, real]
        num_sinks = int((inputs.positions[row, real] < inputs.sink_tokens).sum())
        whole = _band((query, key, value), membership, num_sinks, inputs, bias_kernel)
        for lists in member_lists(membership[num_sinks:]):
            _add_packed(whole, (query, key, value), lists, causal_kernel, num_sinks=num_sinks, scale=inputs.scale)
        output[row].index_copy_(1, places, whole.output.to(output.dtype))
        logsumexp[row].index_copy_(1, places, whole.logsumexp)
    return AttentionOutput(output, logsumexp)


def _add_packed(
    whole: AttentionOutput,
    tensors: tuple[Tensor, Tensor, Tensor],
    lists: MemberLists,
    kernel: PackedKernel,
    *,
    num_sinks: int,
    scale: float,
) -> None:
    """Merge one causal call over all lists of one order into the whole (H, Tq, ...)."""
    query, key, value = tensors
    tokens = lists.tokens + num_sinks
    lengths = torch.tensor(lists.lengths, device=tokens.device)
    first_query = key.shape[1] - query.shape[1]
    asks = tokens >= first_query
    sequence = torch.repeat_interleave(torch.arange(len(lists.lengths), device=tokens.device), lengths)
    query_lengths = torch.bincount(sequence[asks], minlength=len(lists.lengths))
    places = tokens[asks] - first_query
    if places.numel() == 0:
        return
    packed = Packed(
        query.index_select(1, places).transpose(0, 1).contiguous(),
        key.index_select(1, tokens).transpose(0, 1).contiguous(),
        value.index_select(1, tokens).transpose(0, 1).contiguous(),
        pad(query_lengths.cumsum(0), (1, 0)).to(torch.int32),
        pad(lengths.cumsum(0), (1, 0)).to(torch.int32),
        int(query_lengths.max()),
        int(lengths.max()),
    )
    output, logsumexp = kernel(packed, scale)
    part = AttentionOutput(output.transpose(0, 1), logsumexp.transpose(0, 1))
    # A token can be in several lists: merge first occurrences, then second ones, and so on.
    for chosen in [slice(None)] if lists.disjoint else _occurrences(places):
        merge_rows_(whole, places[chosen], AttentionOutput(*(tensor[:, chosen] for tensor in part)), sign=lists.sign)


def _occurrences(tokens: Tensor) -> list[Tensor]:
    """Indices of first, second, ... occurrences: none has a token twice, together they are all."""
    ordered, index = tokens.sort(stable=True)
    number = torch.arange(tokens.numel(), device=tokens.device) - torch.searchsorted(ordered, ordered)
    return [index[number == count] for count in range(int(number.max()) + 1)]


def _band(
    tensors: tuple[Tensor, Tensor, Tensor],
    membership: Tensor,
    num_sinks: int,
    inputs: AttentionInputs,
    kernel: BiasKernel,
) -> AttentionOutput:
    """Pairs with sinks, and local pairs of no common group: (H, Tq, ...), in float32."""
    query, key, value = tensors
    num_queries, total, group = query.shape[1], key.shape[1], inputs.heads_per_key
    first_query, window, dtype = total - num_queries, min(inputs.window, total - 1), query.dtype
    # Kernels want the length of a bias row to be a multiple of 8.
    reach = window + -(window + BLOCK + num_sinks) % 8
    strip = reach + BLOCK
    device = query.device
    distance = torch.arange(BLOCK, device=device)[:, None] + reach - torch.arange(strip, device=device)
    outside = torch.zeros(BLOCK, strip, device=device)
    outside.masked_fill_((distance < 0) | (distance > window), FAR)
    # A last column that all queries have, and as keys the sinks and the padding of the first and last strip.
    query_groups = pad(membership[first_query:].float(), (0, 1), value=1.0) * FAR
    key_groups = pad(membership.float(), (0, 1))
    key_groups[:num_sinks] = 1

    blocks = -(-num_queries // BLOCK)
    at_once = max(1, BIAS_ELEMENTS // (BLOCK * (strip + num_sinks)))
    parts = []
    for start in range(0, blocks, at_once):
        first, last = start * BLOCK, min((start + at_once) * BLOCK, num_queries)
        count = -(-(last - first) // BLOCK)
        spare = count * BLOCK - (last - first)
        begin, end = first_query + first - reach, first_query + last
        edge = (max(0, -begin), spare)
        rows = pad(query_groups[first:last], (0, 0, 0, spare)).unflatten(0, (count, BLOCK))
        keys = pad(key_groups[max(0, begin) : end], (0, 0, *edge), value=1.0).unfold(0, strip, BLOCK)
        asking = torch.arange(first_query + first, end + spare, device=device).view(count, BLOCK, 1)
        to_sinks = torch.zeros(count, BLOCK, num_sinks, device=device)
        to_sinks.masked_fill_(asking < torch.arange(num_sinks, device=device), FAR)
        bias = torch.cat([to_sinks, torch.baddbmm(outside, rows, keys)], dim=2).to(dtype)
        key_strips, value_strips = (
            torch.cat(
                [
                    tensor[:, :num_sinks].expand(count, -1, -1, -1),
                    pad(tensor[:, max(0, begin) : end], (0, 0, *edge)).unfold(1, strip, BLOCK).permute(1, 0, 3, 2),
                ],
                dim=2,
            ).repeat_interleave(group, dim=1)
            for tensor in (key, value)
        )
        queries = pad(query[:, first:last], (0, 0, 0, spare)).unflatten(1, (count, BLOCK)).transpose(0, 1)
        output, logsumexp = kernel(queries.contiguous(), key_strips, value_strips, bias[:, None], inputs.scale)
        parts.append((output.transpose(0, 1).flatten(1, 2), logsumexp.transpose(0, 1).flatten(1, 2)))
    output, logsumexp = (torch.cat(tensors, dim=1)[:, :num_queries] for tensors in zip(*parts))
    return AttentionOutput(output.float(), logsumexp.float().contiguous())
