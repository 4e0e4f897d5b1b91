"""What prefill asks of all pages for one query: which it reads, and what the summaries of the others weigh.

All take addresses (`array.ctypes.data`); nothing is checked. See `llvm`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from focus_core.routing.narrow.compiled.machine.llvm import (
    BITS,
    F32,
    I32,
    I64,
    INTS,
    LANES,
    MASKED,
    WIDE,
    Builder,
    call_llvm,
    constant,
    exp,
    first,
    fma,
    in_llvm,
    larger,
    load,
    pointer,
    row_at,
    select_first,
    smaller,
    splat,
    store,
    store_half,
    sum_of,
    variable,
    whole,
)
from focus_core.routing.narrow.compiled.machine.ranking import errs


def _rank(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    products, scores, spread, log_sizes, count, scale, spread_weight, most, count_weight, least = args
    numbers = scale, spread_weight, most, count_weight
    scale, weight, most, factor = (splat(builder, number) for number in numbers)
    best = variable(builder, MASKED)

    def score(tile: Any, masked: bool) -> None:
        at, to, beside, logs = (
            row_at(builder, each, tile, whole(LANES)) for each in (products, scores, spread, log_sizes)
        )
        counted = smaller(builder, load(builder, beside), most)
        found = fma(builder, weight, counted, builder.fmul(load(builder, at), scale))
        found = fma(builder, factor, load(builder, logs), found)
        if masked:
            found = select_first(builder, builder.sub(count, builder.mul(tile, whole(LANES))), found, MASKED)
        store(builder, found, to)
        builder.store(larger(builder, builder.load(best), found), best)

    full = builder.lshr(count, whole(4))
    tiles = builder.lshr(builder.add(count, whole(LANES - 1)), whole(4))
    with cgutils.for_range(builder, full) as loop:
        score(loop.index, False)
    with builder.if_then(builder.icmp_signed("<", full, tiles)):
        score(full, True)
    shift = call_llvm(builder, "vector.reduce.fmax", F32, [builder.load(best)], fast=True)
    shift = builder.select(builder.fcmp_ordered(">", shift, least), shift, least)
    shifts, total = splat(builder, shift), variable(builder)
    with cgutils.for_range(builder, tiles) as loop:
        at = row_at(builder, scores, loop.index, whole(LANES))
        weights = exp(builder, builder.fsub(load(builder, at), shifts))
        store(builder, weights, at)
        builder.store(builder.fadd(builder.load(total), weights), total)
    return context.make_tuple(builder, signature.return_type, [shift, sum_of(builder, builder.load(total))])


@in_llvm
def rank(
    typing: Any,
    products: Any,
    scores: Any,
    spread: Any,
    log_sizes: Any,
    count: Any,
    scale: Any,
    spread_weight: Any,
    most: Any,
    count_weight: Any,
    least: Any,
):
    """`score_pages` and `exponentials` in one; the products stay as they are.

    Args:
        products: address of the products of a query and mean keys, in whole tiles.
        scores: address, written: the exponentials, 0 from place `count` on.
        spread: address of the variance of each page's keys.
        log_sizes: address of the logs of sizes.
        count: pages that are there.
        scale: float32, factor of the products.
        spread_weight: float32, of the spread.
        most: float32, spread of which no more is counted.
        count_weight: float32, of the logs of sizes.
        least: float32, see `exponentials`.
    """
    return types.UniTuple(types.float32, 2)(*[types.int64] * 5, *[types.float32] * 5), _rank


def _mark_at(builder: Builder, marks: Any, tile: Any, stride: Any) -> Any:
    """Address of the 16 bits of a tile."""
    return builder.add(marks, builder.shl(builder.mul(tile, stride), whole(1)))


def _mark(builder: Builder, bits: Any, marks: Any, tile: Any, stride: Any) -> None:
    builder.store(bits, pointer(builder, _mark_at(builder, marks, tile, stride), BITS), align=2)


def _part(context: Any, builder: Builder, signature: Any, args: Sequence[Any], half: bool) -> Any:
    weights, spread, powers, sizes, tiles, square, least, factor, totals, out, marks, stride = args
    total, keys = variable(builder), variable(builder)
    builder.store(load(builder, totals), total)
    factors = splat(builder, factor)
    with cgutils.for_range(builder, tiles) as loop:
        at, beside, power, size = (
            load(builder, row_at(builder, each, loop.index, whole(LANES))) for each in (weights, spread, powers, sizes)
        )
        err = errs(builder, at, beside, square, least)
        kept = builder.select(err, constant(0.0), builder.fmul(builder.fmul(at, power), factors))
        builder.store(builder.fadd(builder.load(total), kept), total)
        builder.store(builder.fadd(builder.load(keys), builder.select(err, size, constant(0.0))), keys)
        place = builder.mul(loop.index, whole((2 if half else 4) * LANES))
        (store_half if half else store)(builder, kept, builder.add(out, place))
        _mark(builder, builder.bitcast(err, BITS), marks, loop.index, stride)
    store(builder, builder.load(total), totals)
    return sum_of(builder, builder.load(keys))


_PART = types.float32(*[types.int64] * 5, *[types.float32] * 3, *[types.int64] * 4)


@in_llvm
def part_pages(
    typing: Any,
    weights: Any,
    spread: Any,
    powers: Any,
    sizes: Any,
    tiles: Any,
    square: Any,
    least: Any,
    factor: Any,
    totals: Any,
    out: Any,
    marks: Any,
    stride: Any,
):
    """Mark the pages that err, see `erring`, and write the weights of the summaries of the others; keys of the former.

    Args:
        weights: address of the exponentials of scores, in whole tiles.
        spread: address of the variance of each page's keys.
        powers: address of what turns the exponential of a score into that of the logit of its summary.
        sizes: address of the keys of each page, float32.
        tiles: of pages.
        square: float32, as for `erring`.
        least: float32, likewise.
        factor: float32, of all weights.
        totals: address of the row's 16 sums of weights, which grow.
        out: address of the weights, 0 for pages that err.
        marks: address of 16 bits for the first tile; the lowest is the first page.
        stride: rows, which lie between the bits of a tile and those of the next one.
    """
    return _PART, partial(_part, half=False)


@in_llvm
def part_halves(
    typing: Any,
    weights: Any,
    spread: Any,
    powers: Any,
    sizes: Any,
    tiles: Any,
    square: Any,
    least: Any,
    factor: Any,
    totals: Any,
    out: Any,
    marks: Any,
    stride: Any,
):
    """`part_pages`, with the weights in bfloat16."""
    return _PART, partial(_part, half=True)


def _mark_erring(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    weights, spread, sizes, count, square, least, marks, stride = args
    keys = variable(builder)
    with cgutils.for_range(builder, builder.lshr(builder.add(count, whole(LANES - 1)), whole(4))) as loop:
        at, beside, size = (
            load(builder, row_at(builder, each, loop.index, whole(LANES))) for each in (weights, spread, sizes)
        )
        there = first(builder, builder.sub(count, builder.mul(loop.index, whole(LANES))))
        err = builder.and_(errs(builder, at, beside, square, least), there)
        builder.store(builder.fadd(builder.load(keys), builder.select(err, size, constant(0.0))), keys)
        _mark(builder, builder.bitcast(err, BITS), marks, loop.index, stride)
    return sum_of(builder, builder.load(keys))


@in_llvm
def mark_erring(
    typing: Any, weights: Any, spread: Any, sizes: Any, count: Any, square: Any, least: Any, marks: Any, stride: Any
):
    """Mark the pages that err; those of `count` that are there, all of them with `least` below 0. See `part_pages`."""
    return types.float32(*[types.int64] * 4, *[types.float32] * 2, *[types.int64] * 2), _mark_erring


def _hide(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    logits, tiles, marks, stride = args
    with cgutils.for_range(builder, tiles) as loop:
        at = row_at(builder, logits, loop.index, whole(LANES))
        bits = builder.load(pointer(builder, _mark_at(builder, marks, loop.index, stride), BITS), align=2)
        marked = builder.bitcast(bits, ir.VectorType(ir.IntType(1), LANES))
        store(builder, builder.select(marked, constant(MASKED), load(builder, at)), at)
    return context.get_dummy_value()


@in_llvm
def hide(typing: Any, logits: Any, tiles: Any, marks: Any, stride: Any):
    """Make the logits of marked pages `MASKED`; arguments as of `part_pages`."""
    return types.void(*[types.int64] * 4), _hide


def _readers(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    marks, page, begin, step, out = args
    shorts = ir.VectorType(BITS, LANES)
    found = builder.load(pointer(builder, marks, shorts), align=2)
    bit = builder.shl(ir.Constant(BITS, 1), builder.trunc(page, BITS))
    there = builder.icmp_unsigned("!=", builder.and_(found, splat(builder, bit)), ir.Constant(shorts, [0] * LANES))
    if WIDE:
        steps = builder.mul(ir.Constant(INTS, list(range(LANES))), splat(builder, builder.trunc(step, I32)))
        readers = builder.add(splat(builder, builder.trunc(begin, I32)), steps)
        kind = ir.FunctionType(INTS, [INTS, there.type, INTS])
        compress = cgutils.get_or_insert_function(builder.module, kind, "llvm.experimental.vector.compress.v16i32")
        packed = builder.call(compress, [readers, there, ir.Constant(INTS, ir.Undefined)])
        builder.store(packed, pointer(builder, out, INTS), align=4)
    else:
        # Without an instruction for it each number is written where the next one belongs.
        bits, reader, to = builder.zext(builder.bitcast(there, BITS), I64), begin, out
        for lane in range(LANES):
            builder.store(builder.trunc(reader, I32), pointer(builder, to, I32), align=4)
            own = builder.and_(builder.lshr(bits, whole(lane)), whole(1))
            to, reader = builder.add(to, builder.shl(own, whole(2))), builder.add(reader, step)
    bits = builder.bitcast(there, BITS)
    number = cgutils.get_or_insert_function(builder.module, ir.FunctionType(BITS, [BITS]), "llvm.ctpop.i16")
    return builder.zext(builder.call(number, [bits]), I64)


@in_llvm
def readers_of(typing: Any, marks: Any, page: Any, first: Any, step: Any, out: Any):
    """Those of 16 rows that are marked for a page, one after another; returns how many. 16 numbers are written.

    Args:
        marks: address of the 16 bits of each row.
        page: the bit, 0 to 15.
        first: number of the first row.
        step: from one row's number to the next one's.
        out: address, int32.
    """
    return types.int64(*[types.int64] * 5), _readers
