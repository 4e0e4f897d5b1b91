"""Attention over narrow groups, a chunk of queries at a time; `reference` is its definition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from focus_core.attention import AttentionOutput, PairCounts, focus_attention
from focus_core.attention.cpu.kernel import FAR, cpu_flash
from focus_core.attention.reference import attention_logits
from focus_core.attention.validate import side_by_side
from focus_core.errors import FocusError
from focus_core.routing.narrow.packed.prefill import PACKED, packed_kernel, packed_prefill
from focus_core.routing.narrow.reading import Reading
from focus_core.routing.narrow.reads import blocks_read, near_logsumexp
from focus_core.routing.narrow.summaries import RunningSums, Summaries

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

NARROW_BACKENDS = ("auto", "chunked", *PACKED)
"""Backends of `narrow_attention`, by name."""


class NarrowOutput(NamedTuple):
    """Attention over the window, sinks, read groups and summaries of the others.

    Attributes:
        output: (B, H, T, Dv), the query's dtype.
        logsumexp: (B, H, T), summaries included; float32 (float64 for float64 inputs).
        pairs_read: (B, H) int64, exactly attended pairs with keys of parts that are read.
        reading: by which they were.
    """

    output: Tensor
    logsumexp: Tensor
    pairs_read: Tensor
    reading: Reading

    @property
    def pairs(self) -> PairCounts:
        """All exactly attended pairs, each count (B, H) int64. Summaries are no pairs."""
        return _pair_counts(self.output.shape[2], self.reading, self.pairs_read)


class _Chunk(NamedTuple):
    """Queries between two borders; those that share a key/value head are side by side, G = H / Hkv.

    Attributes:
        start: place of the first query.
        stop: place after the last one.
        border: first key of the extended window.
        query: (B, Hkv, G, Tq, D).
        summaries: of the distant keys, (B, Hkv, K, ...).
        beyond: (B, Hkv, G, Tq, K), what spread adds to the logits of the mean keys; or 0.
        reads: (B, Hkv, G, Tq, K) bool.
    """

    start: int
    stop: int
    border: int
    query: Tensor
    summaries: Summaries
    beyond: Tensor | float
    reads: Tensor

    @property
    def counts(self) -> Tensor:
        """(B, Hkv, 1, 1, K): distant keys of each group."""
        return self.summaries.counts[:, :, None, None]

    def pairs_read(self) -> Tensor:
        """(B, H) int64: pairs with keys of the groups that are read."""
        return (self.reads * self.counts).sum((-1, -2)).to(torch.int64).flatten(1)


def narrow_attention(
    query: Float[Tensor, "B H T D"],
    key: Float[Tensor, "B Hkv T D"],
    value: Float[Tensor, "B Hkv T Dv"],
    groups: Int[Tensor, "B Hkv T"] | None,
    num_groups: int,
    reading: Reading,
    *,
    scale: float,
    softcap: float | None = None,
    backend: str = "auto",
) -> NarrowOutput:
    """Exact attention over window, sinks and read groups, and one pseudo-key for each group that is not read.

    Computes in float32 (float64 for float64 inputs). Memory grows with C * T, never with T * T.

    The backends, all with the same result:

    - "chunked": plain PyTorch, a chunk of queries at a time, on any device, with gradients.
    - "varlen" and "flash": variable-length calls on CUDA, see `focus_core.routing.narrow.packed.prefill`. The keys of
      window, sinks and read groups are attended in float16 or bfloat16, as the kernels are. Unverified on CUDA.
    - "auto": compiled loops on a CPU where they can, else "chunked", on CUDA too. In bfloat16 they use the matrix units
      of a CPU that has them (AMX): weights, and the mean values of summaries, are then rounded to bfloat16.

    Args:
        query: position-encoded, of whole texts without padding.
        key: position-encoded.
        value: Dv may differ from D.
        groups: of each token as a key, 0 to K - 1; None where the reading `attends_all`.
        num_groups: K.
        reading: window, sinks, borders and budget.
        scale: factor of the dot products.
        softcap: logits become softcap * tanh(logits / softcap).
        backend: one of `NARROW_BACKENDS`.

    Raises:
        FocusError: unknown backend, or one that does not support these tensors.
    """
    length = query.shape[2]
    if backend not in NARROW_BACKENDS:
        raise FocusError(f"backend is {backend!r}: narrow groups have {', '.join(NARROW_BACKENDS)}.")
    if backend in PACKED:
        kernel = packed_kernel(backend, query, key, value, softcap)
        packed = packed_prefill(query, key, value, groups, num_groups, reading, scale=scale, kernel=kernel)
        return NarrowOutput(*packed, reading)
    if not query.numel():
        nothing = query.new_zeros(query.shape[:3], dtype=torch.promote_types(query.dtype, torch.float32))
        pairs_read = torch.zeros(query.shape[:2], dtype=torch.int64, device=query.device)
        return NarrowOutput(query.new_zeros(*query.shape[:3], value.shape[-1]), nothing, pairs_read, reading)
    query, key, value = (side_by_side(part) for part in (query, key, value))
    full = reading.full_until(length)
    first = _attend_all(query[:, :, :full], key[:, :, :full], value[:, :, :full], scale, softcap)
    if groups is None or full == length:
        return NarrowOutput(*first, torch.zeros(query.shape[:2], dtype=torch.int64, device=query.device), reading)
    # It needs Numba, which takes a second to import.
    from focus_core.routing.narrow.compiled import prefill as compiled

    if backend == "auto" and compiled.supported(query, key, value, reading, softcap):
        found = compiled.prefill(query, key, value, groups, num_groups, reading, scale=scale)
        found.logsumexp[:, :, :full] = first.logsumexp
        output = found.output.to(query.dtype)
        output[:, :, :full] = first.output
        return NarrowOutput(output, found.logsumexp, found.pairs_read, reading)
    groups, num_groups = reading.parts(groups, num_groups)
    compute = torch.promote_types(query.dtype, torch.float32)
    key, value = key.to(compute), value.to(compute)
    outputs, logsumexps = [first.output.to(compute)], [first.logsumexp]
    pairs_read = torch.zeros(query.shape[:2], dtype=torch.int64, device=query.device)
    for chunk in _chunks(query.to(compute), key, value, groups, num_groups, reading, scale, softcap, full):
        keys = torch.cat([key[:, :, : chunk.stop], chunk.summaries.keys], -2)
        values = torch.cat([value[:, :, : chunk.stop], chunk.summaries.values], -2)
        output, logsumexp = _attend(chunk.query, keys, values, _bias(chunk, groups, reading), scale, softcap)
        outputs.append(output.flatten(1, 2))
        logsumexps.append(logsumexp.flatten(1, 2))
        pairs_read += chunk.pairs_read()
    return NarrowOutput(torch.cat(outputs, 2).to(query.dtype), torch.cat(logsumexps, 2), pairs_read, reading)


def narrow_pairs(
    query: Float[Tensor, "B H T D"],
    key: Float[Tensor, "B Hkv T D"],
    groups: Int[Tensor, "B Hkv T"],
    num_groups: int,
    reading: Reading,
    *,
    scale: float,
    softcap: float | None = None,
) -> PairCounts:
    """The pairs that `narrow_attention` attends exactly, each count (B, H) int64.

    It attends, too: compiled loops do both in less time than counting alone takes in PyTorch.
    """
    return narrow_attention(query, key, key, groups, num_groups, reading, scale=scale, softcap=softcap).pairs


def narrow_reads(
    query: Float[Tensor, "B H T D"],
    key: Float[Tensor, "B Hkv T D"],
    groups: Int[Tensor, "B Hkv T"],
    num_groups: int,
    reading: Reading,
    *,
    scale: float,
    softcap: float | None = None,
) -> tuple[Int[Tensor, "B Hkv T"], Bool[Tensor, "B H T P"]]:
    """The part of each key (a page, or its group), and the parts that `narrow_attention` reads for each query."""
    parts, total = reading.parts(groups, num_groups)
    compute = torch.promote_types(query.dtype, torch.float32)
    blocks = blocks_read(query.to(compute), key.to(compute), parts, total, reading, scale=scale, softcap=softcap)
    return parts, torch.cat([block.reads.flatten(1, 2) for block in blocks], 2)


def _chunks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    groups: Tensor,
    num_groups: int,
    reading: Reading,
    scale: float,
    softcap: float | None,
    first: int = 0,
) -> Iterator[_Chunk]:
    """Chunks of queries in their order, from the one at `first`, with the sums of all keys distant for them."""
    sums = RunningSums.of_none(key, value, num_groups, reading.directions)
    summed = reading.sink_tokens
    for start in range(first, query.shape[2], reading.chunk):
        stop = min(start + reading.chunk, query.shape[2])
        border = reading.border(start)
        if border > summed:
            new = slice(summed, border)
            sums, summed = sums.add(groups[..., new], key[:, :, new], value[:, :, new]), border
        queries = query[:, :, start:stop].unflatten(1, (key.shape[1], -1))
        summaries = sums.summaries()
        counts = summaries.counts[:, :, None, None]
        logits = attention_logits(queries, summaries.keys[:, :, None], scale, softcap)
        variances = reading.variances(queries, summaries.spread, scale)
        beyond = reading.beyond_mean(variances)
        already = reading.already(torch.arange(start, stop, device=query.device), border)
        doubt: tuple[Tensor, ...] = ()
        if reading.thresholds is not None:
            near = near_logsumexp(query, key, reading, start, stop, scale, softcap)
            doubt = near, variances
        reads = reading.choose(reading.scores(logits + beyond, counts), counts, already, *doubt)
        yield _Chunk(start, stop, border, queries, summaries, beyond, reads)


def _attend_all(query: Tensor, key: Tensor, value: Tensor, scale: float, softcap: float | None) -> AttentionOutput:
    """Full causal attention, (B, H, T, ...)."""
    if query.shape[2] == 0:
        compute = torch.promote_types(query.dtype, torch.float32)
        return AttentionOutput(query.new_empty(*query.shape[:3], value.shape[-1]), query[..., 0].to(compute))
    if _fused(query, key, value, softcap):
        repeats = query.shape[1] // key.shape[1]
        # No copy with one key/value head, as in a routed call.
        key, value = (part[:, :, None].expand(-1, -1, repeats, -1, -1).flatten(1, 2) for part in (key, value))
        return cpu_flash(query, key, value, scale, causal=True)
    local = torch.zeros(query.shape[0], key.shape[2], 1, dtype=torch.bool, device=query.device)
    return focus_attention(query, key, value, local, window=key.shape[2], scale=scale, softcap=softcap)


def _fused(query: Tensor, key: Tensor, value: Tensor, softcap: float | None) -> bool:
    """Whether PyTorch's CPU kernel computes this attention: the one that Transformers calls by default."""
    recorded = torch.is_grad_enabled() and any(part.requires_grad for part in (query, key, value))
    plain = query.dtype in (torch.float32, torch.bfloat16) and query.shape[-1] == value.shape[-1]
    return query.device.type == "cpu" and softcap is None and plain and not recorded


def _bias(chunk: _Chunk, groups: Tensor, reading: Reading) -> Float[Tensor, "B Hkv G Tq S+K"]:
    """What to add to the logits of the S keys before the end of the chunk, and of the K summaries.

    0 for keys that are attended exactly, `FAR` for those that are not, and for summaries of groups that are read. The
    other summaries count their keys, log n, and what the spread of the keys adds.
    """
    reads, counts = chunk.reads, chunk.counts
    shut = torch.where(reads, 0.0, FAR).to(chunk.query.dtype)
    index = torch.arange(chunk.stop, device=groups.device)
    future = index > index[chunk.start :, None]
    bias = future.to(shut.dtype).mul_(FAR).expand(*reads.shape[:-1], -1)
    if chunk.border > reading.sink_tokens:
        distant = groups[:, :, None, None, reading.sink_tokens : chunk.border].expand(*reads.shape[:-1], -1)
        sinks, window = bias[..., : reading.sink_tokens], bias[..., chunk.border :]
        bias = torch.cat([sinks, shut.gather(-1, distant), window], -1)
    return torch.cat([bias, torch.where(reads | (counts == 0), FAR, counts.log() + chunk.beyond)], -1)


def _attend(
    query: Float[Tensor, "B Hkv G Tq D"],
    key: Float[Tensor, "B Hkv N D"],
    value: Float[Tensor, "B Hkv N Dv"],
    bias: Float[Tensor, "B Hkv G Tq N"],
    scale: float,
    softcap: float | None,
) -> AttentionOutput:
    """Attention under a bias, by PyTorch's fused CPU kernel where it can; both results (B, Hkv, G, Tq, ...)."""
    if query.dtype == torch.float32 and _fused(query, key, value, softcap):
        # Query heads that share keys become rows.
        found = cpu_flash(query.flatten(2, 3), key, value, scale, bias=bias.flatten(2, 3))
        return AttentionOutput(*(part.unflatten(2, query.shape[2:4]) for part in found))
    logits = attention_logits(query, key[:, :, None], scale, softcap) + bias
    logsumexp = logits.logsumexp(-1)
    return AttentionOutput((logits - logsumexp[..., None]).exp() @ value[:, :, None], logsumexp)


def _pair_counts(length: int, reading: Reading, pairs_read: Tensor) -> PairCounts:
    """Counts of one text of `length` tokens for each head; pairs between window and border are distant and kept."""
    query = torch.arange(length, device=pairs_read.device)
    border = reading.borders(query)
    distant = (query - reading.window).clamp(min=0)
    kept = reading.already(query, border).sum()
    causal = length * (length + 1) // 2
    whole = torch.ones_like(pairs_read)
    return PairCounts(
        causal * whole,
        (causal - distant.sum()) * whole,
        distant.sum() * whole,
        kept + pairs_read,
        distant.clamp(max=reading.sink_tokens).sum() * whole,
    )
