"""LLVM's vectors of 16 float32, for functions that Numba cannot compile well from loops.

Numba compiles loops well that run along memory, but not sums that must stay in registers while two operands stream by.
Such functions are written in LLVM's own terms. LLVM splits vectors into what the processor has: one AVX-512 register,
two of AVX2, four of NEON. Addresses are those of `array.ctypes.data`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16
"""Keys of a tile."""
FEW = LANES // 2
"""Keys of a tile that is half full, at most."""

F32 = ir.FloatType()
I32 = ir.IntType(32)
I64 = ir.IntType(64)
VECTOR = ir.VectorType(F32, LANES)
INTS = ir.VectorType(I32, LANES)
BITS = ir.IntType(LANES)

_LOG2E = 1.0 / math.log(2.0)
# ln 2 in two parts, the first one with trailing zeros, so that its multiples are exact.
_LN2_HIGH = 0.693359375
_LN2_LOW = math.log(2.0) - _LN2_HIGH
# exp(x) for |x| <= ln 2 / 2, with the least relative error of degree 5 that is 1 at 0: 1e-7, with rounding 2e-7.
_EXP = (0.00829027034342289, 0.04189816117286682, 0.1666763871908188, 0.4999914765357971, 0.9999997019767761, 1.0)
_LEAST = -87.0
"""exp of less is 0 here; float32 has no normal numbers below."""

MASKED = -3e38
"""Below every logit, and below what stands for none so far."""

Builder = Any


def in_llvm(function: Callable[..., Any]) -> Callable[..., Any]:
    """An intrinsic without its first argument, the typing context, which Numba passes itself."""
    return intrinsic(function)


def constant(value: float) -> ir.Constant:
    """One number in all lanes."""
    return ir.Constant(VECTOR, [value] * LANES)


def whole(value: int) -> ir.Constant:
    """A number of 64 bits."""
    return ir.Constant(I64, value)


def variable(builder: Builder, value: float = 0.0, lanes: int = LANES) -> Any:
    """A vector on the stack, which LLVM keeps in a register; the value is set where the builder stands."""
    kind = ir.VectorType(F32, lanes)
    place = cgutils.alloca_once(builder, kind)
    builder.store(ir.Constant(kind, [value] * lanes), place)
    return place


def pointer(builder: Builder, address: Any, kind: ir.Type) -> Any:
    """An address as a pointer to values of one type."""
    return builder.inttoptr(address, kind.as_pointer())


def row_at(builder: Builder, base: Any, row: Any, width: Any) -> Any:
    """Address of a row of `width` float32."""
    return builder.add(base, builder.shl(builder.mul(row, width), ir.Constant(I64, 2)))


def load(builder: Builder, address: Any, lanes: int = LANES) -> Any:
    """16 float32 from an address, or so many."""
    return builder.load(pointer(builder, address, ir.VectorType(F32, lanes)), align=4)


def store(builder: Builder, value: Any, address: Any) -> None:
    """Write a vector to an address."""
    builder.store(value, pointer(builder, address, value.type), align=4)


def splat(builder: Builder, scalar: Any, lanes: int = LANES) -> Any:
    """A scalar in all lanes."""
    kind, first = ir.VectorType(scalar.type, lanes), ir.Constant(ir.VectorType(I32, lanes), [0] * lanes)
    alone = builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(I32, 0))
    return builder.shuffle_vector(alone, ir.Constant(kind, ir.Undefined), first)


def splat_at(builder: Builder, address: Any, lanes: int = LANES) -> Any:
    """The float32 at an address, in all lanes."""
    return splat(builder, builder.load(pointer(builder, address, F32)), lanes)


def call_llvm(builder: Builder, name: str, result: ir.Type, arguments: Sequence[Any], fast: bool = False) -> Any:
    """A call of one of LLVM's own functions on vectors."""
    kind, lanes = ir.FunctionType(result, [argument.type for argument in arguments]), arguments[-1].type.count
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{lanes}f32")
    return builder.call(function, arguments, fastmath=["fast"] if fast else ())


def fma(builder: Builder, a: Any, b: Any, c: Any) -> Any:
    """A b + c, rounded once."""
    return call_llvm(builder, "fma", c.type, [a, b, c])


def larger(builder: Builder, a: Any, b: Any) -> Any:
    """The larger number of each lane."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def exp(builder: Builder, x: Any) -> Any:
    """exp of 16 numbers that are at most 0, or a little above."""
    tiny = builder.fcmp_ordered("<", x, constant(_LEAST))
    x = builder.select(tiny, constant(_LEAST), x)
    power = call_llvm(builder, "rint", VECTOR, [builder.fmul(x, constant(_LOG2E))])
    x = fma(builder, power, constant(-_LN2_HIGH), x)
    x = fma(builder, power, constant(-_LN2_LOW), x)
    found = constant(_EXP[0])
    for coefficient in _EXP[1:]:
        found = fma(builder, found, x, constant(coefficient))
    exponent = builder.add(builder.fptosi(power, INTS), ir.Constant(INTS, [127] * LANES))
    scaled = builder.bitcast(builder.shl(exponent, ir.Constant(INTS, [23] * LANES)), VECTOR)
    return builder.select(tiny, constant(0.0), builder.fmul(found, scaled))


def kept_tile(builder: Builder, logits: Any, tile: Any, count: Any, factor: Any = None) -> Any:
    """A tile of logits, times a factor in all lanes if there is one, `MASKED` from place `count` on."""
    left = builder.trunc(builder.sub(count, builder.mul(tile, whole(LANES))), I32)
    kept = builder.icmp_signed("<", ir.Constant(INTS, list(range(LANES))), splat(builder, left))
    found = load(builder, row_at(builder, logits, tile, whole(LANES)))
    return builder.select(kept, found if factor is None else builder.fmul(found, factor), constant(MASKED))


def sum_of(builder: Builder, vector: Any) -> Any:
    """Sum over the lanes."""
    return call_llvm(builder, "vector.reduce.fadd", F32, [ir.Constant(F32, 0.0), vector], fast=True)
