"""`dense`: the definition in its plainest form. Every other backend is tested against it."""

from __future__ import annotations

import torch
from torch import Tensor

from focus_core.attention.inputs import AttentionInputs, AttentionOutput, kept_mask


def masked_softmax(logits: Tensor, mask: Tensor, value: Tensor) -> AttentionOutput:
    """Softmax over the kept keys, with 0 and -inf (and no NaN gradient) where a query has none.

    Args:
        logits: (B, H, Tq, T).
        mask: bool, broadcastable to the logits; True where the pair is kept.
        value: (B, H, T, Dv).

    Returns:
        Output and log-sum-exp in the dtype of the logits.
    """
    empty = ~mask.any(-1, keepdim=True)
    logits = logits.masked_fill(~(mask | empty), float("-inf"))
    logsumexp = logits.logsumexp(-1, keepdim=True)
    output = torch.exp(logits - logsumexp) @ value
    return AttentionOutput(output.masked_fill(empty, 0.0), logsumexp.masked_fill(empty, float("-inf")).squeeze(-1))


def attention_logits(query: Tensor, key: Tensor, scale: float, softcap: float | None) -> Tensor:
    """Scaled, optionally soft-capped dot products: (..., Tq, D) and (..., T, D) to (..., Tq, T)."""
    logits = (query * scale) @ key.mT
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)


def dense(inputs: AttentionInputs) -> AttentionOutput:
    """Masked attention over the whole (Tq, T) square.

    Computes in float32 (float64 for float64 inputs), differentiable, on any device; memory grows with Tq * T.
    """
    compute = torch.promote_types(inputs.query.dtype, torch.float32)
    query, key, value = (tensor.to(compute) for tensor in (inputs.query, inputs.key, inputs.value))
    key, value = (tensor.repeat_interleave(inputs.heads_per_key, dim=1) for tensor in (key, value))
    logits = attention_logits(query, key, inputs.scale, inputs.softcap)
    output, logsumexp = masked_softmax(logits, kept_mask(inputs)[:, None], value)
    return AttentionOutput(output.to(inputs.query.dtype), logsumexp)
