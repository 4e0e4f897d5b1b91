"""The parts that queries of narrow groups read, for many chunks of queries at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from focus_core.attention.reference import attention_logits
from focus_core.routing.narrow.directions import key_features, key_spread, num_features
from focus_core.routing.narrow.reading import Reading

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

CHUNKS_AT_ONCE = 16


class BlockRead(NamedTuple):
    """What n queries read of P parts.

    Attributes:
        start: place of the first query.
        reads: (B, Hkv, G, n, P) bool.
        sizes: (B, Hkv, 1, n, P), distant keys of each part.
        logits: (B, Hkv, G, n, P) of the summaries, without the log of their sizes.
        variances: (B, Hkv, G, n, P), see `Reading.variances`.
    """

    start: int
    reads: Bool[Tensor, "B Hkv G n P"]
    sizes: Float[Tensor, "B Hkv 1 n P"]
    logits: Float[Tensor, "B Hkv G n P"]
    variances: Float[Tensor, "B Hkv G n P"]


def blocks_read(
    query: Float[Tensor, "B H T D"],
    key: Float[Tensor, "B Hkv T D"],
    parts: Int[Tensor, "B Hkv T"],
    num_parts: int,
    reading: Reading,
    *,
    scale: float,
    softcap: float | None = None,
    every: int = 1,
) -> Iterator[BlockRead]:
    """What queries read, and the distant keys of each part, for blocks of queries in their order.

    As `narrow_attention` chooses a chunk at a time, without its attention: the sums of keys up to the borders of some
    chunks are made at once.

    Args:
        query: position-encoded, in the dtype of the computation.
        key: likewise.
        parts: the part of each key.
        num_parts: P.
        reading: window, sinks, borders and budget.
        scale: factor of the dot products.
        softcap: as in `narrow_attention`.
        every: one block of so many is looked at, in the middle of them.
    """
    texts, heads, _, width = key.shape
    length, chunk, summed = query.shape[2], reading.chunk, reading.sink_tokens
    # Keys, their features and ones are summed alike.
    summed_up = torch.cat([key, key_features(key, reading.directions), torch.ones_like(key[..., :1])], -1)
    columns = width, num_features(reading.directions), 1
    sums = key.new_zeros(texts, heads, num_parts, sum(columns))
    for begin in range(0, length, chunk * CHUNKS_AT_ONCE):
        end = min(begin + chunk * CHUNKS_AT_ONCE, length)
        starts = torch.arange(begin, end, chunk, device=key.device)
        borders = reading.borders(starts)
        last = max(summed, int(borders[-1]))
        places = torch.arange(summed, last, device=key.device)
        row = torch.searchsorted(borders, places, right=True) * num_parts + parts[..., summed:last]
        more = key.new_zeros(texts, heads, len(starts) * num_parts, sum(columns))
        more.scatter_add_(2, row[..., None].expand(*row.shape, sum(columns)), summed_up[:, :, summed:last])
        more = more.unflatten(2, (len(starts), num_parts))
        more[:, :, 0] += sums
        more = more.cumsum(2)
        sums, summed = more[:, :, -1], last
        if begin // (chunk * CHUNKS_AT_ONCE) % every != every // 2:
            continue
        totals, features, counts = more.split(columns, -1)
        counts = counts[..., 0]
        means = totals / counts.clamp(min=1)[..., None]
        padded = F.pad(query[:, :, begin:end], (0, 0, 0, len(starts) * chunk - (end - begin)))
        # (B, M, Hkv, G, C, D): each of M chunks has means of its own.
        queries = padded.unflatten(2, (len(starts), chunk)).unflatten(1, (heads, -1)).movedim(3, 1)
        means, features, each = means.transpose(1, 2), features.transpose(1, 2), counts.transpose(1, 2)
        spread = key_spread(each, features, means, reading.directions)
        logits = attention_logits(queries, means[:, :, :, None], scale, softcap)
        logits, variances = (
            part.movedim(1, 3).flatten(3, 4)[..., : end - begin, :]
            for part in (logits, reading.variances(queries, spread, scale))
        )
        sizes = counts[:, :, None].repeat_interleave(chunk, 3)[..., : end - begin, :]
        own = torch.arange(begin, end, device=key.device)
        logits = logits + reading.beyond_mean(variances)
        already = reading.already(own, reading.borders(own))
        doubt: tuple[Tensor, ...] = ()
        if reading.thresholds is not None:
            near = near_logsumexp(query, key, reading, begin, end, scale, softcap)
            doubt = near, variances
        reads = reading.choose(reading.scores(logits, sizes), sizes, already, *doubt)
        yield BlockRead(begin, reads, sizes, logits, variances)


def near_logsumexp(
    query: Float[Tensor, "B H T D"],
    key: Float[Tensor, "B Hkv T D"],
    reading: Reading,
    start: int,
    stop: int,
    scale: float,
    softcap: float | None,
) -> Float[Tensor, "B Hkv G n"]:
    """Log-sum-exp of the logits of sinks and extended window, for the queries from `start`, a border, to `stop`."""
    found = []
    for begin in range(start, stop, reading.chunk):
        end, border = min(begin + reading.chunk, stop), reading.border(begin)
        sinks = min(reading.sink_tokens, border)
        keys = torch.cat([key[:, :, :sinks], key[:, :, border:end]], 2)[:, :, None]
        logits = attention_logits(query[:, :, begin:end].unflatten(1, (key.shape[1], -1)), keys, scale, softcap)
        index = torch.arange(border - sinks, end, device=query.device)
        index[:sinks] = 0
        future = index > torch.arange(begin, end, device=query.device)[:, None]
        found.append(logits.masked_fill(future, float("-inf")).logsumexp(-1))
    return torch.cat(found, -1)
