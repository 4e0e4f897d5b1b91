"""Keys and values of one text, stored by page, with the sums of every page; grows, and goes back key by key."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from focus_core.routing.narrow.compiled.cache.storing import (
    NewRows,
    Stored,
    add_keys,
    open_pages,
    opened,
    rows_together,
    without_row,
    write_last_keys,
)
from focus_core.routing.narrow.compiled.machine.memory import COMPILED, as_array
from focus_core.routing.narrow.compiled.rows import directions_of
from focus_core.routing.narrow.directions import Directions, feature_sums, key_features, key_spread, num_features

if TYPE_CHECKING:
    from jaxtyping import Float, Int

SPARE, GROWTH = 8, 128
"""Buffers grow by at least `SPARE` places, and by 1 / `GROWTH` of their length, so that few growths copy them.

At first they have no free place: the next keys come a chunk at a time, and would not find enough.
"""

_OF_ROWS = ("keys", "values", "key_scales", "value_scales")
_OF_PAGES = ("counts", "key_sums", "value_sums", "spread", "groups", "starts")


def zeros(like: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    """Zeros on the device of a tensor; they may be written to in and out of inference mode."""
    with torch.inference_mode(False):
        return torch.zeros(shape, dtype=dtype or like.dtype, device=like.device)


class PageStore:
    """Pages of narrow groups of all H key/value heads of one text, in buffers that grow.

    A page holds up to `size` keys of one group in the order of their arrival. Pages are numbered in the order in which
    they were opened, for each head on its own; so the pages in use come first, and those of one group are in order.

    The rows of a page are taken a few at a time, `rows_together`, so a page with few keys takes little memory. Those
    that are taken in one call lie side by side. Rows stay with a page when its keys are taken back. The last key and
    value of a page have no row, see `without_row`: they are what the sums have beyond the others. They are written when
    the page gets another key.

    Attributes:
        size: P, keys of a page.
        num_groups: K.
        bits: 8 for keys and values that are rounded, see `rounded`; None for those that stay as they are.
        directions: of the spread; None for none.
        keys: (H, R, D), R rows at most; int8 with 8 bits.
        values: (H, R, Dv).
        key_scales: (H, R, 1) float32, of rounded rows; (H, R, 0) without.
        value_scales: (H, R, 1).
        starts: (H, N, S) int32, N pages at most, the first row of each of the S pieces of a page, -1 for those that
            have none; rows without a key have no meaning.
        counts: (H, N) float, keys of each page; 0 from the first unused page on.
        key_sums: (H, N, D), at least float32; of keys before they are rounded, unless some were taken back.
        value_sums: (H, N, Dv).
        spread: (H, N, F), see `key_spread`.
        groups: (H, N) int32, the group of each page.
        arrived: (H, n) uint8 for up to 256 groups, else int32, the group of each key in the order of arrival; the first
            `length` are valid.
        length: keys stored.
        used: pages in use, the largest over heads.
    """

    def __init__(
        self,
        key: Float[Tensor, "H n D"],
        value: Float[Tensor, "H n Dv"],
        num_groups: int,
        size: int,
        bits: int | None = None,
        directions: Directions | None = None,
    ) -> None:
        heads, compute = len(key), torch.promote_types(key.dtype, torch.float32)
        self.size, self.num_groups, self.bits, self.directions = size, num_groups, bits, directions
        self.length = self.used = 0
        self._dtype = key.dtype
        stored = key.dtype if bits is None else torch.int8
        self.keys = zeros(key, heads, 0, key.shape[-1], dtype=stored)
        self.values = zeros(value, heads, 0, value.shape[-1], dtype=stored)
        self.key_scales = zeros(key, heads, 0, 0 if bits is None else 1, dtype=torch.float32)
        self.value_scales = zeros(key, heads, 0, 0 if bits is None else 1, dtype=torch.float32)
        self._spared, self._together = without_row(bits is not None), rows_together(size)
        self.starts = zeros(key, heads, 0, -(-(size - self._spared) // self._together), dtype=torch.int32)
        self.counts = zeros(key, heads, 0, dtype=compute)
        self.key_sums = zeros(key, heads, 0, key.shape[-1], dtype=compute)
        self.value_sums = zeros(key, heads, 0, value.shape[-1], dtype=compute)
        self.spread = zeros(key, heads, 0, num_features(directions), dtype=compute)
        self.groups = zeros(key, heads, 0, dtype=torch.int32)
        self.arrived = zeros(key, heads, 0, dtype=torch.uint8 if num_groups <= 256 else torch.int32)
        self._members = zeros(key, heads, num_groups, dtype=torch.long)
        # The newest page of each group, -1 without one.
        self._open = zeros(key, heads, num_groups, dtype=torch.long).fill_(-1)
        self._pages = zeros(key, heads, 1, dtype=torch.long)
        self._taken = zeros(key, heads, 1, dtype=torch.long)
        self._arrays: tuple[np.ndarray, ...] | None = None

    def add(self, groups: Int[Tensor, "H n"], key: Float[Tensor, "H n D"], value: Float[Tensor, "H n Dv"]) -> None:
        """Store the next keys, each in the open page of its group."""
        groups = groups.long()
        if key.device.type == "cpu" and key.dtype in COMPILED:
            self._add_compiled(groups, key, value)
        else:
            self._add(groups, key, value)

    def _add_compiled(self, groups: Tensor, key: Tensor, value: Tensor) -> None:
        """`add` in one pass over the keys."""
        groups, key, value = (part.contiguous() for part in (groups, key, value))
        rows = NewRows(*map(as_array, self._rows(key, value)))
        new, keys, values = map(as_array, (groups, key, value))
        members, newest, pages, taken = (part.numpy() for part in (self._members, self._open, self._pages, self._taken))
        more_pages, more_rows = opened(new, members, self.size, self._spared)
        most = int((pages[:, 0] + more_pages).max()), int((taken[:, 0] + more_rows).max())
        self._grow(*most, self.length + new.shape[1])
        stored, slots = Stored(*self.arrays()), np.empty(new.shape, np.int32)
        open_pages(new, stored, slots, self.size, self._spared, members, newest, pages, taken)
        if self.bits is None:
            write_last_keys(stored, slots, self.size)
        add_keys(keys, values, rows, stored, directions_of(self.directions, len(keys), keys.shape[2]), slots, self.size)
        self._arrive(groups)

    def _add(self, groups: Tensor, key: Tensor, value: Tensor) -> None:
        """`add` on any device, in any dtype."""
        arriving, rank = self._ranks(groups)
        rank = rank + self._members.gather(1, groups)
        in_page, together = rank % self.size, self._together
        opens, row = in_page == 0, in_page - self._spared
        number = self._pages + opens.cumsum(1) - 1
        self._members += arriving
        self._pages += opens.sum(1, keepdim=True)
        taking = (self.size - self._spared - row).clamp(0, together) * ((row >= 0) & (row % together == 0))
        most = int(self._pages.max()), int((self._taken + taking.sum(1, keepdim=True)).max())
        self._grow(*most, self.length + groups.shape[1])
        heads = torch.arange(len(groups), device=groups.device)[:, None].expand_as(groups)
        self.groups[heads[opens], number[opens]] = groups[opens].int()
        page = self._page_of(groups, rank)
        self._open.scatter_reduce_(1, groups, page, "amax")
        self._arrive(groups)
        features = self.features()
        # Pages with a key that get another one: the last has no row so far.
        goes_on = (in_page > 0) & (in_page == self.counts.gather(1, page)) & (self._spared > 0)
        last = heads[goes_on], page[goes_on], in_page[goes_on] - 1
        each = torch.arange(len(last[0]), device=groups.device)
        last_rows = [part[each, 0, last[2]] for part in self.restored(last[0][:, None], last[1][:, None])]
        self.counts.scatter_add_(1, page, torch.ones_like(page, dtype=self.counts.dtype))
        self._take_rows()
        self._write(*last, last_rows)
        has_row = in_page < self.counts.gather(1, page) - self._spared
        self._write(heads[has_row], page[has_row], in_page[has_row], [part[has_row] for part in self._rows(key, value)])
        for sums, vectors in ((self.key_sums, key), (self.value_sums, value)):
            sums.scatter_add_(1, page[..., None].expand_as(vectors), vectors.to(sums.dtype))
        new = key_features(key.to(features.dtype), self.directions)
        features.scatter_add_(1, page[..., None].expand_as(new), new)
        self._spread_anew(heads, page, features[heads, page])

    def take_back(self, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """Keep the first `length` keys, as if the others had never come; sums are taken anew where keys leave.

        Returns:
            Keys (H, n, D), values (H, n, Dv) and groups (H, n) of those that left, in the order of arrival.
        """
        groups = self.arrived[:, length : self.length].long()
        leaving, rank = self._ranks(groups)
        rank = rank + (self._members - leaving).gather(1, groups)
        heads, page = torch.arange(len(groups), device=groups.device)[:, None], self._page_of(groups, rank)
        keys, values = (part.to(self._dtype) for part in self.restored(heads, page))
        place = torch.arange(groups.shape[1], device=groups.device), rank % self.size
        left = keys[heads, *place], values[heads, *place], groups
        self.counts.scatter_add_(1, page, torch.full_like(page, -1, dtype=self.counts.dtype))
        stays = torch.arange(self.size, device=page.device) < self.counts.gather(1, page)[..., None]
        for sums, rows in ((self.key_sums, keys), (self.value_sums, values)):
            sums[heads, page] = torch.where(stays[..., None], rows.to(sums.dtype), 0).sum(2)
        # (H, n P, D): heads are the third dimension from the end.
        features = key_features(keys.to(self.spread.dtype).flatten(1, 2), self.directions).unflatten(1, stays.shape[1:])
        self._spread_anew(heads, page, torch.where(stays[..., None], features, 0).sum(2))
        self._members -= leaving
        self._pages.copy_((self.counts > 0).sum(1, keepdim=True))
        self.length, self.used = length, int(self._pages.max()) if self.counts.shape[1] else 0
        numbers = torch.arange(self.used, device=page.device).expand(len(page), -1)
        numbers = numbers.masked_fill(numbers >= self._pages, -1)
        self._open.fill_(-1).scatter_reduce_(1, self.groups[:, : self.used].long(), numbers, "amax")
        return left

    def features(self) -> Float[Tensor, "H N F"]:
        """Sums of the features of each page's keys, see `key_features`."""
        means = self.key_sums / self.counts.clamp(min=1)[..., None]
        return feature_sums(self.counts, self.spread, means, self.directions)

    def arrays(self) -> tuple[np.ndarray, ...]:
        """The buffers that `Stored` names, on a CPU, as `as_array` has them.

        Remembered until buffers grow, since every decoded token asks in every layer.
        """
        if self._arrays is None:
            self._arrays = tuple(as_array(getattr(self, name)) for name in Stored._fields)
        return self._arrays

    def restored(
        self, heads: Int[Tensor, "H 1"], pages: Int[Tensor, "H n"]
    ) -> tuple[Float[Tensor, "H n P D"], Float[Tensor, "H n P Dv"]]:
        """Keys and values of some pages as numbers: float32 where they are rounded; any, beyond a page's count.

        Args:
            heads: broadcastable to the pages.
            pages: numbers below `used`.
        """
        place = torch.arange(self.size - self._spared, device=self.keys.device)
        starts = self.starts[heads, pages].clamp(min=0).long()
        rows = heads[..., None], starts[..., place // self._together] + place % self._together
        keys, values = self.keys[rows], self.values[rows]
        if self.bits is not None:
            return keys * self.key_scales[rows], values * self.value_scales[rows]
        last = self.counts[heads, pages].long() - 1
        sums = self.key_sums[heads, pages], self.value_sums[heads, pages]
        return _with_last(keys, sums[0], last), _with_last(values, sums[1], last)

    def _ranks(self, groups: Int[Tensor, "H n"]) -> tuple[Int[Tensor, "H K"], Int[Tensor, "H n"]]:
        """How many of some keys each group has, and how many before each key are of its group."""
        order = groups.argsort(dim=-1, stable=True)
        number = torch.zeros_like(self._members).scatter_add_(1, groups, torch.ones_like(groups))
        place = torch.arange(groups.shape[1], device=groups.device).expand_as(groups)
        first = (number.cumsum(1) - number).gather(1, groups)
        return number, torch.empty_like(groups).scatter_(1, order, place) - first

    def _page_of(self, groups: Int[Tensor, "H n"], rank: Int[Tensor, "H n"]) -> Int[Tensor, "H n"]:
        """The page of the key of each rank in its group, of as many as `_members` says."""
        numbers = torch.arange(self.used, device=groups.device)
        of_pages = self.groups[:, : self.used].masked_fill(numbers >= self._pages, self.num_groups)
        in_group = -(-self._members // self.size)
        first = (in_group.cumsum(1) - in_group).gather(1, groups)
        return of_pages.argsort(dim=-1, stable=True).gather(1, first + rank // self.size)

    def _arrive(self, groups: Int[Tensor, "H n"]) -> None:
        """Note the groups of new keys; there is room."""
        self.arrived[:, self.length : self.length + groups.shape[1]] = groups
        self.length += groups.shape[1]

    def _take_rows(self) -> None:
        """Give rows to the pieces of pages that need one and have none, page after page."""
        pieces = torch.arange(self.starts.shape[2], device=self.counts.device) * self._together
        new = (self.counts[..., None] - self._spared > pieces) & (self.starts < 0)
        rows = new * (self.size - self._spared - pieces).clamp(max=self._together)
        stops = self._taken + rows.flatten(1).cumsum(1)
        self.starts.copy_(torch.where(new, stops.view_as(new) - rows, self.starts))
        self._taken += rows.sum((1, 2), keepdim=True)[:, 0]

    def _write(self, heads: Tensor, pages: Tensor, places: Tensor, rows: Sequence[Tensor]) -> None:
        """Write keys, values and their scales, or the first of these, at some places of pages; (n,) each."""
        row = self.starts[heads, pages, places // self._together] + places % self._together
        for buffer, part in zip((self.keys, self.values, self.key_scales, self.value_scales), rows):
            buffer[heads, row] = part.to(buffer.dtype)

    def _rows(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """New keys and values as they are stored, with their scales (H, n, 1); (H, n, 0) without."""
        if self.bits is None:
            none = self.key_scales.new_zeros(*key.shape[:2], 0)
            return key, value, none, none
        (keys, key_scales), (values, value_scales) = rounded(key), rounded(value)
        return keys, values, key_scales[..., None], value_scales[..., None]

    def __getstate__(self) -> dict[str, Any]:
        """Of `copy.deepcopy`, which users of a cached prompt call: arrays of a copy are those of its own buffers."""
        return {**vars(self), "_arrays": None}

    def copy(self) -> PageStore:
        """The same pages in buffers of their own."""
        with torch.inference_mode(False):
            return copy.deepcopy(self)

    def _spread_anew(self, heads: Tensor, page: Int[Tensor, "H n"], features: Float[Tensor, "H n F"]) -> None:
        """Take the spread of some pages from sums over their keys."""
        counts = self.counts[heads, page]
        means = self.key_sums[heads, page] / counts.clamp(min=1)[..., None]
        self.spread[heads, page] = key_spread(counts, features, means, self.directions)

    def _grow(self, pages: int, rows: int, length: int) -> None:
        """Make room for so many pages, rows of pages, and keys."""
        self.used = pages
        # Rows of a piece at least, for `restored` to look at.
        rows = max(rows, self._together)
        for names, needed in ((_OF_PAGES, pages), (_OF_ROWS, rows), (("arrived",), length)):
            held = getattr(self, names[0]).shape[1]
            if needed > held:
                self._arrays = None
                more = needed - held + (max(SPARE, needed // GROWTH) if held else 0)
                for name in names:
                    setattr(self, name, _longer(getattr(self, name), more, -1 if name == "starts" else 0))


def _with_last(
    rows: Float[Tensor, "H n R D"], sums: Float[Tensor, "H n D"], last: Int[Tensor, "H n"]
) -> Float[Tensor, "H n P D"]:
    """Rows of pages with one more place, where the last key of each page is: what sums have beyond those before it.

    These are added up as the sums were, in the order of arrival, so that roundings are the same.
    """
    total = torch.zeros_like(sums)
    for row in range(rows.shape[2]):
        total += torch.where((row < last)[..., None], rows[:, :, row], 0)
    found = (sums - total)[:, :, None].to(rows.dtype)
    return F.pad(rows, [0, 0, 0, 1]).scatter(2, last.clamp(min=0)[..., None, None].expand_as(found), found)


def rounded(vectors: Float[Tensor, "H n D"]) -> tuple[Int[Tensor, "H n D"], Float[Tensor, "H n"]]:
    """Vectors as int8 and the scale of each: its largest component is 127 times the scale, in float32.

    A component is off by half the scale at most.
    """
    vectors = vectors.float()
    scales = vectors.abs().amax(-1) / 127
    codes = (vectors / scales.clamp(min=torch.finfo(torch.float32).tiny)[..., None]).round()
    return codes.to(torch.int8), scales


def _longer(buffer: Tensor, more: int, fill: int) -> Tensor:
    """(H, N, ...) to (H, N + more, ...)."""
    with torch.inference_mode(False):  # see `zeros`
        return F.pad(buffer, [0, 0] * (buffer.ndim - 2) + [0, more], value=fill)
