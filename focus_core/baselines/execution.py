"""Exact attention over given pairs of one head, for timing the baselines: executions that skip unused pairs.

None is a kernel of the papers. Dense products skip a pair only where neighbouring queries leave out the same keys
(`tiles`), or where few queries keep any key of a block (`key_blocks`, the order of MoBA's algorithm 1).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from focus_core.attention import focus_attention

NEARLY_ALL = 0.9
"""Share of kept keys above which gathering them costs more than computing all."""


class Part(NamedTuple):
    """Some queries and keys that are computed together.

    Attributes:
        queries: a slice, or int64 indices.
        keys: a slice, or int64 indices.
        kept: (queries, keys) bool.
    """

    queries: slice | Tensor
    keys: slice | Tensor
    kept: Tensor


def tiles(kept: Tensor, size: int) -> list[Part]:
    """Consecutive queries, with the keys that any of them keeps.

    Args:
        kept: (T, T) bool, causal.
        size: queries of a tile.
    """
    parts = []
    for start in range(0, len(kept), size):
        end = min(len(kept), start + size)
        mask = kept[start:end, :end]
        wanted = mask.any(0).nonzero()[:, 0]
        gathered = len(wanted) < NEARLY_ALL * end
        keys, mask = (wanted, mask[:, wanted]) if gathered else (slice(0, end), mask)
        parts.append(Part(slice(start, end), keys, mask))
    return parts


def attend_tiles(query: Tensor, key: Tensor, value: Tensor, parts: list[Part], scale: float) -> Tensor:
    """Attention (T, Dv) of one head over `tiles`.

    Args:
        query: (T, D).
        key: (T, D).
        value: (T, Dv).
        parts: every query in one tile.
        scale: factor of the dot products.
    """
    output = torch.empty(len(query), value.shape[1], dtype=value.dtype, device=value.device)
    for queries, keys, kept in parts:
        ours, theirs, values = query[queries][None, None], key[keys][None, None], value[keys][None, None]
        output[queries] = F.scaled_dot_product_attention(ours, theirs, values, attn_mask=kept, scale=scale)[0, 0]
    return output


def key_blocks(kept: Tensor, size: int) -> list[Part]:
    """Consecutive keys, with the queries that keep any of them.

    Args:
        kept: (T, T) bool.
        size: keys of a block.
    """
    parts = []
    for start in range(0, len(kept), size):
        keys = slice(start, min(len(kept), start + size))
        queries = kept[:, keys].any(1).nonzero()[:, 0]
        parts.append(Part(queries, keys, kept[queries, keys]))
    return parts


def attend_key_blocks(query: Tensor, key: Tensor, value: Tensor, parts: list[Part], scale: float) -> Tensor:
    """Attention (T, Dv) of one head over `key_blocks`, each merged into the earlier result of its queries.

    Args as of `attend_tiles`; every query in at least one block.
    """
    largest = torch.full((len(query), 1), float("-inf"), device=query.device)
    total = torch.zeros_like(largest)
    output = torch.zeros(len(query), value.shape[1], device=query.device)
    for queries, keys, kept in parts:
        logits = (query[queries] @ key[keys].T).float() * scale
        logits = logits.masked_fill_(~kept, float("-inf"))
        before = largest[queries]
        now = torch.maximum(before, logits.amax(1, keepdim=True))
        weights, fade = torch.exp(logits - now), torch.exp(before - now)
        largest[queries] = now
        total[queries] = total[queries] * fade + weights.sum(1, keepdim=True)
        output[queries] = output[queries] * fade + weights @ value[keys].float()
    return (output / total).to(value.dtype)


def attend_window(query: Tensor, key: Tensor, value: Tensor, window: int, sinks: int, scale: float) -> Tensor:
    """Attention (T, Dv) of the first head over a window and sinks, through the project's own backend.

    Args:
        query: (1, H, T, D).
        key: (1, H, T, D).
        value: (1, H, T, Dv).
        window: pairs at most this far apart.
        sinks: leading tokens that all see.
        scale: factor of the dot products.
    """
    nobody = torch.zeros(1, query.shape[2], 1, dtype=torch.bool, device=query.device)  # in the only group
    return focus_attention(query, key, value, nobody, window=window, sink_tokens=sinks, scale=scale).output[0, 0]


def attend_features(query: Tensor, key: Tensor, value: Tensor, size: int = 256) -> Tensor:
    """Causal linear attention (T, Dv) of one head: sum_j phi(q_i) phi(k_j) v_j / sum_j phi(q_i) phi(k_j), j <= i.

    Within blocks of `size` by products, before them by a running sum (Performer, arXiv 2009.14794, section 2.5).

    Args:
        query: phi(q) (T, m).
        key: phi(k) (T, m).
        value: (T, Dv).
        size: of a block.
    """
    values = torch.cat([value, torch.ones_like(value[:, :1])], 1).to(query.dtype)  # the last column sums the weights
    state = torch.zeros(query.shape[1], values.shape[1], dtype=query.dtype, device=query.device)
    output = torch.empty_like(values)
    for start in range(0, len(query), size):
        rows = slice(start, start + size)
        near = (query[rows] @ key[rows].T).tril_()
        output[rows] = near @ values[rows] + query[rows] @ state
        state += key[rows].T @ values[rows]
    return (output[:, :-1] / output[:, -1:].clamp(min=1e-300)).to(value.dtype)
