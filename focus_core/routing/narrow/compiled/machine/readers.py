"""The readers of one page, in matrix units: their queries gathered, their weights, and what they get.

Readers are int32, a row and how many keys of the page it sees, see `state.SEEN_BITS`. All take addresses
(`array.ctypes.data`); nothing is checked. See `llvm` and `tiles`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numba import types
from numba.core import cgutils

from focus_core.routing.narrow.compiled.machine.llvm import (
    I32,
    I64,
    LANES,
    Builder,
    in_llvm,
    load,
    pointer,
    row_at,
    splat,
    store,
    store_half,
    whole,
)
from focus_core.routing.narrow.compiled.machine.vectors import tile_weights

VECTOR_BYTES = 4 * LANES


def _for_readers(builder: Builder, readers: Any, count: Any, bits: Any, work: Callable[[Any, Any, Any], None]) -> None:
    """`work` with the place of each reader, its row, and the keys it sees."""
    with cgutils.for_range(builder, count) as loop:
        reader = builder.load(pointer(builder, builder.add(readers, builder.shl(loop.index, whole(2))), I32), align=4)
        reader = builder.zext(reader, I64)
        sees = builder.and_(reader, builder.sub(builder.shl(whole(1), bits), whole(1)))
        work(loop.index, builder.lshr(reader, bits), sees)


def _along(builder: Builder, size: Any, work: Callable[[Any], None], at_once: int) -> None:
    """`work` with the place in bytes of each vector of `size` bytes, `at_once` of them in a step."""
    step = at_once * VECTOR_BYTES
    whole_steps = builder.and_(size, whole(-step))
    with cgutils.for_range_slice(builder, whole(0), whole_steps, whole(step)) as (place, _):
        for each in range(at_once):
            work(builder.add(place, whole(each * VECTOR_BYTES)))
    with cgutils.for_range_slice(builder, whole_steps, size, whole(VECTOR_BYTES)) as (place, _):
        work(place)


def _gather(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    readers, count, bits, query, size, out = args

    def take(place: Any, row: Any, sees: Any) -> None:
        start, to = builder.add(query, builder.mul(row, size)), builder.add(out, builder.mul(place, size))
        _along(builder, size, lambda at: store(builder, load(builder, builder.add(start, at)), builder.add(to, at)), 2)

    _for_readers(builder, readers, count, bits, take)
    return context.get_dummy_value()


@in_llvm
def gather(typing: Any, readers: Any, count: Any, bits: Any, query: Any, size: Any, out: Any):
    """Copy the queries of readers one after another.

    Args:
        readers: address.
        count: of readers.
        bits: of a reader that are not its row.
        query: address of the first row's query.
        size: bytes of a query, a multiple of 64.
        out: address.
    """
    return types.void(*[types.int64] * 6), _gather


def _scatter(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    readers, count, bits, added, output, size = args

    def give(place: Any, row: Any, sees: Any) -> None:
        start, to = builder.add(added, builder.mul(place, size)), builder.add(output, builder.mul(row, size))

        def add(at: Any) -> None:
            here = builder.add(to, at)
            store(builder, builder.fadd(load(builder, here), load(builder, builder.add(start, at))), here)

        _along(builder, size, add, 4)

    _for_readers(builder, readers, count, bits, give)
    return context.get_dummy_value()


@in_llvm
def scatter(typing: Any, readers: Any, count: Any, bits: Any, added: Any, output: Any, size: Any):
    """Add one sum after another to the rows of readers.

    Args:
        readers: address.
        count: of readers.
        bits: as for `gather`.
        added: address of the first sum, float32.
        output: address of the first row.
        size: bytes of a row, a multiple of 64.
    """
    return types.void(*[types.int64] * 6), _scatter


def _weigh(context: Any, builder: Builder, signature: Any, args: Sequence[Any]) -> Any:
    readers, count, bits, logits, factor, largest, totals, output, width, weights = args
    factors = splat(builder, factor)

    def weigh(place: Any, row: Any, sees: Any) -> None:
        found = load(builder, row_at(builder, logits, place, whole(LANES)))
        weight = tile_weights(builder, found, factors, sees, row, largest, totals, output, width)
        store_half(builder, weight, builder.add(weights, builder.mul(place, whole(2 * LANES))))

    _for_readers(builder, readers, count, bits, weigh)
    return context.get_dummy_value()


@in_llvm
def weigh_readers(
    typing: Any,
    readers: Any,
    count: Any,
    bits: Any,
    logits: Any,
    factor: Any,
    largest: Any,
    totals: Any,
    output: Any,
    width: Any,
    weights: Any,
):
    """The running softmax of each reader, over the keys of the page that it sees; weights are written in bfloat16.

    Args:
        readers: address.
        count: of readers.
        bits: as for `gather`.
        logits: address of the products with 16 keys, reader after reader.
        factor: float32, of the products.
        largest: as for `softmax_row`.
        totals: likewise.
        output: likewise.
        width: likewise.
        weights: address of the weights, 16 for each reader.
    """
    return types.void(*[types.int64] * 4, types.float32, *[types.int64] * 5), _weigh
