"""How far predictions move with an error in each layer: the same error is harmless in one and matters in another."""

from __future__ import annotations

from itertools import count

import numpy as np
import torch

from focus_core.attention import AttentionOutput
from focus_core.progress import Progress, silent
from focus_core.routing.model import FocusModel
from focus_core.routing.narrow.fitting.changes import (
    change_of,
    entering_states,
    output_projections,
    read_with,
    relative_squares,
)
from focus_core.routing.narrow.fitting.gradients import calls_with_gradients
from focus_core.routing.narrow.fitting.passes import reading_layers
from focus_core.routing.rules import AttentionCall

PROBED, PROBED_BLOCKS = (0.02, 0.05, 0.13), 8
"""Shares, and blocks at most, at which `layer_weights` measures what an error of a layer does."""


def probed(blocks: np.ndarray) -> np.ndarray:
    """The blocks on which `layer_weights` is taken: `PROBED_BLOCKS` at most, evenly spaced."""
    return blocks[np.linspace(0, len(blocks) - 1, min(PROBED_BLOCKS, len(blocks))).round().astype(int)]


def layer_weights(
    focus: FocusModel, blocks: np.ndarray, *, seed: int = 0, progress: Progress = silent
) -> dict[int, float]:
    """How far predictions move with an error of each layer, in nats; layers with a window of their own are left out.

    The divergence of predictions from the untouched model's, to second order (`calls_with_gradients`), over the error
    as `head_costs` takes it: both summed over heads, tokens and the shares `PROBED`, head by head.

    Args:
        focus: narrow routers.
        blocks: (N, T) int64 token ids.
        seed: of the drawn predictions.
        progress: told the share done.
    """
    layers = reading_layers(focus)
    if not layers:
        return {}
    moved, errors = dict.fromkeys(layers, 0.0), dict.fromkeys(layers, 0.0)
    ids = torch.from_numpy(blocks).to(focus.model.device)
    generator, calls = torch.Generator(ids.device).manual_seed(seed), count()
    with entering_states(focus) as streams:
        with torch.inference_mode():
            outputs = output_projections(focus, ids[:1, :8])
        for row in ids:
            for call, gradient in calls_with_gradients(focus, row[None], generator=generator):
                if call.layer not in layers:
                    continue
                progress("Measuring what an error of each layer does", next(calls) / (len(ids) * len(layers)))
                with torch.inference_mode():
                    full = _read(call, 1.0)
                    for share in PROBED:
                        change = change_of(_read(call, share), full)
                        moved[call.layer] += float((change * gradient.flatten(0, 1)).sum(-1).square().sum()) / 2
                        errors[call.layer] += float(
                            relative_squares(change, streams[call.layer], outputs[call.layer]).sum()
                        )
    return {layer: moved[layer] / max(errors[layer], 1e-30) for layer in layers}


def _read(call: AttentionCall, share: float) -> AttentionOutput:
    """Attention where every head reads one share."""
    return AttentionOutput(*read_with(call, share=share, top_k=None, thresholds=None, shares_at=())[:2])
