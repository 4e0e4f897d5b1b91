"""The computed part of attention: the pattern of kept pairs, their number, and their attention mass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from focus_core.analysis.reading import PartsRead, always_kept, kept_keys, pair_counts
from focus_core.analysis.statistics.agreement import membership_sets
from focus_core.analysis.trace import Trace
from focus_core.attention import AttentionOutput
from focus_core.routing.config import FocusConfig
from focus_core.routing.model import FocusModel
from focus_core.routing.routers import ROUTERS
from focus_core.routing.rules import AttentionCall, Geometry, Rule, attend_fully, hard_groups

CLASSES = ("local", "sink", "same group", "dropped")
"""Classes of causal pairs, the first that applies: at most w apart; the key is a sink; a shared group; not computed.

With narrow groups "same group" is what a query reads beyond its window, and summaries stand for "dropped" pairs.
"""
MAX_CELLS = 256
"""Cells of a pooled mask along each side."""
CHUNK_ELEMENTS = 1 << 23
"""Attention weights that are held at a time."""


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
        - random kept: expected kept share of random groups at the layer's k; that of any groups where the budget is a
          share of the pairs.
    """
    counts = [pair_counts(trace, row) for row in range(len(trace.layers))]
    causal, local, distant, kept, sink = (torch.cat(each).double().numpy() for each in zip(*counts))
    if trace.config.read_share is None:
        by_luck = np.array([random_kept(trace.config, row) for row in range(len(trace.layers))])
        always = np.array([always_kept(trace, row) for row in range(len(trace.layers))])
        same_by_luck = always - sink + (distant - always) * by_luck
    else:  # a budget in pairs is met whatever is chosen
        same_by_luck = kept - sink
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
    # Sets of both kinds are numbered together; the groups that a query reads are looked up from its own row.
    both = np.concatenate([membership, membership if query_membership is None else query_membership])
    set_of, overlap = membership_sets(both)
    read_of = set_of[-len(membership) :]

    def keeps(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        return overlap[read_of[queries]][:, set_of[keys]]

    return _pooled(keeps, len(membership), window, sink_tokens, sliding_window, cells)


def pooled_pattern(trace: Trace, row: int, cells: int = MAX_CELLS) -> PooledMask:
    """`pooled_mask` of one layer of a trace; of the shown query head with narrow groups."""
    config, own = trace.config, trace.sliding_window(row)
    if trace.parts is None:
        return pooled_mask(
            trace.membership[row],
            query_membership=trace.query_membership[row],
            window=config.window,
            sink_tokens=config.sink_tokens,
            sliding_window=own,
            cells=cells,
        )

    def keeps(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        return kept_keys(trace, row, queries)[:, keys]

    return _pooled(keeps, len(trace.tokens), config.window, config.sink_tokens, own, cells)


def _pooled(
    keeps: Callable[[np.ndarray, np.ndarray], np.ndarray],
    num_tokens: int,
    window: int,
    sink_tokens: int,
    sliding_window: int | None,
    cells: int,
) -> PooledMask:
    factor = max(1, -(-num_tokens // cells))
    starts = np.arange(0, num_tokens, factor)
    own = num_tokens if sliding_window is None else sliding_window
    counts = np.zeros((len(starts), len(starts), len(CLASSES)), dtype=np.float32)
    for band, start in enumerate(starts):
        queries = np.arange(start, min(start + factor, num_tokens))
        keys = np.arange(queries[-1] + 1)
        distance = queries[:, None] - keys
        local = (distance >= 0) & (distance <= window) & (distance < own)
        far = (distance > window) & (distance < own)
        sink = far & (keys < sink_tokens)
        same = far & (keys >= sink_tokens) & keeps(queries, keys)
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
    patterns = list(zip(query_memberships or key_memberships, key_memberships))

    def keeps(call: AttentionCall, row: int, picked: Tensor) -> list[Tensor]:
        found = []
        for pattern in patterns:
            query, key = (torch.from_numpy(np.array(part[row], dtype=np.float32)).to(picked.device) for part in pattern)
            found.append(query[picked] @ key.T > 0)
        return found

    # Heads with a router each are the rows of the call.
    sizes = window, sink_tokens, max_queries
    return _measured(focus, input_ids, keeps, len(patterns), slice(None), head or 0, *sizes)


class BudgetShares(NamedTuple):
    """Attention and pairs kept at some budgets.

    Attributes:
        mass: (budgets, L, 4) float64 shares of attention mass, mean over the measured queries; they add up to 1.
        pairs: (budgets, L) float64 shares of the causal pairs that are kept.
    """

    mass: np.ndarray
    pairs: np.ndarray


def mass_by_budget(
    focus: FocusModel,
    input_ids: np.ndarray,
    budgets: Sequence[FocusConfig],
    *,
    head: int = 0,
    query_head: int = 0,
    max_queries: int = 256,
) -> BudgetShares:
    """`mass_by_class` of narrow groups: what the untouched model's queries read at some budgets, in one pass.

    Args:
        focus: model with narrow routers; hold its lock.
        input_ids: (T,) int64.
        budgets: settings with a `read_share` or a `top_k` each; window and sinks are those of the first.
        head: the key/value head.
        query_head: the query head whose attention is measured, counted among those of the key/value head.
        max_queries: largest number of queries to measure, evenly spaced over the text.

    Returns:
        Shares of attention mass, and of the causal pairs that are kept.
    """
    pairs = np.ones((len(budgets), len(focus.layers)))

    def keeps(call: AttentionCall, row: int, picked: Tensor) -> list[Tensor]:
        if call.geometry.sliding_window is not None:
            return [torch.ones(len(picked), call.key.shape[2], dtype=torch.bool)] * len(budgets)
        queries = picked.cpu().numpy()
        found = []
        for place, budget in enumerate(budgets):
            routing = replace(call.routing, config=budget, top_k=budget.top_k_of(row))
            parts = PartsRead.of(*routing.narrow_reads(head), routing.reading())
            pairs[place, row] = float(parts.pair_counts(query_head).kept_share)
            found.append(torch.from_numpy(parts.keys_kept(query_head, queries)).to(picked.device))
        return found

    config = budgets[0]
    sizes = config.window, config.sink_tokens, max_queries
    shown = slice(query_head, query_head + 1)
    return BudgetShares(_measured(focus, input_ids, keeps, len(budgets), shown, head, *sizes), pairs)


def mass_of_trace(focus: FocusModel, trace: Trace, *, max_queries: int = 256) -> np.ndarray:
    """(1, L, 4): `mass_by_class` of the pairs that a trace of narrow groups keeps, of its query head."""

    def keeps(call: AttentionCall, row: int, picked: Tensor) -> list[Tensor]:
        return [torch.from_numpy(kept_keys(trace, row, picked.cpu().numpy())).to(picked.device)]

    shown = slice(trace.query_head, (trace.query_head or 0) + 1)
    sizes = trace.config.window, trace.config.sink_tokens, max_queries
    return _measured(focus, trace.input_ids, keeps, 1, shown, trace.head or 0, *sizes)


def _measured(
    focus: FocusModel,
    input_ids: np.ndarray,
    keeps: Callable[[AttentionCall, int, Tensor], list[Tensor]],
    patterns: int,
    shown: slice,
    head: int,
    window: int,
    sink_tokens: int,
    max_queries: int,
) -> np.ndarray:
    """(patterns, L, 4) shares of the untouched model's attention mass, of some query heads of a row of each call."""
    rows = {layer: row for row, layer in enumerate(focus.layers)}
    result = np.zeros((patterns, len(rows), len(CLASSES)))
    chosen = measured_queries(len(input_ids), max_queries)

    def attend(call: AttentionCall) -> AttentionOutput:
        query, key, row = call.query[head, shown], call.key[head], rows[call.layer]
        picked = torch.from_numpy(chosen).to(query.device)
        sums = torch.zeros(patterns, len(CLASSES), dtype=torch.float64, device=query.device)
        kept = keeps(call, row, picked)
        step = max(1, CHUNK_ELEMENTS // (query.shape[0] * key.shape[1]))
        for start in range(0, len(picked), step):
            part = slice(start, start + step)
            masks = [each[part] for each in kept]
            sums += _mass(query[:, picked[part]], key, picked[part], masks, window, sink_tokens, call.geometry)
        result[:, row] = (sums / len(picked)).cpu().numpy()
        return attend_fully(call)

    tokens = torch.from_numpy(np.array(input_ids))[None].to(focus.model.device)
    with torch.inference_mode(), focus.routing("hard", rule=Rule(attend, hard_groups)):
        focus.model.base_model(input_ids=tokens, use_cache=False)
    return result


def measured_queries(num_tokens: int, max_queries: int) -> np.ndarray:
    """(Q,) int64 indices of at most `max_queries` tokens, evenly spaced, first and last among them."""
    return np.unique(np.linspace(0, num_tokens - 1, min(num_tokens, max_queries)).round().astype(np.int64))


def _mass(
    query: Tensor,
    key: Tensor,
    picked: Tensor,
    kept: list[Tensor],
    window: int,
    sink_tokens: int,
    geometry: Geometry,
) -> Tensor:
    """(M, 4) float64 sums over queries (H, q, d) at positions `picked` of the mass on keys (Hkv, T, d), by class.

    Routing keeps the pairs of M masks (q, T).
    """
    weights = full_weights(query, key, picked, geometry)
    distance = picked[:, None] - torch.arange(key.shape[1], device=key.device)
    local = (weights * (distance <= window)).sum(dtype=torch.float64)
    far = weights.masked_fill(distance <= window, 0.0)
    sink = far[:, :sink_tokens].sum(dtype=torch.float64)
    free = far[:, sink_tokens:]
    every = free.sum(dtype=torch.float64)
    same = torch.stack([(free * mask[:, sink_tokens:]).sum(dtype=torch.float64) for mask in kept])
    return torch.stack([local.expand_as(same), sink.expand_as(same), same, every - same], dim=1)


def full_weights(query: Tensor, key: Tensor, picked: Tensor, geometry: Geometry) -> Tensor:
    """(q, T) float32 weights of full attention, mean over heads, of queries (H, q, d) on keys (Hkv, T, d).

    Args:
        query: of the tokens at `picked`.
        key: of all tokens.
        picked: (q,) int64.
        geometry: the model's own settings.
    """
    key = key.repeat_interleave(query.shape[0] // key.shape[0], dim=0)
    logits = (query @ key.transpose(-1, -2)).float() * geometry.scale
    if geometry.softcap is not None:
        logits = geometry.softcap * torch.tanh(logits / geometry.softcap)
    distance = picked[:, None] - torch.arange(key.shape[1], device=key.device)
    visible = distance >= 0
    if geometry.sliding_window is not None:
        visible &= distance < geometry.sliding_window
    return logits.masked_fill(~visible, float("-inf")).softmax(-1).mean(0)
