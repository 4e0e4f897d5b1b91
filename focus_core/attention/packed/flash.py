"""`flash`: the flash-attn package on CUDA, when it is installed. Unverified on CUDA."""

from __future__ import annotations

import importlib.util

from focus_core.attention.inputs import AttentionInputs, AttentionOutput
from focus_core.attention.packed.calls import Packed, packed_attention
from focus_core.attention.packed.varlen import cuda_obstacle, efficient_attention


def flash_obstacle(inputs: AttentionInputs) -> str | None:
    """The reason why `flash` does not support these inputs; None if it does."""
    return package_obstacle() or cuda_obstacle(inputs)


def package_obstacle() -> str | None:
    """The reason why flash-attn cannot be called; None where it is installed."""
    if importlib.util.find_spec("flash_attn") is None:
        return "needs the package flash-attn, which pip install 'focus-workbench[cuda]' brings"
    return None


def flash(inputs: AttentionInputs) -> AttentionOutput:
    """Exact attention through `flash_attn.flash_attn_varlen_func` (2.6 or newer), no gradients."""
    return packed_attention(inputs, flash_varlen, efficient_attention)


def flash_varlen(packed: Packed, scale: float) -> AttentionOutput:
    """The kernel of `flash`: packed sequences in one call, see `focus_core.attention.packed.calls.PackedKernel`."""
    from flash_attn import flash_attn_varlen_func  # pyright: ignore[reportMissingImports]

    output, logsumexp, _ = flash_attn_varlen_func(
        packed.query,
        packed.key,
        packed.value,
        packed.query_starts,
        packed.key_starts,
        packed.longest_query,
        packed.longest_key,
        softmax_scale=scale,
        causal=packed.causal,
        return_attn_probs=True,
    )
    # Since 2.6 the log-sum-exp is (H, Nq).
    return AttentionOutput(output, logsumexp.transpose(0, 1))
