"""The computed part of attention: the pattern of kept pairs, their number, and their attention mass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from focus_core.analysis.agreement import membership_sets
from focus_core.analysis.trace import Trace
from focus_core.attention import AttentionOutput, kept_pairs
from focus_core.routing.config import FocusConfig
from focus_core.routing.model import FocusModel
from focus_core.routing.routers import ROUTERS
from focus_core.routing.rules import AttentionCall, Geometry, Rule, attend_fully

CLASSES = ("local", "sink", "same group", "dropped")
"""Classes of causal pairs, the first that applies: at most w apart; the key is a sink; a shared group; not computed."""
MAX_CELLS = 256
"""Cells of a pooled mask along each side."""
_CHUNK_ELEMENTS = 1 << 23


def random_kept(config: FocusConfig, row: int) -> float:
    """Probability that random even groups keep a distant pair in one routed layer."""
    return ROUTERS[config.router].random_kept(config.num_groups, config.top_k_of(row))


def pair_table(trace: Trace) -> pd.DataFrame:
    """Shares of the causal pairs of a text that are kept and dropped, one row per layer.

    Causal pairs are those that the untouched model computes, inside its own sliding window where it has one.

    Args:
        trace: the routing, of L layers.

    Returns:
        L rows. Columns:

        - layer: number of the layer in the model.
        - local, sink, same group, dropped: shares of causal pairs; they add up to 1.
        - kept: the first three together.
        - exposure: share of causal pairs beyond the window, where routing decides.
        - bound: 1 / kept; no exact execution can speed attention up further.
        - random kept: expected kept share of random groups at the layer's k.
    """
    config = trace.config
    member, reads = torch.tensor(trace.membership), torch.tensor(trace.query_membership)
    counts = [
        kept_pairs(
            member[row, None],
            query_membership=reads[row, None],
            window=config.window,
            sink_tokens=config.sink_tokens,
            sliding_window=trace.sliding_window(row),
        )
        for row in range(len(trace.layers))
    ]
    causal, local, distant, kept, sink = (torch.cat(each).double().numpy() for each in zip(*counts))
    by_luck = [random_kept(config, row) for row in range(len(trace.layers))]
    same_by_luck = (distant - sink) * np.array(by_luck)
    table = pd.DataFrame(
        {
            "layer": trace.layers,
            "local": local / causal,
            "sink": sink / causal,
            "same group": (kept - sink) / causal,
            "dropped": (distant - kept) / causal,
            "kept": (local + kept) / causal,
            "exposure": distant / causal,
            "bound": causal / (local + kept),
            "random kept": (local + sink + same_by_luck) / causal,
        }
    )
    return table


@dataclass(frozen=True)
class PooledMask:
    """The attention pattern of one layer, pooled over squares of query and key tokens.

    Attributes:
        shares: (C, C, 4) float32 share of each of `CLASSES` among the causal pairs of each cell; rows are queries,
            columns keys. NaN where a cell has no causal pair.
        factor: tokens along each side of a cell; the last cells may hold fewer.
    """

    shares: np.ndarray
    factor: int


def pooled_mask(
    membership: np.ndarray,
    *,
    query_membership: np.ndarray | None = None,
    window: int,
    sink_tokens: int,
    sliding_window: int | None = None,
    cells: int = MAX_CELLS,
) -> PooledMask:
    """Pool the pattern of one layer to at most `cells` a side; holds one band of queries at a time.

    Args:
        membership: (T, K) bool.
        query_membership: (T, K) bool, the groups that tokens read; None where they read the groups they are in.
        window: w.
        sink_tokens: tokens that every later token reads.
        sliding_window: the model's own window, in tokens; pairs beyond it are no causal pairs. None without.
        cells: largest number of cells along a side.
    """
    num_tokens = len(membership)
    factor = max(1, -(-num_tokens // cells))
    starts = np.arange(0, num_tokens, factor)
    own = num_tokens if sliding_window is None else sliding_window
    # Sets of both kinds are numbered together; the groups that a query reads are looked up from its own row.
    both = np.concatenate([membership, membership if query_membership is None else query_membership])
    set_of, overlap = membership_sets(both)
    read_of = set_of[-num_tokens:]
    counts = np.zeros((len(starts), len(starts), len(CLASSES)), dtype=np.float32)
    for band, start in enumerate(starts):
        queries = np.arange(start, min(start + factor, num_tokens))
        keys = np.arange(queries[-1] + 1)
        distance = queries[:, None] - keys
        local = (distance >= 0) & (distance <= window) & (distance < own)
        far = (distance > window) & (distance < own)
        sink = far & (keys < sink_tokens)
        same = far & (keys >= sink_tokens) & overlap[read_of[queries]][:, set_of[keys]]
        dropped = far & ~sink & ~same
        for kind, pairs in enumerate((local, sink, same, dropped)):
            counts[band, : band + 1, kind] = np.add.reduceat(pairs.sum(0), starts[: band + 1])
    total = counts.sum(-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        return PooledMask(np.where(total > 0, counts / total, np.nan).astype(np.float32), factor)


def mass_by_class(
    focus: FocusModel,
    input_ids: np.ndarray,
    key_memberships: Sequence[np.ndarray],
    *,
    query_memberships: Sequence[np.ndarray] | None = None,
    head: int | None = None,
    window: int,
    sink_tokens: int,
    max_queries: int = 256,
) -> np.ndarray:
    """Attention mass of the untouched model on each class of pairs: those that routing keeps, and those it drops.

    One forward pass with full attention in every layer. In each layer with a router, the softmax weights of some
    queries are averaged over heads. They are then summed over the pairs of each of `CLASSES`.

    Args:
        focus: model with routers; hold its lock.
        input_ids: (T,) int64.
        key_memberships: patterns to measure in the same pass, each (L, T, K) bool for the layers with routers in order.
        query_memberships: the groups that tokens read in each pattern, of the same shape; None where they read the
            groups they are in.
        head: the key/value head of patterns of routers per head; only its query heads are averaged.
        window: w.
        sink_tokens: tokens that every later token reads.
        max_queries: largest number of queries to measure, evenly spaced over the text.

    Returns:
        (len(key_memberships), L, 4) float64 shares of attention mass, mean over the measured queries; they add up to 1.
    """
    rows = {layer: row for row, layer in enumerate(focus.layers)}
    result = np.zeros((len(key_memberships), len(rows), len(CLASSES)))
    chosen = measured_queries(len(input_ids), max_queries)

    def attend(call: AttentionCall) -> AttentionOutput:
        query, key, row = call.query, call.key, rows[call.layer]
        groups = [
            tuple(torch.from_numpy(np.array(part[row], dtype=np.float32)).to(query.device) for part in pattern)
            for pattern in zip(query_memberships or key_memberships, key_memberships)
        ]
        picked = torch.from_numpy(chosen).to(query.device)
        sums = torch.zeros(len(groups), len(CLASSES), dtype=torch.float64, device=query.device)
        step = max(1, _CHUNK_ELEMENTS // (query.shape[1] * key.shape[2]))
        for start in range(0, len(picked), step):
            part = picked[start : start + step]
            sums += _mass(query[head or 0, :, part], key[head or 0], part, groups, window, sink_tokens, call.geometry)
        result[:, row] = (sums / len(picked)).cpu().numpy()
        return attend_fully(call)

    tokens = torch.from_numpy(np.array(input_ids))[None].to(focus.model.device)
    with torch.inference_mode(), focus.routing("soft", rule=Rule(attend)):
        focus.model.base_model(input_ids=tokens, use_cache=False)
    return result


def measured_queries(num_tokens: int, max_queries: int) -> np.ndarray:
    """(Q,) int64 indices of at most `max_queries` tokens, evenly spaced, first and last among them."""
    return np.unique(np.linspace(0, num_tokens - 1, min(num_tokens, max_queries)).round().astype(np.int64))


def _mass(
    query: Tensor,
    key: Tensor,
    picked: Tensor,
    groups: list[tuple[Tensor, ...]],
    window: int,
    sink_tokens: int,
    geometry: Geometry,
) -> Tensor:
    """(M, 4) float64 sums over queries (H, q, d) at positions `picked` of the mass on keys (Hkv, T, d), by class."""
    key = key.repeat_interleave(query.shape[0] // key.shape[0], dim=0)
    logits = (query @ key.transpose(-1, -2)).float() * geometry.scale
    if geometry.softcap is not None:
        logits = geometry.softcap * torch.tanh(logits / geometry.softcap)
    index = torch.arange(key.shape[1], device=key.device)
    distance = picked[:, None] - index
    visible = distance >= 0
    if geometry.sliding_window is not None:
        visible &= distance < geometry.sliding_window
    weights = logits.masked_fill(~visible, float("-inf")).softmax(-1).mean(0)
    local = (weights * (distance <= window)).sum(dtype=torch.float64)
    far = weights.masked_fill(distance <= window, 0.0)
    sink = far[:, :sink_tokens].sum(dtype=torch.float64)
    free = far[:, sink_tokens:]
    every = free.sum(dtype=torch.float64)
    same = torch.stack([(free * (q[picked] @ k[sink_tokens:].T > 0)).sum(dtype=torch.float64) for q, k in groups])
    return torch.stack([local.expand_as(same), sink.expand_as(same), same, every - same], dim=1)
