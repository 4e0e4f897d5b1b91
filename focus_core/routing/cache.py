"""Keeps each past token's routing beside its key in a Transformers cache, through beam search and cropping.

A Transformers cache is a list of layers that own tensors and can reorder, crop and select them. The first routing
stored in a layer turns it into an instance of a subclass, which does the same to one more tensor, `routing` (B, T, K).
Narrow groups have a layer of their own, in `focus_core.routing.narrow.cache.layer`.
`DynamicIndexedLayer` of transformers.cache_utils carries indexer keys in the same way.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicLayer

from focus_core.errors import FocusError
from focus_core.routing.narrow.cache.layer import NarrowLayer

CACHE_NAMES = ("cache", "past_key_values")
"""Names of the argument that holds the cache: that of Transformers 5.24 and newer first, then the older one."""


def given_cache(*arguments: Mapping[str, Any]) -> Any:
    """The cache among the arguments of a call, under either of its names; None without one."""
    found = (each[name] for each in arguments for name in CACHE_NAMES if each.get(name) is not None)
    return next(found, None)


def cache_argument(model: nn.Module, past: Any) -> dict[str, Any]:
    """The argument that gives a model its cache, by the name that this model takes."""
    return {_cache_name(type(model)) or CACHE_NAMES[-1]: past}


def cache_renamed(model: nn.Module, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call, the cache among them by the name that this model takes.

    Wrappers of models, which take any name, get it as it was given.
    """
    if not any(name in arguments for name in CACHE_NAMES) or _cache_name(type(model)) is None:
        return arguments
    others = {name: value for name, value in arguments.items() if name not in CACHE_NAMES}
    return {**others, **cache_argument(model, given_cache(arguments))}


@lru_cache
def _cache_name(model_class: type[nn.Module]) -> str | None:
    known = inspect.signature(model_class.forward).parameters
    return next((name for name in CACHE_NAMES if name in known), None)


@cache
def _routed_class(layer_class: Any) -> type:
    """A subclass of a dynamic cache layer class that repeats every operation on keys on `routing`.

    Made by single inheritance, so that it has the layout of its base and a live layer can change into it.
    """

    class RoutedLayer(layer_class):
        _layer_type = None  # Keeps Transformers from registering this class as the layer of a config name.
        routing: Tensor | None = None

        def reset(self) -> None:
            self.routing = None
            super().reset()

        def reorder_cache(self, beam_idx: Tensor) -> None:
            super().reorder_cache(beam_idx)
            if self.routing is not None:
                self.routing = self.routing.index_select(0, beam_idx.to(self.routing.device))

        def crop(self, tokens_to_remove: int) -> None:
            super().crop(tokens_to_remove)
            if self.routing is not None and tokens_to_remove != 0:
                self.routing = self.routing[:, : -abs(tokens_to_remove)]

        def batch_repeat_interleave(self, repeats: int) -> None:
            super().batch_repeat_interleave(repeats)
            if self.routing is not None:
                self.routing = self.routing.repeat_interleave(repeats, dim=0)

        def batch_select_indices(self, indices: Tensor) -> None:
            super().batch_select_indices(indices)
            if self.routing is not None:
                self.routing = self.routing[indices, ...]

    return RoutedLayer


def past_length(past: Any, layer_idx: int) -> int:
    """Tokens of this layer already in the cache, 0 without a cache.

    Raises:
        FocusError: a cache with keys that do not grow one by one (static or quantised), which routing cannot follow.
    """
    if past is None:
        return 0
    if not isinstance(past, Cache):
        raise FocusError(f"Focus cannot route with a {type(past).__name__}: use a DynamicCache.")
    if layer_idx >= len(past.layers):
        return 0
    if not isinstance(past.layers[layer_idx], (DynamicLayer, NarrowLayer)):
        name = type(past.layers[layer_idx]).__name__
        raise FocusError(f"Focus cannot route with a cache of {name}: generate with the default dynamic cache.")
    return past.get_seq_length(layer_idx)


def append_routing(past: Any, layer_idx: int, routing: Tensor, num_keys: int) -> Tensor:
    """Store the new tokens' routing after the keys were updated, and return that of all keys.

    Args:
        past: the cache, or None.
        layer_idx: layer of the cache.
        routing: (B, Tq, K) of the new tokens.
        num_keys: T, keys that attention will see; a sliding-window layer may have dropped older ones.

    Returns:
        (B, T, K).

    Raises:
        FocusError: the cache was filled without routing, or in another mode.
    """
    if past is None:
        return routing
    layer = past.layers[layer_idx]
    if not hasattr(layer, "routing"):
        layer.__class__ = _routed_class(type(layer))
    stored = layer.routing
    if stored is not None:
        if stored.dtype != routing.dtype:
            raise FocusError("The routing mode changed while a cache was in use: start again with an empty cache.")
        routing = torch.cat([stored.to(routing.device), routing], dim=1)
    if routing.shape[1] < num_keys:
        raise FocusError("This cache was filled without routing: start again with an empty cache.")
    layer.routing = routing[:, routing.shape[1] - num_keys :]
    return layer.routing
