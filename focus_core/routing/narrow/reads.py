"""The parts that queries of narrow groups read, for many chunks of queries at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from focus_core.attention.reference import attention_logits
from focus_core.routing.narrow.reading import Reading, variance
from focus_core.routing.narrow.summaries import key_spread

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
        spread: (B, Hkv, 1, n, P), see `key_spread`.
    """

    start: int
    reads: Bool[Tensor, "B Hkv G n P"]
    sizes: Float[Tensor, "B Hkv 1 n P"]
    logits: Float[Tensor, "B Hkv G n P"]
    spread: Float[Tensor, "B Hkv 1 n P"]


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
    # Keys, their squared lengths and ones are summed alike.
    summed_up = torch.cat([key, key.square().sum(-1, keepdim=True), torch.ones_like(key[..., :1])], -1)
    sums = key.new_zeros(texts, heads, num_parts, width + 2)
    for begin in range(0, length, chunk * CHUNKS_AT_ONCE):
        end = min(begin + chunk * CHUNKS_AT_ONCE, length)
        starts = torch.arange(begin, end, chunk, device=key.device)
        borders = reading.borders(starts)
        last = max(summed, int(borders[-1]))
        places = torch.arange(summed, last, device=key.device)
        row = torch.searchsorted(borders, places, right=True) * num_parts + parts[..., summed:last]
        more = key.new_zeros(texts, heads, len(starts) * num_parts, width + 2)
        more.scatter_add_(2, row[..., None].expand(*row.shape, width + 2), summed_up[:, :, summed:last])
        more = more.unflatten(2, (len(starts), num_parts))
        more[:, :, 0] += sums
        more = more.cumsum(2)
        sums, summed = more[:, :, -1], last
        if begin // (chunk * CHUNKS_AT_ONCE) % every != every // 2:
            continue
        totals, squares, counts = more[..., :width], more[..., width], more[..., width + 1]
        means = totals / counts.clamp(min=1)[..., None]
        spread = key_spread(counts, squares, means)
        padded = F.pad(query[:, :, begin:end], (0, 0, 0, len(starts) * chunk - (end - begin)))
        queries = padded.unflatten(2, (len(starts), chunk)).unflatten(1, (heads, -1)).transpose(2, 3)
        logits = attention_logits(queries.flatten(3, 4), means, scale, softcap)
        logits = logits.unflatten(3, (-1, chunk)).transpose(2, 3).flatten(3, 4)[..., : end - begin, :]
        sizes, spread = (
            part[:, :, None].repeat_interleave(chunk, 3)[..., : end - begin, :] for part in (counts, spread)
        )
        own = torch.arange(begin, end, device=key.device)
        queries = query[:, :, begin:end].unflatten(1, (heads, -1))
        logits = logits + reading.beyond_mean(queries, spread, scale)
        already = reading.already(own, reading.borders(own))
        doubt: tuple[Tensor, ...] = ()
        if reading.thresholds is not None:
            near = near_logsumexp(query, key, reading, begin, end, scale, softcap)
            doubt = near, variance(queries, spread, scale)
        reads = reading.choose(reading.scores(logits, sizes), sizes, already, *doubt)
        yield BlockRead(begin, reads, sizes, logits, spread)


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
