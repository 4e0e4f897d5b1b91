"""Rates of the parts of a model on this machine, each timed alone at the model's shapes."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from focus_core.bench.measures.timing import alternate
from focus_core.routing.config import FocusConfig
from focus_core.routing.layer import reading_of
from focus_core.routing.model import FocusModel
from focus_core.routing.narrow.attention import narrow_attention
from focus_core.routing.narrow.cache.text import CachedText
from focus_core.routing.narrow.grouping import groups_of_keys
from focus_core.scale.shapes import ModelShape
from focus_core.scale.work import Attended, attended

SHARES = (0.05, 0.3)
"""Two shares whose difference is the time of the pairs that are read."""


@dataclass(frozen=True)
class Lengths:
    """Tokens at which constants are measured.

    Attributes:
        short: of passes through the whole model.
        long: of attention alone.
        cached: beyond the window, of a cache that is nearly empty.
    """

    short: int = 1024
    long: int = 4096
    cached: int = 64


def matmul_rates(focus: FocusModel, tokens: int, repetitions: int) -> dict[str, float]:
    """FLOP/s of some tokens through the matrices of four layers, and bytes/s of one token through those of all."""
    some, every = (
        [part for layer in layers for part in layer.modules() if isinstance(part, nn.Linear)]
        for layers in (list(focus.decoder_layers.values())[:4], focus.decoder_layers.values())
    )
    rows = {part.in_features: torch.randn(tokens, part.in_features) for part in every}
    dtype = focus.model.dtype
    rows = {width: each.to(dtype) for width, each in rows.items()}
    calls: dict[str, Callable[[], Any]] = {
        "many": lambda: [part(rows[part.in_features]) for part in some],
        "one": lambda: [part(rows[part.in_features][:1]) for part in every],
    }
    many, one = _medians(calls, repetitions).values()
    return {
        "matmul": 2 * tokens * sum(part.weight.numel() for part in some) / many,
        "bandwidth": sum(part.weight.nbytes for part in every) / one,
    }


def prefill_rates(shape: ModelShape, config: FocusConfig, lengths: Lengths, repetitions: int) -> dict[str, float]:
    """FLOP/s of attention of whole texts in one layer: full, and of narrow groups by pairs and by pages.

    Two shares have the same pages, so their difference is the time of the pairs.
    """
    tokens, config = lengths.long, config.replace(by_error=False, count_spread=False, spread_directions=0)
    query, key, value = _vectors(shape, tokens)
    router = config.new_router(shape.head_dim, shape.kv_heads, torch.Generator().manual_seed(0))
    router.centroids.data.copy_(key[0, :, :: tokens // config.num_groups][:, : config.num_groups])
    groups = groups_of_keys(router, key, None, config)

    def sparse(share: float) -> Any:
        reading = reading_of(config, config.top_k, share, spread=(0.1,) * shape.heads)
        return narrow_attention(query, key, value, groups, config.num_groups, reading, scale=shape.head_dim**-0.5)

    calls: dict[str, Callable[[], Any]] = {
        "full": lambda: F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True),
        "assign": lambda: groups_of_keys(router, key, None, config),
        "few": lambda: sparse(SHARES[0]),
        "more": lambda: sparse(SHARES[1]),
    }
    full, assigned, few, more = _medians(calls, repetitions).values()
    found = [(attended(0, tokens, config.replace(read_share=share)), time) for share, time in zip(SHARES, (few, more))]
    exact, pages = _parted(found)
    per_pair = 4 * shape.head_dim * shape.heads
    return {
        "attention": per_pair * attended(0, tokens, None).exact / full,
        "exact": per_pair / exact,
        "pages": per_pair / pages,
        "assign": 2 * tokens * config.num_groups * shape.head_dim * shape.kv_heads / assigned,
    }


def step_rates(shape: ModelShape, config: FocusConfig, lengths: Lengths, repetitions: int) -> dict[str, float]:
    """FLOP/s of attention of one token over a cache of narrow groups, one cache for each layer, by pairs and by pages.

    A nearly empty cache tells what a call takes anyway.
    """
    config = config.replace(by_error=False, count_spread=False, spread_directions=0)
    readings = [reading_of(config, config.top_k, share) for share in SHARES]

    def caches(length: int) -> list[CachedText]:
        texts = []
        for _ in range(shape.layers):
            key, value = (part[0] for part in _vectors(shape, length)[1:])
            text = CachedText(key, value, config.num_groups, config.page_size or 1, config.sink_tokens)
            text.fill(key, value, torch.randint(config.num_groups, key.shape[:2]), None, readings[0])
            texts.append(text)
        return texts

    query, key, value = (part[0] for part in _vectors(shape, 1))
    scale, short = shape.head_dim**-0.5, config.window + lengths.cached
    texts = {length: caches(length) for length in (short, lengths.long)}

    def groups(keys: Tensor, _: Any) -> Tensor:
        return torch.zeros(keys.shape[:2], dtype=torch.long)

    def step(length: int, place: int) -> None:
        for text in texts[length]:
            text.attend(query, key, value, None, groups, readings[place], scale, None)

    points = [(short, 0), (lengths.long, 0), (lengths.long, 1)]
    calls = {f"{length} {place}": lambda length=length, place=place: step(length, place) for length, place in points}
    times = _medians(calls, repetitions).values()
    found = [
        (attended(length, length + 1, config.replace(read_share=SHARES[place])), seconds / shape.layers)
        for (length, place), seconds in zip(points, times)
    ]
    exact, pages = _parted(found)
    per_pair = 4 * shape.head_dim * shape.heads
    return {"step_exact": per_pair / exact, "step_pages": per_pair / pages}


def _parted(found: list[tuple[Attended, float]]) -> tuple[float, float]:
    """Seconds of a pair and of a (query, page) pair: the solution for two times, or for three with a constant."""
    work = [[each.exact, each.pages, 1.0][: len(found)] for each, _ in found]
    exact, pages, *_ = parted(work, [seconds for _, seconds in found])
    return exact, pages


def parted(work: list[list[float]], seconds: list[float]) -> list[float]:
    """Seconds of one unit of each of n kinds of work, from n times; what noise makes negative is 1% of the longest.

    Args:
        work: amounts of each kind, for each time.
        seconds: the times.
    """
    most = np.array(work).max(0)
    parts = np.linalg.solve(np.array(work) / most, seconds).clip(0.01 * max(seconds)) / most
    return parts.tolist()


def _vectors(shape: ModelShape, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Normal queries, keys and values, (1, H or Hkv, T, D)."""
    heads = shape.heads, shape.kv_heads, shape.kv_heads
    query, key, value = (torch.randn(1, each, tokens, shape.head_dim) for each in heads)
    return query, key, value


def _medians(calls: dict[str, Callable[[], Any]], repetitions: int) -> dict[str, float]:
    with torch.inference_mode():
        return {name: statistics.median(times) for name, times in alternate(calls, repetitions, "cpu").items()}
