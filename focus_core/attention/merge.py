"""Adding and subtracting parts of a softmax: attention over disjoint key sets, combined by log-sum-exp."""

from __future__ import annotations

import torch
from torch import Tensor

from focus_core.attention.inputs import AttentionOutput


def merge_(whole: AttentionOutput, part: AttentionOutput, *, sign: int = 1) -> None:
    """Add the keys of ``part`` to the attention ``whole``, or subtract them again, in place.

    With l the log-sum-exp, ``l' = log(e^l + sign e^l_part)`` and the output moves towards (or away from) the part's by
    ``sign e^(l_part - l')``. Subtraction is well conditioned only if the whole contains the part at least twice: then
    at least half of it remains. See docs/exact-attention.md.

    Args:
        whole: output (..., D) and log-sum-exp (...), changed; the log-sum-exp may be very low, not -inf.
        part: of the same shapes.
        sign: 1 to add, -1 to subtract.
    """
    output, logsumexp = whole
    if sign > 0:
        torch.logaddexp(logsumexp, part.logsumexp, out=logsumexp)
    else:
        logsumexp.add_(torch.log1p(-torch.exp(part.logsumexp - logsumexp)))
    weight = torch.exp(part.logsumexp - logsumexp).mul_(sign).to(output.dtype)
    output.lerp_(part.output.to(output.dtype), weight[..., None])


def take_rows(tensor: Tensor, rows: Tensor) -> Tensor:
    """``tensor.index_select(1, rows)`` for (B, R, D), one batch entry at a time.

    On a CPU, PyTorch copies whole rows only along the first dimension. Along the second it follows strides, which takes
    five times as long in float32.
    """
    taken = tensor.new_empty(tensor.shape[0], rows.numel(), tensor.shape[2])
    for source, target in zip(tensor, taken):
        torch.index_select(source, 0, rows, out=target)
    return taken


def merge_rows_(whole: AttentionOutput, rows: Tensor, part: AttentionOutput, *, sign: int = 1) -> None:
    """`merge_` for some rows.

    Args:
        whole: output (B, R, D) and log-sum-exp (B, R), changed in place.
        rows: (N,) int64, different rows of the whole.
        part: output (B, N, D) and log-sum-exp (B, N).
        sign: 1 to add, -1 to subtract.
    """
    chosen = AttentionOutput(take_rows(whole.output, rows), whole.logsumexp.index_select(1, rows))
    merge_(chosen, part, sign=sign)
    whole.output.index_copy_(1, rows, chosen.output)
    whole.logsumexp.index_copy_(1, rows, chosen.logsumexp)
