"""Keys in the order of their pages, and sums of pages for the chunks of a span of queries at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from focus_core.routing.narrow.directions import Directions, key_features, key_spread, num_features
from focus_core.routing.narrow.summaries import Summaries

if TYPE_CHECKING:
    from jaxtyping import Float, Int


class SortedKeys(NamedTuple):
    """Keys and values of all texts and heads, one text and head after another, each sorted by page.

    Attributes:
        key: (B * Hkv * T, D); those of a page follow one another, the oldest first.
        value: (B * Hkv * T, Dv).
        first: (B, Hkv, P) int64, the row of the first key of each page.
    """

    key: Tensor
    value: Tensor
    first: Int[Tensor, "B Hkv P"]


def sorted_keys(
    key: Float[Tensor, "B Hkv T D"],
    value: Float[Tensor, "B Hkv T Dv"],
    parts: Int[Tensor, "B Hkv T"],
    num_parts: int,
    sink_tokens: int,
) -> SortedKeys:
    """Sort keys by page, in O(T log T); sinks, which are in no page, come last."""
    texts, heads, length, _ = key.shape
    labels = torch.cat([torch.full_like(parts[..., :sink_tokens], num_parts), parts[..., sink_tokens:]], -1)
    head = torch.arange(texts * heads, device=key.device).view(texts, heads, 1) * length
    rows = (labels.argsort(dim=-1, stable=True) + head).flatten()
    sizes = torch.zeros(texts, heads, num_parts + 1, dtype=torch.int64, device=key.device)
    sizes.scatter_add_(-1, labels, torch.ones_like(labels))
    return SortedKeys(
        key.flatten(0, 2).index_select(0, rows),
        value.flatten(0, 2).index_select(0, rows),
        (sizes.cumsum(-1) - sizes + head)[..., :num_parts],
    )


class SpanPages(NamedTuple):
    """Pages with keys before the last of the M borders of a span: L of them, U of which grow from border to border.

    L and U are the largest numbers over texts and heads; where a head has fewer, the rest are pages without keys, or
    pages that stay as they are.

    Attributes:
        pages: (B, Hkv, L) int64, which pages.
        counts: (B, Hkv, M, L), their keys before each border.
        before: (B, Hkv, L, ...), summaries of the keys before the first border.
        growing: (B, Hkv, U) int64, places among the L.
        grown: (B, Hkv, M, U, ...), summaries of those at each border.
    """

    pages: Int[Tensor, "B Hkv L"]
    counts: Float[Tensor, "B Hkv M L"]
    before: Summaries
    growing: Int[Tensor, "B Hkv U"]
    grown: Summaries


@dataclass
class PageSums:
    """Sums of all pages over the keys so far, and the texts whose keys come next.

    Attributes:
        key: (B, Hkv, T, D).
        value: (B, Hkv, T, Dv).
        parts: (B, Hkv, T) int64, the page of each key.
        sums: (B, Hkv, P, D + Dv + F + 1), over keys, values, features of keys (`key_features`), and ones.
        summed: keys before this place are in the sums, the sinks left out.
        directions: of the features.
    """

    key: Tensor
    value: Tensor
    parts: Int[Tensor, "B Hkv T"]
    sums: Float[Tensor, "B Hkv P W"]
    summed: int
    directions: Directions | None = None

    @classmethod
    def of_none(
        cls,
        key: Float[Tensor, "B Hkv T D"],
        value: Float[Tensor, "B Hkv T Dv"],
        parts: Int[Tensor, "B Hkv T"],
        num_parts: int,
        sink_tokens: int,
        dtype: torch.dtype,
        directions: Directions | None = None,
    ) -> PageSums:
        """No keys yet; sums will be of this dtype."""
        width = key.shape[-1] + value.shape[-1] + num_features(directions) + 1
        sums = key.new_zeros(*key.shape[:2], num_parts, width, dtype=dtype)
        return cls(key, value, parts, sums, sink_tokens, directions)

    def span(self, borders: list[int]) -> SpanPages:
        """Pages at each of the borders of a span, which rise; the keys before the last one join the sums.

        Args:
            borders: M of them, not before those of earlier spans.
        """
        self._add(borders[0])
        start, before = self.summed, self.sums.clone()
        self._add(borders[-1])
        # In their old order, so that of equal scores the same page wins.
        pages = _marked(self.sums[..., -1] > 0)
        old, new = (_rows(sums, pages) for sums in (before, self.sums))
        growing = _marked(new[..., -1] > old[..., -1])
        grown = self._at_borders(start, borders, pages.gather(-1, growing), _rows(old, growing))
        counts = old[..., -1][:, :, None].repeat(1, 1, len(borders), 1)
        counts.scatter_(-1, growing[:, :, None].expand(*grown.shape[:-1]), grown[..., -1])
        return SpanPages(pages, counts, self._summaries(old), growing, self._summaries(grown))

    def _add(self, border: int) -> None:
        if border > self.summed:
            parts, rows = self.parts[..., self.summed : border], self._summed_up(self.summed, border)
            self.sums.scatter_add_(2, parts[..., None].expand_as(rows), rows)
            self.summed = border

    def _at_borders(self, start: int, borders: list[int], pages: Tensor, before: Tensor) -> Tensor:
        """(B, Hkv, M, U, W): sums of U pages at each border, from those at the first one and the keys from `start` on.

        A page that gains keys in the span must be among those of its head.
        """
        texts, heads, num_pages = pages.shape
        column = torch.zeros_like(self.sums[..., 0], dtype=torch.int64)
        column.scatter_(-1, pages, torch.arange(num_pages, device=pages.device).expand_as(pages))
        places = torch.arange(start, self.summed, device=pages.device)
        # A key joins at the first border after it.
        joins = torch.searchsorted(torch.tensor(borders, device=pages.device), places, right=True)
        row = joins * num_pages + column.gather(-1, self.parts[..., start : self.summed])
        rows = self._summed_up(start, self.summed)
        more = before.new_zeros(texts, heads, len(borders) * num_pages, rows.shape[-1])
        more.scatter_add_(2, row[..., None].expand_as(rows), rows)
        more = more.unflatten(2, (len(borders), num_pages))
        more[:, :, 0] += before
        return more.cumsum(2)

    def _summed_up(self, first: int, last: int) -> Tensor:
        """What the sums are of, for the keys from `first` to `last`."""
        key, value = (part[:, :, first:last].to(self.sums.dtype) for part in (self.key, self.value))
        return pad(torch.cat([key, value, key_features(key, self.directions)], -1), (0, 1), value=1.0)

    def _summaries(self, sums: Tensor) -> Summaries:
        widths = self.key.shape[-1], self.value.shape[-1], num_features(self.directions), 1
        keys, values, features, counts = sums.split(widths, -1)
        sizes, counts = counts.clamp(min=1), counts[..., 0]
        keys, values = keys / sizes, values / sizes
        if keys.ndim == 4:
            return Summaries(counts, keys, values, key_spread(counts, features, keys, self.directions))
        # Heads are the third dimension from the end for `key_spread`; borders go before them.
        each, sums, means = (part.transpose(1, 2) for part in (counts, features, keys))
        return Summaries(counts, keys, values, key_spread(each, sums, means, self.directions).transpose(1, 2))


def _marked(marks: Tensor) -> Tensor:
    """Places of the marks of each row in their order, then others up to the largest number of marks in a row."""
    most = int(marks.sum(-1).max())
    return marks.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)[..., :most]


def _rows(sums: Tensor, places: Tensor) -> Tensor:
    return sums.gather(2, places[..., None].expand(*places.shape, sums.shape[-1]))
