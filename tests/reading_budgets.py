"""Draws readings in pages, their budgets, and directions of spread.

A budget is one share, or thresholds of heads, at some numbers of keys or all.
"""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

from focus_core.routing.narrow.directions import Directions
from focus_core.routing.narrow.reading import Reading


@st.composite
def budgets(draw: st.DrawFn, heads: int) -> dict[str, Any]:
    """Settings of a `Reading`: `share`, and perhaps `thresholds`, and `shares_at`.

    Shares are no simple fractions, with which a budget could end exactly between two pages.
    """
    settings: dict[str, Any] = {"share": draw(st.floats(0, 1))}
    if draw(st.booleans()):
        return settings
    places = draw(st.just([]) | st.lists(st.integers(0, 120), min_size=1, max_size=3, unique=True).map(sorted))
    count = heads * max(1, len(places))
    thresholds = draw(st.lists(st.floats(-7, 2, width=32), min_size=count, max_size=count))
    return settings | {"thresholds": tuple(thresholds), "shares_at": tuple(places)}


def some_directions(kv_heads: int, width: int, count: int, seed: int = 0) -> Directions:
    """Random ones of so many key/value heads."""
    vectors = torch.randn(kv_heads, width, count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Directions.spanning(vectors)


@st.composite
def directions(draw: st.DrawFn, kv_heads: int, width: int) -> Directions | None:
    """None, or some directions."""
    count = draw(st.sampled_from([0, 1, 2, 3, 5]))
    return some_directions(kv_heads, width, min(count, width), draw(st.integers(0, 9))) if count else None


@st.composite
def readings(draw: st.DrawFn, kv_heads: int, repeats: int, width: int) -> Reading:
    """Readings of pages for so many query heads to each key/value head, and texts of up to 150 tokens."""
    heads = kv_heads * repeats
    return Reading(
        window=draw(st.integers(0, 40)),
        sink_tokens=draw(st.sampled_from([0, 1, 4, 16, 19, 40])),
        chunk=draw(st.sampled_from([16, 32, 48])),
        **draw(budgets(heads)),
        spread=draw(st.none() | st.lists(st.floats(0, 1), min_size=heads, max_size=heads).map(tuple)),
        directions=draw(directions(kv_heads, width)),
        count_weight=draw(st.sampled_from([0.0, 0.5, 1.0])),
        page_size=draw(st.integers(1, 16)),
        full_below=draw(st.sampled_from([0, 0, 40, 64, 140])),
    )
