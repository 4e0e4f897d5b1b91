"""Arrays of compiled code: those that begin where a cache line does, and those of tensors.

Vectors that lie across two cache lines are read at half the speed.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

LINE = 64
"""Bytes of a cache line, and of a vector."""
COMPILED = (torch.float32, torch.bfloat16)
"""Dtypes that compiled code reads and writes."""


def empty(shape: tuple[int, ...] | int, kind: np.typing.DTypeLike = np.float32) -> np.ndarray:
    """An array at a multiple of `LINE` bytes, with any numbers in it."""
    kind = np.dtype(kind)
    size = (shape if isinstance(shape, int) else math.prod(shape)) * kind.itemsize
    memory = np.empty(size + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    return memory[start : start + size].view(kind).reshape(shape)


def zeros(shape: tuple[int, ...] | int, kind: np.typing.DTypeLike = np.float32) -> np.ndarray:
    """An array at a multiple of `LINE` bytes, all 0."""
    found = empty(shape, kind)
    found[...] = 0
    return found


def as_array(part: Tensor) -> np.ndarray:
    """A tensor on a CPU for compiled code, without a copy; bfloat16 as the int16 of its bits."""
    return (part.view(torch.int16) if part.dtype == torch.bfloat16 else part).numpy()
