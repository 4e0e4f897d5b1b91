"""The definition of attention over narrow groups in its plainest form; `narrow_attention` is tested against it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from focus_core.attention.reference import attention_logits
from focus_core.routing.narrow.reading import Reading

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


class Reference(NamedTuple):
    """Attention by its definition.

    Attributes:
        output: (B, H, T, Dv).
        logsumexp: (B, H, T).
        exact: (B, H, T, T) bool, the pairs that are attended exactly.
    """

    output: Float[Tensor, "B H T Dv"]
    logsumexp: Float[Tensor, "B H T"]
    exact: Bool[Tensor, "B H T T"]


def narrow_reference(
    query: Float[Tensor, "B H T D"],
    key: Float[Tensor, "B Hkv T D"],
    value: Float[Tensor, "B Hkv T Dv"],
    groups: Int[Tensor, "B Hkv T"],
    num_groups: int,
    reading: Reading,
    *,
    scale: float,
    softcap: float | None = None,
) -> Reference:
    """What `narrow_attention` computes, from masks over all pairs and sums for every query; for short texts alone.

    Takes the arguments of `narrow_attention`, and computes in the dtype of the query.
    """
    length, repeats = query.shape[2], query.shape[1] // key.shape[1]
    key, value, groups = (part.repeat_interleave(repeats, 1) for part in (key, value, groups))
    index = torch.arange(length, device=query.device)
    if reading.share is not None and reading.page_size is not None:
        # The page of a key follows from the number of its group's keys before it, sinks left out.
        same = (groups[..., :, None] == groups[..., None, :]) & (index >= reading.sink_tokens)
        rank = (same & (index < index[:, None])).sum(-1)
        most = length // reading.page_size + 1
        groups, num_groups = groups * most + rank // reading.page_size, num_groups * most
    border = reading.borders(index)
    distant = (index < border[:, None]) & (index >= reading.sink_tokens)
    member = F.one_hot(groups, num_groups).to(query.dtype)

    def sums(vectors: Tensor) -> Tensor:
        """(B, H, T, K, D): over each group's distant keys, for every query."""
        by_group = member[..., None] * vectors[..., None, :]  # (B, H, T, K, D), zero in all groups but a key's own
        return (distant.to(query.dtype) @ by_group.flatten(-2)).unflatten(-1, by_group.shape[-2:])

    counts = sums(torch.ones_like(key[..., :1]))[..., 0]
    sizes = counts.clamp(min=1)[..., None]
    means = sums(key) / sizes
    mean_logits = attention_logits(query[..., None, :], means, scale, softcap)[..., 0, :]
    vectors = key.new_zeros(key.shape[1], key.shape[-1], 0)
    if reading.directions is not None:
        vectors = reading.directions.vectors.to(key).repeat_interleave(repeats, 0)
    along, key_along, mean_along = query @ vectors, key @ vectors, means @ vectors[:, None]
    products = key_along[..., :, None] * key_along[..., None, :]
    together = (sums(products.flatten(-2)) / sizes).unflatten(-1, products.shape[-2:])
    together = together - mean_along[..., :, None] * mean_along[..., None, :]
    rest = sums(key.square()).sum(-1) / sizes[..., 0] - means.square().sum(-1) - together.diagonal(0, -2, -1).sum(-1)
    rest = rest.clamp(min=0) / max(1, key.shape[-1] - vectors.shape[-1])
    variances = torch.einsum("bhix,bhicxy,bhiy->bhic", along, together, along)
    variances = variances + (query.square().sum(-1) - along.square().sum(-1))[..., None] * rest
    variances = scale**2 * variances
    if reading.spread is not None:
        weights = torch.tensor(reading.spread, dtype=query.dtype, device=query.device)[:, None, None]
        most = float("inf") if reading.directions is None else 8.0
        mean_logits = mean_logits + weights * variances.clamp(max=most)
    beyond = (index < index[:, None] - reading.window) & ~distant
    pair_logits, always = attention_logits(query, key, scale, softcap), (index <= index[:, None]) & ~distant
    near = pair_logits.masked_fill(~always, float("-inf")).logsumexp(-1)
    reads = reading.choose(reading.scores(mean_logits, counts), counts, beyond.sum(-1).to(query.dtype), near, variances)

    read_keys = reads.gather(-1, groups[:, :, None].expand(-1, -1, length, -1))
    exact = always | (distant & read_keys)
    pair_logits = pair_logits.masked_fill(~exact, float("-inf"))
    summary_logits = (mean_logits + counts.log()).masked_fill(reads, float("-inf"))
    logits = torch.cat([pair_logits, summary_logits], -1)
    weights = logits.softmax(-1)
    output = weights[..., :length] @ value
    output = output + torch.einsum("bhik,bhikd->bhid", weights[..., length:], sums(value) / sizes)
    return Reference(output, logits.logsumexp(-1), exact)
