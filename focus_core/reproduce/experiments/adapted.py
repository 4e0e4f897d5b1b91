"""Routers beside full attention adapted to the same text, and beside baselines on that adapted model.

Perplexity falls with adaptation, whichever pairs are kept. So every row has two references: the untouched model, and
full attention with the same weights.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from focus_core.baselines import BASELINES, LEARNED
from focus_core.baselines.learned.lesson import Sizes
from focus_core.baselines.learned.train import Learned, LearnedSettings, learned
from focus_core.errors import FocusError, require
from focus_core.evaluation import Evaluation, evaluate
from focus_core.evaluation.compare import mean_difference, perplexity_difference
from focus_core.evaluation.perplexity import settings_for
from focus_core.evaluation.retention import Untouched, compare_tokens, retention_of
from focus_core.frontier.measure import Point, baseline_point, fit_baseline
from focus_core.frontier.tuning import Tuner, tunable
from focus_core.io.reading import read_json
from focus_core.io.schema import array, table
from focus_core.models import LoadedModel
from focus_core.reproduce.context import Context
from focus_core.reproduce.experiments.retrofits import OURS
from focus_core.reproduce.experiments.tuning import (
    ADAPTER_RATES,
    ROUTER_RATES,
    chosen_on,
    full_attention_loss,
    of_search,
    tuned,
    tuned_routers,
)
from focus_core.reproduce.runner import CELLS
from focus_core.routing.config import FocusConfig
from focus_core.routing.model import FocusModel, retrofit
from focus_core.routing.narrow.fitting.fit import fit_narrow
from focus_core.training.fit import narrow_config
from focus_core.training.loop import calibration_blocks

UNTOUCHED, ROUTERS, LORA, BOTH = "untouched", "routers", "LoRA, full attention", "routers on LoRA"
NARROW, NARROW_BOTH = "narrow groups", "narrow groups on LoRA"
GIVEN, GIVEN_BOTH = "given routers", "given routers on LoRA"
SAMPLE = 24576
"""Tokens of training text that narrow groups are fitted on."""
TAUGHT = LearnedSettings.tokens
"""Tokens of training text that learned baselines are trained on, as in a frontier: more than routers get."""
COLUMNS = (
    *("parameters", "learning_rate", "rate_grid", "routing", "top_k", "balance", "perplexity"),
    *("difference", "low", "high", "from_full", "from_full_low", "from_full_high"),
    *("kl", "kl_low", "kl_high", "kl_from_full", "kl_from_full_low", "kl_from_full_high"),
    *("kept_share", "largest_group_share"),
)


def cells(context: Context) -> dict[str, dict[str, Any]]:
    """The untouched model, routers, the adapted model with full attention, with these routers, and with baselines.

    Narrow groups are fitted on the training text, to each model. Routers that the caller gives are measured as they
    are. Baselines get the share that narrow groups read. Learned ones are trained on the training text, on the adapted
    model.
    """
    config = _per_head(context)
    narrow = narrow_config(window=context.scale.window)
    given, share = (GIVEN, GIVEN_BOTH), narrow.read_share
    return {
        UNTOUCHED: {},
        ROUTERS: {"config": config, "objective": OURS, "rates": ROUTER_RATES},
        LORA: {"config": config, "rates": tuple(context.rates or ADAPTER_RATES)},
        BOTH: {"config": config},
        **{cell: {"config": narrow} for cell in (NARROW, NARROW_BOTH)},
        **({cell: {"config": config, "routers": context.attached_hash()} for cell in given} if context.routers else {}),
        **{f"baseline {name}": {"baseline": name, "config": config, "share": share} for name in BASELINES},
        **{
            f"baseline {name}": {"baseline": name, "config": config, "share": share, "tokens": TAUGHT}
            for name in LEARNED
        },
    }


def _per_head(context: Context) -> FocusConfig:
    """Settings of the routers that are trained; the adapters get about as many parameters."""
    return FocusConfig(router="head", window=context.scale.window)


def run(context: Context, cell: str, values: dict[str, Any]) -> dict[str, Any]:
    """Measure one method against the untouched model and against full attention with its own weights."""
    require("peft", "eval")
    untouched = _untouched(context)
    if cell == UNTOUCHED:
        found = context.untouched
        return {"rows": [{"routing": "off", "parameters": 0, "perplexity": found.perplexity, "kept_share": 1.0}]}
    searched = {ROUTERS: _router_rows, LORA: _adapted_row}
    if cell in searched:
        return searched[cell](context, values, untouched)
    if cell in (NARROW, GIVEN):
        return _attached(context, cell, values, context.loaded, untouched, untouched, context.untouched.block_nll)
    adapted = _stored(context, cell, LORA)
    loaded, _, _ = _adapt(context, adapted["rates"]["best"])
    own, own_nll = Untouched(context.held), adapted["block_nll"]
    if cell in (BOTH, NARROW_BOTH, GIVEN_BOTH):
        return _attached(context, cell, values, loaded, untouched, own, own_nll)
    focus = retrofit(loaded.model, values["config"], seed=context.seed)
    return _baseline(context, cell, values, focus, untouched, own, own_nll)


def _router_rows(context: Context, values: dict[str, Any], untouched: Untouched) -> dict[str, Any]:
    """Routers trained on the training text, on the untouched model."""
    focus, search = tuned_routers(context, ROUTERS, values)
    parameters = sum(parameter.numel() for parameter in focus.trainable_parameters())
    try:
        rows = _routed(context, focus, untouched, untouched, context.untouched.block_nll)
    finally:
        focus.detach()
    rates = {**search.to_dict(), "chosen_on": chosen_on(context)}
    return {"rows": [{"parameters": parameters, **row, **of_search(search)} for row in rows], "rates": rates}


def _untouched(context: Context) -> Untouched:
    """States of the untouched model for the held-out blocks; every cell computes them before it changes anything."""
    reference = Untouched(context.held)
    focus = retrofit(context.loaded.model, seed=context.seed)
    try:
        for number in range(len(context.held)):
            reference.states(focus, number, number + 1)
    finally:
        focus.detach()
    return reference


def _stored(context: Context, cell: str, wanted: str) -> dict[str, Any]:
    """A finished cell that another one builds on.

    Raises:
        FocusError: it is not measured yet.
    """
    path = context.folder / CELLS / f"{wanted}.json"
    if not path.is_file():
        raise FocusError(f"The cell {cell!r} builds on {wanted!r}: run that cell first.")
    return read_json(path, table({"rows": array(table())}))


def _adapt(context: Context, rate: float) -> tuple[LoadedModel, int, int]:
    """The model adapted at a rate, with about as many parameters as routers have; the rank; its parameters."""
    from focus_core.reproduce.studies.adapted import adapt

    focus = retrofit(context.loaded.model, _per_head(context), seed=context.seed)
    wanted = sum(parameter.numel() for parameter in focus.trainable_parameters())
    focus.detach()
    scale = context.scale

    def show(step: int, loss: float) -> None:
        name = f"LoRA, rate {rate:g}: step {step} of {scale.steps}, loss {loss:.3f}"
        context.progress(name, step / scale.steps)

    found = adapt(
        context.load(),
        context.blocks,
        parameters=wanted,
        steps=scale.steps,
        learning_rate=rate,
        out=context.folder / "adapters",
        batch_size=scale.batch_size,
        seed=context.seed,
        on_step=show,
    )
    return found.loaded, found.rank, found.parameters


def _adapted_row(context: Context, values: dict[str, Any], untouched: Untouched) -> dict[str, Any]:
    """The adapted model with full attention; its divergence from itself is 0."""

    def train(rate: float, _: Path) -> float:
        return full_attention_loss(_adapt(context, rate)[0], context.choosing)

    search = tuned(context, LORA, values, train)
    loaded, rank, parameters = _adapt(context, search.best)
    focus = retrofit(loaded.model, _per_head(context), seed=context.seed)
    compared = []
    with torch.inference_mode(), focus.routing("off"):
        for number, block in enumerate(context.held):
            rows = torch.from_numpy(block)[None].to(focus.model.device)
            compared.append(compare_tokens(focus, rows, untouched.states(focus, number, number + 1)))
    focus.detach()
    losses = [float(each.losses.double().mean()) for each in compared]
    retained = retention_of(compared, context.held.shape[1])
    row = {
        **{"parameters": parameters, "routing": "off", "perplexity": float(np.exp(np.mean(losses)))},
        **perplexity_difference(losses, context.untouched.block_nll).to_dict(),
        **_kl("kl", retained.block_kl),
        **{"kept_share": 1.0, **of_search(search), "rank": rank},
    }
    return {"rows": [row], "rates": {**search.to_dict(), "chosen_on": chosen_on(context)}, "block_nll": losses}


def _attached(
    context: Context,
    cell: str,
    values: dict[str, Any],
    loaded: LoadedModel,
    untouched: Untouched,
    own: Untouched,
    own_nll: Any,
) -> dict[str, Any]:
    """Narrow groups fitted to a model, or routers on it: those trained here, or those that the caller gave."""
    if cell == BOTH:
        best = _stored(context, cell, ROUTERS)["rates"]["best"]
        focus = FocusModel.from_pretrained(loaded.model, context.folder / "rates" / ROUTERS / f"{best:g}")
    elif cell in (NARROW, NARROW_BOTH):
        sample = context.blocks[: max(2, SAMPLE // context.scale.length)]
        config = values["config"]
        focus = fit_narrow(loaded.model, sample, config, seed=context.seed, progress=context.progress)
    else:
        focus = FocusModel.from_pretrained(loaded.model, str(context.routers))
    try:
        return {"rows": _routed(context, focus, untouched, own, own_nll)}
    finally:
        focus.detach()


def _routed(
    context: Context, focus: FocusModel, untouched: Untouched, own: Untouched, own_nll: Any
) -> list[dict[str, Any]]:
    """Hard, causal routing at each k, or at the routers' own share; beside full attention with the same weights."""
    rows = []
    for mode, top_k, balance in settings_for(focus.config):
        if mode != "hard" or balance != "calibrated":
            continue
        measure = partial(evaluate, focus, context.held, routing="hard", top_k=top_k, balance="calibrated")
        found = measure(untouched=untouched)
        beside = found if own is untouched else measure(untouched=own)
        kept = {"kept_share": found.kept_share, "largest_group_share": found.largest_group_share}
        row = _row(context, found, beside, own_nll)
        rows.append({"routing": "hard", "top_k": top_k, "balance": "calibrated", **row, **kept})
    return rows


def _baseline(
    context: Context,
    cell: str,
    values: dict[str, Any],
    focus: FocusModel,
    untouched: Untouched,
    own: Untouched,
    own_nll: Any,
) -> dict[str, Any]:
    """A baseline on the adapted model, its setting chosen and itself fitted or trained on training text."""
    name, share, text = values["baseline"], values["share"], calibration_blocks(context.blocks, context.seed)
    budget = {"window": values["config"].window, "sinks": values["config"].sink_tokens, "seed": context.seed}
    tuning = Tuner(focus, text, **budget).tune(name, share) if tunable(name) else None
    training = _taught(context, focus, values) if name in LEARNED else None
    budget |= {"share": share, "setting": tuning["setting"] if tuning else {}}
    fitted = training.layers[name] if training else fit_baseline(focus, name, text, **budget)
    measure = partial(baseline_point, focus, name, context.held, training_text=text, fitted=fitted, **budget)
    found = measure(untouched=untouched)
    row = _row(context, found, measure(untouched=own), own_nll)
    row = {"routing": found.label, **row, "kept_share": found.kept_share}
    if training:
        row |= {"parameters": training.report[name]["parameters"], "learning_rate": training.report[name]["rate"]}
    return {"rows": [row]} if tuning is None else {"rows": [row], "tuning": tuning}


def _taught(context: Context, focus: FocusModel, values: dict[str, Any]) -> Learned:
    """The learned baselines of the adapted model, trained together on the training text when the first is measured."""
    window, sinks = values["config"].window, values["config"].sink_tokens
    settings = LearnedSettings(
        tokens=values["tokens"],
        window=window,
        sinks=sinks,
        sizes=Sizes.within(window),
        seed=context.seed,
    )
    return learned(focus, context.blocks, context.folder / "learned", settings, context.progress)


def _row(context: Context, found: Evaluation | Point, beside: Evaluation | Point, own_nll: Any) -> dict[str, Any]:
    """The columns of a sparse row.

    Args:
        context: of the run.
        found: compared with the untouched model.
        beside: the same, compared with full attention of the same weights.
        own_nll: losses of that full attention, block by block.
    """
    own = perplexity_difference(found.block_nll, own_nll)
    return {
        "perplexity": found.perplexity,
        **perplexity_difference(found.block_nll, context.untouched.block_nll).to_dict(),
        **{"from_full": own.difference, "from_full_low": own.low, "from_full_high": own.high},
        **_kl("kl", found.block_kl),
        **_kl("kl_from_full", beside.block_kl),
    }


def _kl(name: str, block_kl: tuple[float, ...]) -> dict[str, float | None]:
    """A mean divergence over blocks with its interval."""
    gap = mean_difference(block_kl)
    return {name: gap.difference, f"{name}_low": gap.low, f"{name}_high": gap.high}
