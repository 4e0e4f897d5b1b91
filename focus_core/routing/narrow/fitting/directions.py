"""Directions in which the spread of keys is told apart: where queries are long and the keys of a page are far apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from focus_core.progress import Progress, silent
from focus_core.routing.model import FocusModel
from focus_core.routing.narrow.fitting.passes import FRESH, Kept, measured_calls
from focus_core.routing.rules import AttentionCall

if TYPE_CHECKING:
    from jaxtyping import Float


def fit_directions(focus: FocusModel, blocks: np.ndarray, *, kept: Kept = FRESH, progress: Progress = silent) -> None:
    """Store in the routers the directions along which logits of the keys of a page differ most.

    Args:
        focus: narrow routers with `spread_directions`, their groups fitted.
        blocks: (N, T) int64 token ids of broad text.
        kept: what this fit measured before.
        progress: told the share done.
    """
    sums: dict[int, dict[str, Tensor]] = {}
    passes = measured_calls(
        focus, blocks, lambda call, _: _moments(call), name="directions", label="Finding directions of spread",
        kept=kept, progress=progress, by_error=False, count_spread=False, spread_directions=0,
    )  # fmt: skip
    for found in passes:
        for layer, own in found.items():
            before = sums.get(layer)
            sums[layer] = own if before is None else {name: part + before[name] for name, part in own.items()}
    for layer, moments in sums.items():
        stored: Any = focus.router(layer).directions
        stored.copy_(leading_directions(moments["queries"], moments["keys"], stored.shape[-1]))


def leading_directions(
    queries: Float[Tensor, "Hkv D D"], keys: Float[Tensor, "Hkv D D"], count: int
) -> Float[Tensor, "Hkv D r"]:
    """Left singular vectors of the product of two second moments, the largest first.

    Were queries and pages independent, the mean variance of logits would be in proportion to the trace of this product.

    Args:
        queries: sums of q q^T.
        keys: likewise, of keys about the means of their pages.
        count: r.
    """
    return torch.linalg.svd(queries @ keys).U[..., :count].float()


def _moments(call: AttentionCall) -> dict[str, Tensor]:
    """Second moments of the queries of each key/value head, and of keys about the means of their pages."""
    query, key = (part.double() for part in call.together()[:2])
    reading = call.routing.reading()
    parts, total = reading.parts(call.routing.key_groups.view(key.shape[:3]), call.config.num_groups)
    first = reading.sink_tokens
    keys, places = key[:, :, first:], parts[:, :, first:, None].expand_as(key[:, :, first:])
    sums = keys.new_zeros(*keys.shape[:2], total, keys.shape[-1]).scatter_add_(2, places, keys)
    counts = torch.zeros_like(sums).scatter_add_(2, places, torch.ones_like(keys))
    about = keys - (sums / counts.clamp(min=1)).gather(2, places)
    asking = query.unflatten(1, (key.shape[1], -1)).flatten(2, 3)
    return {"queries": (asking.mT @ asking)[0], "keys": (about.mT @ about)[0]}
