"""`cpu`: member lists and band through PyTorch's CPU flash kernel, combined exactly by log-sum-exp."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from focus_core.attention.cpu.heads import Heads
from focus_core.attention.cpu.kernel import CALL_PAIRS, MERGE_PAIRS
from focus_core.attention.cpu.masked import write_masked
from focus_core.attention.cpu.parts import add_band, add_lists
from focus_core.attention.cpu.reads import add_reads, add_sinks, reads_cost
from focus_core.attention.inputs import AttentionInputs, AttentionOutput
from focus_core.attention.lists import MemberLists, member_lists

HEAD_ELEMENTS = 1 << 24
"""Query elements processed at a time: in long texts key/value heads run one after another."""

GROUP_ELEMENTS = 1 << 23
"""Query elements from which the query heads of one key/value head run one after another instead of folded.

Folding fills the kernel's tiles where lists are short. Here lists are long, and the float32 result of all query heads
would be most of the working memory.
"""

KEPT_BYTES = 31 << 20
"""Size of a block that is allocated, never touched, and freed at the start of a call.

Freeing it raises the amount of freed memory that the C library keeps to twice this size (glibc's dynamic thresholds,
mallopt(3), which end at 32 MiB). Otherwise each step's buffers go back to the system and are faulted in again.
"""

MOST_GROUPS = 4
"""Largest number of groups per token for member lists; inclusion and exclusion needs 2^k - 1 passes per token."""


def cpu_obstacle(inputs: AttentionInputs) -> str | None:
    """The reason why `cpu` does not support these inputs; None if it does."""
    if inputs.query.device.type != "cpu":
        return f"works on the CPU and the tensors are on {inputs.query.device}"
    if inputs.softcap is not None:
        return "has no softcap"
    if inputs.value.shape[3] != inputs.query.shape[3]:
        return "needs values of the key's head size"
    if inputs.query.dtype not in (torch.float32, torch.bfloat16):
        return f"has no {inputs.query.dtype}"
    if not inputs.consecutive:
        return "needs positions without gaps"
    return None


def cpu(inputs: AttentionInputs) -> AttentionOutput:
    """Exact attention on the CPU in time that follows the kept pairs; memory grows with T.

    Every text of the batch is computed the cheaper of two ways, by an estimate from the lengths of its lists. One is
    sparse passes. The other is the kernel over all pairs under a bias, for short texts, routings that keep most pairs
    and the model's own sliding window. Inputs are float32 or bfloat16; log-sum-exp and merges are in float32.
    """
    torch.empty(KEPT_BYTES, dtype=torch.uint8)
    output = torch.empty_like(inputs.query, memory_format=torch.contiguous_format)
    logsumexp = torch.full(inputs.query.shape[:3], float("-inf"))
    if inputs.has_padding:
        output.zero_()
    for row in range(inputs.query.shape[0]):
        _one_text(inputs, row, AttentionOutput(output[row], logsumexp[row]))
    return AttentionOutput(output, logsumexp)


def _one_text(inputs: AttentionInputs, row: int, result: AttentionOutput) -> None:
    """Compute one row of the batch into `result`."""
    positions, membership, reads = inputs.positions[row], inputs.membership[row], inputs.query_membership[row]
    query, key, value = inputs.query[row], inputs.key[row], inputs.value[row]
    places = None
    if inputs.has_padding:
        real = (positions >= 0).nonzero()[:, 0]
        places = real[real >= inputs.num_keys - inputs.num_queries] - (inputs.num_keys - inputs.num_queries)
        query, key, value = query[:, places], key[:, real], value[:, real]
        membership, reads, positions = membership[real], reads[places], positions[real]
    group, num_queries, head_dim = inputs.heads_per_key, query.shape[1], query.shape[2]
    if num_queries == 0:
        return
    num_sinks = int((positions < inputs.sink_tokens).sum())
    way = _Way(inputs, membership, reads, num_sinks)
    # Up to 2^k - 1 rounded parts meet in a result: too many for bfloat16 from three groups per token on.
    dtype = torch.float32 if len(way.lists or ()) > 2 else query.dtype
    for kv, every in _heads_at_once(key.shape[0], group, num_queries * head_dim):
        folded_heads = (every.stop - every.start) // (kv.stop - kv.start)
        heads = Heads(
            query[every].reshape(-1, folded_heads * num_queries, head_dim).to(dtype),
            key[kv].to(dtype),
            value[kv].to(dtype),
            num_queries,
            inputs.scale,
        )
        # Written in place where no conversion or copy is needed: fresh memory is slow to touch.
        in_place = places is None and not (way.merges and query.dtype != torch.float32)
        if in_place:
            shape = heads.query.shape
            whole = AttentionOutput(result.output[every].view(shape), result.logsumexp[every].view(shape[:2]))
        else:
            whole = AttentionOutput(
                torch.empty_like(heads.query, dtype=torch.float32 if way.merges else None),
                torch.empty(heads.query.shape[:2]),
            )
        way.fill(whole, heads)
        if not in_place:
            where = torch.arange(num_queries) if places is None else places
            for target, source in zip(result, whole):
                for to, rows in zip(target[every], source.unflatten(1, (folded_heads, num_queries)).flatten(0, 1)):
                    to.index_copy_(0, where, rows.to(to.dtype))


class _Way:
    """The cheapest computation of one text: passes over member lists, over readers and members, or over all pairs."""

    def __init__(self, inputs: AttentionInputs, membership: Tensor, reads: Tensor, num_sinks: int) -> None:
        self.inputs, self.membership, self.reads, self.num_sinks = inputs, membership, reads, num_sinks
        self.lists = _worthwhile_lists(inputs, membership, num_sinks, len(reads)) if inputs.reads_own_groups else None
        self.by_reads = not inputs.reads_own_groups and _worthwhile_reads(inputs, membership, reads, num_sinks)

    @property
    def merges(self) -> bool:
        """Whether several parts meet in a row after the band, so that results need float32."""
        return self.by_reads or len(self.lists or ()) > 1

    def fill(self, whole: AttentionOutput, heads: Heads) -> None:
        """Write output (Hkv, G * Tq, D) and log-sum-exp (Hkv, G * Tq) of some heads."""
        window, num_sinks, tokens = self.inputs.window, self.num_sinks, self.membership
        if self.lists is None and not self.by_reads:
            sliding_window = self.inputs.sliding_window
            write_masked(
                whole, heads, tokens, self.reads, num_sinks=num_sinks, window=window, sliding_window=sliding_window
            )
            return
        add_band(whole, heads, tokens, self.reads, num_sinks, window)
        queries = torch.arange(heads.first_query, len(tokens))
        if self.by_reads:
            add_sinks(whole, heads, queries, num_sinks)
            add_reads(whole, heads, tokens, self.reads, num_sinks)
            return
        # Pairs with a sink that no member list holds: of the sinks among themselves, of tokens with no group.
        add_sinks(whole, heads, queries[(queries < num_sinks) | ~self.reads.any(1)], num_sinks)
        for order in self.lists or ():
            add_lists(whole, heads, order, num_sinks)


def _heads_at_once(kv_heads: int, group: int, elements: int) -> Iterator[tuple[slice, slice]]:
    """Key/value heads and their query heads to process together; ``elements`` is the size of one query head."""
    if group > 1 and group * elements > GROUP_ELEMENTS:
        for head in range(kv_heads * group):
            yield slice(head // group, head // group + 1), slice(head, head + 1)
        return
    step = max(1, min(kv_heads, HEAD_ELEMENTS // (group * elements)))
    for head in range(0, kv_heads, step):
        last = min(head + step, kv_heads)
        yield slice(head, last), slice(head * group, last * group)


def _worthwhile_lists(
    inputs: AttentionInputs, membership: Tensor, num_sinks: int, num_queries: int
) -> list[MemberLists] | None:
    """The member lists of one text; None where a pass over all pairs is cheaper or the only way."""
    total, heads = membership.shape[0], inputs.query.shape[1]
    if inputs.sliding_window is not None and inputs.sliding_window < total:
        return None
    band = num_queries * min(inputs.window + 32, total) * 1.5
    per_token = membership.sum(1)
    everything = num_queries * (total - num_queries / 2) * 1.3
    # Not worth building the lists for: few pairs, or first-order lists that alone cost more.
    first_order = float(membership[num_sinks:].sum(0).double().square().sum()) / 2
    cheapest = heads * (band + first_order * num_queries / total) + START_PAIRS
    if cheapest > heads * everything or per_token.max() > MOST_GROUPS:
        return None
    lists = member_lists(membership[num_sinks:])
    cost = heads * band + START_PAIRS
    for order in lists:
        entries = sum(order.lengths)
        passes = sum(length * (length / 2 + 100) for length in order.lengths)
        cost += heads * (passes + MERGE_PAIRS * entries) * num_queries / total
        cost += CALL_PAIRS * (len(order.lengths) if order.disjoint else 3 * len(order.lengths)) ** 0.5 * 3
    return lists if cost < heads * everything else None


def _worthwhile_reads(inputs: AttentionInputs, membership: Tensor, reads: Tensor, num_sinks: int) -> bool:
    """Whether passes of each group's readers over its members are possible and cheaper than one over all pairs."""
    total, num_queries, heads = membership.shape[0], reads.shape[0], inputs.query.shape[1]
    if inputs.sliding_window is not None and inputs.sliding_window < total:
        return False
    if bool((membership[num_sinks:].sum(1) > 1).any()):
        return False
    band = num_queries * min(inputs.window + 32, total) * 1.5
    everything = num_queries * (total - num_queries / 2) * 1.3
    return heads * band + START_PAIRS + reads_cost(membership, reads, num_sinks, heads) < heads * everything


START_PAIRS = 1_000_000
"""Cost of preparing the sparse passes, in pairs (about 1.5 ms)."""
