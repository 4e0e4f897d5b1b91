"""One point of `focus bench attention` for narrow groups: attention to the pages that a query reads, against full."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from focus_core.bench.measures.memory import working_bytes
from focus_core.bench.measures.timing import alternate, beside_load, spread
from focus_core.routing.config import FocusConfig
from focus_core.routing.layer import reading_of
from focus_core.routing.narrow.attention import NarrowOutput, narrow_attention, narrow_pairs
from focus_core.routing.narrow.directions import Directions
from focus_core.routing.narrow.grouping import groups_of_keys
from focus_core.routing.narrow.reading import Reading

CHUNK, PAGE_SIZE = 16, 16
CHECKED_TOKENS = 1024
"""Longest text whose result is compared in float64."""
HALVINGS = 13
"""Steps to a threshold, to 0.004 of its log."""


def narrow_config(num_groups: int, share: float, window: int, sink_tokens: int, directions: int = 0) -> FocusConfig:
    """The settings of `focus fit` with another number of groups, share and window."""
    return FocusConfig(
        router="narrow",
        num_groups=num_groups,
        top_k=1,
        window=window,
        sink_tokens=sink_tokens,
        score="dot",
        chunk=CHUNK,
        read_share=share,
        count_weight=1.0,
        count_spread=True,
        spread_directions=directions,
        page_size=PAGE_SIZE,
    )


def measure_narrow(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    config: FocusConfig,
    *,
    repetitions: int,
    device: str,
    loaded: bool = False,
    backend: str = "auto",
) -> dict[str, Any]:
    """Time narrow groups against full attention; the choice of pages is part of attention here.

    Centroids are keys of the text, so groups are uneven as those of a text are. All heads have one threshold, with
    which they read the share of the settings. Directions of spread are random, where the settings have some.

    Args:
        query: (1, H, T, D).
        key: (1, Hkv, T, D).
        value: (1, Hkv, T, D).
        config: from `narrow_config`.
        repetitions: as in `alternate`.
        device: "cpu" or "cuda".
        loaded: measure once more while another process is busy.
        backend: one of `focus_core.routing.narrow.attention.NARROW_BACKENDS`.

    Returns:
        The fields of a point of `focus_core.bench.attention.run_bench`.

    Raises:
        FocusError: the backend is none of them, or cannot run here.
    """
    kv_heads, tokens, head_dim = key.shape[1:]
    scale = head_dim**-0.5
    weights = some_spread(config, query.shape[1])
    generator = torch.Generator().manual_seed(0)
    router = config.new_router(head_dim, kv_heads, generator, query.shape[1]).to(device)
    router.centroids.data.copy_(key[0, :, :: max(1, tokens // config.num_groups)][:, : config.num_groups])

    directions = random_directions(config, kv_heads, head_dim, generator, device)

    def groups() -> Tensor:
        return groups_of_keys(router, key, None, config)

    def reading(threshold: float) -> Reading:
        same = (threshold,) * query.shape[1]
        return reading_of(
            config, config.top_k, config.read_share, thresholds=same, spread=weights, directions=directions
        )

    def sparse(
        parts: tuple[Tensor, Tensor, Tensor] = (query, key, value), stop: int | None = None, by: str = backend
    ) -> NarrowOutput:
        queries, keys, values, mine = (part[:, :, :stop] for part in (*parts, labels))
        return narrow_attention(queries, keys, values, mine, config.num_groups, own, scale=scale, backend=by)

    def full() -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)

    labels = groups()
    own = reading(_threshold(query, key, labels, config, reading))
    found = sparse()
    kept_share = float(found.pairs.kept_share.mean())
    calls = {"full_s": full, "sparse_s": sparse, "select_s": groups}
    runs = alternate(calls, repetitions, device)
    times = {name: spread(each) for name, each in runs.items()}
    full_s, sparse_s, select_s = (times[name]["median"] for name in ("full_s", "sparse_s", "select_s"))
    short = min(tokens, CHECKED_TOKENS)
    exact = sparse((query.double(), key.double(), value.double()), short, "chunked")
    ours = sparse(stop=short)
    return {
        "kept_share": kept_share,
        "bound": 1 / kept_share,
        "input_bytes": sum(tensor.nbytes for tensor in (query, key, value)),
        "backend_used": "narrow" if backend == "auto" else f"narrow {backend}",
        "full_s": times["full_s"],
        "sparse_s": times["sparse_s"],
        "speedup": full_s / sparse_s,
        "share_of_bound": full_s / sparse_s * kept_share,
        "working_bytes": working_bytes(lambda: tuple(sparse()[:2]), device),
        "error_output": float((ours.output - exact.output).abs().max()),
        "error_logsumexp": float((ours.logsumexp - exact.logsumexp).abs().max()),
        "select_s": select_s,
        "speedup_with_choice": full_s / (sparse_s + select_s),
        **({"loaded": beside_load(calls, runs, repetitions, device)} if loaded else {}),
    }


def some_spread(config: FocusConfig, num_heads: int) -> tuple[float, ...] | None:
    """A weight of spread for each query head; None where the settings count none."""
    return (0.1,) * num_heads if config.count_spread else None


def random_directions(
    config: FocusConfig, kv_heads: int, head_dim: int, generator: torch.Generator, device: str
) -> Directions | None:
    """As many directions of spread as the settings have; None where they have none."""
    if not config.spread_directions:
        return None
    drawn = torch.randn(kv_heads, head_dim, config.spread_directions, generator=generator)
    return Directions(torch.linalg.qr(drawn).Q.to(device))


def _threshold(
    query: Tensor, key: Tensor, groups: Tensor, config: FocusConfig, reading: Callable[[float], Reading]
) -> float:
    """The threshold at which the text keeps its share of distant pairs; where all keep more, one that reads nothing."""
    most, low, high = config.read_share or 0.0, -20.0, 12.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        settings = {"scale": key.shape[-1] ** -0.5}
        counts = narrow_pairs(query, key, groups, config.num_groups, reading(middle), **settings)
        share = float(counts.distant_kept.sum() / counts.distant.sum().clamp(min=1))
        low, high = (middle, high) if share > most else (low, middle)
    return high
