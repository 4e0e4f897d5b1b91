"""Exact attention over given pairs, for timing the baselines: executions that skip unused pairs.

The unit is one key/value head with the G query heads that read it. Their queries are folded into rows, head after head:
keys and values are never repeated. None is a kernel of the papers. Dense products skip a pair only where the queries of
a part leave out the same keys (`Part` by `Part`), or where few rows keep any key of a block (`key_blocks`, the order of
MoBA's algorithm 1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from focus_core.attention import focus_attention

NEARLY_ALL = 0.9
"""Share of kept keys above which gathering them costs more than computing all."""


@dataclass(frozen=True)
class Rows:
    """Consecutive queries of some query heads of one key/value head.

    Attributes:
        heads: of the query heads.
        start: first query.
        end: after the last query.
    """

    heads: slice
    start: int
    end: int

    @property
    def count(self) -> int:
        """h, the number of heads."""
        return self.heads.stop - self.heads.start

    @property
    def total(self) -> int:
        """h * n, the number of rows."""
        return self.count * (self.end - self.start)

    def of(self, vectors: Tensor) -> Tensor:
        """These rows (h * n, ...) of the vectors (G, T, ...) of all queries."""
        return vectors[self.heads, self.start : self.end].flatten(0, 1)

    def places(self, length: int, device: torch.device | None = None) -> Tensor:
        """(h * n,) int64: rows of these queries among all G * `length` rows."""
        heads = torch.arange(self.heads.start, self.heads.stop, device=device) * length
        return (heads[:, None] + torch.arange(self.start, self.end, device=device)).flatten()


class Part(NamedTuple):
    """Some rows and keys that are computed together.

    Attributes:
        rows: (r,) int64 rows of the folded queries.
        keys: a slice, or (n,) int64 indices.
        bias: (r, n) float32: 0 of kept pairs, of others so low that their weight is 0. The kernel takes no other form
            without a copy.
    """

    rows: Tensor
    keys: slice | Tensor
    bias: Tensor


Choose = Callable[[Rows], tuple[slice | Tensor, Tensor]]
"""Keys that any of some rows keeps, and the bias (r, n) of a `Part`; every row keeps one."""


def tiles(choose: Choose, group: int, length: int, size: int, *, folded: bool = True) -> list[Part]:
    """Consecutive queries, with the keys that any of them keeps.

    Args:
        choose: the pairs.
        group: G, query heads.
        length: T.
        size: queries of a tile.
        folded: all heads in one tile, under a mask of each; else a tile for each head, with its own keys.
    """
    together = [slice(0, group)] if folded else [slice(head, head + 1) for head in range(group)]
    parts = []
    for start in range(0, length, size):
        for heads in together:
            rows = Rows(heads, start, min(length, start + size))
            keys, bias = choose(rows)
            parts.append(Part(rows.places(length, bias.device), keys, bias))
    return parts


def as_bias(kept: Tensor) -> Tensor:
    """Bool to float32: 0 where kept, -inf elsewhere."""
    return torch.zeros(kept.shape, device=kept.device).masked_fill_(~kept, float("-inf"))


def chosen_from(kept: Tensor) -> Choose:
    """The choice of `tiles` from a mask of all pairs, (G or 1, T, T) bool, causal."""

    def choose(rows: Rows) -> tuple[slice | Tensor, Tensor]:
        heads = rows.heads if len(kept) > 1 else slice(0, 1)
        return used_keys(kept[heads, rows.start : rows.end, : rows.end], rows.count)

    return choose


def used_keys(mask: Tensor, heads: int) -> tuple[slice | Tensor, Tensor]:
    """The keys that any query of a mask (h or 1, n, T) keeps, all if nearly all are, and the bias (heads * n, keys)."""
    wanted = mask.flatten(0, 1).any(0).nonzero()[:, 0]
    gathered = len(wanted) < NEARLY_ALL * mask.shape[-1]
    bias = as_bias(mask[:, :, wanted] if gathered else mask)
    return (wanted if gathered else slice(0, mask.shape[-1])), bias.expand(heads, -1, -1).flatten(0, 1)


def attend_tiles(query: Tensor, key: Tensor, value: Tensor, parts: list[Part], scale: float) -> Tensor:
    """Attention (G * T, Dv) of the rows of one key/value head over `tiles`.

    Args:
        query: (G * T, D), head after head.
        key: (T, D).
        value: (T, Dv).
        parts: every row in one tile.
        scale: factor of the dot products.
    """
    output = torch.empty(len(query), value.shape[1], dtype=value.dtype, device=value.device)
    for rows, keys, bias in parts:
        ours, theirs, values = query[rows][None, None], key[keys][None, None], value[keys][None, None]
        output[rows] = F.scaled_dot_product_attention(ours, theirs, values, attn_mask=bias, scale=scale)[0, 0]
    return output


def key_blocks(parts: list[Part], length: int, size: int) -> list[Part]:
    """Consecutive keys, with the rows that keep any of them.

    Args:
        parts: the pairs, as `tiles` gives them.
        length: T.
        size: keys of a block.
    """
    rows = torch.arange(sum(len(part.rows) for part in parts), device=parts[0].rows.device)
    kept = kept_by(parts, rows, length)
    found = []
    for start in range(0, length, size):
        keys = slice(start, min(length, start + size))
        wanted = kept[:, keys].any(1).nonzero()[:, 0]
        found.append(Part(wanted, keys, as_bias(kept[wanted, keys])))
    return found


def kept_by(parts: list[Part], rows: Tensor, length: int) -> Tensor:
    """(r, T) bool: the keys that some rows keep.

    Args:
        parts: the pairs, as `tiles` gives them.
        rows: (r,) int64, ascending.
        length: T.
    """
    kept = torch.zeros(len(rows), length, dtype=torch.bool, device=rows.device)
    for part in parts:
        place = torch.searchsorted(rows, part.rows).clamp(max=len(rows) - 1)
        found = (rows[place] == part.rows).nonzero()[:, 0]
        keys = torch.arange(length, device=rows.device)[part.keys]
        kept[place[found, None], keys] = part.bias[found] == 0
    return kept


def attend_key_blocks(query: Tensor, key: Tensor, value: Tensor, parts: list[Part], scale: float) -> Tensor:
    """Attention (G * T, Dv) of one key/value head over `key_blocks`, each merged into the earlier result of its rows.

    Args as of `attend_tiles`; every row in at least one block.
    """
    largest = torch.full((len(query), 1), float("-inf"), device=query.device)
    total = torch.zeros_like(largest)
    output = torch.zeros(len(query), value.shape[1], device=query.device)
    for rows, keys, bias in parts:
        logits = torch.addmm(bias, query[rows].float(), key[keys].float().T, alpha=scale)
        before = largest[rows]
        now = torch.maximum(before, logits.amax(1, keepdim=True))
        weights, fade = torch.exp(logits - now), torch.exp(before - now)
        largest[rows] = now
        total[rows] = total[rows] * fade + weights.sum(1, keepdim=True)
        output[rows] = output[rows] * fade + weights @ value[keys].float()
    return (output / total).to(value.dtype)


def attend_window(query: Tensor, key: Tensor, value: Tensor, window: int, sinks: int, scale: float) -> Tensor:
    """Attention (1, H, T, Dv) over a window and sinks, through the project's own backend, query heads grouped.

    Args:
        query: (1, H, T, D).
        key: (1, Hkv, T, D), H a multiple of Hkv.
        value: (1, Hkv, T, Dv).
        window: pairs at most this far apart.
        sinks: leading tokens that all see.
        scale: factor of the dot products.
    """
    nobody = torch.zeros(1, query.shape[2], 1, dtype=torch.bool, device=query.device)  # in the only group
    return focus_attention(query, key, value, nobody, window=window, sink_tokens=sinks, scale=scale).output


def attend_features(query: Tensor, key: Tensor, value: Tensor, size: int = 256) -> Tensor:
    """Causal linear attention (G, T, Dv): sum_j phi(q_i) phi(k_j) v_j / sum_j phi(q_i) phi(k_j), j <= i.

    Within blocks of `size` by products, before them by a running sum (Performer, arXiv 2009.14794, section 2.5), which
    the heads share.

    Args:
        query: phi(q) (G, T, m).
        key: phi(k) (T, m).
        value: (T, Dv).
        size: of a block.
    """
    values = torch.cat([value, torch.ones_like(value[:, :1])], 1).to(query.dtype)  # the last column sums the weights
    state = torch.zeros(query.shape[2], values.shape[1], dtype=query.dtype, device=query.device)
    output = values.new_empty(*query.shape[:2], values.shape[1])
    for start in range(0, query.shape[1], size):
        rows = slice(start, start + size)
        near = (query[:, rows] @ key[rows].T).tril_()
        output[:, rows] = near @ values[rows] + query[:, rows] @ state
        state += key[rows].T @ values[rows]
    return (output[..., :-1] / output[..., -1:].clamp(min=1e-300)).to(value.dtype)
