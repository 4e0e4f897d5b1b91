"""Scores of 16 pages at a time, in vector registers: what the choice of pages asks of them.

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
    Builder,
    call_llvm,
    constant,
    exp,
    fma,
    in_llvm,
    kept_tile,
    larger,
    load,
    pointer,
    row_at,
    smaller,
    splat,
    store,
    sum_of,
    variable,
    whole,
)


def _score(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    logits, scores, spread, log_sizes, tiles, scale, spread_weight, most, count_weight = args
    numbers = scale, spread_weight, most, count_weight
    scale, weight, most, factor = (splat(builder, number) for number in numbers)
    with cgutils.for_range(builder, tiles) as loop:
        at, to, beside, logs = (
            row_at(builder, each, loop.index, whole(LANES)) for each in (logits, scores, spread, log_sizes)
        )
        product, log_size = builder.fmul(load(builder, at), scale), load(builder, logs)
        logit = fma(builder, weight, smaller(builder, load(builder, beside), most), product)
        store(builder, fma(builder, factor, log_size, logit), to)
        store(builder, builder.fadd(logit, log_size), at)
    return context.get_dummy_value()


@in_llvm
def score_pages(
    typing: Any,
    logits: Any,
    scores: Any,
    spread: Any,
    log_sizes: Any,
    tiles: Any,
    scale: Any,
    spread_weight: Any,
    most: Any,
    count_weight: Any,
):
    """Turn the products of a query and mean keys into logits of summaries, and write the scores of pages.

    Args:
        logits: address of the products, in whole tiles, changed.
        scores: address, written: the logit, and `count_weight` times the log of the size.
        spread: address of the variance of each page's keys.
        log_sizes: address of the logs of sizes, which the logits get whole.
        tiles: of pages.
        scale: float32, factor of the products.
        spread_weight: float32, of the spread.
        most: float32, spread of which no more is counted.
        count_weight: float32.
    """
    return types.void(*[types.int64] * 5, *[types.float32] * 4), _score


def _exponentials(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    scores, count, tiles, least = args
    best = variable(builder, MASKED)
    with cgutils.for_range(builder, tiles) as loop:
        builder.store(larger(builder, builder.load(best), kept_tile(builder, scores, loop.index, count)), best)
    found = call_llvm(builder, "vector.reduce.fmax", F32, [builder.load(best)], fast=True)
    found = builder.select(builder.fcmp_ordered(">", found, least), found, least)
    shift, total = splat(builder, found), variable(builder)
    with cgutils.for_range(builder, tiles) as loop:
        weights = exp(builder, builder.fsub(kept_tile(builder, scores, loop.index, count), shift))
        store(builder, weights, row_at(builder, scores, loop.index, whole(LANES)))
        builder.store(builder.fadd(builder.load(total), weights), total)
    return context.make_tuple(builder, signature.return_type, [found, sum_of(builder, builder.load(total))])


@in_llvm
def exponentials(typing: Any, scores: Any, count: Any, tiles: Any, least: Any):
    """Turn scores into exp(score - m), m the largest of them and `least`; returns m, and their sum.

    Args:
        scores: address, in whole tiles; becomes the exponentials, 0 from place `count` on.
        count: scores that are there.
        tiles: of the scores.
        least: float32.
    """
    return types.UniTuple(types.float32, 2)(*[types.int64] * 3, types.float32), _exponentials


def errs(builder: Builder, weight: Any, spread: Any, square: Any, least: Any) -> Any:
    """Which of 16 weights, times one more than their variances, are above `least`; see `erring`."""
    doubt = fma(builder, splat(builder, square), spread, constant(1.0))
    return builder.fcmp_ordered(">", builder.fmul(weight, doubt), splat(builder, least))


def _erring(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    weights, spread, *others = args
    err = errs(builder, load(builder, weights), load(builder, spread), *others)
    return builder.zext(builder.bitcast(err, BITS), I64)


@in_llvm
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
    keys, total, square = (variable(builder) for _ in range(3))
    with cgutils.for_range(builder, tiles) as loop:
        score, size = (load(builder, row_at(builder, each, loop.index, whole(LANES))) for each in (scores, sizes))
        weighted = builder.fmul(score, size)
        builder.store(builder.fadd(builder.load(keys), size), keys)
        builder.store(builder.fadd(builder.load(total), weighted), total)
        builder.store(fma(builder, weighted, score, builder.load(square)), square)
    return context.make_tuple(
        builder, signature.return_type, [sum_of(builder, builder.load(each)) for each in (keys, total, square)]
    )


@in_llvm
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
    total, least = variable(builder), splat(builder, threshold)
    with cgutils.for_range(builder, tiles) as loop:
        score, size = (load(builder, row_at(builder, each, loop.index, whole(LANES))) for each in (scores, sizes))
        size = builder.select(builder.fcmp_ordered(">", score, least), size, constant(0.0))
        builder.store(builder.fadd(builder.load(total), size), total)
    return sum_of(builder, builder.load(total))


@in_llvm
def keys_above(typing: Any, scores: Any, sizes: Any, tiles: Any, threshold: Any):
    """Sum of the sizes of pages whose score is above a threshold, float32; arguments as of `moments`."""
    return types.float32(*[types.int64] * 3, types.float32), _keys_above


def _above(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    numbers, threshold = args
    bits = builder.bitcast(builder.fcmp_ordered(">", load(builder, numbers), splat(builder, threshold)), BITS)
    return builder.zext(bits, I64)


@in_llvm
def above(typing: Any, numbers: Any, threshold: Any):
    """Which of 16 float32 are above a threshold, as bits; the first one is the lowest.

    Args:
        numbers: address.
        threshold: float32.
    """
    return types.int64(types.int64, types.float32), _above


def _sum_at(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    return sum_of(builder, load(builder, args[0]))


@in_llvm
def sum_at(typing: Any, numbers: Any):
    """Sum of 16 float32 at an address."""
    return types.float32(types.int64), _sum_at


def _number_at(context: Any, builder: Builder, signature: Any, args: Sequence[Any], kind: ir.Type) -> Any:
    start, place = args
    return builder.load(pointer(builder, builder.add(start, builder.shl(place, whole(2))), kind), align=4)


@in_llvm
def number_at(typing: Any, start: Any, place: Any):
    """The float32 at a place behind an address."""
    return types.float32(*[types.int64] * 2), partial(_number_at, kind=F32)


def _int_at(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    return builder.sext(_number_at(context, builder, signature, args, I32), I64)


@in_llvm
def int_at(typing: Any, start: Any, place: Any):
    """The int32 at a place behind an address."""
    return types.int64(*[types.int64] * 2), _int_at


def _lowest(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))


@in_llvm
def lowest(typing: Any, bits: Any):
    """Place of the lowest bit of a number that is not 0."""
    return types.int64(types.int64), _lowest


def _place_of_largest(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    values, bias, factor, tiles = args
    factors, best = splat(builder, factor), variable(builder, MASKED)
    place = cgutils.alloca_once(builder, INTS)
    builder.store(ir.Constant(INTS, [0] * LANES), place)
    with cgutils.for_range(builder, tiles) as loop:
        here = builder.mul(loop.index, whole(4 * LANES))
        found = fma(builder, factors, load(builder, builder.add(values, here)), load(builder, builder.add(bias, here)))
        more = builder.fcmp_ordered(">", found, builder.load(best))
        builder.store(builder.select(more, found, builder.load(best)), best)
        tile = splat(builder, builder.trunc(loop.index, I32))
        builder.store(builder.select(more, tile, builder.load(place)), place)
    most = splat(builder, call_llvm(builder, "vector.reduce.fmax", F32, [builder.load(best)], fast=True))
    places = builder.add(
        builder.mul(builder.load(place), ir.Constant(INTS, [LANES] * LANES)), ir.Constant(INTS, list(range(LANES)))
    )
    there = builder.fcmp_ordered("==", builder.load(best), most)
    places = builder.select(there, places, ir.Constant(INTS, [2**31 - 1] * LANES))
    kind = ir.FunctionType(I32, [INTS])
    smallest = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.smin.v{LANES}i32")
    return builder.sext(builder.call(smallest, [places]), I64)


@in_llvm
def place_of_largest(typing: Any, values: Any, bias: Any, factor: Any, tiles: Any):
    """Place of the largest ``factor x + bias``, of equal ones the first.

    Args:
        values: address of x, float32 in whole tiles of 16.
        bias: address of as many float32.
        factor: float32.
        tiles: of numbers.
    """
    return types.int64(types.int64, types.int64, types.float32, types.int64), _place_of_largest
