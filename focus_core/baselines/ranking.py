"""The largest scores of each row, and masks of logits: on the CPU by the fastest of PyTorch and NumPy."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

NEVER = 3e38
"""Subtracted from the logits of pairs that are left out: their weights are exactly 0."""


def only(kept: Tensor) -> Tensor:
    """float32 to add to logits: 0 for kept pairs, so much below 0 for others that their weights are 0."""
    return kept.float().sub_(1).mul_(NEVER)


def largest(scores: Tensor, count: int) -> Tensor:
    """The `count` largest of each row, of equal ones the last: bool of the shape of the scores, float32."""
    width = scores.shape[-1]
    if count >= width or count <= 0:
        return torch.full_like(scores, count > 0, dtype=torch.bool)
    if scores.device.type == "cpu":  # NumPy's partition is many times faster than topk
        parted = torch.from_numpy(np.partition(scores.numpy(), width - count, axis=-1))
        least, next_one = parted[..., width - count], parted[..., : width - count].amax(-1)
    else:
        least, next_one = scores.topk(count + 1).values[..., -2:].unbind(-1)
    chosen = scores >= least[..., None]
    tied = (least == next_one) & (least > float("-inf"))
    if bool(tied.any()):
        order = scores[tied].flip(-1).sort(dim=-1, descending=True, stable=True).indices[:, :count]
        chosen[tied] = torch.zeros_like(chosen[tied]).scatter_(-1, width - 1 - order, True)
    return chosen


def descending(scores: Tensor) -> Tensor:
    """int64 order of each row, largest first."""
    if scores.device.type == "cpu":  # many times faster than torch.sort
        return torch.from_numpy(np.argsort(-scores.numpy(), axis=-1))
    return scores.argsort(-1, descending=True)
