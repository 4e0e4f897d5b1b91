"""Soft routing: causal attention with a gate on distant logits (arXiv 2604.03260, eq. 2).

Training materialises (T, T) logits on purpose: every distant pair needs a gradient. Hard routing does not use this
file; see `focus_core.attention`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from focus_core.attention import AttentionOutput
from focus_core.routing.config import FocusConfig
from focus_core.routing.gate import GATES

if TYPE_CHECKING:
    from jaxtyping import Float, Int


def affinity(query_weights: Float[Tensor, "B Tq K"], key_weights: Float[Tensor, "B T K"]) -> Float[Tensor, "B Tq T"]:
    """Pair affinity a_ij = g_i . g_j, between 0 and 1."""
    return query_weights @ key_weights.transpose(-1, -2)


def pair_masks(
    positions: Int[Tensor, "B T"], num_queries: int, config: FocusConfig, sliding_window: int | None
) -> tuple[Tensor, Tensor]:
    """Masks of the pairs that attention sees, and of those that no gate weakens.

    Args:
        positions: (B, T) position of each token in its text, -1 for padding.
        num_queries: Tq, the last tokens.
        config: `window` and `sink_tokens`.
        sliding_window: the model's own window, None without.

    Returns:
        visible (B, Tq, T): causal, real, inside the sliding window; open (B, Tq, T): local or sink.
    """
    index = torch.arange(positions.shape[1], device=positions.device)
    queries = slice(positions.shape[1] - num_queries, None)
    distance = positions[:, queries, None] - positions[:, None]
    visible = index[queries, None] >= index
    visible = visible & (positions[:, queries, None] >= 0) & (positions[:, None] >= 0)
    if sliding_window is not None:
        visible &= distance < sliding_window
    return visible, (distance <= config.window) | (positions[:, None] < config.sink_tokens)


def gated_attention(
    query: Float[Tensor, "B H Tq D"],
    key: Float[Tensor, "B Hkv T D"],
    value: Float[Tensor, "B Hkv T Dv"],
    key_weights: Float[Tensor, "B T K"],
    query_weights: Float[Tensor, "B Tq K"],
    positions: Int[Tensor, "B T"],
    config: FocusConfig,
    *,
    scale: float,
    softcap: float | None = None,
    sliding_window: int | None = None,
    dropout: float = 0.0,
) -> AttentionOutput:
    """Causal attention with the gate on distant logits, sinks excepted; differentiable.

    Args:
        query: the last Tq of T tokens.
        key: of all T tokens.
        value: of all T tokens.
        key_weights: soft assignment of all T tokens as keys.
        query_weights: weight of each group for each query.
        positions: position of each token in its text, -1 for padding.
        config: gate, sharpness, threshold, window and sinks.
        scale: factor of the dot products.
        softcap: logits become softcap * tanh(logits / softcap) before the gate.
        sliding_window: the model's own window.
        dropout: probability of dropping an attention weight.

    Returns:
        (B, H, Tq, Dv) in the query's dtype and (B, H, Tq) float32; memory grows with Tq * T.
    """
    repeats = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
    logits = (query @ key.transpose(-1, -2)).float() * scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    visible, is_open = pair_masks(positions, query.shape[2], config, sliding_window)
    pair_affinity = affinity(query_weights, key_weights)[:, None]
    gated = GATES[config.gate](logits, pair_affinity, config.gate_sharpness, config.gate_threshold)
    logits = torch.where(is_open[:, None], logits, gated)
    # A padding query sees nothing; giving it its own row of equal logits keeps softmax and its gradient finite.
    empty = ~visible.any(-1, keepdim=True)[:, None]
    logits = logits.masked_fill(~(visible[:, None] | empty), float("-inf"))
    weights = F.dropout(logits.softmax(-1), dropout, training=dropout > 0)
    output = (weights.to(value.dtype) @ value).masked_fill(empty, 0.0)
    logsumexp = logits.logsumexp(-1).masked_fill(empty[..., 0], float("-inf"))
    return AttentionOutput(output.to(query.dtype), logsumexp)
