"""Shares of heads at places that make the sum of their errors least, for a number of pairs in a text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch

from focus_core.routing.narrow.reading import Reading

if TYPE_CHECKING:
    from jaxtyping import Float


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
