"""Products of bfloat16 in the matrix units of an Intel processor (AMX), for 16 rows of queries at a time.

A tile register holds 16 rows of 64 bytes. One instruction adds the product of two of them, 16 x 32 and 32 x 16 numbers
of bfloat16, to a third one of float32 (Intel's *Instruction Set Extensions Programming Reference*, chapter 3). All take
addresses (`array.ctypes.data`), and strides in bytes; nothing is checked. See `llvm`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from focus_core.routing.narrow.compiled.machine.llvm import (
    INTS,
    LANES,
    VECTOR,
    Builder,
    in_llvm,
    load,
    pointer,
    rounded,
    splat,
    store,
    store_half,
    whole,
)
from focus_core.routing.narrow.compiled.machine.memory import zeros
from focus_core.routing.narrow.compiled.machine.vectors import running_softmax

BLOCK = 16
"""Rows of a call."""
PAIR = 32
"""Dimensions of a dot product that one instruction takes."""
COLUMNS = 64
"""Columns of values that are summed at once, in four registers."""

_I8 = ir.IntType(8)
# Numbers of registers: four sums, then queries, keys, weights of one tile of keys, and their values.
_SUMS, _ROWS, _KEYS, _WEIGHTS, _VALUES = (0, 1, 2, 3), 4, 5, 6, 7


def configuration() -> np.ndarray:
    """(2, 64) uint8: shapes of the tile registers as `configure` loads them (palette 1), and room for those before."""
    found = zeros((2, 64), np.uint8)
    found[0, 0] = 1
    width, height = found[0, 16:48].view(np.uint16), found[0, 48:64]
    width[:8], height[:8] = 64, 16
    # The weights and values of 16 keys fill half a register.
    width[_WEIGHTS], height[_VALUES] = 32, 8
    return found


def _call(builder: Builder, name: str, *arguments: Any) -> None:
    kind = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.{name}"), arguments)


def _tile(number: int) -> ir.Constant:
    return ir.Constant(_I8, number)


def _read(builder: Builder, tile: int, address: Any, stride: Any) -> None:
    _call(builder, "tileloadd64", _tile(tile), pointer(builder, address, _I8), stride)


def _write(builder: Builder, tile: int, address: Any, stride: Any) -> None:
    _call(builder, "tilestored64", _tile(tile), pointer(builder, address, _I8), stride)


def _zero(builder: Builder, tile: int) -> None:
    _call(builder, "tilezero", _tile(tile))


def _multiply(builder: Builder, total: int, left: int, right: int) -> None:
    _call(builder, "tdpbf16ps", _tile(total), _tile(left), _tile(right))


def _after(builder: Builder, address: Any, number: Any, size: Any) -> Any:
    """An address, `number` times `size` bytes further."""
    return builder.add(address, builder.mul(number, size))


def _configure(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    _call(builder, "sttilecfg", pointer(builder, builder.add(args[0], whole(64)), _I8))
    _call(builder, "ldtilecfg", pointer(builder, args[0], _I8))
    return context.get_dummy_value()


@in_llvm
def configure(typing: Any, shapes: Any):
    """Shape the tile registers of this thread, see `configuration`; `restore` them before it does other work."""
    return types.void(types.int64), _configure


def _restore(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    _call(builder, "ldtilecfg", pointer(builder, builder.add(args[0], whole(64)), _I8))
    return context.get_dummy_value()


@in_llvm
def restore(typing: Any, shapes: Any):
    """Give the tile registers the shapes back that they had before `configure`.

    PyTorch's libraries remember the shapes that they gave the registers of a thread.
    """
    return types.void(types.int64), _restore


def _products(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    query, stride, width, keys, parts, tiles, out, out_stride = args
    size = builder.mul(width, whole(2 * LANES))
    with cgutils.for_range(builder, tiles) as tile:
        _zero(builder, _SUMS[0])
        with cgutils.for_range(builder, parts) as part:
            here = _after(builder, keys, builder.add(builder.mul(tile.index, parts), part.index), size)
            with cgutils.for_range_slice(builder, whole(0), width, whole(PAIR)) as (place, _):
                _read(builder, _ROWS, _after(builder, query, place, whole(2)), stride)
                _read(builder, _KEYS, _after(builder, here, place, whole(2 * LANES)), whole(4 * LANES))
                _multiply(builder, _SUMS[0], _ROWS, _KEYS)
        _write(builder, _SUMS[0], _after(builder, out, tile.index, whole(4 * LANES)), out_stride)
    return context.get_dummy_value()


@in_llvm
def products(
    typing: Any, query: Any, stride: Any, width: Any, keys: Any, parts: Any, tiles: Any, out: Any, out_stride: Any
):
    """Dot products of 16 queries with tiles of 16 keys, in float32.

    Args:
        query: address of the first query, bfloat16 (16, D).
        stride: bytes from one query to the next one.
        width: D, a multiple of `PAIR`.
        keys: address of the first tile, (D / 2, 16, 2) for each part, in bfloat16.
        parts: of every key, which are summed: 1, or 2 for the upper and lower bits of float32.
        tiles: of keys, side by side.
        out: address of the first row's results.
        out_stride: bytes from one row's results to the next one's.
    """
    return types.void(*[types.int64] * 8), _products


def _products_of_two(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    query, stride, width, keys, out, out_stride = args
    others, other_out = (
        builder.add(at, builder.shl(each, whole(4))) for at, each in ((query, stride), (out, out_stride))
    )
    for total in _SUMS[:2]:
        _zero(builder, total)
    with cgutils.for_range_slice(builder, whole(0), width, whole(PAIR)) as (place, _):
        at = builder.shl(place, whole(1))
        _read(builder, _KEYS, _after(builder, keys, place, whole(2 * LANES)), whole(4 * LANES))
        for total, rows, start in ((_SUMS[0], _ROWS, query), (_SUMS[1], _SUMS[2], others)):
            _read(builder, rows, builder.add(start, at), stride)
            _multiply(builder, total, rows, _KEYS)
    _write(builder, _SUMS[0], out, out_stride)
    _write(builder, _SUMS[1], other_out, out_stride)
    return context.get_dummy_value()


@in_llvm
def products_of_two(typing: Any, query: Any, stride: Any, width: Any, keys: Any, out: Any, out_stride: Any):
    """`products` of 32 queries with one tile of keys, whose two halves need not wait for each other."""
    return types.void(*[types.int64] * 6), _products_of_two


def _sum_values(builder: Builder, args: Sequence[Any], fresh: bool) -> None:
    """Weighted values, added to what the output holds, or written to it."""
    weights, stride, tiles, values, output, out_stride, width = args
    row = builder.mul(width, whole(4))
    pairs = builder.and_(tiles, whole(-2))
    with cgutils.for_range_slice(builder, whole(0), width, whole(COLUMNS)) as (column, _):
        columns = [builder.mul(builder.add(column, whole(LANES * each)), whole(4)) for each in range(len(_SUMS))]
        for total, at in zip(_SUMS, columns):
            if fresh:
                _zero(builder, total)
            else:
                _read(builder, total, builder.add(output, at), out_stride)

        def add(tile: Any, left: int, right: int) -> None:
            _read(builder, left, _after(builder, weights, tile, whole(2 * LANES)), stride)
            here = _after(builder, values, tile, builder.mul(row, whole(LANES // 2)))
            for total, at in zip(_SUMS, columns):
                _read(builder, right, builder.add(here, at), row)
                _multiply(builder, total, left, right)

        with cgutils.for_range_slice(builder, whole(0), pairs, whole(2)) as (tile, _):
            add(tile, _ROWS, _KEYS)
        with builder.if_then(builder.icmp_signed("<", pairs, tiles)):
            add(pairs, _WEIGHTS, _VALUES)
        for total, at in zip(_SUMS, columns):
            _write(builder, total, builder.add(output, at), out_stride)


def _add_products(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    _sum_values(builder, args, fresh=False)
    return context.get_dummy_value()


def _write_products(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    _sum_values(builder, args, fresh=True)
    return context.get_dummy_value()


@in_llvm
def add_products(
    typing: Any, weights: Any, stride: Any, tiles: Any, values: Any, output: Any, out_stride: Any, width: Any
):
    """Add the weighted values of tiles of 16 keys to 16 rows.

    Args:
        weights: address of the first row's weights, in bfloat16.
        stride: bytes from one row's weights to the next one's.
        tiles: of keys, side by side.
        values: address of the first tile, (8, Dv, 2) in bfloat16: pairs of keys.
        output: address of the first row, float32 (16, Dv).
        out_stride: bytes from one row of the output to the next one.
        width: Dv, a multiple of `COLUMNS`.
    """
    return types.void(*[types.int64] * 7), _add_products


@in_llvm
def write_products(
    typing: Any, weights: Any, stride: Any, tiles: Any, values: Any, output: Any, out_stride: Any, width: Any
):
    """`add_products` to rows of 0."""
    return types.void(*[types.int64] * 7), _write_products


def _gather(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    start, end, size = args
    with cgutils.for_range_slice(builder, whole(0), size, whole(4 * LANES)) as (place, _):
        store(builder, load(builder, builder.add(start, place)), builder.add(end, place))
    return context.get_dummy_value()


@in_llvm
def copy(typing: Any, start: Any, end: Any, size: Any):
    """Copy `size` bytes, a multiple of 64, from one address to another."""
    return types.void(*[types.int64] * 3), _gather


def _halve(builder: Builder, args: Sequence[Any], rest: bool) -> None:
    """Rows in bfloat16, two and two, or what the rounding left."""
    start, count, size, out = args
    with cgutils.for_range_slice(builder, whole(0), count, whole(2)) as (row, _):
        first = _after(builder, start, row, size)
        with cgutils.for_range_slice(builder, whole(0), size, whole(4 * LANES)) as (place, _):
            halves = []
            for each in (first, builder.add(first, size)):
                numbers = load(builder, builder.add(each, place))
                bits = rounded(builder, numbers)
                if rest:
                    bits = rounded(builder, builder.fsub(numbers, builder.bitcast(bits, VECTOR)))
                halves.append(bits)
            even = builder.lshr(halves[0], ir.Constant(INTS, [16] * LANES))
            at = builder.add(_after(builder, out, builder.lshr(row, whole(1)), size), place)
            builder.store(builder.or_(even, halves[1]), pointer(builder, at, INTS), align=4)


def _halve_upper(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    _halve(builder, args, rest=False)
    return context.get_dummy_value()


def _halve_lower(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    _halve(builder, args, rest=True)
    return context.get_dummy_value()


@in_llvm
def halve(typing: Any, start: Any, count: Any, size: Any, out: Any):
    """Round rows of float32 to bfloat16, with the numbers of two rows beside each other, as the units take them.

    Args:
        start: address of the first row.
        count: of rows, even.
        size: of a row in bytes, a multiple of 64.
        out: address of the first pair, in bfloat16 (count / 2, size / 4, 2).
    """
    return types.void(*[types.int64] * 4), _halve_upper


@in_llvm
def halve_rest(typing: Any, start: Any, count: Any, size: Any, out: Any):
    """What `halve` leaves, in bfloat16 again."""
    return types.void(*[types.int64] * 4), _halve_lower


def _weigh(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    logits, factor, *others, weights = args

    def write(found: Any, tile: Any) -> None:
        store_half(builder, found, _after(builder, weights, tile, whole(2 * LANES)))

    running_softmax(builder, [logits, *others], write, splat(builder, factor))
    return context.get_dummy_value()


@in_llvm
def weigh(
    typing: Any,
    logits: Any,
    factor: Any,
    row: Any,
    largest: Any,
    totals: Any,
    output: Any,
    width: Any,
    count: Any,
    tiles: Any,
    weights: Any,
):
    """`softmax_row`, of logits times a factor, with the weights written to another address in bfloat16.

    Args:
        logits: address of the logits, in whole tiles.
        factor: float32.
        row: of largest, totals and output.
        largest: as for `softmax_row`.
        totals: likewise.
        output: likewise.
        width: likewise.
        count: likewise.
        tiles: likewise.
        weights: address of the weights, in whole tiles.
    """
    return types.void(types.int64, types.float32, *[types.int64] * 8), _weigh
