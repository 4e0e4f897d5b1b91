"""Attention over 16 keys at a time, in vector registers: products, softmax and values, for rows of queries.

Numba compiles loops well that run along memory, but not sums that must stay in registers while two operands stream by.
These functions are therefore written in LLVM's own terms, on vectors of 16 float32. LLVM splits them into what the
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
_BITS = ir.IntType(LANES)

_LOG2E = 1.0 / math.log(2.0)
# ln 2 in two parts, the first one with trailing zeros, so that its multiples are exact.
_LN2_HIGH = 0.693359375
_LN2_LOW = math.log(2.0) - _LN2_HIGH
# exp(x) for |x| <= ln 2 / 2, relative error 2e-7 (the coefficients of Cephes' expf).
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1, 1.0, 1.0)
_LEAST = -87.0
"""exp of less is 0 here; float32 has no normal numbers below."""

_MASKED = -3e38
"""Below every logit, and below what stands for none so far."""
_MARGIN = 16.0
"""A logit so far above the one of weight 1 makes all be counted anew; exp of it is 9e6, so sums stay in range."""

Builder = Any


def _in_llvm(function: Callable[..., Any]) -> Callable[..., Any]:
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

    def add(place: Any, parts: int) -> None:
        """Add to `parts` times 16 columns of each row."""
        columns = [builder.add(place, _int(part * LANES)) for part in range(parts)]
        where = [[_at(builder, each, column, _int(1)) for column in columns] for each in outputs]
        sums = [[_load(builder, address) for address in addresses] for addresses in where]
        for lane in range(LANES):
            key = _at(builder, tile, _int(lane), width)
            values = [_load(builder, _at(builder, key, column, _int(1))) for column in columns]
            for number, address in enumerate(factors):
                factor = _splat_at(builder, builder.add(address, _int(4 * lane)))
                sums[number] = [_fma(builder, factor, value, each) for value, each in zip(values, sums[number])]
        for addresses, totals in zip(where, sums):
            for address, total in zip(addresses, totals):
                _store(builder, total, address)

    # Two vectors of columns for each row: a sum alone would wait for itself.
    pairs = builder.and_(width, _int(-2 * LANES))
    with cgutils.for_range_slice(builder, _int(0), pairs, _int(2 * LANES)) as (place, _):
        add(place, 2)
    with builder.if_then(builder.icmp_signed("<", pairs, width)):
        add(pairs, 1)
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
    logits, row, largest, totals, output, width, count, tiles = args
    best = _variable(builder, _MASKED)
    with cgutils.for_range(builder, tiles) as loop:
        builder.store(_larger(builder, builder.load(best), _kept(builder, logits, loop.index, count)), best)
    shift = _shifted(builder, builder.load(best), row, largest, totals, output, width)
    total_at = _at(builder, totals, row, _int(LANES))
    total = _variable(builder)
    builder.store(_load(builder, total_at), total)
    with cgutils.for_range(builder, tiles) as loop:
        weights = _exp(builder, builder.fsub(_kept(builder, logits, loop.index, count), shift))
        _store(builder, weights, _at(builder, logits, loop.index, _int(LANES)))
        builder.store(builder.fadd(builder.load(total), weights), total)
    _store(builder, builder.load(total), total_at)
    return context.get_dummy_value()


def _softmax_tile(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    logits, row, largest, totals, output, width, count = args
    kept = _kept(builder, logits, _int(0), count)
    shift = _shifted(builder, kept, row, largest, totals, output, width)
    weights = _exp(builder, builder.fsub(kept, shift))
    _store(builder, weights, logits)
    total_at = _at(builder, totals, row, _int(LANES))
    _store(builder, builder.fadd(_load(builder, total_at), weights), total_at)
    return context.get_dummy_value()


def _shifted(builder: Builder, best: Any, row: Any, largest: Any, totals: Any, output: Any, width: Any) -> Any:
    """The logit whose weight is 1, in all lanes, raised where one of `best` is far above it."""
    place = _at(builder, largest, row, _int(1))
    shift = _variable(builder)
    builder.store(_splat_at(builder, place), shift)
    far = builder.fcmp_ordered(">", best, builder.fadd(builder.load(shift), _constant(_MARGIN)))
    with builder.if_then(builder.icmp_unsigned("!=", builder.bitcast(far, _BITS), ir.Constant(_BITS, 0)), likely=False):
        # What was added so far is in units of the old one.
        found = _llvm(builder, "vector.reduce.fmax", _F32, [best], fast=True)
        shrink = _exp(builder, builder.fsub(builder.load(shift), _splat(builder, found)))
        builder.store(found, _pointer(builder, place, _F32))
        builder.store(_splat(builder, found), shift)
        total_at = _at(builder, totals, row, _int(LANES))
        _store(builder, builder.fmul(_load(builder, total_at), shrink), total_at)
        with cgutils.for_range_slice(builder, _int(0), width, _int(LANES)) as (column, _):
            address = _at(builder, _at(builder, output, row, width), column, _int(1))
            _store(builder, builder.fmul(_load(builder, address), shrink), address)
    return builder.load(shift)


def _kept(builder: Builder, logits: Any, tile: Any, count: Any) -> Any:
    """A tile of logits, `_MASKED` from place `count` on."""
    left = builder.trunc(builder.sub(count, builder.mul(tile, _int(LANES))), _I32)
    kept = builder.icmp_signed("<", ir.Constant(_INTS, list(range(LANES))), _splat(builder, left))
    return builder.select(kept, _load(builder, _at(builder, logits, tile, _int(LANES))), _constant(_MASKED))


@_in_llvm
def softmax_row(
    typing: Any, logits: Any, row: Any, largest: Any, totals: Any, output: Any, width: Any, count: Any, tiles: Any
):
    """Turn logits into weights of a running softmax, and shrink what was added to the row where one is far larger.

    Args:
        logits: address of the logits, in whole tiles; becomes the weights, 0 from place `count` on.
        row: of largest, totals and output.
        largest: address of (R,): the logit whose weight is 1, at most `_MARGIN` below the largest one so far.
        totals: address of (R, 16): sums of weights, to be added up.
        output: address of (R, Dv).
        width: Dv, a multiple of 16.
        count: logits that are there.
        tiles: of the logits.
    """
    return types.void(*[types.int64] * 8), _softmax


@_in_llvm
def softmax_tile(typing: Any, logits: Any, row: Any, largest: Any, totals: Any, output: Any, width: Any, count: Any):
    """`softmax_row` of one tile."""
    return types.void(*[types.int64] * 7), _softmax_tile


def _score(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    logits, scores, spread, log_sizes, tiles, spread_weight, count_weight = args
    weight, factor = _splat(builder, spread_weight), _splat(builder, count_weight)
    with cgutils.for_range(builder, tiles) as loop:
        at, to, beside, logs = (
            _at(builder, each, loop.index, _int(LANES)) for each in (logits, scores, spread, log_sizes)
        )
        logit, log_size = _fma(builder, weight, _load(builder, beside), _load(builder, at)), _load(builder, logs)
        _store(builder, _fma(builder, factor, log_size, logit), to)
        _store(builder, builder.fadd(logit, log_size), at)
    return context.get_dummy_value()


@_in_llvm
def score_pages(
    typing: Any,
    logits: Any,
    scores: Any,
    spread: Any,
    log_sizes: Any,
    tiles: Any,
    spread_weight: Any,
    count_weight: Any,
):
    """Turn the products of a query and mean keys into logits of summaries, and write the scores of pages.

    Args:
        logits: address of the products, in whole tiles, changed.
        scores: address, written: the logit, and `count_weight` times the log of the size.
        spread: address of the variance of each page's keys.
        log_sizes: address of the logs of sizes, which the logits get whole.
        tiles: of pages.
        spread_weight: float32, of the spread.
        count_weight: float32.
    """
    return types.void(*[types.int64] * 5, types.float32, types.float32), _score


def _exponentials(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    scores, count, tiles, least = args
    best = _variable(builder, _MASKED)
    with cgutils.for_range(builder, tiles) as loop:
        builder.store(_larger(builder, builder.load(best), _kept(builder, scores, loop.index, count)), best)
    found = _llvm(builder, "vector.reduce.fmax", _F32, [builder.load(best)], fast=True)
    found = builder.select(builder.fcmp_ordered(">", found, least), found, least)
    shift, total = _splat(builder, found), _variable(builder)
    with cgutils.for_range(builder, tiles) as loop:
        weights = _exp(builder, builder.fsub(_kept(builder, scores, loop.index, count), shift))
        _store(builder, weights, _at(builder, scores, loop.index, _int(LANES)))
        builder.store(builder.fadd(builder.load(total), weights), total)
    return context.make_tuple(builder, signature.return_type, [found, _sum(builder, builder.load(total))])


@_in_llvm
def exponentials(typing: Any, scores: Any, count: Any, tiles: Any, least: Any):
    """Turn scores into exp(score - m), m the largest of them and `least`; returns m, and their sum.

    Args:
        scores: address, in whole tiles; becomes the exponentials, 0 from place `count` on.
        count: scores that are there.
        tiles: of the scores.
        least: float32.
    """
    return types.UniTuple(types.float32, 2)(*[types.int64] * 3, types.float32), _exponentials


def _erring(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    weights, spread, square, least = args
    doubt = _fma(builder, _splat(builder, square), _load(builder, spread), _constant(1.0))
    error = builder.fmul(_load(builder, weights), doubt)
    bits = builder.bitcast(builder.fcmp_ordered(">", error, _splat(builder, least)), _BITS)
    return builder.zext(bits, _I64)


@_in_llvm
def erring(typing: Any, weights: Any, spread: Any, square: Any, least: Any):
    """Which of 16 pages have weight (1 + square spread) above `least`, as bits; the first one is the lowest.

    Args:
        weights: address.
        spread: address.
        square: float32, squared length of the scaled query.
        least: float32.
    """
    return types.int64(*[types.int64] * 2, *[types.float32] * 2), _erring


def _moments(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    scores, sizes, tiles = args
    keys, total, square = (_variable(builder) for _ in range(3))
    with cgutils.for_range(builder, tiles) as loop:
        score, size = (_load(builder, _at(builder, each, loop.index, _int(LANES))) for each in (scores, sizes))
        weighted = builder.fmul(score, size)
        builder.store(builder.fadd(builder.load(keys), size), keys)
        builder.store(builder.fadd(builder.load(total), weighted), total)
        builder.store(_fma(builder, weighted, score, builder.load(square)), square)
    return context.make_tuple(
        builder, signature.return_type, [_sum(builder, builder.load(each)) for each in (keys, total, square)]
    )


def _sum(builder: Builder, vector: Any) -> Any:
    return _llvm(builder, "vector.reduce.fadd", _F32, [ir.Constant(_F32, 0.0), vector], fast=True)


@_in_llvm
def moments(typing: Any, scores: Any, sizes: Any, tiles: Any):
    """Sums of sizes, of sizes times scores, and of sizes times squared scores.

    Args:
        scores: address, in whole tiles; finite where sizes are 0.
        sizes: address.
        tiles: of pages.
    """
    return types.UniTuple(types.float32, 3)(*[types.int64] * 3), _moments


def _keys_above(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    scores, sizes, tiles, threshold = args
    total, least = _variable(builder), _splat(builder, threshold)
    with cgutils.for_range(builder, tiles) as loop:
        score, size = (_load(builder, _at(builder, each, loop.index, _int(LANES))) for each in (scores, sizes))
        size = builder.select(builder.fcmp_ordered(">", score, least), size, _constant(0.0))
        builder.store(builder.fadd(builder.load(total), size), total)
    return _sum(builder, builder.load(total))


@_in_llvm
def keys_above(typing: Any, scores: Any, sizes: Any, tiles: Any, threshold: Any):
    """Sum of the sizes of pages whose score is above a threshold, float32; arguments as of `moments`."""
    return types.float32(*[types.int64] * 3, types.float32), _keys_above


def _above(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    numbers, threshold = args
    bits = builder.bitcast(builder.fcmp_ordered(">", _load(builder, numbers), _splat(builder, threshold)), _BITS)
    return builder.zext(bits, _I64)


@_in_llvm
def above(typing: Any, numbers: Any, threshold: Any):
    """Which of 16 float32 are above a threshold, as bits; the first one is the lowest.

    Args:
        numbers: address.
        threshold: float32.
    """
    return types.int64(types.int64, types.float32), _above


def _lowest(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))


@_in_llvm
def lowest(typing: Any, bits: Any):
    """Place of the lowest bit of a number that is not 0."""
    return types.int64(types.int64), _lowest
