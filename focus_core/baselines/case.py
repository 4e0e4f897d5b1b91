"""The input of a baseline, and the parts that all of them use: distant pairs, sinks, budgets.

This is reference code for evaluation: it builds masks of pairs, so that kept pairs can be counted. A case may hold
some consecutive queries of a text, with the keys up to the last of them. `attend_in_parts` evaluates a long text so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from focus_core.attention import AttentionOutput
from focus_core.attention.reference import attention_logits
from focus_core.baselines.compiled.softmax import kept_softmax
from focus_core.baselines.compiled.threshold import largest, largest_blocks, largest_groups
from focus_core.baselines.layout import Layout
from focus_core.errors import FocusError

PART_PAIRS = 2**20
"""About as many pairs of queries and keys, over all heads, are computed at once."""

Statistic = TypeVar("Statistic")
Setting = Mapping[str, float]
MOST = 65_536
"""Largest value of a setting that is a whole number."""
"""Values of a baseline that may be tuned, by name."""


class Result(NamedTuple):
    """Output of a baseline, and which pairs it computed.

    Attributes:
        attention: output (B, H, Tq, Dv) and log-sum-exp (B, H, Tq).
        kept: bool, broadcastable to (B, H, Tq, S), all computed pairs; None if no pair is left out or computed exactly.
    """

    attention: AttentionOutput
    kept: Tensor | None


@dataclass(frozen=True)
class Case:
    """One attention layer of whole, unpadded texts, or some consecutive queries of it.

    Attributes:
        query: (B, H, Tq, D), position-encoded; Tq = T unless `start` says otherwise.
        key: (B, H, S, D), already repeated for grouped queries; S = T, or the keys up to the last query of a part.
        value: (B, H, S, Dv), likewise.
        window: pairs at most this far apart are local and always kept.
        sinks: the first so many keys are always kept.
        share: wanted share of distant pairs, sinks included.
        scale: factor of the dot products.
        softcap: cap of the logits, None without.
        seed: of anything random; one per layer.
        fitted: result of the baseline's `fit` on training text for this layer; None without.
        start: place of the first query in the text.
        sliding_window: the model's own window, in tokens: no pair is farther apart; None without.
        whole: the case of the whole text that this one is a part of; None without.
        setting: of the baseline, one of its `Baseline.grid`; its own defaults where empty.
        hidden: (B, T, d) hidden states of the whole text that enter the attention block; None without.
        groups: (B, G, T, K) bool, the routers' groups that each key of the whole text is in, where G routers share the
            heads; None without.
        shared: so many neighbouring heads have the same keys and values, as repeated for grouped queries; 1 is always
            right, and the number of them is faster.
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
    whole: Case | None = field(default=None, repr=False, compare=False)
    setting: Setting = field(default_factory=dict)
    hidden: Tensor | None = None
    groups: Tensor | None = None
    shared: int = 1

    @cached_property
    def layout(self) -> Layout:
        """Masks of pairs by the places of their tokens."""
        length, keys, queries = (self.whole or self).key.shape[2], self.key.shape[2], self.query.shape[2]
        return Layout(
            length, self.window, self.sinks, self.query.device, self.start, queries, keys, self.sliding_window
        )

    def part(self, start: int, stop: int) -> Case:
        """The queries from `start` to before `stop`, and the keys before `stop`: later ones are not theirs to see."""
        query, key, value = self.query[:, :, start:stop], self.key[:, :, :stop], self.value[:, :, :stop]
        return replace(self, query=query, key=key, value=value, start=start, whole=self)

    def parts(self) -> Iterator[Case]:
        """The whole text in parts of about `PART_PAIRS` pairs, in order."""
        start, (batch, heads, length, _) = 0, self.query.shape
        while start < length:
            rows = max(16, PART_PAIRS // (batch * heads * (start + 64)) // 16 * 16)
            stop = min(length, start + min(rows, 512))
            yield self.part(start, stop)
            start = stop

    def once(self, statistic: Callable[[Case], Statistic]) -> Statistic:
        """A statistic of the keys and values of the whole text, computed once for all its parts.

        Args:
            statistic: a plain function of the whole case, which must not depend on its queries.
        """
        text = self.whole or self
        if statistic not in text._statistics:
            text._statistics[statistic] = statistic(text)
        return text._statistics[statistic]

    @cached_property
    def _statistics(self) -> dict[Callable[[Case], Any], Any]:
        return {}

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

    @cached_property
    def choosable(self) -> Tensor:
        """(Tq, S) bool: distant, and not a sink."""
        return self.distant & ~self.layout.sink

    @property
    def recency(self) -> Tensor:
        """(S,) float32 from 0 to below 1/2, growing with the place of a key: added to whole numbers, it parts ties."""
        return torch.arange(self.key.shape[2], device=self.key.device) / (2 * self.layout.length)

    def logits(self) -> Tensor:
        """(B, H, Tq, S) float32."""
        return self.attention_logits(self.key)

    def attention_logits(self, keys: Tensor) -> Tensor:
        """(B, H, Tq, n) float32 of some keys (B, H, n, D), those of the case or others that heads share alike."""
        logits = attention_logits(self._together(self.query.float()), self._once(keys), self.scale, self.softcap)
        return self._apart(logits)

    def products(self, rows: Tensor, keys: Tensor) -> Tensor:
        """(B, H, Tq, n) float32 products of rows (B, H, Tq, m) with keys (B, H, n, m), that heads share as their keys.

        Rows of heads that share their keys are one matrix.
        """
        return self._apart(self._together(rows.float()) @ self._once(keys).mT)

    def mixed(self, weights: Tensor, values: Tensor) -> Tensor:
        """(B, H, Tq, Dv) float32 sums of values (B, H, n, Dv) with weights (B, H, Tq, n), likewise."""
        return self._apart(self._together(weights) @ self._once(values))

    def _together(self, rows: Tensor) -> Tensor:
        return rows.unflatten(1, (-1, self.shared)).flatten(2, 3)

    def _once(self, keys: Tensor) -> Tensor:
        return keys[:, :: self.shared].float()

    def _apart(self, rows: Tensor) -> Tensor:
        return rows.unflatten(2, (self.shared, -1)).flatten(1, 2)

    def exactly(self, kept: Tensor, logits: Tensor | None = None) -> Result:
        """Softmax attention over the kept pairs alone; every query must have one, such as itself.

        Args:
            kept: bool, broadcastable to (B, H, Tq, S). Keys that no query keeps are skipped if all heads share it.
            logits: (B, H, Tq, S) float32, overwritten; those of the model when None.
        """
        value, mask = self.value, kept
        if logits is None and kept.dim() == 2:
            keys = kept.any(0).nonzero()[:, 0]
            mask, value = kept[:, keys], value[:, :, keys]
            logits = self.attention_logits(self.key[:, :, keys])
        weights = self.logits() if logits is None else logits
        logsumexp = kept_softmax(weights, mask)
        return Result(AttentionOutput(self.mixed(weights, value).to(self.value.dtype), logsumexp), kept)

    def select(self, scores: Tensor) -> Tensor:
        """Keep the distant keys of each query with the highest scores, within the budget of the share.

        Every query has the same budget, as in SparQ, Quest and MoBA; sinks are kept first and count. Scores of keys
        that are not distant have no influence, so causal scores give a causal mask.

        Args:
            scores: (B, H, Tq, S) or (H, Tq, S); of equal ones the nearest keys are kept.

        Returns:
            bool, all kept pairs.
        """
        rows = scores.float().flatten(0, -2)
        return largest(rows, *self._limits(rows)).view(scores.shape).logical_or_(self.open)

    def select_blocks(self, scores: Tensor, size: int) -> Tensor:
        """Keep the blocks of keys with the highest scores, within the budget of the share; otherwise as `select`.

        Args:
            scores: (B, H, Tq, N) or (H, Tq, N) of blocks of `size` keys, all N that begin before the last query.
                Of the block where the budget ends, the nearest keys are kept.
            size: of a block.

        Returns:
            bool, all kept pairs.
        """
        rows, keys = scores.float().flatten(0, -2), self.key.shape[2]
        kept = largest_blocks(rows, size, *self._limits(rows), keys)
        return kept.view(*scores.shape[:-1], keys).logical_or_(self.open)

    def select_groups(self, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Keep the groups of keys with the highest scores, within the budget of the share; otherwise as `select`.

        Args:
            scores: (B, H, Tq, C) of groups. Of the group where the budget ends, or of equal ones, the nearest keys are
                kept.
            labels: (B, H, S) integers, the group of every key.

        Returns:
            bool, all kept pairs; and (B, H, Tq, C) float32, how many distant keys of each group are not kept.
        """
        rows = scores.float().flatten(0, -2)
        kept, unread = largest_groups(rows, labels.flatten(0, 1), *self._limits(rows))
        shape = scores.shape[:-1]
        return kept.view(*shape, -1).logical_or_(self.open), unread.view(scores.shape)

    def _limits(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(R,) each, for rows (R, n) of scores: the keys to choose, and the first and the end of those to choose from.

        The queries of every head follow one another.
        """
        first, end = self.layout.reach
        limits = (self.layout.to_choose(self.share), first.clamp(min=self.sinks), end)
        count, first, end = (each.repeat(len(rows) // len(each)) for each in limits)
        return count, first, end


@dataclass(frozen=True)
class Baseline:
    """A published sparse or approximate attention.

    Attributes:
        label: name in tables.
        source: paper.
        attend: the method itself.
        keep: the pairs that it computes, bool, broadcastable to (B, H, Tq, S); None if it estimates all.
        fit: (query (B, H, T, D), key (B, Hkv, T, D), share, window, sinks, seed, sliding_window, setting, before) of
            training text to `Case.fitted`; `before` is its result for earlier texts, or None.
        fixed: whether its pairs are known before queries and keys are.
        window: whether its pairs are a window, with sinks or without, which the project's own backend executes as well.
        features: of one that estimates all pairs: phi(q) (B, H, Tq, m) and phi(k) (B, H, T, m), whose running sums
            execute it.
        grid: settings to choose from by training text, the default first; as many for every baseline that has any.
        per_layer: whether all heads of a layer share one choice.
        oracle: whether it needs the attention that it saves, so that it bounds the others and is not one of them.

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
    grid: tuple[Setting, ...] = ()
    per_layer: bool = False
    oracle: bool = False

    def __post_init__(self) -> None:
        if (self.keep is None) == (self.features is None):
            raise FocusError(
                f"The baseline {self.label!r} needs the pairs it keeps, or its features: give one of them."
            )

    def check_setting(self, name: str, setting: Setting) -> None:
        """Refuse a setting that it does not have, or values out of range.

        A value is a share above 0 and up to 1 where the grid has shares, and else a whole number from 1 on.

        Args:
            name: of the baseline, for the error.
            setting: values by name.

        Raises:
            FocusError: the reason, in one sentence.
        """
        known = (self.grid or ({},))[0]
        if set(setting) != set(known):
            raise FocusError(
                f"{name} has no setting of {', '.join(setting) or 'nothing'}: give {', '.join(known) or 'none'}."
            )
        for key, value in setting.items():
            shares = all(tried[key] <= 1 for tried in self.grid)
            if shares and not 0 < value <= 1:
                raise FocusError(f"{key} of {name} is {value:g}: give a share above 0 and up to 1.")
            if not shares and not (1 <= value <= MOST and value == int(value)):
                raise FocusError(f"{key} of {name} is {value:g}: give a whole number from 1 to {MOST:,}.")

    @property
    def tunable(self) -> bool:
        """Whether its share of kept pairs can be set."""
        return self.keep is not None

    @property
    def by_content(self) -> bool:
        """Whether its pairs depend on queries and keys."""
        return self.keep is not None and not self.fixed


def attend_in_parts(baseline: Baseline, case: Case) -> Iterator[tuple[Case, Result]]:
    """A baseline on a whole text, some consecutive queries at a time, so that no tensor is (H, T, T).

    Args:
        baseline: any.
        case: of a whole text.

    Yields:
        Each part of the text in order, with its result.
    """
    for part in case.parts():
        yield part, baseline.attend(part)
