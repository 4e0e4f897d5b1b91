"""`decode`: a few queries at the end of a long cache, which read only the keys that they keep."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from focus_core.attention.inputs import AttentionInputs, AttentionOutput, kept_mask
from focus_core.attention.reference import attention_logits, masked_softmax

MOST_QUERIES = 32
"""Largest number of queries, since the mask has Tq * T entries."""


def decode_obstacle(inputs: AttentionInputs) -> str | None:
    """The reason why `decode` does not support these inputs; None if it does."""
    if inputs.num_queries > MOST_QUERIES:
        return f"takes at most {MOST_QUERIES} queries and got {inputs.num_queries}"
    return None


def decode(inputs: AttentionInputs) -> AttentionOutput:
    """Gather the kept keys of every row of the batch, then attend to those alone.

    Rows that keep fewer keys are padded to the longest. Computes in float32 (float64 for float64 inputs), on any
    device, differentiable. Memory grows with the kept keys.
    """
    batch, heads, num_queries, head_dim = inputs.query.shape
    kv_heads = inputs.key.shape[1]
    compute = torch.promote_types(inputs.query.dtype, torch.float32)
    mask = kept_mask(inputs)
    index = pad_sequence([row.nonzero()[:, 0] for row in mask.any(1)], batch_first=True, padding_value=-1)
    mask = mask.gather(2, index.clamp(min=0)[:, None].expand(-1, num_queries, -1)) & (index >= 0)[:, None]

    key, value = (_gathered(tensor, index.clamp(min=0)).to(compute) for tensor in (inputs.key, inputs.value))
    query = inputs.query.to(compute).reshape(batch, kv_heads, -1, head_dim)
    logits = attention_logits(query, key, inputs.scale, inputs.softcap)
    output, logsumexp = masked_softmax(logits, mask.repeat(1, inputs.heads_per_key, 1)[:, None], value)
    return AttentionOutput(
        output.reshape(batch, heads, num_queries, inputs.value.shape[3]).to(inputs.query.dtype),
        logsumexp.reshape(batch, heads, num_queries),
    )


def _gathered(tensor: Tensor, index: Tensor) -> Tensor:
    """Tokens ``index`` (B, n) of (B, H, T, D): (B, H, n, D), reading no other tokens."""
    batch, heads, total, _ = tensor.shape
    if not tensor.is_contiguous():
        return torch.stack([row.index_select(1, tokens) for row, tokens in zip(tensor, index)])
    starts = torch.arange(batch * heads, device=index.device).view(batch, heads, 1) * total
    flat = (starts + index[:, None]).flatten()
    return tensor.flatten(0, 2).index_select(0, flat).view(batch, heads, index.shape[1], tensor.shape[3])
