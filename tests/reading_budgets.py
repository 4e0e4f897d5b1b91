"""Draws the budgets of readings: one share, or thresholds of heads, at several numbers of keys or everywhere."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st


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
