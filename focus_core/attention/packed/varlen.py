"""`varlen`: PyTorch's own variable-length flash attention on CUDA. Unverified on CUDA."""

from __future__ import annotations

import torch
from torch import Tensor

from focus_core.attention.inputs import AttentionInputs, AttentionOutput
from focus_core.attention.packed.calls import Packed, packed_attention


def cuda_obstacle(inputs: AttentionInputs) -> str | None:
    """The reason why flash kernels on CUDA do not support these inputs; None if they do."""
    return kernel_obstacle(inputs.query, inputs.value) or packed_obstacle(inputs)


def kernel_obstacle(query: Tensor, value: Tensor) -> str | None:
    """The reason why flash kernels on CUDA do not take such tensors; None if they do.

    Args:
        query: (B, H, Tq, D).
        value: (B, Hkv, T, Dv).
    """
    if query.device.type != "cuda":
        return "needs tensors on a CUDA device"
    if query.dtype not in (torch.float16, torch.bfloat16):
        return f"needs float16 or bfloat16 and got {query.dtype}"
    if query.shape[3] > 256 or query.shape[3] % 8 or value.shape[3] != query.shape[3]:
        return "needs one head size for keys and values, a multiple of 8 and at most 256"
    return None


def packed_obstacle(inputs: AttentionInputs) -> str | None:
    """The reason why packed passes do not support these inputs on any device; None if they do."""
    if not inputs.reads_own_groups:
        return "needs queries that read the groups they are in"
    if inputs.softcap is not None:
        return "has no softcap"
    if inputs.sliding_window is not None and inputs.sliding_window < inputs.num_keys:
        return "has no sliding window"
    if not inputs.consecutive:
        return "needs positions without gaps"
    if int(inputs.membership.sum(2).max()) > MOST_GROUPS:
        return f"takes tokens of at most {MOST_GROUPS} groups"
    return None


MOST_GROUPS = 2
"""Largest number of groups per token: with more, too many parts rounded to 16 bits would meet in a result."""


def varlen(inputs: AttentionInputs) -> AttentionOutput:
    """Exact attention through `torch.nn.attention.varlen.varlen_attn`, float16 or bfloat16, no gradients."""
    return packed_attention(inputs, torch_varlen, efficient_attention)


def efficient_attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float) -> AttentionOutput:
    """PyTorch's memory-efficient CUDA kernel, which takes a bias and returns the log-sum-exp.

    Its log-sum-exp is padded to a multiple of 32 queries.
    """
    output, logsumexp, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, bias.expand(-1, query.shape[1], -1, -1), True, scale=scale
    )
    return AttentionOutput(output, logsumexp[:, :, : query.shape[2]])


def torch_varlen(packed: Packed, scale: float) -> AttentionOutput:
    """The kernel of `varlen`: packed sequences in one call, see `focus_core.attention.packed.calls.PackedKernel`."""
    from torch.nn.attention.varlen import AuxRequest, varlen_attn

    output, logsumexp = varlen_attn(
        packed.query,
        packed.key,
        packed.value,
        packed.query_starts,
        packed.key_starts,
        packed.longest_query,
        packed.longest_key,
        return_aux=AuxRequest(lse=True),
        scale=scale,
        window_size=(-1, 0 if packed.causal else -1),
        enable_gqa=packed.query.shape[1] != packed.key.shape[1],
    )
    # The kernel returns (H, Nq), unlike the documentation of the function.
    return AttentionOutput(output, logsumexp.transpose(0, 1))
