"""`flash_merge`: the published k = 1 form, two standard calls and a log-sum-exp merge."""

from __future__ import annotations

import torch
from torch import Tensor

from focus_core.attention.cpu.backend import cpu_obstacle
from focus_core.attention.cpu.kernel import cpu_flash
from focus_core.attention.inputs import AttentionInputs, AttentionOutput
from focus_core.attention.packed.calls import Packed, packed_attention
from focus_core.attention.packed.varlen import cuda_obstacle, packed_obstacle, varlen


def flash_merge_obstacle(inputs: AttentionInputs) -> str | None:
    """The reason why `flash_merge` does not support these inputs; None if it does."""
    if not inputs.reads_own_groups:
        return "is the published form, where queries read the groups they are in"
    if bool((inputs.membership.sum(2) > 1).any()):
        return "is the published form for one group per token and some tokens have more"
    if inputs.query.device.type == "cuda":
        return cuda_obstacle(inputs)
    return cpu_obstacle(inputs) or packed_obstacle(inputs)


def flash_merge(inputs: AttentionInputs) -> AttentionOutput:
    """Exact attention at k = 1: causal calls over tokens sorted by group, merged with a band of the other local pairs.

    arXiv 2604.03260, section 3. One variable-length call on CUDA; one call per group on the CPU, where the kernel has
    none. Kept for comparison: `cpu` does the same work in better shaped calls.
    """
    if inputs.query.device.type == "cuda":
        return varlen(inputs)
    return packed_attention(inputs, cpu_packed, cpu_bias)


def cpu_packed(packed: Packed, scale: float) -> AttentionOutput:
    """Packed attention on the CPU, a call per sequence; under a bias where causal keys go further back."""
    group = packed.query.shape[1] // packed.key.shape[1]
    output = torch.empty_like(packed.query)
    logsumexp = torch.empty(packed.query.shape[:2])
    edges = zip(packed.query_starts.tolist(), packed.key_starts.tolist())
    first, begin = next(edges)
    for last, end in edges:
        if last > first:
            query = packed.query[first:last].transpose(0, 1)[None]
            key, value = (
                tensor[begin:end].transpose(0, 1).repeat_interleave(group, dim=0)[None]
                for tensor in (packed.key, packed.value)
            )
            earlier = (end - begin) - (last - first)
            bias = None
            if packed.causal and earlier:
                bias = torch.zeros(last - first, end - begin, dtype=query.dtype)
                later = torch.ones(bias.shape, dtype=torch.bool).triu_(earlier + 1)
                bias = bias.masked_fill_(later, float("-inf"))[None, None]
            part = cpu_flash(query, key, value, scale, bias=bias, causal=packed.causal and not earlier)
            output[first:last] = part.output[0].transpose(0, 1)
            logsumexp[first:last] = part.logsumexp[0].transpose(0, 1)
        first, begin = last, end
    return AttentionOutput(output, logsumexp)


def cpu_bias(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float) -> AttentionOutput:
    """Blocks under a bias on the CPU."""
    return cpu_flash(query, key, value, scale, bias=bias)
