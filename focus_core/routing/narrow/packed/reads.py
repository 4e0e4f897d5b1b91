"""The keys of read pages as variable-length calls: a sequence for each page, whose queries are its readers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from focus_core.attention import AttentionOutput
from focus_core.attention.cpu.kernel import FAR
from focus_core.attention.packed.calls import Packed, PackedKernel
from focus_core.routing.narrow.packed.pages import SortedKeys

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

CALL_ELEMENTS = 1 << 25
"""Largest number of elements of the queries and keys of a call; one sequence alone may have more."""

CALL_SEQUENCES = 1 << 15
"""Largest number of sequences of a call: CUDA counts them in 16 bits."""


class ReaderLists(NamedTuple):
    """Pages of a span, each with as many of its oldest keys as its readers see, and these readers.

    Attributes:
        readers: (N,) int64 rows of queries, those of the first page, then those of the next.
        lengths: (S,) int64, readers of each.
        first: (S,) int64, the row of the first key of each among `SortedKeys`.
        counts: (S,) int64, keys of each.
    """

    readers: Int[Tensor, " N"]
    lengths: Int[Tensor, " S"]
    first: Int[Tensor, " S"]
    counts: Int[Tensor, " S"]


def reader_lists(
    reads: Bool[Tensor, "B Hkv G n L"],
    counts: Float[Tensor, "B Hkv 1 n L"],
    first: Int[Tensor, "B Hkv L"],
) -> ReaderLists:
    """The readers of each page, in time and memory of the pairs of queries and pages.

    Args:
        reads: the pages that a query reads.
        counts: their keys before the border of the query; they never fall from one query to the next.
        first: row of the first key of each page.
    """
    _, _, group, queries, pages = reads.shape
    # In the order of heads, pages, and queries: equal pages with equal numbers of keys follow one another.
    places = reads.flatten(0, 1).permute(0, 3, 2, 1).flatten().nonzero()[:, 0]
    query, head_page = places // group % queries, places // (group * queries)
    head, page = head_page // pages, head_page % pages
    seen = counts[:, :, 0].flatten(0, 1)[head, query, page].long()
    most = int(seen.max()) + 1 if len(seen) else 1
    sequences, lengths = (head_page * most + seen).unique_consecutive(return_counts=True)
    readers = (head * group + places % group) * queries + query
    return ReaderLists(readers, lengths, first.flatten()[sequences // most], sequences % most)


def read_pages(
    query: Float[Tensor, "R D"], keys: SortedKeys, lists: ReaderLists, kernel: PackedKernel, scale: float
) -> Iterator[AttentionOutput]:
    """Attention of queries to the keys of the pages that they read, in as few calls as the limits allow.

    Args:
        query: rows, query heads among them.
        keys: keys and values sorted by page.
        lists: who reads what.
        kernel: computes packed sequences.
        scale: factor of the dot products.

    Yields:
        Output (R, Dv) and log-sum-exp (R,) of each call, in float32 (float64 for float64 inputs); 0 and -inf for rows
        that read nothing in it.
    """
    last_readers, last_sequence = [0], [0]
    if len(lists.readers):
        sizes = (lists.lengths + lists.counts).double() * (query.shape[-1] / CALL_ELEMENTS) + 1 / CALL_SEQUENCES
        call = sizes.cumsum(0).long()
        ends = call.bincount().cumsum(0)
        last_sequence += ends.tolist()
        last_readers += pad(lists.lengths.cumsum(0), (1, 0))[ends].tolist()
    for sequence in range(1, len(last_sequence)):
        chosen = slice(last_sequence[sequence - 1], last_sequence[sequence])
        if chosen.start == chosen.stop:
            continue
        readers = lists.readers[last_readers[sequence - 1] : last_readers[sequence]]
        lengths, first, counts = (part[chosen] for part in (lists.lengths, lists.first, lists.counts))
        starts = pad(counts.cumsum(0), (1, 0))
        rows = torch.repeat_interleave(first - starts[:-1], counts)
        rows = rows + torch.arange(len(rows), device=rows.device)
        packed = Packed(
            query.index_select(0, readers)[:, None],
            keys.key.index_select(0, rows)[:, None],
            keys.value.index_select(0, rows)[:, None],
            pad(lengths.cumsum(0), (1, 0)).to(torch.int32),
            starts.to(torch.int32),
            int(lengths.max()),
            int(counts.max()),
            causal=False,
        )
        output, logsumexp = kernel(packed, scale)
        yield _together(output[:, 0], logsumexp[:, 0], readers, len(query))


def _together(output: Tensor, logsumexp: Tensor, rows: Tensor, num_rows: int) -> AttentionOutput:
    """One result for each row from the parts that are its own."""
    compute = torch.promote_types(output.dtype, torch.float32)
    output, logsumexp = output.to(compute), logsumexp.to(compute)
    peak = logsumexp.new_full((num_rows,), FAR).scatter_reduce_(0, rows, logsumexp, "amax")
    weights = (logsumexp - peak[rows]).exp()
    total = weights.new_zeros(num_rows).index_add_(0, rows, weights)
    whole = output.new_zeros(num_rows, output.shape[-1]).index_add_(0, rows, output * weights[:, None])
    # The largest part of a row has the weight 1.
    return AttentionOutput(whole / total.clamp(min=1)[:, None], peak + total.log())
