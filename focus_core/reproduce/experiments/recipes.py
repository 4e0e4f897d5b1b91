"""Changes of the recipe, compared at the same kept share. No published table corresponds to it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from focus_core.evaluation import Evaluation, evaluate, perplexity_difference
from focus_core.evaluation.plan import layer_costs, plan_layers
from focus_core.reproduce.context import Context, row
from focus_core.reproduce.studies.by_layer import choices_of, choose, evaluate_choices
from focus_core.reproduce.studies.candidates import BASE, CANDIDATES, at_share, candidate_config, train_candidate
from focus_core.routing.model import FocusModel, retrofit
from focus_core.training import TrainSettings
from focus_core.training.calibrate import calibrate
from focus_core.training.loop import calibration_blocks

SHARE = 0.4
"""Kept share of distant pairs for comparing recipes; at the default scale most of them reach it."""
TOP_KS = (1, 2, 3)
BUDGETS = (0.3, 0.45, 0.6)
PLAN_BLOCKS = 2
UNTRAINED, PLANNED = "untrained", "planned"
OF_GROUPS = {4: "groups-4", 8: BASE, 16: "groups-16"}
"""The recipe that trains routers of each K."""
COLUMNS = (
    *("candidate", "routing", "top_k", "balance", "perplexity", "difference", "low", "high"),
    *("kept_share", "largest_group_share", "against_base", "against_low", "against_high"),
)


def cells(context: Context) -> dict[str, dict[str, Any]]:
    """The untouched model, the base recipe, untrained routers, settings chosen by layer, and every candidate."""
    window = context.scale.window
    base = candidate_config(CANDIDATES[BASE], window)
    found: dict[str, dict[str, Any]] = {"untouched": {}, BASE: {"config": base, "label": CANDIDATES[BASE].label}}
    found[UNTRAINED] = {"config": base, "label": "untrained"}
    found[PLANNED] = {"config": base, "label": "k by layer, layers that mind attend fully", "budgets": BUDGETS}
    groups, windows = [*OF_GROUPS], [window // 2, window, 2 * window, 4 * window]
    by_layer = {
        "windows-by-layer": ("window by layer, k = 2", [base.num_groups], [2], windows),
        "groups-by-layer": ("K by layer, k = 2", groups, [2], [window]),
        "all-by-layer": ("K, k and window by layer", groups, [1, 2], windows[1:3]),
    }
    for name, (label, *lists) in by_layer.items():
        options = dict(zip(("num_groups", "top_k", "window"), lists))
        found[name] = {"config": base, "label": label, "options": options, "budgets": BUDGETS}
    for name, candidate in CANDIDATES.items():
        found.setdefault(name, {"config": candidate_config(candidate, window), "label": candidate.label})
    return found


def run(context: Context, cell: str, values: dict[str, Any]) -> dict[str, Any]:
    """Train one candidate on a new retrofit; rows at each k, with the losses of every block."""
    if cell == "untouched":
        return {"rows": [row(context.untouched, None)]}
    untouched = context.untouched
    if "options" in values:
        found, chosen = _by_layer(context, cell, values["options"])
        return {**_rows(values, found, untouched), "chosen": chosen}
    focus = retrofit(context.load().model, values["config"], seed=context.seed)
    if cell == UNTRAINED:
        calibrate(focus, calibration_blocks(context.blocks, context.seed))
    else:
        _train(context, cell, focus)
    return _rows(values, _planned(context, focus) if cell == PLANNED else _by_k(context, focus), untouched)


def _rows(values: dict[str, Any], found: list[Evaluation], untouched: Evaluation) -> dict[str, Any]:
    rows = [{"candidate": values["label"], **row(each, untouched)} for each in found]
    kept = {"shares": [each.kept_share for each in found], "losses": [each.block_nll for each in found]}
    return {"rows": rows, "block_nll": kept}


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
    costs = []
    for cost in layer_costs(focus, _plan_blocks(context), top_ks=(1, 2)):
        costs.append(cost)
        context.progress(f"{PLANNED}: layer {cost.layer}, k = {cost.top_k}", len(costs) / (2 * len(focus.layers)))
    plans = [plan_layers(costs, budget, focus.config.num_groups) for budget in BUDGETS]
    return [evaluate(focus, context.held, routing="hard", balance="calibrated", layer_top_k=plan) for plan in plans]


def _plan_blocks(context: Context) -> np.ndarray:
    """Training blocks to choose settings on."""
    return context.blocks[np.linspace(0, len(context.blocks) - 1, PLAN_BLOCKS).round().astype(int)]


def _by_layer(context: Context, cell: str, options: dict[str, list[int]]) -> tuple[list[Evaluation], list[Any]]:
    """The settings of each layer under each budget, chosen on training text, and their evaluation."""
    trained = {}
    for num_groups in options["num_groups"]:
        recipe = OF_GROUPS[num_groups]
        config = candidate_config(CANDIDATES[recipe], context.scale.window)
        trained[num_groups] = retrofit(context.load().model, config, seed=context.seed)
        _train(context, recipe, trained[num_groups])
    routers = {num_groups: each.routers for num_groups, each in trained.items()}
    focus = retrofit(context.load().model, candidate_config(CANDIDATES[BASE], context.scale.window))

    def show(layer: int, share: float) -> None:
        context.progress(f"{cell}: layer {layer}", share)

    plans = choose(focus, routers, choices_of(options), _plan_blocks(context), BUDGETS, show)
    found = [evaluate_choices(focus, routers, plan, context.held) for plan in plans]
    return found, [[asdict(each) for each in plan] for plan in plans]


def compare(found: dict[str, dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Perplexity minus that of the base recipe, both at kept share `SHARE`, paired over blocks; none out of range."""
    read = {
        cell: at_share(np.array(kept["shares"]), np.array(kept["losses"]), SHARE)
        for cell, result in found.items()
        if (kept := result.get("block_nll"))
    }
    base, compared = read.get(BASE), {}
    for cell, losses in read.items():
        gap = {"difference": None, "low": None, "high": None}
        if base is not None and losses is not None and cell != BASE:
            gap = asdict(perplexity_difference(losses, base))
        first, *others = found[cell]["rows"]
        against = {"base": gap["difference"], "low": gap["low"], "high": gap["high"]}
        compared[cell] = [{**first, **{f"against_{name}": value for name, value in against.items()}}, *others]
    return compared
