"""How much of the text each query head must read: its error at several shares, and shares that make their sum least.

Heads differ by a factor of a hundred: some look for one token, others take a mean. Early in a text there are few keys,
and each query needs more of them. One share for all is too much for most and too little for a few.
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
from focus_core.routing.layer import reading_of
from focus_core.routing.model import FocusModel
from focus_core.routing.narrow.attention import narrow_attention
from focus_core.routing.narrow.reading import Reading
from focus_core.routing.routers.narrow import MEANS
from focus_core.routing.rules import AttentionCall, Rule, hard_groups

if TYPE_CHECKING:
    from jaxtyping import Float

MEASURED = (0.0, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.13, 0.16, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0)
"""Shares at which the error of every head is measured; 1 is full attention."""
SPARSELY = (0.0, 0.02, 0.05, 0.1, 0.18, 0.35, 1.0)
"""Those in longer texts, where each takes minutes."""


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
    reading = reading_of(config, config.top_k, share=0.0)
    for number, blocks in enumerate(texts):
        length, measured = blocks.shape[1], SPARSELY if number else MEASURED
        places = [place for place in config.shares_at if place <= length] or [length]
        new = slice(earlier, len(places))
        if earlier == len(places):  # shorter texts have planned them all
            continue
        weights = place_weights(places, length, config.window)
        errors = head_errors(focus, blocks, measured, weights=weights, progress=progress)
        if not errors:  # every layer has a sliding window of its own, and reads nothing
            return
        layers = sorted(errors)
        stored: list[Any] = [focus.router(layer).shares for layer in layers]
        stored = [shares.view(-1, *shares.shape[-2:]) for shares in stored]  # (A, M, Hq)
        costs = pair_costs(reading, weights, measured)
        budgets = np.array(MEANS) * costs[:, -1].sum() * sum(shares.shape[-1] for shares in stored)
        for place in range(earlier):  # what they cost in a text of this length
            budgets -= sum(np.interp(shares[place].double(), measured, costs[place]).sum(-1) for shares in stored)
        rows = np.concatenate([errors[layer][:, new] for layer in layers])  # (heads, places, S)
        flat = (-1, len(measured))
        planned = plan_shares(
            rows.reshape(flat), np.broadcast_to(costs[new], rows.shape).reshape(flat), measured, budgets
        )
        planned = torch.from_numpy(planned.reshape(len(MEANS), *rows.shape[:2]))
        for shares, layer in zip(stored, planned.chunk(len(stored), 1)):
            shares[new].copy_(layer.permute(2, 0, 1))
        earlier = len(places)


def place_weights(places: Sequence[int], length: int, window: int) -> Float[np.ndarray, "A T"]:
    """How much each place of `shares_at` decides about the share of every query of a text; they sum to 1.

    Args:
        places: A numbers of keys beyond the window, rising.
        length: T, tokens of the text.
        window: w.
    """
    beyond = (np.arange(length) - window).clip(0)
    return np.stack([np.interp(beyond, places, unit) for unit in np.eye(len(places))])


def pair_costs(reading: Reading, weights: np.ndarray, measured: Sequence[float]) -> Float[np.ndarray, "A S"]:
    """Pairs beyond the window that a query head attends to exactly in a text, by place and share, without rounding.

    Args:
        reading: window, sinks and borders.
        weights: (A, T), see `place_weights`.
        measured: S shares.
    """
    query = torch.arange(weights.shape[1])
    beyond = (query - reading.window).clamp(min=0).double().numpy()
    already = reading.already(query, reading.borders(query)).double().numpy()
    return np.stack([weights @ np.maximum(share * beyond, already) for share in measured], -1)


def plan_shares(
    errors: Float[np.ndarray, "N S"],
    costs: Float[np.ndarray, "N S"],
    measured: Sequence[float],
    budgets: Sequence[float] | np.ndarray,
) -> Float[np.ndarray, "M N"]:
    """Shares of N heads, or heads at places, that make the sum of their errors least for each budget.

    Between two measured shares an error lies on the line through both, and where more reading does not pay at once, on
    the lower convex hull. The budget is then given out step by step, the step that saves most for its cost first. This
    is the optimum of that problem (a fractional knapsack), and no head ever reads less where the budget is larger.

    Args:
        errors: at each measured share.
        costs: in pairs, at each measured share; they do not fall.
        measured: S shares, increasing, from 0 to 1.
        budgets: M sums of costs. One below the cost of reading nothing counts as that.
    """
    rows, prices, gains = [], [], []
    errors = np.minimum.accumulate(errors, axis=1)
    hulls = [_hull(cost, error) for cost, error in zip(costs, errors)]
    for row, corners in enumerate(hulls):
        for first, last in pairwise(corners):
            rows.append(row)
            prices.append(costs[row, last] - costs[row, first])
            gains.append((errors[row, first] - errors[row, last]) / prices[-1])
    # The steps of a head have falling gains, and a stable sort keeps the order of equal ones.
    order = np.argsort(-np.array(gains), kind="stable")
    steps, price = np.array(rows, dtype=int)[order], np.array(prices)[order]
    before = price.cumsum() - price
    shares = np.zeros((len(budgets), len(errors)))
    for place, budget in enumerate(budgets):
        spent = costs[:, 0].copy()
        np.add.at(spent, steps, (budget - costs[:, 0].sum() - before).clip(0, price))
        for row, corners in enumerate(hulls):
            shares[place, row] = np.interp(spent[row], costs[row, corners], np.asarray(measured)[corners])
    return shares


def _hull(places: Sequence[float], heights: np.ndarray) -> list[int]:
    """Corners of the lower convex hull of points from left to right, by their numbers; of equal places the first."""
    corners: list[int] = []
    for point in range(len(places)):
        if corners and places[point] <= places[corners[-1]]:
            continue
        while len(corners) > 1 and not _below(places, heights, corners[-2], corners[-1], point):
            corners.pop()
        corners.append(point)
    return corners


def _below(places: Sequence[float], heights: np.ndarray, first: int, middle: int, last: int) -> bool:
    """Whether the middle point lies below the line through the others."""
    along = (places[middle] - places[first]) / (places[last] - places[first])
    return bool(heights[middle] < heights[first] + along * (heights[last] - heights[first]))


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
    the states of the untouched model, so one pass over a block measures every head at every share.

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
    weigh = torch.from_numpy(weights.T).to(ids.device)
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
                (_squares(_read(call, share), full, outputs[call.layer]) / lengths).double() @ weigh
                for share in measured[:-1]
            ]
            error = torch.stack([*found, torch.zeros_like(found[0])], -1)
            errors[call.layer] = errors.get(call.layer, 0) + error.cpu().numpy() / len(ids)
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
