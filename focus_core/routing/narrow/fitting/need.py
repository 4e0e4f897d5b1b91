"""How much of the text each query head must read: its error at several shares, and shares that make their sum least.

Heads differ by a factor of a hundred: some look for one token, others take a mean. Early in a text there are few keys,
and each query needs more of them. One share for all is too much for most and too little for a few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from focus_core.attention import AttentionOutput
from focus_core.progress import Progress, silent
from focus_core.routing.layer import reading_of
from focus_core.routing.model import FocusModel
from focus_core.routing.narrow.attention import narrow_attention
from focus_core.routing.narrow.fitting.changes import change_of, entering_states, output_projections, relative_squares
from focus_core.routing.narrow.fitting.gradients import calls_with_gradients
from focus_core.routing.narrow.fitting.plan import pair_costs, place_weights, plan_shares
from focus_core.routing.routers.narrow import MEANS
from focus_core.routing.rules import AttentionCall, Rule, hard_groups

if TYPE_CHECKING:
    from jaxtyping import Float

MEASURED = (0.0, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.13, 0.16, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0)
"""Shares at which the error of every head is measured; 1 is full attention."""
IN_LONG = (0.0, 0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.22, 0.32, 0.5, 1.0)
"""Those in longer texts."""
PROBED, PROBED_BLOCKS = (0.02, 0.05, 0.13), 8
"""Shares, and blocks at most, at which `layer_weights` measures what an error of a layer does."""
PIECES, MEASURED_PART = 8, 1 / 4
"""Pieces of a longer text, and the part of each that is measured, its last: neighbours have much the same keys."""


def fit_shares(focus: FocusModel, texts: Sequence[np.ndarray], *, progress: Progress = silent) -> None:
    """Measure what each query head needs, and store its share for every mean share in the routers.

    Args:
        focus: narrow routers with `shares_by_need`, their groups fitted.
        texts: of one length T or more, shorter ones first: (N, T) int64 token ids of broad text, longer than the
            window. Each length plans those of `FocusConfig.shares_at` up to it that shorter ones have not, so that the
            pairs of such a text are as many as the mean share says.
        progress: told the share done.
    """
    config, earlier = focus.config, 0
    probed = np.linspace(0, len(texts[0]) - 1, min(PROBED_BLOCKS, len(texts[0]))).round().astype(int)
    by_layer = layer_weights(focus, texts[0][probed], progress=progress)
    if not by_layer:  # every layer has a sliding window of its own, and reads nothing
        return
    layers = sorted(by_layer)
    reading = reading_of(config, config.top_k, share=0.0)
    for number, blocks in enumerate(texts):
        length, measured = blocks.shape[1], IN_LONG if number else MEASURED
        places = [place for place in config.shares_at if place <= length] or [length]
        new = slice(earlier, len(places))
        if earlier == len(places):  # shorter texts have planned them all
            continue
        weights = place_weights(places, length, config.window)
        sample = _sample(weights, new) if number else weights
        errors = head_errors(focus, blocks, measured, weights=sample, progress=progress)
        stored: list[Any] = [focus.router(layer).shares for layer in layers]
        stored = [shares.view(-1, *shares.shape[-2:]) for shares in stored]  # (A, M, Hq)
        costs = pair_costs(reading, weights, measured)
        budgets = np.array(MEANS) * costs[:, -1].sum() * sum(shares.shape[-1] for shares in stored)
        for place in range(earlier):  # what they cost in a text of this length
            budgets -= sum(np.interp(shares[place].double(), measured, costs[place]).sum(-1) for shares in stored)
        rows = np.concatenate([errors[layer][:, new] * by_layer[layer] for layer in layers])  # (heads, places, S)
        flat = (-1, len(measured))
        planned = plan_shares(
            rows.reshape(flat), np.broadcast_to(costs[new], rows.shape).reshape(flat), measured, budgets
        )
        planned = torch.from_numpy(planned.reshape(len(MEANS), *rows.shape[:2]))
        for shares, layer in zip(stored, planned.chunk(len(stored), 1)):
            shares[new].copy_(layer.permute(2, 0, 1))
        earlier = len(places)


def _sample(weights: Float[np.ndarray, "A T"], places: slice) -> Float[np.ndarray, "A T"]:
    """Weights of the tokens that are measured in a longer text, which stand for the others too; 0 for those.

    Spans that say nothing about these places are left out.
    """
    piece, along = np.divmod(np.arange(weights.shape[1]) * PIECES / weights.shape[1], 1)
    taken = along >= 1 - MEASURED_PART
    taken &= np.isin(piece, piece[taken & weights[places].any(0)])
    return weights * taken / MEASURED_PART


def head_errors(
    focus: FocusModel,
    blocks: np.ndarray,
    measured: Sequence[float] = MEASURED,
    *,
    weights: np.ndarray,
    progress: Progress = silent,
) -> dict[int, Float[np.ndarray, "Hq A S"]]:
    """Errors of each query head at the measured shares, by layer; layers with a window of their own are left out.

    The error of a head is the squared difference that its reading makes to the hidden states which the layer adds to,
    over their squared length: the weighted sum over the tokens of a block, and the mean over blocks. It is taken token
    by token, because the first tokens of a text have states that are a thousand times as long as others. All layers see
    the states of the untouched model, so one pass over a block measures every head at every share. Tokens that weigh
    nothing are left out.

    Args:
        focus: narrow routers.
        blocks: (N, T) int64 token ids.
        measured: S shares, rising, the last of which is 1.
        weights: (A, T) of the tokens, see `place_weights`.
        progress: told the share done.
    """
    layers = [layer for layer, window in zip(focus.layers, focus.sliding_windows) if window is None]
    errors: dict[int, np.ndarray] = {}
    ids = torch.from_numpy(blocks).to(focus.model.device)
    tokens = np.flatnonzero(weights.any(0))
    weigh, taken = (torch.from_numpy(each).to(ids.device) for each in (weights.T[tokens], tokens))
    with torch.inference_mode(), entering_states(focus) as streams:
        outputs = output_projections(focus, ids[:1, :8])

        def attend(call: AttentionCall) -> AttentionOutput:
            if call.layer not in layers:
                return _read(call, 1.0)
            progress(
                f"Measuring what each head reads in {ids.shape[1]:,} tokens", next(calls) / (len(ids) * len(layers))
            )
            full, states, output = _read(call, 1.0), streams[call.layer][:, taken], outputs[call.layer]
            found = []
            for share in measured[:-1]:
                change = change_of(_read(call, share, tokens), full)[:, taken]
                found.append(relative_squares(change, states, output).double() @ weigh)
            error = torch.stack([*found, torch.zeros_like(found[0])], -1)
            errors[call.layer] = errors.get(call.layer, 0) + error.cpu().numpy() / len(ids)
            return full

        calls = count()
        with focus.routing("hard", rule=Rule(attend, hard_groups)):
            for row in ids:
                focus.model.base_model(input_ids=row[None], use_cache=False)
    return errors


def layer_weights(
    focus: FocusModel, blocks: np.ndarray, *, seed: int = 0, progress: Progress = silent
) -> dict[int, float]:
    """How far predictions move with an error of each layer, in nats; layers with a window of their own are left out.

    The divergence of predictions from the untouched model's, to second order (`calls_with_gradients`), over the error
    as `head_errors` takes it: both summed over heads, tokens and the shares `PROBED`, head by head.

    Args:
        focus: narrow routers.
        blocks: (N, T) int64 token ids.
        seed: of the drawn predictions.
        progress: told the share done.
    """
    layers = [layer for layer, window in zip(focus.layers, focus.sliding_windows) if window is None]
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


def _read(call: AttentionCall, share: float, tokens: np.ndarray | None = None) -> AttentionOutput:
    """Attention of whole texts where every head reads one share; results of other than `tokens` may be anything."""
    routing, geometry = call.routing, call.geometry
    reading = replace(routing.reading(), share=share, top_k=None, head_shares=None, thresholds=None, shares_at=())
    groups, num_groups = call.groups.keys.to(torch.int8).argmax(-1)[:, None], call.groups.keys.shape[-1]
    tensors = (call.query, call.key, call.value)
    if tokens is not None and len(tokens) < call.query.shape[2]:
        # It needs Numba, which takes a second to import.
        from focus_core.routing.narrow.compiled import prefill as compiled

        if compiled.supported(*tensors, reading, geometry.softcap):
            spans = _spans(tokens, reading.chunk, call.query.shape[2])
            found = compiled.prefill(*tensors, groups, num_groups, reading, scale=geometry.scale, spans=spans)
            return AttentionOutput(*found[:2])
    found = narrow_attention(*tensors, groups, num_groups, reading, scale=geometry.scale, softcap=geometry.softcap)
    return AttentionOutput(*found[:2])


def _spans(tokens: np.ndarray, chunk: int, length: int) -> list[tuple[int, int]]:
    """The chunks that tokens are in, those side by side as one: their first places, and the places behind the last."""
    chunks = np.unique(tokens // chunk)
    runs = np.split(chunks, np.flatnonzero(np.diff(chunks) > 1) + 1)
    return [(int(run[0]) * chunk, min((int(run[-1]) + 1) * chunk, length)) for run in runs]
