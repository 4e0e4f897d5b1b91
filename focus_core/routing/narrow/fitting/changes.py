"""What an error of a query head does to the hidden states: changes after the output projection, beside the states."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from focus_core.attention import AttentionOutput
from focus_core.routing.model import FocusModel
from focus_core.routing.narrow.attention import NarrowOutput, narrow_attention
from focus_core.routing.rules import AttentionCall

if TYPE_CHECKING:
    from jaxtyping import Float


def read_with(call: AttentionCall, **changes: Any) -> NarrowOutput:
    """Attention of a call whose reading has other settings; see `Reading` for their names."""
    geometry = call.geometry
    reading = replace(call.routing.reading(), **changes)
    query, key, value = call.together()
    groups, num_groups = call.groups.keys.to(torch.int8).argmax(-1).view(key.shape[:3]), call.groups.keys.shape[-1]
    return narrow_attention(
        query, key, value, groups, num_groups, reading, scale=geometry.scale, softcap=geometry.softcap
    )


def change_of(found: AttentionOutput, full: AttentionOutput) -> Float[Tensor, "Hq T Dv"]:
    """What each query head of one text changes."""
    return found.output.float().flatten(0, 1) - full.output.float().flatten(0, 1)


def relative_squares(change: Tensor, states: Tensor, output: Tensor) -> Float[Tensor, "Hq T"]:
    """Squared change that each query head makes after the output projection, over the squared length of the states.

    Args:
        change: (Hq, T, Dv).
        states: (1, T, d).
        output: (Hq, Dv, d).
    """
    squares = ((change @ (output @ output.mT)) * change).sum(-1)
    return squares / states.float().square().sum(-1).clamp(min=1e-12)


@contextmanager
def entering_states(focus: FocusModel) -> Iterator[dict[int, Tensor]]:
    """The hidden states that enter each decoder layer, (B, T, d) by layer, as they were last."""
    streams: dict[int, Tensor] = {}

    def remember(layer: int) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            streams[layer] = args[0] if args else kwargs["hidden_states"]

        return hook

    handles = [
        focus.decoder_layers[layer].register_forward_pre_hook(remember(layer), with_kwargs=True)
        for layer in focus.layers
    ]
    try:
        yield streams
    finally:
        for handle in handles:
            handle.remove()


def output_projections(focus: FocusModel, ids: Tensor) -> dict[int, Float[Tensor, "Hq Dv d"]]:
    """What each attention module multiplies the outputs of its heads with, by layer.

    It is the last matrix that the module calls, whatever its name and layout.
    """
    last: dict[int, tuple[Any, int]] = {}

    def remember(layer: int) -> Any:
        return lambda module, args: last.__setitem__(layer, (module, args[0].shape[-1]))

    handles = [
        child.register_forward_pre_hook(remember(layer))
        for layer, attention in focus.attention_modules.items()
        for child in attention.modules()
        if not list(child.children()) and getattr(child, "weight", torch.empty(0)).ndim == 2
    ]
    try:
        with focus.routing("off"):
            focus.model.base_model(input_ids=ids, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    found = {}
    heads = focus.model.config.get_text_config().num_attention_heads
    for layer, (module, width) in last.items():
        unit = torch.eye(width, dtype=focus.model.dtype, device=module.weight.device)[:, None]
        matrix = (module(unit) - module(torch.zeros_like(unit)))[:, 0].float()
        found[layer] = matrix.unflatten(0, (heads, -1))
    return found
