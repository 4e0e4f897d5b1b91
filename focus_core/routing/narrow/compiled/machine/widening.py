"""Stored numbers of half the size or a quarter of it, as compiled code reads them."""

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


@njit(nogil=True, fastmath=True, cache=True)
def square(vector: np.ndarray) -> np.float32:
    """Squared length of a vector (D,), of any stored type."""
    total = np.float32(0)
    for component in vector:
        number = wide(component)
        total += number * number
    return total
