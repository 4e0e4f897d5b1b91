"""Ticks of logarithmic axes: enough of them, and none over another."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

_FEWEST = 3
_MANTISSAS: tuple[Sequence[int], ...] = ((1,), (1, 2, 5), range(1, 10))
_CLOSEST = 0.11
"""Share of an axis that a short label needs in half a page."""


def log_ticks(values: Iterable[float]) -> list[float]:
    """Round numbers among some values, at least three of them where the values differ.

    Powers of ten alone leave a range of less than two decades with a tick or none.
    """
    known = [value for value in values if value > 0 and math.isfinite(value)]
    if not known:
        return [1.0]
    low, high = min(known) / 1.02, max(known) * 1.02  # a value at the edge keeps its tick
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for mantissas in _MANTISSAS:
        ticks = [each * 10.0**decade for decade in decades for each in mantissas]
        if len(ticks := [tick for tick in ticks if low <= tick <= high]) >= _FEWEST:
            return ticks
    wanted = (high - low) / _FEWEST
    power = 10.0 ** math.floor(math.log10(wanted))
    step = max(each * power for each in (1, 2, 5) if each * power <= wanted)
    first = math.ceil(low / step)
    return [round(place * step, 12) for place in range(first, math.floor(high / step) + 1)]


def legible(lengths: Sequence[int]) -> set[int]:
    """The lengths whose labels have room on a logarithmic axis in half a page; powers of two come first."""
    if len(lengths) < 2:
        return set(lengths)
    across = math.log(max(lengths) / min(lengths))
    kept: list[int] = []
    for length in sorted(lengths, key=lambda each: (each.bit_count() > 1, each)):
        if all(abs(math.log(length / other)) >= _CLOSEST * across for other in kept):
            kept.append(length)
    return set(kept)
