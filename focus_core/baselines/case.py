"""The input of a baseline, and the parts that all of them use: distant pairs, sinks, budgets.

This is reference code for evaluation: it builds a mask of every pair, so that kept pairs can be counted. A case may
hold some consecutive queries of a text alone; its mask is then (Tq, T).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from focus_core.attention import AttentionOutput
from focus_core.attention.reference import attention_logits
from focus_core.errors import FocusError

HALVINGS = 24
"""Steps of a bisection for a wanted share."""


class Result(NamedTuple):
    """Output of a baseline, and which pairs it computed.

    Attributes:
        attention: output (B, H, T, Dv) and log-sum-exp (B, H, T).
        kept: bool, broadcastable to (B, H, Tq, T), all computed pairs; None if no pair is left out or computed exactly.
    """

    attention: AttentionOutput
    kept: Tensor | None


@dataclass(frozen=True)
class Layout:
    """Masks of pairs by the places of their tokens; layers and texts of one length share them.

    Attributes:
        length: T, the number of keys.
        window: pairs at most this far apart are local and always kept.
        sinks: the first so many keys are always kept.
        device: of the masks.
        start: place of the first query in the text.
        queries: Tq, the number of queries from there.
        sliding_window: the model's own window, in tokens: no pair is farther apart; None without.
    """

    length: int
    window: int
    sinks: int
    device: torch.device
    start: int
    queries: int
    sliding_window: int | None = None

    @property
    def distance(self) -> Tensor:
        """(Tq, T) int64: query index minus key index."""
        index = torch.arange(self.length, device=self.device)
        return index[self.start : self.start + self.queries, None] - index

    @property
    def causal(self) -> Tensor:
        """(Tq, T) bool: the key is not after the query, and inside the model's own window."""
        causal = self.distance >= 0
        return causal if self.sliding_window is None else causal & (self.distance < self.sliding_window)

    @property
    def distant(self) -> Tensor:
        """(Tq, T) bool: causal and farther than the window."""
        return self.causal & (self.distance > self.window)

    @property
    def sink(self) -> Tensor:
        """(T,) bool: keys that everyone keeps."""
        return torch.arange(self.length, device=self.device) < self.sinks

    @property
    def open(self) -> Tensor:
        """(Tq, T) bool: local pairs and sinks."""
        return self.causal & ((self.distance <= self.window) | self.sink)

    @property
    def distant_keys(self) -> Tensor:
        """(T,) int64: how many distant keys each query of the whole text has."""
        return (torch.arange(self.length, device=self.device).clamp(max=self.farthest) - self.window).clamp(min=0)

    @property
    def farthest(self) -> int:
        """The largest distance of a causal pair."""
        return min(self.length, self.length if self.sliding_window is None else self.sliding_window) - 1


@dataclass(frozen=True)
class Case:
    """One attention layer of whole, unpadded texts, or some consecutive queries of it.

    Attributes:
        query: (B, H, Tq, D), position-encoded; Tq = T unless `start` says otherwise.
        key: (B, H, T, D), already repeated for grouped queries.
        value: (B, H, T, Dv), likewise.
        window: pairs at most this far apart are local and always kept.
        sinks: the first so many keys are always kept.
        share: wanted share of distant pairs, sinks included.
        scale: factor of the dot products.
        softcap: cap of the logits, None without.
        seed: of anything random; one per layer.
        fitted: result of the baseline's `fit` on training text for this layer; None without.
        start: place of the first query in the text.
        sliding_window: the model's own window, in tokens: no pair is farther apart; None without.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    window: int
    sinks: int
    share: float
    scale: float
    softcap: float | None = None
    seed: int = 0
    fitted: Any = None
    start: int = 0
    sliding_window: int | None = None

    @property
    def layout(self) -> Layout:
        """Masks of pairs by the places of their tokens."""
        length, queries = self.key.shape[2], self.query.shape[2]
        return Layout(length, self.window, self.sinks, self.query.device, self.start, queries, self.sliding_window)

    @cached_property
    def distance(self) -> Tensor:
        """See `Layout.distance`."""
        return self.layout.distance

    @cached_property
    def causal(self) -> Tensor:
        """See `Layout.causal`."""
        return self.layout.causal

    @cached_property
    def distant(self) -> Tensor:
        """See `Layout.distant`."""
        return self.layout.distant

    @cached_property
    def open(self) -> Tensor:
        """See `Layout.open`."""
        return self.layout.open

    def generator(self) -> torch.Generator:
        """A new generator with this layer's seed."""
        return torch.Generator().manual_seed(self.seed)

    def logits(self) -> Tensor:
        """(B, H, Tq, T) float32."""
        return attention_logits(self.query.float(), self.key.float(), self.scale, self.softcap)

    def exactly(self, kept: Tensor) -> Result:
        """Softmax attention over the kept pairs alone; every query must have one, such as itself."""
        logits = self.logits().masked_fill_(~kept, float("-inf"))
        weights = logits.softmax(-1)
        # Of the largest weight e^(l - lse), which spares a pass of exponentials.
        logsumexp = logits.amax(-1) - weights.amax(-1).log()
        return Result(AttentionOutput((weights @ self.value.float()).to(self.value.dtype), logsumexp), kept)

    def select(self, scores: Tensor) -> Tensor:
        """Keep the distant keys of each query with the highest scores, within the budget of the share.

        Every query has the same budget, as in SparQ, Quest and MoBA; sinks are kept first and count. Scores of keys
        that are not distant have no influence, so causal scores give a causal mask.

        Args:
            scores: (B, H, Tq, T) or (H, Tq, T); ties are broken arbitrarily but reproducibly.

        Returns:
            bool, all kept pairs.
        """
        budget = per_query_budget(self.layout.distant_keys, self.share)
        if budget == 0:
            return self.open.expand_as(scores)
        ranked = torch.where(self.distant, scores.float(), float("-inf"))
        ranked[..., : self.sinks].masked_fill_(self.distant[:, : self.sinks], float("inf"))
        best = ranked.topk(budget, dim=-1, sorted=False).indices
        chosen = torch.zeros_like(ranked, dtype=torch.bool).scatter_(-1, best, True)
        return (chosen & self.distant) | self.open


@dataclass(frozen=True)
class Baseline:
    """A published sparse or approximate attention.

    Attributes:
        label: name in tables.
        source: paper.
        attend: the method itself.
        keep: the pairs that it computes, bool, broadcastable to (B, H, Tq, T); None if it estimates all.
        fit: (query (B, H, T, D), key (B, Hkv, T, D), share, window, sinks, seed) of training text to `Case.fitted`.
        fixed: whether its pairs are known before queries and keys are.
        window: whether its pairs are a window, with sinks or without, which the project's own backend executes as well.
        features: of one that estimates all pairs: phi(q) (B, H, Tq, m) and phi(k) (B, H, T, m), whose running sums
            execute it.

    Raises:
        FocusError: both `keep` and `features`, or neither.
    """

    label: str
    source: str
    attend: Callable[[Case], Result]
    keep: Callable[[Case], Tensor] | None = None
    fit: Callable[..., Any] | None = None
    fixed: bool = False
    window: bool = False
    features: Callable[[Case], tuple[Tensor, Tensor]] | None = None

    def __post_init__(self) -> None:
        if (self.keep is None) == (self.features is None):
            raise FocusError(
                f"The baseline {self.label!r} needs the pairs it keeps, or its features: give one of them."
            )

    @property
    def tunable(self) -> bool:
        """Whether its share of kept pairs can be set."""
        return self.keep is not None

    @property
    def by_content(self) -> bool:
        """Whether its pairs depend on queries and keys."""
        return self.keep is not None and not self.fixed


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


@lru_cache(maxsize=4)
def solve_share(
    pattern: Callable[[Tensor, int, float], Tensor], layout: Layout, share: float, high: float, sinks: bool = True
) -> Tensor:
    """The mask with the kept share of distant pairs nearest to `share`, by bisection over a growing setting.

    Cached for all layers and texts, since it depends on neither. The share is that of the whole text.

    Args:
        pattern: maps distances, window and a setting in [0, high] to bool: the distances that are kept. A larger
            setting keeps more. A plain function.
        layout: of the pairs.
        share: 0 to 1.
        high: upper end of the setting, which must keep everything.
        sinks: whether sinks are kept, too. Local pairs always are.

    Returns:
        (Tq, T) bool.
    """
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
    setting = min((low, top), key=lambda setting: abs(kept(setting) - share))
    distance = layout.distance
    always = (distance <= layout.window) | layout.sink if sinks else distance <= layout.window
    return layout.causal & (always | pattern(distance, layout.window, setting))
