"""The cached keys and values of one text under narrow groups: pages of distant keys, and the keys near its end."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from focus_core.attention import AttentionOutput
from focus_core.routing.narrow.cache.attention import Near, attend_stored
from focus_core.routing.narrow.cache.pages import PageStore, zeros
from focus_core.routing.narrow.compiled.machine.memory import COMPILED, as_array
from focus_core.routing.narrow.directions import Directions
from focus_core.routing.narrow.reading import Reading

if TYPE_CHECKING:
    from jaxtyping import Float, Int

Rotation = tuple[Tensor, Tensor] | None
"""Cosines and sines with which a layer rotated some keys, (1, n, r) each; None without rotary embedding."""

Assign = Callable[[Tensor, Rotation], Tensor]
"""Groups (H, n) of rotated keys (H, n, D)."""

SPARE = 8
"""Free places of the buffer of near keys, at least; it is compacted once they are filled."""

_TOGETHER = 256
"""Tokens that attend to everything in one call; its bias has a row for each."""

GROWTH = 32
"""A longer buffer has one free place for this many keys."""


class CachedText:
    """Grows by new tokens, and attends for them; exact to the definition of narrow groups for the text so far.

    Sinks and keys from the border on are near: they lie in one buffer, sinks first. A key becomes a member of a page
    when the border passes it, and its group is not asked for before that.

    Attributes:
        sinks: keys at the start that stay near.
        length: tokens so far.
        border: first key of the window, `sinks` at least; keys from `sinks` up to it are in pages.
        near_keys: (H, N, D).
        near_values: (H, N, Dv).
        first: place of the border in the buffer.
    """

    def __init__(
        self,
        key: Float[Tensor, "H n D"],
        value: Float[Tensor, "H n Dv"],
        num_groups: int,
        page_size: int,
        sinks: int,
        bits: int | None = None,
        directions: Directions | None = None,
    ) -> None:
        """No tokens yet; for keys and values of these widths, dtype and device."""
        self.sinks = self.border = self.first = sinks
        self.length = 0
        # Not views, which would keep all of the given keys in memory.
        self.near_keys, self.near_values = (zeros(part, len(part), 0, part.shape[-1]) for part in (key, value))
        # Short texts never have a page.
        self._new_pages = partial(PageStore, self.near_keys, self.near_values, num_groups, page_size, bits, directions)
        self._arrays: tuple[np.ndarray, np.ndarray] | None = None
        # Groups that are known of the first keys from the border on; the other keys have their rotations.
        self._known = torch.zeros(len(key), 0, dtype=torch.long, device=key.device)
        self._rotations: list[tuple[Tensor, Tensor]] = []

    def fill(
        self,
        key: Float[Tensor, "H T D"],
        value: Float[Tensor, "H T Dv"],
        groups: Int[Tensor, "H T"] | None,
        rotation: Rotation,
        reading: Reading,
    ) -> None:
        """Store the first T tokens; groups may be None where the reading `attends_all`."""
        border = max(self.sinks, reading.border(key.shape[1]))
        if border > self.sinks and groups is not None:
            distant = slice(self.sinks, border)
            self.pages.add(groups[:, distant], key[:, distant], value[:, distant])
        if groups is not None:
            # Not a view, which would keep all groups in memory.
            self._known = groups[:, border:].to(torch.long, copy=True)
        elif rotation is not None:
            self._rotations = [_part(rotation, slice(self.sinks, None))]
        self.border, self.length = border, key.shape[1]
        self._new_buffer(key[:, border:], value[:, border:], 0)
        sinks = min(self.sinks, self.length)
        self.near_keys[:, :sinks], self.near_values[:, :sinks] = key[:, :sinks], value[:, :sinks]

    def attend(
        self,
        query: Float[Tensor, "Hq n D"],
        key: Float[Tensor, "H n D"],
        value: Float[Tensor, "H n Dv"],
        rotation: Rotation,
        assign: Assign,
        reading: Reading,
        scale: float,
        softcap: float | None,
    ) -> AttentionOutput:
        """Add n tokens at the end, and attend for them: (Hq, n, Dv) and (Hq, n)."""
        found = []
        start, total = 0, key.shape[1]
        while start < total:
            stop = min(total, start + self._with_one_border(reading))
            self._move_border(max(self.sinks, reading.border(self.length)), assign)
            # All at once nothing is cut, since every operator counts in the time of a single token.
            new = None if stop - start == total else slice(start, stop)
            asking, *added = (part if new is None else part[:, new] for part in (query, key, value))
            turned = rotation if new is None or rotation is None else _part(rotation, new)
            self._append(added[0], added[1], turned)
            places = self.first, self.length, self.border, self.sinks
            near = Near(self.near_keys, self.near_values, *places, self._near_arrays())
            found.append(attend_stored(asking, self.pages, near, reading, scale, softcap))
            start = stop
        if len(found) == 1:
            return found[0]
        if not found:
            return AttentionOutput(query.new_zeros(len(query), 0, value.shape[-1]), query.new_zeros(len(query), 0))
        return AttentionOutput(*(torch.cat(parts, 1) for parts in zip(*found)))

    def append_near(
        self, key: Float[Tensor, "H 1 D"], value: Float[Tensor, "H 1 Dv"], rotation: Rotation
    ) -> tuple[Tensor, Tensor] | None:
        """Add a token that attends to everything: the keys and values of all tokens, (H, N, D) and (H, N, Dv).

        Returns:
            None, and nothing is added, where a page has keys.
        """
        if self.border > self.sinks:
            return None
        self._append(key, value, rotation)
        return self.near_keys[:, : self.length], self.near_values[:, : self.length]

    def _with_one_border(self, reading: Reading) -> int:
        """How many of the next tokens have one border: to the end of a chunk, or of the part that attends to all."""
        if reading.attends_all(self.length):
            return min(_TOGETHER, reading.full_until(reading.full_below + reading.chunk) - self.length)
        return reading.chunk - self.length % reading.chunk

    def crop(self, length: int) -> None:
        """Keep the first `length` tokens, as if the others had never come."""
        if length < self.border:
            self._take_back(max(self.sinks, length))
        self.length = length
        window = max(0, length - self.border)
        without_groups = window - self._known.shape[1]
        self._known = self._known[:, :window]
        if without_groups <= 0:
            self._rotations = []
        elif self._rotations:
            self._rotations = [_part(self._joined(), slice(without_groups))]

    def copy(self) -> CachedText:
        """The same text in buffers of its own."""
        other = object.__new__(CachedText)
        vars(other).update(vars(self), pages=self.pages.copy())
        with torch.inference_mode(False):  # see `zeros`
            other.near_keys, other.near_values = self.near_keys.clone(), self.near_values.clone()
        other._rotations, other._arrays = list(self._rotations), None
        return other

    def __deepcopy__(self, memo: dict[int, object]) -> CachedText:
        """Of `copy.deepcopy`, which users of a cached prompt call, in inference mode or not."""
        return self.copy()

    @cached_property
    def pages(self) -> PageStore:
        """Keys between the sinks and the border."""
        return self._new_pages()

    @property
    def _last(self) -> int:
        """Place after the last key in the buffer of near keys."""
        return self.first + self.length - self.border

    def _append(self, key: Tensor, value: Tensor, rotation: Rotation) -> None:
        if rotation is not None:
            # Sinks never pass the border, and their groups are never asked for.
            sinks = max(0, self.sinks - self.length)
            self._rotations.append(_part(rotation, slice(sinks, None)) if sinks else rotation)
        if self._last + key.shape[1] > self.near_keys.shape[1]:
            window = slice(self.first, self._last)
            self._new_buffer(self.near_keys[:, window], self.near_values[:, window], key.shape[1])
        new = slice(self._last, self._last + key.shape[1])
        arrays = self._near_arrays()
        if arrays is None:
            self.near_keys[:, new], self.near_values[:, new] = key, value
        else:
            arrays[0][:, new], arrays[1][:, new] = as_array(key), as_array(value)
        self.length += key.shape[1]

    def _near_arrays(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Near keys and values for compiled code, until there is a new buffer; None where nothing is compiled."""
        if self._arrays is None and self.near_keys.device.type == "cpu" and self.near_keys.dtype in COMPILED:
            self._arrays = as_array(self.near_keys), as_array(self.near_values)
        return self._arrays

    def _new_buffer(self, key: Tensor, value: Tensor, room: int) -> None:
        """Sinks as they are, then the window, then room for more keys."""
        for name, window in (("near_keys", key), ("near_values", value)):
            old = getattr(self, name)
            end = self.sinks + window.shape[1]
            buffer = zeros(window, len(window), end + room + max(SPARE, window.shape[1] // GROWTH), window.shape[-1])
            sinks = old[:, : self.sinks]
            buffer[:, : sinks.shape[1]], buffer[:, self.sinks : end] = sinks, window
            setattr(self, name, buffer)
        self.first, self._arrays = self.sinks, None

    def _move_border(self, border: int, assign: Assign) -> None:
        """Move keys of the window into pages, or back."""
        if border < self.border:
            self._take_back(border)
        elif border > self.border:
            passed = border - self.border
            window = slice(self.first, self.first + passed)
            key, value = self.near_keys[:, window], self.near_values[:, window]
            groups = self._known[:, :passed]
            if groups.shape[1] < passed:
                unknown = passed - groups.shape[1]
                rotation = None
                if self._rotations:
                    joined = self._joined()
                    rotation = _part(joined, slice(unknown))
                    self._rotations = [_part(joined, slice(unknown, None))]
                groups = torch.cat([groups, assign(key[:, groups.shape[1] :], rotation)], 1)
            self._known = self._known[:, passed:]
            self.pages.add(groups, key, value)
            self.first, self.border = self.first + passed, border

    def _take_back(self, border: int) -> None:
        key, value, groups = self.pages.take_back(border - self.sinks)
        window = slice(self.first, self._last)
        key, value = torch.cat([key, self.near_keys[:, window]], 1), torch.cat([value, self.near_values[:, window]], 1)
        self._new_buffer(key, value, 0)
        self._known = torch.cat([groups.long(), self._known], 1)
        self.border = border

    def _joined(self) -> tuple[Tensor, Tensor]:
        cos, sin = zip(*self._rotations)
        return torch.cat(cos, 1), torch.cat(sin, 1)


def _part(rotation: tuple[Tensor, Tensor], places: slice) -> tuple[Tensor, Tensor]:
    return rotation[0][:, places], rotation[1][:, places]
