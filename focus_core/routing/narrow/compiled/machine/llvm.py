"""LLVM's vectors of 16 float32, for functions that Numba cannot compile well from loops.

Numba compiles loops well that run along memory, but not sums that must stay in registers while two operands stream by.
Such functions are written in LLVM's own terms. LLVM splits vectors into what the processor has: one AVX-512 register,
two of AVX2, four of NEON. Addresses are those of `array.ctypes.data`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import binding, ir
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16
"""Keys of a tile."""
FEW = LANES // 2
"""Keys of a tile that is half full, at most."""
WIDE = bool(binding.get_host_cpu_features().get("avx512f"))
"""Whether a vector is one of 32 registers. Elsewhere it takes two of 16 (AVX2) or four of 32 (NEON): few sums fit."""

F32 = ir.FloatType()
I32 = ir.IntType(32)
I64 = ir.IntType(64)
VECTOR = ir.VectorType(F32, LANES)
INTS = ir.VectorType(I32, LANES)
BITS = ir.IntType(LANES)

_LOG2E, _LN2 = 1.0 / math.log(2.0), math.log(2.0)
_TO_WHOLE = 1.5 * 2**23
"""Added to a float32 below 2^22, it leaves the nearest whole number, in the lowest bits as well."""
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


def smaller(builder: Builder, a: Any, b: Any) -> Any:
    """The smaller number of each lane."""
    return builder.select(builder.fcmp_ordered("<", a, b), a, b)


def exp(builder: Builder, x: Any) -> Any:
    """exp of 16 numbers that are at most 0, or a little above."""
    tiny = builder.fcmp_ordered("<", x, constant(_LEAST))
    moved = fma(builder, x, constant(_LOG2E), constant(_TO_WHOLE))
    power = builder.fsub(moved, constant(_TO_WHOLE))
    # One product is enough: ln 2 as a float32 is off by 2e-9, and the power is 126 at most.
    x = fma(builder, power, constant(-_LN2), x)
    found = constant(_EXP[0])
    for coefficient in _EXP[1:]:
        found = fma(builder, found, x, constant(coefficient))
    exponent = builder.shl(builder.bitcast(moved, INTS), ir.Constant(INTS, [23] * LANES))
    scaled = builder.add(builder.bitcast(found, INTS), exponent)
    return builder.bitcast(builder.select(tiny, ir.Constant(INTS, [0] * LANES), scaled), VECTOR)


def first(builder: Builder, count: Any) -> Any:
    """Which of 16 lanes are the first `count`."""
    return builder.icmp_signed("<", ir.Constant(INTS, list(range(LANES))), splat(builder, builder.trunc(count, I32)))


def select_first(builder: Builder, count: Any, values: Any, other: float) -> Any:
    """The first `count` of 16 numbers, and another number in place of the rest."""
    return builder.select(first(builder, count), values, constant(other))


def kept_tile(builder: Builder, logits: Any, tile: Any, count: Any, factor: Any = None) -> Any:
    """A tile of logits, times a factor in all lanes if there is one, `MASKED` from place `count` on."""
    found = load(builder, row_at(builder, logits, tile, whole(LANES)))
    left = builder.sub(count, builder.mul(tile, whole(LANES)))
    return select_first(builder, left, found if factor is None else builder.fmul(found, factor), MASKED)


def rounded(builder: Builder, numbers: Any) -> Any:
    """The bits of the nearest numbers of bfloat16, in the upper halves of 16 integers."""
    bits = builder.add(builder.bitcast(numbers, INTS), ir.Constant(INTS, [1 << 15] * LANES))
    return builder.and_(bits, ir.Constant(INTS, [-1 << 16] * LANES))


def store_half(builder: Builder, positive: Any, address: Any) -> None:
    """Round 16 positive float32 to bfloat16, and write them to an address."""
    kind = ir.VectorType(ir.IntType(16), LANES)
    halves = builder.trunc(builder.lshr(rounded(builder, positive), ir.Constant(INTS, [16] * LANES)), kind)
    builder.store(halves, pointer(builder, address, kind), align=2)


def sum_of(builder: Builder, vector: Any) -> Any:
    """Sum over the lanes."""
    return call_llvm(builder, "vector.reduce.fadd", F32, [ir.Constant(F32, 0.0), vector], fast=True)
