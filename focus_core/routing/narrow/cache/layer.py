"""The layer of a Transformers cache that holds keys and values by narrow groups, one text at a time.

A `DynamicLayer` gives attention all keys in the order of time. This one gives the new keys alone; attention over the
others goes through `NarrowLayer.attend`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin, DynamicLayer

from focus_core.attention import AttentionOutput
from focus_core.errors import FocusError
from focus_core.routing.narrow.cache.text import CachedText, Rotation
from focus_core.routing.narrow.directions import Directions
from focus_core.routing.narrow.reading import Reading

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

PAGE_SIZE = 16
"""Keys of a stored page where whole groups are summarised."""

_OTHER_USE = "start again with an empty cache."


@dataclass(frozen=True)
class Layout:
    """Settings that stored pages depend on; the others may change from call to call."""

    num_groups: int
    page_size: int
    sinks: int
    bits: int | None = None
    directions: Directions | None = None


class NarrowLayer(CacheLayerMixin):
    """Keys and values of a batch, each text on its own and without its padding.

    Attributes:
        texts: one for each row.
        armed: True while an attention module with narrow groups may add tokens.
    """

    is_sliding = False
    is_croppable = True
    supports_early_init = False

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[CachedText] = []
        self.armed = False
        self._layout: Layout | None = None
        self._columns = 0
        # (B, S) bool of the latest call, S columns at least; None without padding.
        self._real: Tensor | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to prepare: `fill` makes the buffers."""
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """The new keys and values as they are; `fill` or `attend` stores them.

        Raises:
            FocusError: the call is not one of hard routing with narrow groups.
        """
        if not self.armed:
            raise FocusError(f"This cache was filled by hard routing with narrow groups: continue so, or {_OTHER_USE}")
        self.armed = False
        self.is_initialized = True
        return key_states, value_states

    def fill(
        self,
        key: Float[Tensor, "B H T D"],
        value: Float[Tensor, "B H T Dv"],
        groups: Int[Tensor, "B H T"] | None,
        rotation: Rotation,
        real: Bool[Tensor, "B T"] | None,
        layout: Layout,
        reading: Reading,
    ) -> None:
        """Store the first tokens of all texts.

        Args:
            key: position-encoded.
            value: of the same tokens.
            groups: of the tokens as keys; None where the reading `attends_all`.
            rotation: cosines and sines of the tokens, (B or 1, T, r).
            real: False for padding; None without.
            layout: settings of the pages.
            reading: window and borders.
        """
        self._layout, self._real, self.texts = layout, real, []
        self._columns, self.is_initialized = key.shape[2], True
        key, value = key.detach(), value.detach()
        # Not `astuple`, which would take directions apart.
        settings = [getattr(layout, field.name) for field in dataclasses.fields(layout)]
        for row in range(len(key)):
            text = CachedText(key[row], value[row], *settings)
            places = _places(real, row)
            of_keys = None if groups is None else groups[row][:, places]
            text.fill(key[row][:, places], value[row][:, places], of_keys, _rotated(rotation, row, places), reading)
            self.texts.append(text)

    def attend(
        self,
        query: Float[Tensor, "B Hq n D"],
        key: Float[Tensor, "B H n D"],
        value: Float[Tensor, "B H n Dv"],
        rotation: Rotation,
        groups: Callable[[Tensor, Rotation], Tensor],
        real: Bool[Tensor, "B S"] | None,
        layout: Layout,
        reading: Reading,
        *,
        scale: float,
        softcap: float | None,
    ) -> AttentionOutput:
        """Store n more tokens of each text and attend for them; no gradients flow through stored keys.

        Args:
            query: position-encoded.
            key: position-encoded.
            value: of the same tokens.
            rotation: cosines and sines of the new tokens, (B or 1, n, r).
            groups: gives those, (1, H, m), of keys (1, H, m, D) with their rotation.
            real: False for padding, over all tokens so far; None without.
            layout: as in `fill`.
            reading: window, sinks, borders and budget.
            scale: factor of the dot products.
            softcap: cap of the logits.

        Returns:
            (B, Hq, n, Dv) and (B, Hq, n); 0 and -inf for padding.

        Raises:
            FocusError: settings of the pages changed since the cache was filled.
        """
        self._require(layout)
        if real is None and self._real is not None:  # a padded text goes on without a mask
            so_far = self._real[:, : self._columns]
            real = torch.cat([so_far, so_far.new_ones(len(key), key.shape[2])], 1)
        self._columns += key.shape[2]
        self._real = real
        key, value = key.detach(), value.detach()

        def assign(keys: Tensor, rotated: Rotation) -> Tensor:
            return groups(keys[None], rotated)[0]

        if real is None and len(self.texts) == 1:
            found = self.texts[0].attend(query[0], key[0], value[0], rotation, assign, reading, scale, softcap)
            return AttentionOutput(found.output[None], found.logsumexp[None])
        new = None if real is None else real[:, self._columns - key.shape[2] : self._columns]
        output = query.new_zeros(*query.shape[:3], value.shape[-1])
        compute = torch.promote_types(query.dtype, torch.float32)
        logsumexp = output.new_full(query.shape[:3], float("-inf"), dtype=compute)
        for row, text in enumerate(self.texts):
            places = _places(new, row)
            tensors = query[row][:, places], key[row][:, places], value[row][:, places]
            found = text.attend(*tensors, _rotated(rotation, row, places), assign, reading, scale, softcap)
            output[row][:, places], logsumexp[row][:, places] = found
        return AttentionOutput(output, logsumexp)

    def append_near(
        self, key: Float[Tensor, "B H 1 D"], value: Float[Tensor, "B H 1 Dv"], rotation: Rotation, layout: Layout
    ) -> tuple[Tensor, Tensor] | None:
        """Store one more token of a text that attends to everything: all keys and values so far, (1, H, N, D) each.

        Returns:
            None, and nothing is stored, where there are several texts, or a page has keys: `attend` takes those.

        Raises:
            FocusError: as `attend`.
        """
        self._require(layout)
        if len(self.texts) != 1 or self._real is not None:
            return None
        stored = self.texts[0].append_near(key[0].detach(), value[0].detach(), rotation)
        if stored is None:
            return None
        self._columns += 1
        return stored[0][None], stored[1][None]

    def _require(self, layout: Layout) -> None:
        if layout != self._layout:
            raise FocusError(f"The settings of narrow groups changed while a cache was in use: {_OTHER_USE}")

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Keys of a mask and their offset."""
        return self._columns + query_length, 0

    def get_seq_length(self) -> int:
        """Tokens of every row so far, padding included."""
        return self._columns

    def get_max_length(self) -> int:
        """-1: no maximum."""
        return -1

    def reset(self) -> None:
        """Forget all tokens."""
        self.texts, self._layout, self._real, self._columns = [], None, None, 0
        self.is_initialized = self.armed = False

    def crop(self, tokens_to_remove: int) -> None:
        """Take back the last tokens of every row, as if they had never come; a negative number, as Transformers has it.

        Raises:
            ValueError: a positive number.
        """
        if tokens_to_remove > 0:
            raise ValueError(f"crop takes a negative number of tokens to remove, not {tokens_to_remove}.")
        self._columns = max(0, self._columns + tokens_to_remove)
        for row, text in enumerate(self.texts):
            text.crop(self._columns if self._real is None else int(self._real[row, : self._columns].sum()))

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row i becomes what row `beam_idx[i]` was; texts that are chosen once are not copied."""
        self._select(beam_idx.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row `repeats` times, side by side."""
        self._select([row for row in range(len(self.texts)) for _ in range(repeats)])

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows."""
        rows = indices.nonzero()[:, 0] if indices.dtype == torch.bool else indices
        self._select(rows.tolist())

    def offload(self) -> None:
        """Refused: pages stay on their device."""
        raise FocusError("Caches of narrow groups cannot be offloaded: use a DynamicCache without offloading.")

    def _select(self, rows: list[int]) -> None:
        if not self.texts:
            return
        taken: set[int] = set()
        texts = []
        for row in rows:
            texts.append(self.texts[row].copy() if row in taken else self.texts[row])
            taken.add(row)
        self.texts = texts
        self._real = None if self._real is None else self._real[rows]


def narrow_layer(past: Any, layer_idx: int) -> NarrowLayer | None:
    """The layer of a cache for narrow groups, in place of an empty dynamic one; arm it for the call that follows.

    Returns:
        None for a cache that `past_length` refuses, or a layer with a window of its own.

    Raises:
        FocusError: the layer was filled in another way.
    """
    if getattr(past, "layer_class_to_replicate", None) is not None:
        while len(past.layers) <= layer_idx:
            past.layers.append(past.layer_class_to_replicate())
    layers = getattr(past, "layers", [])
    layer = layers[layer_idx] if layer_idx < len(layers) else None
    if type(layer) is DynamicLayer:
        if layer.get_seq_length():
            raise FocusError(f"This cache was filled without narrow groups: {_OTHER_USE}")
        layer = layers[layer_idx] = NarrowLayer()
    if not isinstance(layer, NarrowLayer):
        return None
    return layer


def _rotated(rotation: Rotation, row: int, places: slice | Tensor) -> Rotation:
    """The rotation of one row's tokens, (1, n, r) each."""
    if rotation is None:
        return None
    cos, sin = (part[min(row, len(part) - 1)][None, places] for part in rotation)
    return cos, sin


def _places(real: Tensor | None, row: int) -> slice | Tensor:
    """Index of the tokens of one row that are no padding."""
    return slice(None) if real is None else real[row]
