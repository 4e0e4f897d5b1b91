"""How much a routed model computes of all pairs, in prefill and in decode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from focus_core.routing.layer import KeyQuery, LayerRouting
from focus_core.routing.model import FocusModel

LATE = 64
"""Last tokens of a text that stand for the next one, where narrow groups are decoded."""


def pairs_kept(focus: FocusModel, read: Callable[[], Any], top_k: int | None) -> tuple[float, float]:
    """Share of causal pairs and of distant pairs that are computed, mean over layers.

    Args:
        focus: in the routing that is asked about.
        read: passes a text through the model.
        top_k: groups of a query; None for the routers' own budget.
    """
    shares: list[tuple[float, float]] = []

    def count(routing: LayerRouting) -> None:
        counts = routing.pair_counts(top_k=top_k)
        distant = counts.distant_kept / counts.distant.clamp(min=1)
        shares.append((float(counts.kept_share.mean()), float(distant.mean())))

    with focus.observe(count):
        read()
    causal, distant = zip(*shares)
    return sum(causal) / len(shares), sum(distant) / len(shares)


def keys_kept(focus: FocusModel, found: dict[int, dict[int, KeyQuery]], top_k: int | None) -> float:
    """Share of all keys that the last token reads, mean over layers (and heads with routers of their own).

    Args:
        focus: model with routers.
        found: of each layer, the groups of all tokens for each k.
        top_k: groups of a query; None for full attention.
    """
    if top_k is None:
        return 1.0
    shares = []
    for by_k in found.values():
        member, reads = by_k[top_k]
        kept = (member & reads[:, -1:]).any(-1)
        kept[:, : focus.config.sink_tokens] = True
        kept[:, -focus.config.window - 1 :] = True
        shares.append(float(kept.float().mean()))
    return sum(shares) / len(shares)


def late_keys_kept(routing: LayerRouting) -> float:
    """Share of the keys before the `LATE` last tokens of a text that these attend exactly, mean over query heads.

    Pairs of the text, less those of the text without these tokens: no query depends on later ones. `full_below` is left
    out, since the next token is past it.

    Args:
        routing: narrow groups of one layer, inside its attention call.
    """
    config, vectors = routing.config.replace(full_below=0), routing.vectors
    whole = routing.pair_counts(config)
    assert vectors is not None
    if vectors.key.shape[2] <= LATE:
        return float(whole.kept_share.mean())
    rotations = vectors.position_embeddings
    without = replace(
        vectors,
        query=vectors.query[:, :, :-LATE],
        key=vectors.key[:, :, :-LATE],
        position_embeddings=None if rotations is None else (rotations[0][..., :-LATE, :], rotations[1][..., :-LATE, :]),
    )
    earlier = replace(routing, vectors=without, hidden_states=routing.hidden_states[:, :-LATE]).pair_counts(config)
    return float(((whole.kept - earlier.kept) / (whole.causal - earlier.causal)).mean())
