"""Gate exposure of a benchmark item: the pairs that routing could remove, and those that it removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from focus_core.attention import kept_pairs
from focus_core.errors import FocusError
from focus_core.routing.config import FocusConfig
from focus_core.routing.layer import heads_in_batch
from focus_core.routing.narrow.reading import Reading


@dataclass(frozen=True)
class Exposure:
    """Causal (query, key) pairs of one text, in one layer on average.

    Attributes:
        tokens: length of the text.
        causal: pairs that the untouched model computes, inside its own sliding window where it has one.
        distant: of these, pairs further apart than the window: all that routing could drop.
        removed: of these, pairs that routing dropped, mean over layers. 0 unless routing is hard: the soft gate drops
            none.
    """

    tokens: int
    causal: float
    distant: float
    removed: float

    @property
    def distant_share(self) -> float:
        """Gate exposure: distant over causal pairs."""
        return self.distant / self.causal

    @property
    def removed_share(self) -> float:
        """Removed over causal pairs."""
        return self.removed / self.causal


def exposure(
    num_tokens: int,
    config: FocusConfig,
    layers: Sequence[Tensor] = (),
    *,
    sliding_windows: Sequence[int | None] = (None,),
) -> Exposure:
    """Count the pairs of one text.

    Args:
        num_tokens: T, at least 1.
        config: window and sinks in force.
        layers: for each layer (T, 2 H K) bool, for the H heads of its router: groups of tokens as keys, then groups
            that they read as queries. Empty where nothing is removed.
        sliding_windows: the model's own, see `FocusModel.sliding_windows`; one for each layer, or one for all.
    """
    pairs = [_pairs(num_tokens, config.window, own) for own in sliding_windows]
    causal, distant = (sum(each) / len(pairs) for each in zip(*pairs))
    removed = 0.0
    if distant and len(layers):
        every = sliding_windows if len(sliding_windows) > 1 else [*sliding_windows] * len(layers)
        removed = sum(_removed(part, config, own) for part, own in zip(layers, every, strict=True)) / len(layers)
    return Exposure(num_tokens, causal, distant, removed)


def budget_exposure(
    num_tokens: int,
    config: FocusConfig,
    readings: Sequence[Reading],
    *,
    sliding_windows: Sequence[int | None] = (None,),
) -> Exposure:
    """The pairs of one text by the budgets of narrow groups: what is read ends within half a page of its budget.

    Heads with thresholds have no budget; the mean share that the thresholds are for stands for all of them.

    Args:
        num_tokens: T, at least 1.
        config: window and sinks in force.
        readings: of each layer, with a share.
        sliding_windows: as for `exposure`; a layer with its own window drops none.

    Raises:
        FocusError: a reading of a number of groups, which are no budget of pairs.
    """
    if any(reading.share is None for reading in readings):
        raise FocusError("How many pairs k narrow groups leave out is not known here: set read_share, not a k.")
    whole = exposure(num_tokens, config, sliding_windows=sliding_windows)
    every = sliding_windows if len(sliding_windows) > 1 else [*sliding_windows] * len(readings)
    removed = [0.0 if own else _beyond_budget(num_tokens, part) for part, own in zip(readings, every, strict=True)]
    return replace(whole, removed=sum(removed) / len(removed) if removed else 0.0)


def _beyond_budget(num_tokens: int, reading: Reading) -> float:
    """Distant pairs of a head beyond the budget of one layer; those up to a border count as read."""
    query = torch.arange(num_tokens)
    beyond = (query - reading.window).clamp(min=0).double()
    already = reading.already(query, reading.borders(query)).double()
    return float((beyond - torch.maximum(already, (reading.share or 0.0) * beyond)).sum())


def check_exposed(num_tokens: int, config: FocusConfig, sliding_windows: Sequence[int | None] = (None,)) -> None:
    """Refuse a length at which routing can drop no pair, so that every result would be that of the untouched model.

    Raises:
        FocusError: no pair is distant.
    """
    if not exposure(num_tokens, config, sliding_windows=sliding_windows).distant:
        raise FocusError(
            f"Blocks of {num_tokens:,} tokens have no pair beyond the window of {config.window:,}, so routing changes "
            "nothing: give a longer --length or a smaller --window."
        )


def _pairs(num_tokens: int, window: int, sliding_window: int | None) -> tuple[int, int]:
    """Causal pairs inside the model's own window, and those of them that are farther apart than w."""
    reach = num_tokens if sliding_window is None else min(sliding_window, num_tokens)
    beyond = max(0, num_tokens - 1 - window)
    outside, far_outside = num_tokens - reach, max(0, num_tokens - max(reach, window + 1))
    return (
        num_tokens * (num_tokens + 1) // 2 - outside * (outside + 1) // 2,
        beyond * (beyond + 1) // 2 - far_outside * (far_outside + 1) // 2,
    )


def _removed(membership: Tensor, config: FocusConfig, sliding_window: int | None) -> float:
    """Distant pairs that one layer dropped, mean over its heads."""
    keys, queries = (
        heads_in_batch(part[None], part.shape[-1] // config.num_groups) for part in membership.chunk(2, dim=-1)
    )
    counts = kept_pairs(
        keys,
        query_membership=queries,
        window=config.window,
        sink_tokens=config.sink_tokens,
        sliding_window=sliding_window,
    )
    return float((counts.distant - counts.distant_kept).double().mean())
