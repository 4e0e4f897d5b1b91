"""Masks of logits."""

from __future__ import annotations

from torch import Tensor

NEVER = 3e38
"""Subtracted from the logits of pairs that are left out: their weights are exactly 0."""


def only(kept: Tensor) -> Tensor:
    """float32 to add to logits: 0 for kept pairs, so much below 0 for others that their weights are 0."""
    return kept.float().sub_(1).mul_(NEVER)
