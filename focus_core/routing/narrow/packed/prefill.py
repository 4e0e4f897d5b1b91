"""Attention over narrow groups as variable-length calls, for `varlen` and `flash`. Unverified on CUDA.

A span of some hundred queries at a time: one causal call for windows and sinks, one call for the pages that are read,
and matrix products for the choice and the summaries. Nothing loops over chunks or pages. The parts are merged by
log-sum-exp. Kernels are arguments, so that everything else is tested on machines without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from focus_core.attention import AttentionOutput
from focus_core.attention.cpu.kernel import FAR
from focus_core.attention.merge import merge_
from focus_core.attention.packed.calls import Packed, PackedKernel
from focus_core.attention.packed.flash import flash_varlen, package_obstacle
from focus_core.attention.packed.varlen import kernel_obstacle, torch_varlen
from focus_core.attention.reference import attention_logits
from focus_core.errors import FocusError
from focus_core.routing.narrow.directions import query_features
from focus_core.routing.narrow.output import Prefill
from focus_core.routing.narrow.packed.pages import PageSums, SortedKeys, SpanPages, sorted_keys
from focus_core.routing.narrow.packed.reads import read_pages, reader_lists
from focus_core.routing.narrow.reading import Reading

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

SPAN = 512
"""Queries of a span."""

SCORE_ELEMENTS = 1 << 24
"""Scores of pages held at a time, unless one chunk has more."""

WINDOW_ELEMENTS = 1 << 25
"""Elements of the keys of windows that a call packs, unless one chunk has more."""


class PackedBackend(NamedTuple):
    """A kernel for packed sequences.

    Attributes:
        kernel: computes them.
        obstacle: from query (B, H, T, D) and value (B, Hkv, T, Dv), the reason why it does not take them; None if it
            does.
    """

    kernel: PackedKernel
    obstacle: Callable[[Tensor, Tensor], str | None]


PACKED: dict[str, PackedBackend] = {
    "varlen": PackedBackend(torch_varlen, kernel_obstacle),
    "flash": PackedBackend(flash_varlen, lambda query, value: package_obstacle() or kernel_obstacle(query, value)),
}
"""Backends of narrow groups that compute variable-length calls, by name."""


def packed_kernel(backend: str, query: Tensor, key: Tensor, value: Tensor, softcap: float | None) -> PackedKernel:
    """The kernel of one of the backends `PACKED`.

    Raises:
        FocusError: it does not support these tensors or the softcap, or gradients are asked for.
    """
    if torch.is_grad_enabled() and any(part.requires_grad for part in (query, key, value)):
        raise FocusError(f"The backend '{backend}' has no gradients: use torch.no_grad(), or 'auto'.")
    kernel, obstacle = PACKED[backend]
    reason = "has no softcap" if softcap is not None else obstacle(query, value)
    if reason is not None:
        raise FocusError(f"The backend '{backend}' cannot run here: it {reason}; 'auto' picks one that can.")
    return kernel


def packed_prefill(
    query: Float[Tensor, "B H T D"],
    key: Float[Tensor, "B Hkv T D"],
    value: Float[Tensor, "B Hkv T Dv"],
    groups: Int[Tensor, "B Hkv T"] | None,
    num_groups: int,
    reading: Reading,
    *,
    scale: float,
    kernel: PackedKernel,
) -> Prefill:
    """Exact attention over window, sinks and read pages, and summaries of the others; see `narrow_attention`.

    The kernel gets the dtype of the inputs. Choice, summaries and merges are in float32 (float64 for float64 inputs).
    Memory grows with T times the width of keys and values, and within the limits of this module and `packed_reads`.
    No gradients.

    Args:
        query: position-encoded, of whole texts without padding.
        key: position-encoded.
        value: Dv may differ from D if the kernel takes it.
        groups: of each token as a key, 0 to K - 1; None where the reading `attends_all`.
        num_groups: K.
        reading: window, sinks, borders and budget.
        scale: factor of the dot products.
        kernel: computes packed sequences.
    """
    length, chunk = query.shape[2], reading.chunk
    full = reading.full_until(length)
    pairs_read = torch.zeros(query.shape[:2], dtype=torch.int64, device=query.device)
    found: list[AttentionOutput] = []
    if full > 0:
        found.append(_windows(query, key, value, torch.tensor([0, full]), torch.tensor([0]), 0, kernel, scale))
    if groups is not None and full < length:
        parts, total = reading.parts(groups.long(), num_groups)
        keys = sorted_keys(key, value, parts, total, reading.sink_tokens)
        compute = torch.promote_types(query.dtype, torch.float32)
        sums = PageSums.of_none(key, value, parts, total, reading.sink_tokens, compute, reading.directions)
        span = _span(query, key, total, reading)
        for begin in range(full, length, span):
            end = min(begin + span, length)
            starts = torch.arange(begin, end, chunk)
            borders, edges = reading.borders(starts), torch.cat([starts, torch.tensor([end])])
            whole = _windows(query, key, value, edges, borders, reading.sink_tokens, kernel, scale)
            found.append(whole)
            if int(borders[-1]) <= reading.sink_tokens:
                continue
            pages = sums.span(borders.tolist())
            queries = query[:, :, begin:end].unflatten(1, (key.shape[1], -1))
            logits, counts, variances = _page_logits(queries.to(compute), pages, reading, scale)
            own = torch.arange(begin, end, device=query.device)
            already, near = reading.already(own, reading.borders(own)), whole.logsumexp.unflatten(1, (key.shape[1], -1))
            reads = reading.choose(reading.scores(logits, counts), counts, already, near, variances)
            pairs_read += (reads * counts).sum((-1, -2)).to(torch.int64).flatten(1)
            _add_summaries(whole, logits, counts, reads, pages, chunk)
            _add_pages(whole, queries, keys, reads, counts, pages, kernel, scale)
    if not found:
        return Prefill(query.new_empty(*query.shape[:3], value.shape[-1]), query[..., 0].float(), pairs_read)
    output, logsumexp = (torch.cat(each, 2) for each in zip(*found))
    return Prefill(output.to(query.dtype), logsumexp, pairs_read)


def _span(query: Tensor, key: Tensor, num_parts: int, reading: Reading) -> int:
    """Queries of a span, a multiple of the chunk: as many as the limits allow."""
    scores = query.shape[0] * query.shape[1] * num_parts
    # Each chunk packs its own copy of its window, which begins up to a chunk early.
    window = key[:, :, 0].numel() * (reading.sink_tokens + reading.window + 2 * reading.chunk)
    fitting = (SPAN // reading.chunk, SCORE_ELEMENTS // (scores * reading.chunk), WINDOW_ELEMENTS // window)
    return max(1, min(fitting)) * reading.chunk


def _windows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    edges: Int[Tensor, " M+1"],
    borders: Int[Tensor, " M"],
    sink_tokens: int,
    kernel: PackedKernel,
    scale: float,
) -> AttentionOutput:
    """Attention of M chunks of queries to the sinks and the keys from their borders on, in one causal call.

    A sequence is a chunk, and its keys are the sinks before its border, then all from the border to its end: aligned at
    their ends, every query sees the sinks once and no later key.

    Args:
        query: (B, H, T, D).
        key: (B, Hkv, T, D).
        value: (B, Hkv, T, Dv).
        edges: int64 places on the CPU, of the first query of each chunk and after the last one.
        borders: int64 on the CPU, of each chunk.
        sink_tokens: of the reading.
        kernel: computes packed sequences.
        scale: factor of the dot products.

    Returns:
        (B, H, n, ...) of the queries between the edges, float32 (float64 for float64 inputs).
    """
    texts = query.shape[0]
    lengths, sinks = edges.diff(), borders.clamp(max=sink_tokens)
    counts = sinks + edges[1:] - borders
    starts = pad(counts.cumsum(0), (1, 0))
    place = torch.arange(int(starts[-1])) - torch.repeat_interleave(starts[:-1], counts)
    after_sinks = torch.repeat_interleave(borders - sinks, counts)
    index = (place + after_sinks * (place >= torch.repeat_interleave(sinks, counts))).to(query.device)
    queries, keys, values = (
        part.transpose(1, 2).flatten(0, 1).contiguous()
        for part in (
            query[:, :, int(edges[0]) : int(edges[-1])],
            key.index_select(2, index),
            value.index_select(2, index),
        )
    )
    query_starts, key_starts = (
        pad(each.repeat(texts).cumsum(0), (1, 0)).to(query.device, torch.int32) for each in (lengths, counts)
    )
    packed = Packed(
        queries,
        keys,
        values,
        query_starts,
        key_starts,
        int(lengths.max()),
        int(counts.max()),
    )
    compute = torch.promote_types(query.dtype, torch.float32)
    output, logsumexp = (part.unflatten(0, (texts, -1)).transpose(1, 2) for part in kernel(packed, scale))
    return AttentionOutput(output.to(compute).contiguous(), logsumexp.to(compute).contiguous())


def _page_logits(
    query: Float[Tensor, "B Hkv G n D"], pages: SpanPages, reading: Reading, scale: float
) -> tuple[Float[Tensor, "B Hkv G n L"], Float[Tensor, "B Hkv 1 n L"], Float[Tensor, "B Hkv G n L"]]:
    """Logits of summaries without the log of their sizes, these sizes, and the variances of the logits of keys."""
    queries, chunk = query.shape[3], reading.chunk

    def of_queries(per_chunk: Tensor) -> Tensor:
        return per_chunk.repeat_interleave(chunk, 2)[:, :, None, :queries]

    before, grown = pages.before, pages.grown
    logits = attention_logits(query, before.keys[:, :, None], scale, None)
    variances = reading.variances(query, before.spread, scale)
    at_borders = attention_logits(_by_chunk(query, chunk), grown.keys, scale, None)
    at_borders = _by_query(at_borders, chunk, queries)
    features = _by_chunk(query_features(query, reading.directions, scale), chunk)
    grown_variances = _by_query(features @ grown.spread.mT, chunk, queries)
    columns = pages.growing[:, :, None, None].expand_as(at_borders)
    variances = variances.scatter(-1, columns, grown_variances)
    logits = logits.scatter(-1, columns, at_borders) + reading.beyond_mean(variances)
    return logits, of_queries(pages.counts), variances


def _add_summaries(
    whole: AttentionOutput, logits: Tensor, counts: Tensor, reads: Tensor, pages: SpanPages, chunk: int
) -> None:
    """Merge the summaries of the pages that are not read into the whole (B, H, n, ...)."""
    logits = (logits + counts.log()).masked_fill(reads, float("-inf"))
    logsumexp = logits.logsumexp(-1)
    weights = (logits - logsumexp.clamp(min=FAR)[..., None]).exp()
    columns = pages.growing[:, :, None, None].expand(*weights.shape[:-1], -1)
    at_borders = _by_chunk(weights.gather(-1, columns), chunk) @ pages.grown.values
    output = weights.scatter(-1, columns, 0.0) @ pages.before.values[:, :, None]
    output = output + _by_query(at_borders, chunk, weights.shape[3])
    merge_(whole, AttentionOutput(output.flatten(1, 2), logsumexp.flatten(1, 2)))


def _add_pages(
    whole: AttentionOutput,
    query: Float[Tensor, "B Hkv G n D"],
    keys: SortedKeys,
    reads: Bool[Tensor, "B Hkv G n L"],
    counts: Float[Tensor, "B Hkv 1 n L"],
    pages: SpanPages,
    kernel: PackedKernel,
    scale: float,
) -> None:
    """Merge the keys of the pages that are read into the whole (B, H, n, ...)."""
    lists = reader_lists(reads, counts, keys.first.gather(-1, pages.pages))
    for part in read_pages(query.flatten(0, 3), keys, lists, kernel, scale):
        merge_(whole, AttentionOutput(part.output.view_as(whole.output), part.logsumexp.view_as(whole.logsumexp)))


def _by_chunk(rows: Float[Tensor, "B Hkv G n X"], chunk: int) -> Float[Tensor, "B Hkv M GC X"]:
    """Rows of the queries of each chunk, those of all heads together; the last chunk is filled up with 0."""
    spare = -rows.shape[3] % chunk
    return pad(rows, (0, 0, 0, spare)).unflatten(3, (-1, chunk)).transpose(2, 3).flatten(3, 4)


def _by_query(rows: Float[Tensor, "B Hkv M GC X"], chunk: int, queries: int) -> Float[Tensor, "B Hkv G n X"]:
    """The inverse of `_by_chunk` for so many queries."""
    return rows.unflatten(3, (-1, chunk)).transpose(2, 3).flatten(3, 4)[:, :, :, :queries]
