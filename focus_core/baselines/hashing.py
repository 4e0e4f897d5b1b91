"""Hash codes that queries and keys share: counting the tables in which they are equal."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

MAX_TABLES = 255
"""Collisions are counted in bytes."""


def collisions(ours: Tensor, theirs: Tensor) -> Tensor:
    """(B, H, Tq, S) uint8: the number of tables in which query and key have the same code.

    Args:
        ours: (L, B, H, Tq) uint8 or int16, codes of queries, at most `MAX_TABLES` tables.
        theirs: (L, B, H, S), codes of keys in the same dtype.
    """
    count = torch.zeros(*ours.shape[1:], theirs.shape[-1], dtype=torch.uint8, device=ours.device)
    for own, other in zip(ours[..., None], theirs[..., None, :]):
        if count.device.type == "cpu":  # NumPy compares bytes many times faster
            total = count.numpy()
            np.add(total, np.equal(own.numpy(), other.numpy()).view(np.uint8), out=total)
        else:
            count += own == other
    return count
