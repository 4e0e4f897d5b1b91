"""Attention over 16 keys at a time, in vector registers: products, softmax and values, for rows of queries.

All take addresses (`array.ctypes.data`) and numbers of rows; nothing is checked. See `llvm`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from focus_core.routing.narrow.compiled.machine.llvm import (
    BITS,
    F32,
    FEW,
    LANES,
    MASKED,
    WIDE,
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
    select_first,
    splat,
    splat_at,
    store,
    variable,
    whole,
)

ROWS = 4
"""Rows of a call."""
MARGIN = 16.0
"""A logit so far above the one of weight 1 makes all be counted anew; exp of it is 9e6, so sums stay in range."""


def _at_once(lanes: int) -> int:
    """Vectors of sums that each of four rows has in registers.

    A single one that is one register would wait for itself; of two that are two registers each, not all would fit.
    """
    return 2 if WIDE or lanes < LANES else 1


def _dots(context: Any, builder: Builder, signature: Any, args: Sequence[Any], keys_of_tile: int = LANES) -> Any:
    *rows, query, width, tile, out, stride = args
    queries = [row_at(builder, query, row, width) for row in rows]
    at_once = _at_once(keys_of_tile)
    sums = [[variable(builder, lanes=keys_of_tile) for _ in range(at_once)] for _ in rows]
    with cgutils.for_range_slice(builder, whole(0), width, whole(2)) as (place, _):
        for half in range(2):
            here = builder.add(place, whole(half))
            keys = load(builder, row_at(builder, tile, here, whole(LANES)), keys_of_tile)
            for each, address in zip(sums, queries):
                factor = splat_at(builder, row_at(builder, address, here, whole(1)), keys_of_tile)
                total = each[half % at_once]
                builder.store(fma(builder, factor, keys, builder.load(total)), total)
    for number, parts in enumerate(sums):
        total = reduce(builder.fadd, map(builder.load, parts))
        store(builder, total, row_at(builder, out, whole(number), stride))
    return context.get_dummy_value()


@in_llvm
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


@in_llvm
def few_dots(typing: Any, r0: Any, r1: Any, r2: Any, r3: Any, query: Any, width: Any, tile: Any, out: Any, stride: Any):
    """`dots` with the first `FEW` keys of a tile, in as many lanes; the other results stay what they are."""
    return types.void(*[types.int64] * 9), partial(_dots, keys_of_tile=FEW)


def _values(context: Any, builder: Builder, signature: Any, args: Sequence[Any], keys_of_tile: int = LANES) -> Any:
    *rows, weights, stride, tile, output, width = args
    outputs = [row_at(builder, output, row, width) for row in rows]
    factors = [row_at(builder, weights, whole(number), stride) for number in range(ROWS)]

    def add(place: Any, parts: int) -> None:
        """Add to `parts` times 16 columns of each row."""
        columns = [builder.add(place, whole(part * LANES)) for part in range(parts)]
        where = [[row_at(builder, each, column, whole(1)) for column in columns] for each in outputs]
        sums = [[load(builder, address) for address in addresses] for addresses in where]
        for lane in range(keys_of_tile):
            key = row_at(builder, tile, whole(lane), width)
            values = [load(builder, row_at(builder, key, column, whole(1))) for column in columns]
            for number, address in enumerate(factors):
                factor = splat_at(builder, builder.add(address, whole(4 * lane)))
                sums[number] = [fma(builder, factor, value, each) for value, each in zip(values, sums[number])]
        for addresses, totals in zip(where, sums):
            for address, total in zip(addresses, totals):
                store(builder, total, address)

    at_once = _at_once(LANES)
    together = builder.and_(width, whole(-at_once * LANES))
    with cgutils.for_range_slice(builder, whole(0), together, whole(at_once * LANES)) as (place, _):
        add(place, at_once)
    if at_once > 1:
        with builder.if_then(builder.icmp_signed("<", together, width)):
            add(together, 1)
    return context.get_dummy_value()


@in_llvm
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


@in_llvm
def add_few_values(
    typing: Any, r0: Any, r1: Any, r2: Any, r3: Any, weights: Any, stride: Any, tile: Any, output: Any, width: Any
):
    """`add_values` of the first `FEW` values of a tile."""
    return types.void(*[types.int64] * 9), partial(_values, keys_of_tile=FEW)


def running_softmax(
    builder: Builder, args: Sequence[Any], write: Callable[[Any, Any], None], factor: Any = None
) -> None:
    """The running softmax of a row of logits.

    Args:
        builder: of the function.
        args: see `softmax_row`.
        write: takes 16 weights and the number of their tile.
        factor: of the logits, in all lanes; None for 1.
    """
    logits, row, largest, totals, output, width, count, tiles = args
    best = variable(builder, MASKED)
    with cgutils.for_range(builder, tiles) as loop:
        found = kept_tile(builder, logits, loop.index, count, factor)
        builder.store(larger(builder, builder.load(best), found), best)
    best = builder.load(best)
    shift = variable(builder)
    builder.store(splat_at(builder, row_at(builder, largest, row, whole(1))), shift)
    with far_above(builder, builder.fsub(best, builder.load(shift))):
        builder.store(raise_shift(builder, best, row, largest, totals, output, width), shift)
    total_at = row_at(builder, totals, row, whole(LANES))
    total = variable(builder)
    builder.store(load(builder, total_at), total)
    with cgutils.for_range(builder, tiles) as loop:
        kept = kept_tile(builder, logits, loop.index, count, factor)
        weights = exp(builder, builder.fsub(kept, builder.load(shift)))
        write(weights, loop.index)
        builder.store(builder.fadd(builder.load(total), weights), total)
    store(builder, builder.load(total), total_at)


def _softmax(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    def write(weights: Any, tile: Any) -> None:
        store(builder, weights, row_at(builder, args[0], tile, whole(LANES)))

    running_softmax(builder, args, write)
    return context.get_dummy_value()


def _softmax_tile(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    logits, row, largest, totals, output, width, count = args
    weights = tile_weights(builder, load(builder, logits), None, count, row, largest, totals, output, width)
    store(builder, weights, logits)
    return context.get_dummy_value()


def tile_weights(
    builder: Builder, logits: Any, factor: Any, count: Any, row: Any, largest: Any, totals: Any, output: Any, width: Any
) -> Any:
    """The running softmax of a row over one tile; see `softmax_tile`.

    Args:
        builder: of the function.
        logits: 16 of them.
        factor: of the logits, in all lanes; None for 1.
        count: logits that are there.
        row: as for `softmax_tile`, and so are the others.
        largest: likewise.
        totals: likewise.
        output: likewise.
        width: likewise.

    Returns:
        16 weights.
    """
    above = variable(builder)

    def keep(shift: Any) -> None:
        """Take logits less a shift; most tiles are full."""
        down = builder.fneg(shift)
        builder.store(builder.fadd(logits, down) if factor is None else fma(builder, logits, factor, down), above)
        builder.store(select_first(builder, count, builder.load(above), MASKED), above)

    shift = splat_at(builder, row_at(builder, largest, row, whole(1)))
    keep(shift)
    with far_above(builder, builder.load(above)):
        best = builder.fadd(builder.load(above), shift)
        keep(raise_shift(builder, best, row, largest, totals, output, width))
    weights = exp(builder, builder.load(above))
    total_at = row_at(builder, totals, row, whole(LANES))
    store(builder, builder.fadd(load(builder, total_at), weights), total_at)
    return weights


def far_above(builder: Builder, above: Any) -> Any:
    """A block that runs where one of 16 logits is farther above the one of weight 1 than `MARGIN`."""
    far = builder.bitcast(builder.fcmp_ordered(">", above, constant(MARGIN)), BITS)
    return builder.if_then(builder.icmp_unsigned("!=", far, ir.Constant(BITS, 0)), likely=False)


def raise_shift(builder: Builder, best: Any, row: Any, largest: Any, totals: Any, output: Any, width: Any) -> Any:
    """Make the largest of `best` the logit whose weight is 1; in all lanes. What was added so far shrinks with it."""
    place = row_at(builder, largest, row, whole(1))
    found = call_llvm(builder, "vector.reduce.fmax", F32, [best], fast=True)
    shrink = exp(builder, builder.fsub(splat_at(builder, place), splat(builder, found)))
    builder.store(found, pointer(builder, place, F32))
    total_at = row_at(builder, totals, row, whole(LANES))
    store(builder, builder.fmul(load(builder, total_at), shrink), total_at)
    with cgutils.for_range_slice(builder, whole(0), width, whole(LANES)) as (column, _):
        address = row_at(builder, row_at(builder, output, row, width), column, whole(1))
        store(builder, builder.fmul(load(builder, address), shrink), address)
    return splat(builder, found)


@in_llvm
def softmax_row(
    typing: Any, logits: Any, row: Any, largest: Any, totals: Any, output: Any, width: Any, count: Any, tiles: Any
):
    """Turn logits into weights of a running softmax, and shrink what was added to the row where one is far larger.

    Args:
        logits: address of the logits, in whole tiles; becomes the weights, 0 from place `count` on.
        row: of largest, totals and output.
        largest: address of (R,): the logit whose weight is 1, at most `MARGIN` below the largest one so far.
        totals: address of (R, 16): sums of weights, to be added up.
        output: address of (R, Dv).
        width: Dv, a multiple of 16.
        count: logits that are there.
        tiles: of the logits.
    """
    return types.void(*[types.int64] * 8), _softmax


@in_llvm
def softmax_tile(typing: Any, logits: Any, row: Any, largest: Any, totals: Any, output: Any, width: Any, count: Any):
    """`softmax_row` of one tile."""
    return types.void(*[types.int64] * 7), _softmax_tile
