"""The parts that queries of narrow groups read, for many chunks of queries at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from focus_core.attention.reference import attention_logits
from focus_core.routing.narrow.reading import Reading

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

CHUNKS_AT_ONCE = 16


def blocks_read(
    query: Float[Tensor, "B H T D"],
    key: Float[Tensor, "B Hkv T D"],
    parts: Int[Tensor, "B Hkv T"],
    num_parts: int,
    reading: Reading,
    *,
    scale: float,
    softcap: float | None = None,
) -> Iterator[tuple[Bool[Tensor, "B Hkv G n P"], Float[Tensor, "B Hkv 1 n P"]]]:
    """What queries read, and the distant keys of each part, for blocks of n queries in their order.

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
    """
    texts, heads, _, width = key.shape
    length, chunk, summed = query.shape[2], reading.chunk, reading.sink_tokens
    sums = key.new_zeros(texts, heads, num_parts, width)
    counts = key.new_zeros(texts, heads, num_parts)
    for begin in range(0, length, chunk * CHUNKS_AT_ONCE):
        end = min(begin + chunk * CHUNKS_AT_ONCE, length)
        starts = torch.arange(begin, end, chunk, device=key.device)
        borders = reading.borders(starts)
        last = max(summed, int(borders[-1]))
        places = torch.arange(summed, last, device=key.device)
        row = torch.searchsorted(borders, places, right=True) * num_parts + parts[..., summed:last]
        more = key.new_zeros(texts, heads, len(starts) * num_parts, width)
        more.scatter_add_(2, row[..., None].expand(*row.shape, width), key[:, :, summed:last])
        many = key.new_zeros(texts, heads, len(starts) * num_parts)
        many.scatter_add_(2, row, torch.ones_like(row, dtype=key.dtype))
        more, many = more.unflatten(2, (len(starts), num_parts)), many.unflatten(2, (len(starts), num_parts))
        more[:, :, 0] += sums
        many[:, :, 0] += counts
        more, many = more.cumsum(2), many.cumsum(2)
        sums, counts, summed = more[:, :, -1], many[:, :, -1], last
        means = more / many.clamp(min=1)[..., None]
        padded = F.pad(query[:, :, begin:end], (0, 0, 0, len(starts) * chunk - (end - begin)))
        queries = padded.unflatten(2, (len(starts), chunk)).unflatten(1, (heads, -1)).transpose(2, 3)
        logits = attention_logits(queries.flatten(3, 4), means, scale, softcap)
        logits = logits.unflatten(3, (-1, chunk)).transpose(2, 3).flatten(3, 4)[..., : end - begin, :]
        sizes = many[:, :, None].repeat_interleave(chunk, 3)[..., : end - begin, :]
        own = torch.arange(begin, end, device=key.device)
        already = reading.already(own, reading.borders(own))
        yield reading.choose(reading.scores(logits, sizes), sizes, already), sizes
