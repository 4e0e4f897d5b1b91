"""Levels of heads that make the sum of their errors least, for a number of pairs in a text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float


class Plan(NamedTuple):
    """Levels of heads for several budgets.

    Attributes:
        levels: of each head.
        error_sums: of all heads at these levels, as the hulls have them.
    """

    levels: Float[np.ndarray, "M N"]
    error_sums: Float[np.ndarray, " M"]


def plan_levels(
    errors: Float[np.ndarray, "N S"],
    costs: Float[np.ndarray, "N S"],
    measured: Sequence[float],
    budgets: Sequence[float] | np.ndarray,
) -> Plan:
    """Levels of N heads that make the sum of their errors least for each budget; a level is any number that decides.

    Between two measured levels an error lies on the line through both, and where more reading does not pay at once, on
    the lower convex hull. The budget is then given out step by step, the step that saves most for its cost first. This
    is the optimum of that problem (a fractional knapsack), and no head ever reads less where the budget is larger.

    Args:
        errors: at each measured level.
        costs: in pairs, at each measured level; they do not fall.
        measured: S levels, in the order of costs.
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
    levels, sums = np.zeros((len(budgets), len(errors))), np.zeros(len(budgets))
    for place, budget in enumerate(budgets):
        spent = costs[:, 0].copy()
        np.add.at(spent, steps, (budget - costs[:, 0].sum() - before).clip(0, price))
        for row, corners in enumerate(hulls):
            own = np.asarray(measured)[corners]
            # Rounding leaves the line at its ends.
            levels[place, row] = np.interp(spent[row], costs[row, corners], own).clip(own.min(), own.max())
            sums[place] += np.interp(spent[row], costs[row, corners], errors[row, corners])
    return Plan(levels, sums)


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
