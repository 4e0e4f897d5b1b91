"""Learning rates of routers and adapters, chosen on text apart from that of the tables, trial by trial."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from focus_core.evaluation import evaluate
from focus_core.models import LoadedModel
from focus_core.reproduce.context import Context
from focus_core.reproduce.experiments.retrofits import train_routers
from focus_core.reproduce.studies.rates import RateSearch, search_rate
from focus_core.results import stored_or_run
from focus_core.routing.model import FocusModel, retrofit
from focus_core.training.loop import DivergedError

SCHEMA = "focus-rate/1"
ROUTER_RATES, ADAPTER_RATES = (3e-3, 1e-2, 3e-2), (3e-4, 1e-3, 3e-3)
"""Starts of the grids."""
CHOSEN_AT = 2
"""k of hard routing at which routers are judged while their rate is chosen."""


def tuned(context: Context, cell: str, values: dict[str, Any], train: Callable[[float, Path], float]) -> RateSearch:
    """Search the rate of a cell; every trial is a file, so a stopped run resumes.

    Args:
        context: of the run.
        cell: name of the method.
        values: of the cell; `rates` is the start of the grid.
        train: trains at a rate, with a folder of its own, and returns the loss on `context.choosing` in nats.

    Raises:
        FocusError: as the training, but for a loss that diverged.
    """
    identity = {name: value for name, value in values.items() if name not in ("tasks", "rates")}

    def loss_at(rate: float) -> float:
        folder = context.folder / "rates" / cell / f"{rate:g}"

        def trial() -> dict[str, Any]:
            try:
                loss = train(rate, folder)
            except DivergedError:
                loss = math.inf
            return {"loss": loss if math.isfinite(loss) else None}

        settings = {**context.inputs(), "cell": cell, "values": identity, "rate": rate}
        found = stored_or_run(folder / "loss.json", settings, trial, schema=SCHEMA, device=context.device)["loss"]
        return math.inf if found is None else found

    return search_rate(loss_at, values["rates"])


def tuned_routers(context: Context, cell: str, values: dict[str, Any]) -> tuple[FocusModel, RateSearch]:
    """Routers trained at the best rate, on the shared model; the caller detaches them.

    Their loss is that of hard, causal routing.
    """

    def train(rate: float, folder: Path) -> float:
        name = f"{cell}, rate {rate:g}"
        focus = train_routers(context, name, values["config"], values["objective"], folder=folder, learning_rate=rate)
        try:
            top_k = min(CHOSEN_AT, focus.config.num_groups)
            found = evaluate(focus, context.choosing, routing="hard", top_k=top_k, balance="calibrated")
            return float(np.mean(found.block_nll))
        finally:
            focus.detach()

    search = tuned(context, cell, values, train)
    folder = context.folder / "rates" / cell / f"{search.best:g}"
    return FocusModel.from_pretrained(context.loaded.model, folder), search


def full_attention_loss(loaded: LoadedModel, blocks: np.ndarray) -> float:
    """Mean loss of a model without routers, in nats."""
    focus = retrofit(loaded.model, seed=0)
    try:
        return float(np.mean(evaluate(focus, blocks, routing="off").block_nll))
    finally:
        focus.detach()


def of_search(search: RateSearch) -> dict[str, Any]:
    """The columns of a row for its learning rate."""
    return {"learning_rate": search.best, "rate_grid": search.words}


def chosen_on(context: Context) -> str:
    """The text by which rates were chosen, in words."""
    return ", ".join(file.name for file in context.choose_files) or "evenly spaced blocks of the training text"
