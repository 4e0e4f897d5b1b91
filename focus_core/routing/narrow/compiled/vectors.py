"""Attention over 16 keys at a time, in vector registers: products, softmax and values, for rows of queries.

Numba compiles loops well that run along memory, but not sums that must stay in registers while two operands stream by.
These four functions are therefore written in LLVM's own terms, on vectors of 16 float32. LLVM splits them into what the
processor has: one AVX-512 register, two of AVX2, four of NEON.

All take addresses (`array.ctypes.data`) and numbers of rows; nothing is checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16
"""Keys of a tile."""
ROWS = 4
"""Rows of a call."""

_F32 = ir.FloatType()
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)
_VECTOR = ir.VectorType(_F32, LANES)
_INTS = ir.VectorType(_I32, LANES)

_LOG2E = 1.0 / math.log(2.0)
# ln 2 in two parts, the first one with trailing zeros, so that its multiples are exact.
_LN2_HIGH = 0.693359375
_LN2_LOW = math.log(2.0) - _LN2_HIGH
# exp(x) for |x| <= ln 2 / 2, relative error 2e-7 (the coefficients of Cephes' expf).
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1, 1.0, 1.0)
_LEAST = -87.0
"""exp of less is 0 here; float32 has no normal numbers below."""

_FAR = -1e30

Builder = Any


def _in_llvm(function: Callable[..., Any]) -> Callable[..., None]:
    """An intrinsic without its first argument, the typing context, which Numba passes itself."""
    return intrinsic(function)


def _constant(value: float) -> ir.Constant:
    return ir.Constant(_VECTOR, [value] * LANES)


def _int(value: int) -> ir.Constant:
    return ir.Constant(_I64, value)


def _variable(builder: Builder, value: float = 0.0) -> Any:
    """A vector on the stack, which LLVM keeps in a register; the value is set where the builder stands."""
    place = cgutils.alloca_once(builder, _VECTOR)
    builder.store(_constant(value), place)
    return place


def _pointer(builder: Builder, address: Any, kind: ir.Type) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def _at(builder: Builder, base: Any, row: Any, width: Any) -> Any:
    """Address of a row of `width` float32."""
    return builder.add(base, builder.shl(builder.mul(row, width), ir.Constant(_I64, 2)))


def _load(builder: Builder, address: Any) -> Any:
    return builder.load(_pointer(builder, address, _VECTOR), align=4)


def _store(builder: Builder, value: Any, address: Any) -> None:
    builder.store(value, _pointer(builder, address, _VECTOR), align=4)


def _splat(builder: Builder, scalar: Any) -> Any:
    kind = ir.VectorType(scalar.type, LANES)
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), ir.Constant(_INTS, [0] * LANES))


def _splat_at(builder: Builder, address: Any) -> Any:
    return _splat(builder, builder.load(_pointer(builder, address, _F32)))


def _llvm(builder: Builder, name: str, result: ir.Type, arguments: Sequence[Any], fast: bool = False) -> Any:
    """A call of one of LLVM's own functions on vectors."""
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{LANES}f32")
    return builder.call(function, arguments, fastmath=["fast"] if fast else ())


def _fma(builder: Builder, a: Any, b: Any, c: Any) -> Any:
    return _llvm(builder, "fma", _VECTOR, [a, b, c])


def _larger(builder: Builder, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _exp(builder: Builder, x: Any) -> Any:
    """exp of 16 numbers that are at most 0, or a little above."""
    tiny = builder.fcmp_ordered("<", x, _constant(_LEAST))
    x = builder.select(tiny, _constant(_LEAST), x)
    power = _llvm(builder, "rint", _VECTOR, [builder.fmul(x, _constant(_LOG2E))])
    x = _fma(builder, power, _constant(-_LN2_HIGH), x)
    x = _fma(builder, power, _constant(-_LN2_LOW), x)
    found = _constant(_EXP[0])
    for coefficient in _EXP[1:]:
        found = _fma(builder, found, x, _constant(coefficient))
    exponent = builder.add(builder.fptosi(power, _INTS), ir.Constant(_INTS, [127] * LANES))
    scaled = builder.bitcast(builder.shl(exponent, ir.Constant(_INTS, [23] * LANES)), _VECTOR)
    return builder.select(tiny, _constant(0.0), builder.fmul(found, scaled))


def _dots(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    *rows, query, width, tile, out, stride = args
    queries = [_at(builder, query, row, width) for row in rows]
    # Two sums for each row: a single one would wait for itself.
    sums = [[_variable(builder) for _ in range(2)] for _ in rows]
    with cgutils.for_range_slice(builder, _int(0), width, _int(2)) as (place, _):
        for half in range(2):
            here = builder.add(place, _int(half))
            keys = _load(builder, _at(builder, tile, here, _int(LANES)))
            for each, address in zip(sums, queries):
                factor = _splat_at(builder, _at(builder, address, here, _int(1)))
                builder.store(_fma(builder, factor, keys, builder.load(each[half])), each[half])
    for number, (one, other) in enumerate(sums):
        total = builder.fadd(builder.load(one), builder.load(other))
        _store(builder, total, _at(builder, out, _int(number), stride))
    return context.get_dummy_value()


@_in_llvm
def dots(typing: Any, r0: Any, r1: Any, r2: Any, r3: Any, query: Any, width: Any, tile: Any, out: Any, stride: Any):
    """Dot products of four queries with the 16 keys of a tile.

    Args:
        r0: rows of the queries, and r1 to r3.
        query: address of the queries, (R, D).
        width: D, even.
        tile: address of the keys, (D, 16).
        out: address of the first row's 16 results.
        stride: numbers from one row's results to the next one's.
    """
    return types.void(*[types.int64] * 9), _dots


def _values(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    *rows, weights, stride, tile, output, width = args
    outputs = [_at(builder, output, row, width) for row in rows]
    factors = [_at(builder, weights, _int(number), stride) for number in range(ROWS)]
    with cgutils.for_range_slice(builder, _int(0), width, _int(LANES)) as (place, _):
        where = [_at(builder, each, place, _int(1)) for each in outputs]
        sums = [_load(builder, address) for address in where]
        for lane in range(LANES):
            value = _load(builder, _at(builder, _at(builder, tile, _int(lane), width), place, _int(1)))
            for number, address in enumerate(factors):
                factor = _splat_at(builder, builder.add(address, _int(4 * lane)))
                sums[number] = _fma(builder, factor, value, sums[number])
        for total, address in zip(sums, where):
            _store(builder, total, address)
    return context.get_dummy_value()


@_in_llvm
def add_values(
    typing: Any, r0: Any, r1: Any, r2: Any, r3: Any, weights: Any, stride: Any, tile: Any, output: Any, width: Any
):
    """Add 16 weighted values to each of four rows.

    Args:
        r0: rows of the output, and r1 to r3; a row that is there twice gets one of its sums.
        weights: address of the first row's 16 weights.
        stride: numbers from one row's weights to the next one's.
        tile: address of the values, (16, Dv).
        output: address of the outputs, (R, Dv).
        width: Dv, a multiple of 16.
    """
    return types.void(*[types.int64] * 9), _values


def _softmax(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    logits, row, state, output, width, count = args
    tiles = builder.lshr(builder.add(count, _int(LANES - 1)), _int(4))
    best = _variable(builder, _FAR)
    with cgutils.for_range(builder, tiles) as loop:
        builder.store(_larger(builder, builder.load(best), _kept(builder, logits, loop.index, count)), best)
    largest_at = _pointer(builder, _at(builder, state, row, _int(2)), _F32)
    total_at = _pointer(builder, builder.add(_at(builder, state, row, _int(2)), _int(4)), _F32)
    largest, found = (
        builder.load(largest_at),
        _llvm(builder, "vector.reduce.fmax", _F32, [builder.load(best)], fast=True),
    )
    with builder.if_then(builder.fcmp_ordered(">", found, largest)):
        # What was added so far is in units of the old largest logit.
        shrink = _exp(builder, _splat(builder, builder.fsub(largest, found)))
        first = builder.extract_element(shrink, ir.Constant(_I32, 0))
        builder.store(builder.fmul(builder.load(total_at), first), total_at)
        builder.store(found, largest_at)
        with cgutils.for_range_slice(builder, _int(0), width, _int(LANES)) as (place, _):
            address = _at(builder, _at(builder, output, row, width), place, _int(1))
            _store(builder, builder.fmul(_load(builder, address), shrink), address)
    shift = _splat(builder, builder.load(largest_at))
    total = _variable(builder)
    with cgutils.for_range(builder, tiles) as loop:
        weights = _exp(builder, builder.fsub(_kept(builder, logits, loop.index, count), shift))
        _store(builder, weights, _at(builder, logits, loop.index, _int(LANES)))
        builder.store(builder.fadd(builder.load(total), weights), total)
    added = _llvm(builder, "vector.reduce.fadd", _F32, [builder.load(total_at), builder.load(total)], fast=True)
    builder.store(added, total_at)
    return context.get_dummy_value()


def _kept(builder: Builder, logits: Any, tile: Any, count: Any) -> Any:
    """A tile of logits, `_FAR` from place `count` on."""
    left = builder.trunc(builder.sub(count, builder.mul(tile, _int(LANES))), _I32)
    kept = builder.icmp_signed("<", ir.Constant(_INTS, list(range(LANES))), _splat(builder, left))
    return builder.select(kept, _load(builder, _at(builder, logits, tile, _int(LANES))), _constant(_FAR))


@_in_llvm
def softmax_row(typing: Any, logits: Any, row: Any, state: Any, output: Any, width: Any, count: Any):
    """Turn logits into weights of a running softmax, and shrink what was added to the row where a larger one came.

    Args:
        logits: address of the logits, in whole tiles; becomes the weights, 0 from place `count` on.
        row: of state and output.
        state: address of (R, 2): largest logit so far, and the sum of weights in its units.
        output: address of (R, Dv).
        width: Dv, a multiple of 16.
        count: logits that are there.
    """
    return types.void(*[types.int64] * 6), _softmax
