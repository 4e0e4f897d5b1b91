"""Levels of heads: the plan against linear programming."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from focus_core.routing.narrow.fitting.plan import plan_levels

MEASURED = (0.0, 0.01, 0.02, 0.04, 0.08, 0.13, 0.2, 0.3, 0.5, 0.7, 1.0)
curves = st.integers(1, 6).flatmap(
    lambda heads: st.lists(st.lists(st.floats(0, 10), min_size=5, max_size=5), min_size=heads, max_size=heads)
)


@settings(deadline=None)
@example(curves=[[1.0, 0.0, 0.0, 0.0, 0.0]], prices=[0.1666763871908188] + 5 * [1.0], mean=1.0)
@given(curves=curves, prices=st.lists(st.floats(0.1, 9), min_size=6, max_size=6), mean=st.floats(0, 1))
def test_the_plan_is_the_optimum(curves, prices, mean):
    places = np.array([0.0, 0.1, 0.2, 0.5, 1.0])
    errors = np.minimum.accumulate(np.array(curves), axis=1)
    heads = len(errors)
    costs = np.array(prices[:heads])[:, None] * (0.3 + places)
    budget = costs[:, 0].sum() + mean * (costs[:, -1] - costs[:, 0]).sum()
    plan = plan_levels(errors, costs, places, [budget])
    shares = plan.levels[0]
    assert ((shares >= 0) & (shares <= 1)).all()
    spent = [np.interp(share, places, cost) for share, cost in zip(shares, costs)]
    assert sum(spent) == pytest.approx(budget, abs=1e-9)

    # A head is a mixture of its measured points; the least sum of errors for the budget, by linear programming.
    each = np.kron(np.eye(heads), np.ones(5))
    best = linprog(errors.ravel(), A_eq=np.vstack([each, costs.ravel() / budget]), b_eq=np.append(np.ones(heads), 1.0))
    assert best.success
    hulls = [
        linprog(error, A_eq=np.vstack([np.ones(5), places]), b_eq=[1, share]).fun
        for error, share in zip(errors, shares)
    ]
    assert sum(hulls) == pytest.approx(best.fun, abs=1e-6) == plan.error_sums[0]


def test_no_head_reads_less_where_the_budget_is_larger():
    errors = np.random.default_rng(0).exponential(size=(30, len(MEASURED)))
    costs = np.broadcast_to(np.maximum(MEASURED, 0.03), errors.shape)  # what is read anyway costs nothing more
    budgets = 30 * np.array([0.0, 0.02, 0.1, 0.4, 1.0])
    levels = plan_levels(errors, costs, MEASURED, budgets).levels
    assert (np.diff(levels, axis=0) >= -1e-12).all()
    assert (levels[:2] == 0).all() and np.allclose(levels[-1], 1)
