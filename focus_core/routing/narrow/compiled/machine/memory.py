"""Arrays that begin where a cache line does: vectors that lie across two lines are read at half the speed."""

from __future__ import annotations

import numpy as np

LINE = 64
"""Bytes of a cache line, and of a vector."""


def empty(shape: tuple[int, ...] | int, kind: np.typing.DTypeLike = np.float32) -> np.ndarray:
    """An array at a multiple of `LINE` bytes, with any numbers in it."""
    kind = np.dtype(kind)
    size = int(np.prod(shape)) * kind.itemsize
    memory = np.empty(size + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    return memory[start : start + size].view(kind).reshape(shape)


def zeros(shape: tuple[int, ...] | int, kind: np.typing.DTypeLike = np.float32) -> np.ndarray:
    """An array at a multiple of `LINE` bytes, all 0."""
    found = empty(shape, kind)
    found[...] = 0
    return found
