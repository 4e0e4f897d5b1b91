"""Where distant keys begin, and which of their groups, or pages of groups, a query reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from focus_core.errors import FocusError
from focus_core.routing.narrow.directions import COUNTED, Directions, query_features
from focus_core.routing.narrow.pages import Pages, pages

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Bool, Float, Int


@dataclass(frozen=True)
class Reading:
    """Settings of one layer's reading.

    Attributes:
        window: w, keys at most this far before a query are attended exactly.
        sink_tokens: the first so many keys are attended exactly by every later query.
        chunk: C, tokens between the borders at which sums are taken.
        top_k: groups that a query reads; None where `share` decides.
        share: share of the keys beyond a query's window that it attends exactly, 0 to 1, before `top_k`; None where
            `top_k` decides.
        thresholds: of each query head, the log of the error of a summary above which it reads the part itself, whatever
            the share; with A `shares_at`, those of all heads for the first of them, then those for the next. None
            where the share decides.
        shares_at: rising numbers of keys beyond the window for which `thresholds` hold; between two of them a threshold
            lies on the line through both. Empty where they hold for all.
        spread: of each query head, the weight of the spread of keys in the logits of summaries; None for none.
        directions: in which spread is told apart; None where it counts as alike in all directions.
        count_weight: weight of the log of a part's size in its score: 1 ranks parts by their estimated mass, 0 by
            mass per key.
        page_size: P, keys of a page: with a `share`, pages of groups are summarised and read in place of whole groups;
            None for whole groups.
        full_below: queries at earlier places attend to every key before them, up to the end of their chunk.

    Raises:
        FocusError: a value out of range, or neither `top_k` nor `share`.
    """

    window: int
    sink_tokens: int
    chunk: int = 64
    top_k: int | None = None
    share: float | None = None
    thresholds: tuple[float, ...] | None = None
    shares_at: tuple[int, ...] = ()
    spread: tuple[float, ...] | None = None
    directions: Directions | None = None
    count_weight: float = 0.0
    page_size: int | None = None
    full_below: int = 0

    def __post_init__(self) -> None:
        if self.chunk < 1:
            raise FocusError(f"chunk is {self.chunk}: it must be at least 1 token.")
        if self.page_size is not None and self.page_size < 1:
            raise FocusError(f"page_size is {self.page_size}: a page holds at least 1 key.")
        if self.share is not None and not 0 <= self.share <= 1:
            raise FocusError(f"The share of distant keys to read is {self.share}: choose one from 0 to 1.")
        if self.shares_at and (not self.thresholds or len(self.thresholds) % len(self.shares_at)):
            raise FocusError(f"{len(self.shares_at)} shares_at need as many thresholds of every head: give thresholds.")
        if self.thresholds is not None and self.share is None:
            raise FocusError("Thresholds take the place of a share: give the share that they stand for.")
        if self.top_k is None and self.share is None:
            raise FocusError("A reading needs the number of groups or the share of keys to read: give one of them.")

    def border(self, query: int) -> int:
        """First key of the window of a query, extended to a border: keys before it are distant, or sinks."""
        start = query // self.chunk * self.chunk
        return 0 if start < self.full_below else max(0, start - self.window) // self.chunk * self.chunk

    def borders(self, queries: Int[Tensor, "*N"]) -> Int[Tensor, "*N"]:
        """`border` of many queries; 0 for those that attend to everything."""
        starts = queries // self.chunk * self.chunk
        return (starts - self.window).clamp(min=0) // self.chunk * self.chunk * (starts >= self.full_below)

    def full_until(self, length: int) -> int:
        """How many queries at the start of a text attend to everything; `length`, or a multiple of the chunk."""
        return min(length, -(-self.full_below // self.chunk) * self.chunk)

    def attends_all(self, length: int) -> bool:
        """Whether the first `length` queries, and the next one, attend to everything."""
        return length < self.full_below

    def of_row(self, row: int, repeats: int) -> Reading:
        """The settings of the `repeats` query heads of one row, where key/value heads are rows of the batch."""
        changes: dict[str, Any] = {}
        if self.directions is not None:
            changes["directions"] = self.directions.of_row(row)
        places = max(1, len(self.shares_at))
        for name, tables in (("thresholds", places), ("spread", 1)):
            numbers = getattr(self, name)
            if numbers is not None:
                heads = len(numbers) // tables
                first = row * repeats % heads
                starts = range(first, len(numbers), heads)
                changes[name] = tuple(number for start in starts for number in numbers[start : start + repeats])
        return replace(self, **changes)

    @cached_property
    def compiled(self) -> dict[int, Any]:
        """For compiled code to keep what it takes of these settings, by the number of query heads."""
        return {}

    @property
    def num_heads(self) -> int:
        """Query heads that have a threshold of their own; 1 where all read one share."""
        return self._levels.shape[1]

    def levels(self, rows: int) -> Tensor:
        """(A, rows) float32: the threshold of every query head for each of `shares_at`, text after text.

        A is 1 where thresholds hold for any number of keys; `level_at` is what a query has. Without thresholds the
        share of all heads.

        Args:
            rows: a multiple of the heads.
        """
        return self._levels if rows == self.num_heads else self._levels.repeat(1, rows // self.num_heads)

    @cached_property
    def _levels(self) -> Tensor:
        if self.thresholds is None:
            return torch.tensor([[self.share or 0.0]], dtype=torch.float32)
        return torch.tensor(self.thresholds, dtype=torch.float32).view(max(1, len(self.shares_at)), -1)

    def spread_weights(self, rows: int) -> Tensor:
        """(rows,) float32: the weight of spread of every query head, as `levels`; 0 without one."""
        return self._spread if rows == len(self._spread) else self._spread.repeat(rows // len(self._spread))

    @cached_property
    def _spread(self) -> Tensor:
        return torch.tensor((0.0,) if self.spread is None else self.spread, dtype=torch.float32)

    def variances(
        self, query: Float[Tensor, "*B Hkv G N D"], spread: Float[Tensor, "*B Hkv K F"], scale: float
    ) -> Float[Tensor, "*B Hkv G N K"]:
        """Variances of the logits of the keys of each group, v_ic of docs/method.md.

        Args:
            query: the G query heads of each key/value head.
            spread: see `key_spread`.
            scale: factor of the dot products.
        """
        return query_features(query, self.directions, scale) @ spread.unsqueeze(-3).mT

    @property
    def most_counted(self) -> float:
        """How much of the variance of logits counts in a summary: up to `COUNTED` with directions, else all."""
        return math.inf if self.directions is None else COUNTED

    def beyond_mean(self, variances: Float[Tensor, "*H N K"]) -> Float[Tensor, "*H N K"] | float:
        """What the spread of its keys adds to the logit of a group, as in docs/method.md; 0 without weights.

        Args:
            variances: the dimensions before N are the query heads.
        """
        if self.spread is None:
            return 0.0
        heads = variances.shape[:-2]
        weights = self.spread_weights(math.prod(heads)).to(variances).view(*heads, 1, 1)
        return weights * variances.clamp(max=self.most_counted)

    def parts(self, groups: Int[Tensor, "B Hkv T"], num_groups: int) -> Pages:
        """The parts of the keys that are summarised and read: pages of groups, or the groups themselves."""
        return pages(groups, num_groups, None if self.share is None else self.page_size, self.sink_tokens)

    def scores(self, logits: Float[Tensor, "*N K"], counts: Float[Tensor, "*N K"]) -> Float[Tensor, "*N K"]:
        """Scores of groups from the logits of their mean keys: a log n + scale q.mean(k), a = `count_weight`."""
        return logits + self.count_weight * counts.clamp(min=1).log()

    def already(self, query: Tensor, border: Tensor | int) -> Tensor:
        """(...) int64: keys beyond the window that queries attend exactly whatever they read, up to their borders.

        Args:
            query: (...) int64 places.
            border: of each query, see `border`.
        """
        border = torch.as_tensor(border, device=query.device)
        return border.clamp(max=self.sink_tokens) + (query - self.window - border).clamp(min=0)

    def choose(
        self,
        scores: Float[Tensor, "*N K"],
        counts: Float[Tensor, "*N K"],
        already: Float[Tensor, "*N"],
        near: Float[Tensor, "*N"] | None = None,
        variances: Float[Tensor, "*N K"] | None = None,
    ) -> Bool[Tensor, "*N K"]:
        """The parts to read: those with the highest scores, within the budget; or those whose summaries would err most.

        A budget in pairs ends inside a part. This part is read if the larger half of it is within the budget: too
        much as often as too little. Sinks and the keys between window and border count, so that the wanted share holds
        for all keys beyond the window.

        With thresholds a part is read where the likely error of its summary (`log_errors`) is above that of the head.

        Args:
            scores: (..., N, K), compared within a query; of equal scores the first group wins. With thresholds the
                dimensions before N are the query heads.
            counts: (..., K) distant keys of each part, broadcastable to the scores.
            already: of each query, see `already`; broadcastable to the scores without their last dimension.
            near: of each query, the log-sum-exp of the logits of keys that it attends exactly in any case, as
                `near_logsumexp`; needed with thresholds alone.
            variances: of the logits of the keys of each part; likewise.

        Returns:
            (..., K) bool; False for empty groups.
        """
        if self.thresholds is not None:
            assert near is not None and variances is not None
            heads = (*scores.shape[:-2], 1, 1)
            levels = self.levels(math.prod(heads)).to(scores.device).view(-1, *heads)
            beyond = counts.sum(-1, keepdim=True).float() + already[..., None].float()
            return log_errors(scores, counts, near, variances) > level_at(beyond, levels, self.shares_at)
        ranked = scores.masked_fill(counts == 0, float("-inf")).sort(dim=-1, descending=True, stable=True).indices
        sizes = counts.expand_as(scores).gather(-1, ranked)
        if self.share is not None:
            # In float32 whatever the scores are in, so that every backend rounds alike.
            attended = already[..., None].float()
            beyond = sizes.sum(-1, keepdim=True).float() + attended
            budget = torch.tensor(self.share, dtype=torch.float32) * beyond - attended
            within = sizes.cumsum(-1) - sizes / 2 <= budget
        else:
            within = torch.arange(scores.shape[-1], device=scores.device) < (self.top_k or 0)
        return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, ranked, within & (sizes > 0))


def log_errors(
    scores: Float[Tensor, "*N K"],
    counts: Float[Tensor, "*N K"],
    near: Float[Tensor, "*N"],
    variances: Float[Tensor, "*N K"],
) -> Float[Tensor, "*N K"]:
    """Log of the likely error of each summary, w (1 + v) of docs/method.md; -inf for empty parts.

    w is the share of attention that the summary would have if no part were read: exp(score) over the sum of exp of all
    scores and of `near`. v is the variance of the logits of its keys: where these are alike the summary is right,
    however much it weighs.

    Args:
        scores: of parts.
        counts: distant keys of each part, broadcastable to the scores.
        near: log-sum-exp of the logits of keys that a query attends exactly in any case, as `near_logsumexp`.
        variances: see `Reading.variances`.
    """
    scores = scores.masked_fill(counts == 0, float("-inf"))
    return scores - scores.logsumexp(-1).logaddexp(near)[..., None] + variances.log1p()


Numbers = TypeVar("Numbers", Tensor, "np.ndarray")


def level_at(beyond: Numbers, levels: Numbers, places: Sequence[int]) -> Numbers:
    """Thresholds for numbers of keys beyond the window, on the line through those at the two nearest `places`.

    Before the first and after the last place a threshold stays as it is there.

    Args:
        beyond: float32, numbers of keys, broadcastable to the result.
        levels: (A, ...) float32, at each of the places.
        places: A of them, rising; with none the only threshold holds everywhere.
    """
    found: Any = levels[0]
    for place, (first, last) in enumerate(pairwise(places)):
        along = ((beyond - first) * (1 / (last - first))).clip(0, 1)
        found = found + along * (levels[place + 1] - levels[place])
    return found
