"""A k for every layer under one budget of pairs, by what each layer costs when it alone is routed.

Layers differ: at k=1 a few cost most of the quality and many cost none. The plan is chosen from a table of one
measurement per layer and k. The sum of these losses has been less than the loss of the layers together
(docs/tables/plans.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from focus_core.evaluation.perplexity import evaluate
from focus_core.routing.model import FocusModel


@dataclass(frozen=True)
class LayerCost:
    """One layer routed alone, all others attending fully.

    Attributes:
        layer: decoder layer.
        top_k: its k; 0 for local pairs and sinks alone.
        loss: rise of the mean negative log-likelihood over the untouched model, in nats.
        kept_share: share of its distant pairs kept, sinks included.
    """

    layer: int
    top_k: int
    loss: float
    kept_share: float


def layer_costs(
    focus: FocusModel,
    blocks: np.ndarray,
    *,
    top_ks: Sequence[int] = (1, 2),
    window: int | None = None,
    done: Sequence[LayerCost] = (),
) -> Iterator[LayerCost]:
    """Measure every layer at every k, one forward pass over the blocks each.

    Args:
        focus: model with calibrated routers.
        blocks: (N, T) int64; text that no result is reported on.
        top_ks: candidates below K; K itself is full attention and costs nothing by definition.
        window: w, the routers' own when None.
        done: rows of an interrupted run, which are not measured again.

    Yields:
        The missing rows.
    """
    changes: dict[str, Any] = {} if window is None else {"window": window}
    num_layers, full = len(focus.layers), focus.config.num_groups
    untouched: float | None = None
    for top_k in top_ks:
        for place, layer in enumerate(focus.layers):
            if any((row.layer, row.top_k) == (layer, top_k) for row in done):
                continue
            if untouched is None:
                untouched = float(np.mean(evaluate(focus, blocks, routing="off").block_nll))
            plan = tuple(top_k if other == place else full for other in range(num_layers))
            row = evaluate(focus, blocks, routing="hard", balance="calibrated", layer_top_k=plan, **changes)
            loss = float(np.mean(row.block_nll)) - untouched
            yield LayerCost(layer, top_k, loss, row.kept_share * num_layers - (num_layers - 1))


def plan_layers(costs: Sequence[LayerCost], budget: float, num_groups: int) -> tuple[int, ...]:
    """k of each layer with the smallest sum of losses whose mean kept share stays within the budget.

    See `cheapest`. A smaller k is never taken to lose less than a larger one, and no loss to be below zero: what the
    table says otherwise is noise.

    Args:
        costs: every layer at the same values of k; K is added at no loss and all pairs.
        budget: share of distant pairs kept, mean over layers.
        num_groups: K.

    Returns:
        k in the order of the layers; the cheapest plan if none fits.
    """
    layers = sorted({row.layer for row in costs})
    top_ks = sorted({row.top_k for row in costs})
    table = {(row.layer, row.top_k): row for row in costs}
    loss = np.array([[table[layer, k].loss for k in top_ks] + [0.0] for layer in layers])
    loss = np.maximum.accumulate(loss[:, ::-1], axis=1)[:, ::-1]
    share = np.array([[table[layer, k].kept_share for k in top_ks] + [1.0] for layer in layers])
    choices = [*top_ks, num_groups]
    return tuple(choices[place] for place in cheapest(loss, share, budget))


def cheapest(loss: np.ndarray, share: np.ndarray, budget: float) -> np.ndarray:
    """One choice for each layer, with the smallest sum of losses whose mean kept share stays within the budget.

    By a price: for any price of a pair each layer takes the choice with the least loss plus price times pairs, and the
    result is that of the lowest price that fits. This finds the best among those that lie on the convex hull of loss
    against pairs.

    Args:
        loss: (layers, choices) what each choice costs, in nats.
        share: (layers, choices) distant pairs it keeps.
        budget: share of distant pairs kept, mean over layers.

    Returns:
        (layers,) int64 places of the choices; those that keep the fewest pairs if none fits.
    """
    for price in np.unique(_turning_points(loss, share)):
        # Among equally good ones the first, which keeps the fewest pairs.
        picked = np.argmin(loss + price * share, axis=1)
        if np.take_along_axis(share, picked[:, None], 1).mean() <= budget:
            return picked
    return np.argmin(share, axis=1)


def _turning_points(loss: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Prices at which some layer's best k changes, each with one just above it."""
    gain = loss[:, :, None] - loss[:, None]
    pairs = share[:, None] - share[:, :, None]
    prices = (gain[pairs > 0] / pairs[pairs > 0]).clip(min=0.0)
    return np.concatenate([prices, prices * (1 + 1e-9) + 1e-15])
