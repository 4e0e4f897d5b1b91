"""How much of the text each query head must read: its error at several shares, and shares that make their sum least.

Heads differ by a factor of a hundred: some look for one token, others take a mean. One share for all is too much for
most and too little for a few.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from focus_core.attention import AttentionOutput
from focus_core.progress import Progress, silent
from focus_core.routing.model import FocusModel
from focus_core.routing.narrow.attention import narrow_attention
from focus_core.routing.routers.narrow import MEANS
from focus_core.routing.rules import AttentionCall, Rule, hard_groups

if TYPE_CHECKING:
    from jaxtyping import Float

MEASURED = (0.0, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.13, 0.16, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0)
"""Shares at which the error of every head is measured; 1 is full attention."""
SPARSELY = (*MEASURED[:-1:2], 1.0)
"""Those in longer texts, where each takes minutes."""


def fit_shares(focus: FocusModel, texts: Sequence[np.ndarray], *, progress: Progress = silent) -> None:
    """Measure what each query head needs, and store its share for every mean share in the routers.

    Args:
        focus: narrow routers with `shares_by_need`, their groups fitted.
        texts: for each of `FocusConfig.shares_at`, or alone without them: (N, T) int64 token ids of broad text, longer
            than the window.
        progress: told the share done.
    """
    for place, blocks in enumerate(texts):
        measured = SPARSELY if place else MEASURED
        errors = head_errors(focus, blocks, measured, progress=progress)
        layers = sorted(errors)
        if not layers:  # every layer has a sliding window of its own, and reads nothing
            return
        planned = plan_shares(np.concatenate([errors[layer] for layer in layers]), measured, MEANS)
        for layer, shares in zip(layers, np.split(planned, len(layers), axis=1)):
            stored: Any = focus.router(layer).shares
            (stored[place] if focus.config.shares_at else stored).copy_(torch.from_numpy(shares))


def plan_shares(
    errors: Float[np.ndarray, "N S"], measured: Sequence[float], means: Sequence[float]
) -> Float[np.ndarray, "M N"]:
    """Shares of N heads that make the sum of their errors least, for every mean share.

    Between two measured shares an error lies on the line through both, and where more reading does not pay at once, on
    the lower convex hull. Shares are then given out step by step, the step that saves most for its length first. This
    is the optimum of that problem (a fractional knapsack), and no head ever reads less where the mean is larger.

    Args:
        errors: of each head at each measured share.
        measured: S shares, increasing, from 0 to 1.
        means: M mean shares, each 0 to 1.
    """
    heads, lengths, gains = [], [], []
    for head, error in enumerate(np.minimum.accumulate(errors, axis=1)):
        corners = _hull(measured, error)
        for first, last in pairwise(corners):
            heads.append(head)
            lengths.append(measured[last] - measured[first])
            gains.append((error[first] - error[last]) / lengths[-1])
    # The steps of a head have falling gains, and a stable sort keeps the order of equal ones.
    order = np.argsort(-np.array(gains), kind="stable")
    steps, length = np.array(heads)[order], np.array(lengths)[order]
    before = length.cumsum() - length
    shares = np.zeros((len(means), len(errors)))
    for place, mean in enumerate(means):
        np.add.at(shares[place], steps, (mean * len(errors) - before).clip(0, length))
    return shares.clip(0, 1)


def _hull(places: Sequence[float], heights: np.ndarray) -> list[int]:
    """Corners of the lower convex hull of points from left to right, by their numbers."""
    corners: list[int] = []
    for point in range(len(places)):
        while len(corners) > 1 and not _below(places, heights, corners[-2], corners[-1], point):
            corners.pop()
        corners.append(point)
    return corners


def _below(places: Sequence[float], heights: np.ndarray, first: int, middle: int, last: int) -> bool:
    """Whether the middle point lies below the line through the others."""
    along = (places[middle] - places[first]) / (places[last] - places[first])
    return bool(heights[middle] < heights[first] + along * (heights[last] - heights[first]))


def head_errors(
    focus: FocusModel, blocks: np.ndarray, measured: Sequence[float] = MEASURED, *, progress: Progress = silent
) -> dict[int, Float[np.ndarray, "Hq S"]]:
    """Errors of each query head at the measured shares, by layer; layers with a window of their own are left out.

    The error of a head is the squared difference that its reading makes to the hidden states which the layer adds to,
    over their squared length: the mean over tokens and blocks. It is taken token by token, because the first tokens of
    a text have states that are a thousand times as long as others. All layers see the states of the
    untouched model, so one pass over a block measures every head at every share.

    Args:
        focus: narrow routers.
        blocks: (N, T) int64 token ids.
        measured: S shares, rising, the last of which is 1.
        progress: told the share done.
    """
    layers = [layer for layer, window in zip(focus.layers, focus.sliding_windows) if window is None]
    errors: dict[int, np.ndarray] = {}
    ids = torch.from_numpy(blocks).to(focus.model.device)
    with torch.inference_mode(), _streams(focus) as streams:
        outputs = _output_projections(focus, ids[:1, :8])

        def attend(call: AttentionCall) -> AttentionOutput:
            if call.layer not in layers:
                return _read(call, 1.0)
            progress(
                f"Measuring what each head reads in {ids.shape[1]:,} tokens", next(calls) / (len(ids) * len(layers))
            )
            full = _read(call, 1.0)
            lengths = streams[call.layer].float().square().sum(-1).clamp(min=1e-12)
            found = [
                (_squares(_read(call, share), full, outputs[call.layer]) / lengths).mean(1) for share in measured[:-1]
            ]
            error = torch.stack([*found, torch.zeros_like(found[0])], 1)
            errors[call.layer] = errors.get(call.layer, 0) + error.double().cpu().numpy() / len(ids)
            return full

        calls = count()
        with focus.routing("hard", rule=Rule(attend, hard_groups)):
            for row in ids:
                focus.model.base_model(input_ids=row[None], use_cache=False)
    return errors


def _read(call: AttentionCall, share: float) -> AttentionOutput:
    """Attention of whole texts where every head reads one share."""
    routing = call.routing
    reading = replace(routing.reading(), share=share, top_k=None, head_shares=None, shares_at=())
    groups, num_groups = call.groups.keys.to(torch.int8).argmax(-1)[:, None], call.groups.keys.shape[-1]
    tensors, geometry = (call.query, call.key, call.value, groups), call.geometry
    found = narrow_attention(*tensors, num_groups, reading, scale=geometry.scale, softcap=geometry.softcap)
    return AttentionOutput(*found[:2])


def _squares(found: AttentionOutput, full: AttentionOutput, output: Tensor) -> Tensor:
    """(Hq, T): squared difference that each query head makes after the output projection.

    Args:
        output: (Hq, Dv, d).
    """
    difference = (found.output.float() - full.output.float()).flatten(0, 1)  # (Hq, T, Dv)
    gram = output @ output.mT
    return ((difference @ gram) * difference).sum(-1)


@contextmanager
def _streams(focus: FocusModel) -> Iterator[dict[int, Tensor]]:
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


def _output_projections(focus: FocusModel, ids: Tensor) -> dict[int, Float[Tensor, "Hq Dv d"]]:
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
