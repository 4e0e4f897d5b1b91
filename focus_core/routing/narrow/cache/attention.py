"""Attention of new tokens over stored pages and near keys; the definition of narrow groups at the end of a text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from focus_core.attention import AttentionOutput
from focus_core.attention.cpu.kernel import FAR, folded
from focus_core.attention.cpu.threads import in_threads
from focus_core.attention.reference import attention_logits
from focus_core.routing.narrow.cache.pages import PageStore
from focus_core.routing.narrow.compiled.cache.decode import attend_in_team, attend_pages
from focus_core.routing.narrow.compiled.levels import levels_between
from focus_core.routing.narrow.compiled.machine.memory import COMPILED, as_array
from focus_core.routing.narrow.compiled.machine.team import has_team
from focus_core.routing.narrow.compiled.rows import directions_of
from focus_core.routing.narrow.directions import key_spread
from focus_core.routing.narrow.reading import Reading

if TYPE_CHECKING:
    from jaxtyping import Float, Int


_ALONE = 2048
"""Keys times queries below which one thread takes less time than several that run Python."""


class Near(NamedTuple):
    """Keys that every new token attends to exactly.

    Attributes:
        keys: (H, N, D), sinks first.
        values: (H, N, Dv).
        first: place of the border's key in the buffer; the following ones lie beside it.
        length: tokens of the text so far, the new ones included.
        border: first key of the window.
        sinks: number of sinks.
        arrays: keys and values for compiled code, by `as_array`; None where they are not at hand.
    """

    keys: Tensor
    values: Tensor
    first: int
    length: int
    border: int
    sinks: int
    arrays: tuple[np.ndarray, np.ndarray] | None = None


class _Parts(NamedTuple):
    """What is ranked: pages or whole groups, the groups in order.

    Attributes:
        counts: (H, 1, 1, R) keys of each part.
        keys: (H, R, D), means.
        values: (H, R, Dv), means.
        spread: (H, R, F), see `key_spread`.
        of_page: (H, used) int64, the part of each page.
    """

    counts: Tensor
    keys: Tensor
    values: Tensor
    spread: Tensor
    of_page: Int[Tensor, "H used"]


def attend_stored(
    query: Float[Tensor, "Hq n D"],
    pages: PageStore,
    near: Near,
    reading: Reading,
    scale: float,
    softcap: float | None,
) -> AttentionOutput:
    """Attention of the last n tokens of a text, which have one border: (Hq, n, Dv) in the query's dtype, and (Hq, n).

    Computes in float32 (float64 for float64 inputs): compiled where it can be, else over all stored keys under a mask.
    """
    by_pages = reading.share is not None and reading.page_size is not None
    fast = softcap is None and query.device.type == "cpu" and query.dtype in COMPILED
    if fast and not pages.length and query.shape[-1] == near.values.shape[-1] and near.first == near.sinks:
        return _all_near(query, near, scale)
    if by_pages and fast:
        return _compiled(query, pages, near, reading, scale)
    return attend_masked(query, pages, near, reading, scale, softcap)


def _all_near(query: Tensor, near: Near, scale: float) -> AttentionOutput:
    """Full causal attention to the near keys, which lie side by side where there are no pages."""
    heads, new = len(near.keys), query.shape[1]
    bias = None
    if new > 1:
        places = torch.arange(near.length)
        bias = torch.where(places <= places[near.length - new :, None], 0.0, FAR).to(query.dtype)
        bias = bias.repeat(len(query) // heads, 1)
    # Query heads that share keys become rows.
    found = folded(query.reshape(heads, -1, query.shape[-1]), *_used(near), scale, bias=bias)
    return AttentionOutput(found.output.view_as(query), found.logsumexp.view(query.shape[:2]))


def _used(near: Near) -> tuple[Tensor, Tensor]:
    return near.keys[:, : near.length], near.values[:, : near.length]


def _compiled(query: Tensor, pages: PageStore, near: Near, reading: Reading, scale: float) -> AttentionOutput:
    output = torch.empty(*query.shape[:2], near.values.shape[-1])
    logsumexp = torch.empty(query.shape[:2])
    token = near.length - query.shape[1]
    arguments: tuple[Any, ...] = (
        np.zeros(1, np.int64),
        query.detach().float().contiguous().numpy(),
        *pages.arrays(),
        directions_of(pages.directions, len(near.keys), query.shape[2]),
        pages.size,
        *(near.arrays or (as_array(near.keys), as_array(near.values))),
        near.sinks,
        near.first,
        near.first + near.length - near.border,
        token,
        reading.window,
        reading.border(token),
        pages.length,
        *_of_reading(reading, len(query)),
        np.float32(scale),
        output.numpy(),
        logsumexp.numpy(),
    )
    threads = min(torch.get_num_threads(), len(query))
    if threads > 1 and has_team():
        attend_in_team(threads, *arguments)
    else:
        threads = threads if near.length * query.shape[1] >= _ALONE else 1
        in_threads(lambda _: attend_pages(*arguments), range(threads))
    return AttentionOutput(output.to(query.dtype), logsumexp)


def _of_reading(reading: Reading, rows: int) -> tuple[Any, ...]:
    """What `attend_pages` takes of a reading, for so many query heads.

    Remembered by the reading, since every decoded token asks in every layer.
    """
    known: dict[int, tuple[Any, ...]] = reading.compiled
    if rows not in known:
        levels = reading.levels(rows).numpy(), *levels_between(reading.shares_at)
        weights = reading.spread_weights(rows).numpy(), np.float32(reading.count_weight)
        known[rows] = *levels, *weights, reading.thresholds is not None
    return known[rows]


def attend_masked(
    query: Float[Tensor, "Hq n D"],
    pages: PageStore,
    near: Near,
    reading: Reading,
    scale: float,
    softcap: float | None,
) -> AttentionOutput:
    """`attend_stored` over all stored keys, under a mask; on any device, in any dtype."""
    compute = torch.promote_types(query.dtype, torch.float32)
    queries = query.unflatten(0, (len(near.keys), -1)).to(compute)
    places = torch.arange(near.length - query.shape[1], near.length, device=query.device)
    parts = _parts(pages, reading)
    logits = attention_logits(queries, parts.keys[:, None], scale, softcap)
    variances = reading.variances(queries, parts.spread, scale)
    beyond = reading.beyond_mean(variances)
    already = reading.already(places, reading.border(int(places[0])))
    index, window = _near_keys(near)
    causal = torch.where(index <= places[:, None], 0.0, FAR).to(compute)
    near_logits = attention_logits(queries, near.keys[:, None, window].to(compute), scale, softcap) + causal
    scores = reading.scores(logits + beyond, parts.counts)
    doubt = near_logits.logsumexp(-1), variances
    reads = reading.choose(scores, parts.counts, already, *doubt)

    shut = torch.where(reads, 0.0, FAR).to(compute)
    in_page = torch.arange(pages.size, device=query.device) < pages.counts[:, : pages.used, None]
    of_page = parts.of_page[:, None, None].expand(*reads.shape[:-1], -1)
    paged = shut.gather(-1, of_page)[..., None] + torch.where(in_page, 0.0, FAR).to(compute)[:, None, None]
    summaries = torch.where(reads | (parts.counts == 0), FAR, parts.counts.log() + beyond)
    bias = torch.cat([paged.flatten(-2), causal.expand(*reads.shape[:-1], -1), summaries], -1)
    heads, numbers = (torch.arange(count, device=query.device) for count in (len(near.keys), pages.used))
    page_keys, page_values = pages.restored(heads[:, None], numbers.expand(len(heads), -1))
    keys, values = (
        torch.cat([stored.flatten(1, 2).to(compute), each[:, window].to(compute), means], 1)
        for stored, each, means in (
            (page_keys, near.keys, parts.keys),
            (page_values, near.values, parts.values),
        )
    )
    logits = attention_logits(queries, keys[:, None], scale, softcap) + bias
    logsumexp = logits.logsumexp(-1)
    output = (logits - logsumexp[..., None]).exp() @ values[:, None]
    return AttentionOutput(output.flatten(0, 1).to(query.dtype), logsumexp.flatten(0, 1))


def _parts(pages: PageStore, reading: Reading) -> _Parts:
    used, groups = pages.used, pages.groups[:, : pages.used].long()
    stored = pages.counts[..., None], pages.key_sums, pages.value_sums, pages.features()
    sums = [part[:, :used] for part in stored]
    if reading.share is not None and reading.page_size is not None:
        order = groups.argsort(dim=-1, stable=True)  # of equal scores the first group wins
        of_page = order.argsort(dim=-1)
        sums = [part.gather(1, order[..., None].expand_as(part)) for part in sums]
    else:
        of_page = groups
        empty = [part.new_zeros(len(part), pages.num_groups, part.shape[-1]) for part in sums]
        sums = [none.scatter_add_(1, groups[..., None].expand_as(part), part) for none, part in zip(empty, sums)]
    counts, keys, values, features = sums
    sizes = counts.clamp(min=1)
    means = keys / sizes
    spread = key_spread(counts[..., 0], features, means, pages.directions)
    return _Parts(counts[:, None, None, :, 0], means, values / sizes, spread, of_page)


def _near_keys(near: Near) -> tuple[Tensor, Tensor]:
    """Places of near keys in the text, and in their buffer."""
    device = near.keys.device
    sinks = torch.arange(min(near.sinks, near.length), device=device)
    window = torch.arange(near.border, max(near.border, near.length), device=device)
    return torch.cat([sinks, window]), torch.cat([sinks, window - near.border + near.first])
