"""Which pairs of tokens are local, distant or sinks, and how many of the distant ones a share allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

HALVINGS = 24
"""Steps of a bisection for a wanted share."""


@dataclass(frozen=True)
class Layout:
    """Masks of pairs by the places of their tokens; layers and texts of one length share them.

    Attributes:
        length: T, the number of tokens of the whole text, which budgets refer to.
        window: pairs at most this far apart are local and always kept.
        sinks: the first so many keys are always kept.
        device: of the masks.
        start: place of the first query in the text.
        queries: Tq, the number of queries from there.
        keys: S, the number of keys from the first token on.
        sliding_window: the model's own window, in tokens: no pair is farther apart; None without.
    """

    length: int
    window: int
    sinks: int
    device: torch.device
    start: int
    queries: int
    keys: int
    sliding_window: int | None = None

    @property
    def places(self) -> Tensor:
        """(Tq,) int32: place of each query in the text."""
        return torch.arange(self.start, self.start + self.queries, device=self.device, dtype=torch.int32)

    @property
    def distance(self) -> Tensor:
        """(Tq, S) int32: query index minus key index."""
        return self.places[:, None] - torch.arange(self.keys, device=self.device, dtype=torch.int32)

    @property
    def causal(self) -> Tensor:
        """(Tq, S) bool: the key is not after the query, and inside the model's own window."""
        causal = self.distance >= 0
        return causal if self.sliding_window is None else causal & (self.distance < self.sliding_window)

    @property
    def distant(self) -> Tensor:
        """(Tq, S) bool: causal and farther than the window."""
        return self.causal & (self.distance > self.window)

    @property
    def sink(self) -> Tensor:
        """(S,) bool: keys that everyone keeps."""
        return torch.arange(self.keys, device=self.device) < self.sinks

    @property
    def open(self) -> Tensor:
        """(Tq, S) bool: local pairs and sinks."""
        return self.causal & ((self.distance <= self.window) | self.sink)

    @property
    def reach(self) -> tuple[Tensor, Tensor]:
        """(Tq,) int32 each: the first distant key of every query, sinks included, and the end of its distant keys."""
        end = (self.places - self.window).clamp(min=0)
        return (self.places - self.farthest).clamp(min=0).minimum(end), end

    @property
    def distant_keys(self) -> Tensor:
        """(T,) int64: how many distant keys each query of the whole text has."""
        return (torch.arange(self.length, device=self.device).clamp(max=self.farthest) - self.window).clamp(min=0)

    @property
    def farthest(self) -> int:
        """The largest distance of a causal pair."""
        return min(self.length, self.length if self.sliding_window is None else self.sliding_window) - 1

    @property
    def whole(self) -> Layout:
        """The layout of the whole text."""
        return replace(self, start=0, queries=self.length, keys=self.length)

    def to_choose(self, share: float) -> Tensor:
        """(Tq,) int32: how many distant keys each query keeps beside the sinks, which come first in its budget.

        Every query of the text has the same budget, as in SparQ, Quest and MoBA.
        """
        first, end = self.reach
        sinks = end.clamp(max=self.sinks) - first.clamp(max=self.sinks)
        return (_budget(self.whole, share) - sinks).clamp(min=0)


def per_query_budget(distant: Tensor, share: float) -> int:
    """The number of keys b for which sum min(b, n_i) comes nearest to `share` of all distant pairs.

    Args:
        distant: (T,) int64, distant keys n_i of each query.
        share: 0 to 1.
    """
    wanted, largest = share * float(distant.sum()), int(distant.max())
    low, high = 0, largest
    while low < high:
        middle = (low + high) // 2
        if float(distant.clamp(max=middle).sum()) < wanted:
            low = middle + 1
        else:
            high = middle
    below = float(distant.clamp(max=max(0, low - 1)).sum())
    return low - 1 if low and wanted - below < float(distant.clamp(max=low).sum()) - wanted else low


@lru_cache(maxsize=64)
def _budget(whole: Layout, share: float) -> int:
    return per_query_budget(whole.distant_keys, share)


def solve_share(
    pattern: Callable[[Tensor, int, float], Tensor], layout: Layout, share: float, high: float, sinks: bool = True
) -> Tensor:
    """The mask with the kept share of distant pairs nearest to `share`, by bisection over a growing setting.

    The share is that of the whole text.

    Args:
        pattern: maps distances, window and a setting in [0, high] to bool: the distances that are kept. A larger
            setting keeps more. A plain function.
        layout: of the pairs.
        share: 0 to 1.
        high: upper end of the setting, which must keep everything.
        sinks: whether sinks are kept, too. Local pairs always are.

    Returns:
        (Tq, S) bool.
    """
    setting, distance = _solved(pattern, layout.whole, share, high, sinks), layout.distance
    always = (distance <= layout.window) | layout.sink if sinks else distance <= layout.window
    return layout.causal & (always | pattern(distance, layout.window, setting))


@lru_cache(maxsize=64)
def _solved(
    pattern: Callable[[Tensor, int, float], Tensor], layout: Layout, share: float, high: float, sinks: bool
) -> float:
    """The setting of `solve_share`, cached for all layers and texts, since it depends on neither."""
    far = torch.arange(layout.window + 1, max(layout.window, layout.farthest) + 1, device=layout.device)
    pairs = layout.length - far  # as many pairs are at this distance
    without = pairs.clamp(max=layout.sinks) if sinks else torch.zeros_like(pairs)
    total = max(1, int(pairs.sum()))

    def kept(setting: float) -> float:
        return float(torch.where(pattern(far, layout.window, setting), pairs, without).sum()) / total

    low, top = 0.0, high
    for _ in range(HALVINGS):
        middle = (low + top) / 2
        low, top = (middle, top) if kept(middle) < share else (low, middle)
    return min((low, top), key=lambda setting: abs(kept(setting) - share))
