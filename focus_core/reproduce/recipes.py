"""Changes of the recipe, judged at the same kept share. No published table corresponds to it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np

from focus_core.errors import FocusError
from focus_core.evaluation import Evaluation, evaluate, perplexity_difference
from focus_core.evaluation.plan import layer_costs, plan_layers
from focus_core.reproduce.context import Context, row
from focus_core.reproduce.runner import CELLS
from focus_core.retrofitting import FocusModel, retrofit
from focus_core.training import TrainSettings
from focus_core.training.calibrate import calibrate
from focus_core.training.candidates import BASE, CANDIDATES, at_share, candidate_config, train_candidate
from focus_core.training.loop import calibration_blocks

SHARE = 0.45
"""Kept share of the distant pairs at which recipes are compared."""
TOP_KS = (1, 2, 3)
BUDGETS = (0.3, 0.45, 0.6)
PLAN_BLOCKS = 2
UNTRAINED, PLANNED = "untrained", "planned"
COLUMNS = (
    *("candidate", "routing", "top_k", "balance", "perplexity", "difference", "low", "high"),
    *("kept_share", "largest_group_share", "against_base", "against_low", "against_high"),
)


def cells(context: Context) -> dict[str, dict[str, Any]]:
    """The untouched model, the base recipe, untrained routers, a plan of k by layer, and every candidate."""
    window = context.scale.window
    base = candidate_config(CANDIDATES[BASE], window)
    found: dict[str, dict[str, Any]] = {"untouched": {}, BASE: {"config": base, "label": CANDIDATES[BASE].label}}
    found[UNTRAINED] = {"config": base, "label": "untrained"}
    found[PLANNED] = {"config": base, "label": "k by layer, layers that mind attend fully", "budgets": BUDGETS}
    for name, candidate in CANDIDATES.items():
        found.setdefault(name, {"config": candidate_config(candidate, window), "label": candidate.label})
    return found


def run(context: Context, cell: str, values: dict[str, Any]) -> dict[str, Any]:
    """Train one candidate on a fresh model; rows at each k, and its distance from the base recipe at one kept share."""
    if cell == "untouched":
        return {"rows": [row(context.untouched, None)]}
    untouched = context.untouched
    focus = retrofit(context.load().model, values["config"], seed=context.seed)
    if cell == UNTRAINED:
        calibrate(focus, calibration_blocks(context.blocks, context.seed))
    else:
        _train(context, cell, focus)
    found = list(_planned(context, focus)) if cell == PLANNED else _by_k(context, focus)
    rows = [{"candidate": values["label"], **row(each, untouched)} for each in found]
    shares = [each.kept_share for each in found]
    losses = [each.block_nll for each in found]
    if cell != BASE:
        rows[0] |= _against(context, np.array(shares), np.array(losses))
    return {"rows": rows, "block_nll": {"shares": shares, "losses": losses}}


def _train(context: Context, cell: str, focus: FocusModel) -> None:
    scale = context.scale
    candidate = CANDIDATES[BASE if cell == PLANNED else cell]
    settings = TrainSettings(scale.steps, scale.batch_size, seed=context.seed)

    def show(step: int, loss: float) -> None:
        context.progress(f"{cell}: step {step} of {scale.steps}, loss {loss:.3f}", step / scale.steps)

    train_candidate(focus, context.blocks, candidate, settings, show)


def _by_k(context: Context, focus: FocusModel) -> list[Evaluation]:
    ks = [k for k in TOP_KS if k < focus.config.num_groups]
    return [evaluate(focus, context.held, routing="hard", top_k=k, balance="calibrated") for k in ks]


def _planned(context: Context, focus: FocusModel) -> list[Evaluation]:
    """A plan for each budget, chosen on training text."""
    chosen = context.blocks[np.linspace(0, len(context.blocks) - 1, PLAN_BLOCKS).round().astype(int)]
    costs = []
    for cost in layer_costs(focus, chosen, top_ks=(1, 2)):
        costs.append(cost)
        context.progress(f"{PLANNED}: layer {cost.layer}, k = {cost.top_k}", len(costs) / (2 * len(focus.layers)))
    plans = [plan_layers(costs, budget, focus.config.num_groups) for budget in BUDGETS]
    return [evaluate(focus, context.held, routing="hard", balance="calibrated", layer_top_k=plan) for plan in plans]


def _against(context: Context, shares: np.ndarray, losses: np.ndarray) -> dict[str, Any]:
    """Perplexity minus that of the base recipe, both read at `SHARE`, paired over blocks; empty where out of reach."""
    path = context.folder / CELLS / f"{BASE}.json"
    if not path.is_file():
        raise FocusError(f"Recipes are compared with the base one: run the cell {BASE!r} first.")
    stored = json.loads(path.read_text(encoding="utf-8"))["block_nll"]
    ours = at_share(shares, losses, SHARE)
    base = at_share(np.array(stored["shares"]), np.array(stored["losses"]), SHARE)
    if ours is None or base is None:
        return {}
    gap = asdict(perplexity_difference(ours, base, seed=context.seed))
    return {"against_base": gap["difference"], "against_low": gap["low"], "against_high": gap["high"]}
