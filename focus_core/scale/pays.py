"""Where group-sparse attention stops paying: by length, batch, share and bandwidth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from focus_core.routing.config import FocusConfig
from focus_core.scale.rates import Rates
from focus_core.scale.shapes import ModelShape
from focus_core.scale.times import Cluster, decode_seconds, prefill_seconds

LONGEST = 2**20
"""Tokens, or texts of a batch, up to which a limit is sought."""


def limits(
    shape: ModelShape, on: Cluster, config: FocusConfig, lengths: Sequence[int], *, batch: int = 1
) -> dict[str, Any]:
    """Where narrow groups stop being faster than the untouched model.

    Args:
        shape: of the model.
        on: the devices.
        config: of narrow routers.
        lengths: tokens at which shares, batches and bandwidths are sought.
        batch: texts at once, where lengths, shares and bandwidths are sought.

    Returns:
        ``prefill_tokens`` and ``decode_tokens``: the length from which on they gain, None for none up to `LONGEST`.
        ``endless_share``: the share up to which prefill of endless texts gains. ``at``: for each of the lengths
        ``prefill_share`` and ``decode_share``, the largest that gain; ``decode_batch``, the texts from which on decode
        gains; ``decode_bandwidth``, see `most_bandwidth`.
    """
    return {
        "model": shape.name,
        "devices": on.gpus,
        "batch": batch,
        "share": config.read_share,
        "prefill_tokens": first_length(lambda tokens: prefill_gain(shape, tokens, on, config)),
        "decode_tokens": first_length(lambda tokens: decode_gain(shape, tokens, on, config, batch)),
        "endless_share": share_in_the_limit(on.rates, config.page_size or 1),
        "at": [{"tokens": tokens, **_limits_at(shape, tokens, on, config, batch)} for tokens in lengths],
    }


def _limits_at(shape: ModelShape, tokens: int, on: Cluster, config: FocusConfig, batch: int) -> dict[str, float | None]:
    return {
        "prefill_share": largest_share(lambda own: prefill_gain(shape, tokens, on, own), config),
        "decode_share": largest_share(lambda own: decode_gain(shape, tokens, on, own, batch), config),
        "decode_batch": first_length(lambda texts: decode_gain(shape, tokens, on, config, texts)),
        "decode_bandwidth": most_bandwidth(shape, tokens, on, config),
    }


def prefill_gain(shape: ModelShape, tokens: int, on: Cluster, config: FocusConfig) -> float:
    """Time of the untouched model over that with narrow groups, to read a text."""
    return prefill_seconds(shape, tokens, on) / prefill_seconds(shape, tokens, on, config)


def decode_gain(shape: ModelShape, tokens: int, on: Cluster, config: FocusConfig, batch: int = 1) -> float:
    """The same for one more token of each text of a batch."""
    return decode_seconds(shape, tokens, on, batch=batch) / decode_seconds(shape, tokens, on, config, batch=batch)


def first_length(gain: Callable[[int], float], wanted: float = 1.0) -> int | None:
    """The length from which on a gain is reached at every power of two, to within 2%; None if it is at none.

    Args:
        gain: of a length in tokens.
        wanted: factor.
    """
    length = LONGEST
    if gain(length) < wanted:
        return None
    while length > 1 and gain(length // 2) >= wanted:
        length //= 2
    low = length // 2
    while length - low > max(1, length // 50):
        middle = (low + length) // 2
        low, length = (low, middle) if gain(middle) >= wanted else (middle, length)
    return length


def largest_share(gain: Callable[[FocusConfig], float], config: FocusConfig) -> float | None:
    """The share of the distant keys up to which a gain is above 1, to within 0.001; None if it is at none.

    Args:
        gain: of settings.
        config: settings, whose share is varied.
    """
    low, high = 0.0, 1.0
    if gain(config.replace(read_share=low)) < 1:
        return None
    if gain(config.replace(read_share=high)) >= 1:
        return high
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if gain(config.replace(read_share=middle)) >= 1 else (low, middle)
    return low


def share_in_the_limit(rates: Rates, page_size: int) -> float:
    """The share up to which attention of endless texts gains in prefill: (a - c / P) / b of its formula.

    A pair costs a = 1 / attention in full attention, and b = 1 / exact where pages are read; a (query, page) pair costs
    c = 1 / pages. Full attention is as fast where a = p b + c / P.

    Args:
        rates: of the machine.
        page_size: P.
    """
    return max(0.0, min(1.0, (1 / rates.attention - 1 / rates.pages / page_size) * rates.exact))


def most_bandwidth(shape: ModelShape, tokens: int, on: Cluster, config: FocusConfig) -> float:
    """Bytes/s up to which narrow groups decode faster than full attention that only waits for memory, to within 1%.

    More bandwidth makes reading all keys cheaper, and choosing among pages not: that computes.

    Args:
        shape: of the model.
        tokens: T, in the cache of each text.
        on: the devices.
        config: of the routers.
    """

    def gain(bandwidth: float) -> float:
        rates = replace(on.rates, bandwidth=bandwidth)
        waiting = replace(rates, step_attention=float("inf"))
        return decode_seconds(shape, tokens, replace(on, rates=waiting)) / decode_seconds(
            shape, tokens, replace(on, rates=rates), config
        )

    low, high = 1.0, 1e24
    while high / low > 1.01:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if gain(middle) >= 1 else (low, middle)
    return low
