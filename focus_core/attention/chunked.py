"""`chunked`: the dense computation a few queries at a time, for inputs that no fast backend supports."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from focus_core.attention.inputs import AttentionInputs, AttentionOutput, kept_mask
from focus_core.attention.reference import attention_logits, masked_softmax

CHUNK_ELEMENTS = 1 << 22
"""Logits held at a time, over all rows and heads."""


def chunked(inputs: AttentionInputs) -> AttentionOutput:
    """Exact masked attention in memory that grows with T, not with T^2.

    Queries run in chunks with at most `CHUNK_ELEMENTS` logits; a chunk reads only the keys up to its last query. Query
    heads that share a key/value head are folded into the query length, so keys are not copied. Differentiable: the
    backward pass recomputes each chunk.
    """
    batch, heads, num_queries, _ = inputs.query.shape
    rows = max(1, CHUNK_ELEMENTS // max(1, batch * heads * inputs.num_keys))
    offset = inputs.num_keys - num_queries
    compute = torch.promote_types(inputs.query.dtype, torch.float32)
    output = inputs.query.new_empty(batch, heads, num_queries, inputs.value.shape[3])
    logsumexp = torch.empty(batch, heads, num_queries, dtype=compute, device=inputs.query.device)

    parts = []
    for first in range(0, num_queries, rows):
        last = min(first + rows, num_queries)
        seen = offset + last
        mask = kept_mask(inputs, first, last)[:, :, :seen]
        tensors = (inputs.query[:, :, first:last], inputs.key[:, :, :seen], inputs.value[:, :, :seen])
        if inputs.needs_grad:
            parts.append(checkpoint(_chunk, *tensors, mask, inputs, use_reentrant=False))
        else:
            output[:, :, first:last], logsumexp[:, :, first:last] = _chunk(*tensors, mask, inputs)
    if parts:
        output, logsumexp = (torch.cat(tensors, dim=2) for tensors in zip(*parts))
    return AttentionOutput(output, logsumexp)


def _chunk(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, inputs: AttentionInputs) -> tuple[Tensor, Tensor]:
    """One chunk of queries against the keys up to its end; heads that share keys are rows of one product."""
    batch, heads, rows, head_dim = query.shape
    compute = torch.promote_types(query.dtype, torch.float32)
    folded = query.to(compute).reshape(batch, key.shape[1], -1, head_dim)
    logits = attention_logits(folded, key.to(compute), inputs.scale, inputs.softcap)
    mask = mask.repeat(1, inputs.heads_per_key, 1)[:, None]
    output, logsumexp = masked_softmax(logits, mask, value.to(compute))
    return output.reshape(batch, heads, rows, -1).to(query.dtype), logsumexp.reshape(batch, heads, rows)
