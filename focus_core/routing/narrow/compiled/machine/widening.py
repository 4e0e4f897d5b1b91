"""Stored numbers of half the size or a quarter of it, as compiled code reads and writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic


def _widened(typing: Any, number: Any):
    """A float32 as it is, the one that an int16 holds the upper half of (a bfloat16), or that of an int8."""

    def widen(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        if number == types.float32:
            return args[0]
        if number == types.int8:
            return builder.sitofp(args[0], ir.FloatType())
        bits = builder.shl(builder.zext(args[0], ir.IntType(32)), ir.Constant(ir.IntType(32), 16))
        return builder.bitcast(bits, ir.FloatType())

    return types.float32(number), widen


wide: Any = intrinsic(_widened)
"""In compiled code: a float32 as it is, an int16 as the bfloat16 of its bits, an int8 as a number."""


def _narrowed(typing: Any, number: Any, like: Any):
    """A float32 as the type of another number is stored: as it is, or the bits of the nearest bfloat16 in an int16."""

    def narrow(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        if like == types.float32:
            return args[0]
        whole, half = ir.IntType(32), ir.IntType(16)
        bits = builder.bitcast(args[0], whole)
        # Of two that are equally near, the even one, as everywhere in PyTorch.
        odd = builder.and_(builder.lshr(bits, ir.Constant(whole, 16)), ir.Constant(whole, 1))
        up = builder.add(bits, builder.add(odd, ir.Constant(whole, 0x7FFF)))
        nearest = builder.trunc(builder.lshr(up, ir.Constant(whole, 16)), half)
        return builder.select(builder.fcmp_unordered("uno", args[0], args[0]), ir.Constant(half, 0x7FC0), nearest)

    return like(types.float32, like), narrow


narrow: Any = intrinsic(_narrowed)
"""In compiled code: a float32 as it is beside a float32, as the bits of the nearest bfloat16 beside an int16."""


@njit(nogil=True, fastmath=True, cache=True)
def square(vector: np.ndarray) -> np.float32:
    """Squared length of a vector (D,), of any stored type."""
    total = np.float32(0)
    # Over places: LLVM makes no vectors of a loop over the numbers themselves.
    for column in range(len(vector)):
        number = wide(vector[column])
        total += number * number
    return total


@njit(nogil=True, fastmath=True, cache=True)
def square_of_row(vectors: np.ndarray, row: int) -> np.float32:
    """Squared length of one of many vectors (R, D); a view of it would count references to the array."""
    total = np.float32(0)
    for column in range(vectors.shape[1]):
        number = wide(vectors[row, column])
        total += number * number
    return total
