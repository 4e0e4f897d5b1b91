"""Experiments that train routers or all weights and measure perplexity: retrofit, scale, fine-tuning, ablation."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from focus_core.baselines import BASELINES
from focus_core.errors import FocusError
from focus_core.evaluation import perplexity_difference
from focus_core.io.reading import read_json
from focus_core.io.schema import anything, array, maybe, number, table
from focus_core.reproduce.context import Context, row
from focus_core.reproduce.runner import CELLS
from focus_core.routing.config import FocusConfig
from focus_core.routing.model import FocusModel, Mode, retrofit
from focus_core.training import TrainSettings, train
from focus_core.training.calibrate import calibrate
from focus_core.training.checkpoints import CHECKPOINTS
from focus_core.training.loop import Step, calibration_blocks
from focus_core.training.modes import Phase
from focus_core.training.objectives import DEFAULT_OBJECTIVE, PUBLISHED_OBJECTIVE
from focus_core.training.trainer import TrainerSettings, train_phase

Plan = list[tuple[Mode, int | None, str | None]]
COLUMNS = (
    *("routing", "top_k", "balance", "perplexity", "difference", "low", "high"),
    *("kept_share", "causal_kept_share", "largest_group_share", "exposure", "tokens"),
)
HARD: Plan = [("hard", 1, "calibrated"), ("hard", 2, "calibrated")]
PAPER, OURS = PUBLISHED_OBJECTIVE, DEFAULT_OBJECTIVE
OUR_RECIPE = "our recipe"


def train_routers(
    context: Context,
    cell: str,
    config: FocusConfig,
    objective: str,
    *,
    folder: Path | None = None,
    learning_rate: float = TrainSettings.learning_rate,
) -> FocusModel:
    """Train routers for the scale's steps; an interrupted cell resumes from its checkpoint.

    The caller detaches the returned routers.

    Args:
        context: of the run.
        cell: name for the progress.
        config: of the routers.
        objective: key of `focus_core.training.objectives.OBJECTIVES`.
        folder: for checkpoints and routers; that of the cell when None.
        learning_rate: peak rate.
    """
    scale = context.scale
    settings = TrainSettings(
        steps=scale.steps,
        batch_size=scale.batch_size,
        learning_rate=learning_rate,
        objective=objective,
        seed=context.seed,
        autocast=config.layers is None,  # layers without a router refuse the mixed dtypes of autocast
    )
    focus = retrofit(context.loaded.model, config, seed=context.seed)

    def show(step: Step) -> None:
        context.progress(f"{cell}: step {step.step} of {scale.steps}, loss {step.loss:.3f}", step.step / scale.steps)

    try:
        train(focus, context.blocks, settings, folder or context.folder / CELLS / cell, show)
    except BaseException:
        focus.detach()
        raise
    return focus


def trained_rows(context: Context, cell: str, config: FocusConfig, objective: str, plan: Plan) -> dict[str, Any]:
    """Train routers and measure a plan with them."""
    focus = train_routers(context, cell, config, objective)
    try:
        return {"rows": context.measure(focus, plan)}
    finally:
        focus.detach()


# Retrofit comparison


def retrofit_cells(context: Context) -> dict[str, dict[str, Any]]:
    """The untouched model, untrained routers, the published recipe, ours, and published sparse attentions."""
    window = context.scale.window
    return {
        "untouched": {},
        "untrained": {"config": FocusConfig(window=window)},
        "published recipe": {"config": FocusConfig.paper(window=window), "objective": PAPER},
        OUR_RECIPE: {"config": FocusConfig(window=window), "objective": OURS},
        **{f"baseline {name}": {"baseline": name, "window": window} for name in BASELINES},
    }


def run_retrofit(context: Context, cell: str, values: dict[str, Any]) -> dict[str, Any]:
    """Measure one method. The published recipe is measured with sequence balance, as published, and calibrated."""
    if cell == "untouched":
        return {"rows": [row(context.untouched, None)]}
    if "baseline" in values:
        return {"rows": [_baseline(context, values)]}
    config = values["config"]
    if cell == "untrained":
        focus = retrofit(context.loaded.model, config, seed=context.seed)
        try:
            calibrate(focus, calibration_blocks(context.blocks, context.seed))
            return {"rows": context.measure(focus, HARD)}
        finally:
            focus.detach()
    sequence: Plan = [("soft", None, "sequence"), ("hard", 2, "sequence")]
    return trained_rows(context, cell, config, values["objective"], [*sequence, *HARD])


def _baseline(context: Context, values: dict[str, Any]) -> dict[str, Any]:
    """A published sparse attention at the share of distant pairs that our recipe keeps at k = 2."""
    from focus_core.frontier.measure import baseline_point

    path = context.folder / CELLS / f"{OUR_RECIPE}.json"
    if not path.is_file():
        raise FocusError(f"Baselines take their kept share from our recipe: run the cell {OUR_RECIPE!r} first.")
    row_of = table({"top_k": anything, "balance": anything, "kept_share": maybe(number(0, 1))})
    rows = read_json(path, table({"rows": array(row_of)}))["rows"]
    ours = next((each for each in rows if (each["top_k"], each["balance"]) == (2, "calibrated")), None)
    if ours is None or ours["kept_share"] is None:
        raise FocusError(f"{path} is damaged: delete it and repeat the command.")
    config = FocusConfig(window=values["window"])
    focus = retrofit(context.loaded.model, config, seed=context.seed)
    try:
        found = baseline_point(
            focus,
            values["baseline"],
            context.held,
            share=ours["kept_share"],
            window=config.window,
            sinks=config.sink_tokens,
            training_text=calibration_blocks(context.blocks, context.seed)[:2],
            seed=context.seed,
        )
    finally:
        focus.detach()
    gap = perplexity_difference(found.block_nll, context.untouched.block_nll)
    shares = {name: getattr(found, name) for name in ("perplexity", "kept_share", "causal_kept_share", "tokens")}
    return {"routing": found.label, **shares, **gap.to_dict()}


# Scale


def scale_cells(context: Context) -> dict[str, dict[str, Any]]:
    """One cell per model, by the last part of its name."""
    config = FocusConfig.paper(window=context.scale.window)
    return {
        f"{number + 1} {name.rstrip('/').rpartition('/')[2]}": {"number": number, "config": config, "objective": PAPER}
        for number, name in enumerate(context.models)
    }


def run_scale(context: Context, cell: str, values: dict[str, Any]) -> dict[str, Any]:
    """Published recipe on one model: untouched, soft, hard at k = 2 and 3 of 4."""
    other = replace(context, models=[context.models[values["number"]]])
    plan: Plan = [
        ("soft", None, "sequence"),
        ("hard", 2, "sequence"),
        ("hard", 2, "calibrated"),
        ("hard", 3, "sequence"),
        ("hard", 3, "calibrated"),
    ]
    found = trained_rows(other, cell, values["config"], values["objective"], plan)
    info = other.loaded.info
    of_model = {"model_name": info.name, "revision": info.revision, "parameters": info.num_parameters}
    return {"rows": [{**of_model, **each} for each in (row(other.untouched, None), *found["rows"])]}


# Full fine-tuning


def finetune_cells(context: Context) -> dict[str, dict[str, Any]]:
    """The same steps with full attention and with Focus; a window of the whole block is full attention."""
    scale = context.scale
    return {
        "untouched": {},
        "full attention": {"config": FocusConfig(window=scale.length)},
        "published recipe": {"config": FocusConfig.paper(window=scale.window), "objective": PAPER},
        OUR_RECIPE: {"config": FocusConfig(window=scale.window), "objective": OURS},
    }


def run_finetune(context: Context, cell: str, values: dict[str, Any]) -> dict[str, Any]:
    """Train routers, where there are any, then all weights, by Trainer, with checkpoints in both phases."""
    if cell == "untouched":
        return {"rows": [row(context.untouched, None)]}
    scale, folder = context.scale, context.folder / CELLS / cell
    focus = retrofit(context.load().model, values["config"], seed=context.seed)
    settings = TrainerSettings(
        batch_size=scale.batch_size, base_learning_rate=1e-4, seed=context.seed, precision="bf16", save_every=50
    )
    phases = [Phase("everything", True, PAPER, scale.full_steps)]
    if "objective" in values:
        phases.insert(0, Phase("centroids", False, values["objective"], scale.steps))
    for phase in phases:

        def show(step: Step, phase: Phase = phase) -> None:
            context.progress(
                f"{cell}: {phase.name}, step {step.step} of {phase.steps}, loss {step.loss:.3f}",
                step.step / phase.steps,
            )

        train_phase(focus, context.stream(), phase, settings, folder, show)
    focus.eval()
    plan: Plan = [("off", None, None)]
    if "objective" in values:
        plan = [("soft", None, "sequence"), ("hard", 2, "sequence"), *HARD]
    rows = context.measure(focus, plan)
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)  # twelve bytes per weight
    return {"rows": rows}


# Ablation


def ablation_cells(context: Context) -> dict[str, dict[str, Any]]:
    """The untouched model, the default recipe, and one setting at a time changed in it."""
    default = FocusConfig(window=context.scale.window)
    layers = tuple(range(context.loaded.model.config.get_text_config().num_hidden_layers))
    half = len(layers) // 2
    changes: dict[str, list[Any]] = {
        "num_groups": [4, 16, 32],
        "window": [default.window // 4, default.window * 2],
        "temperature": [0.05, 0.2, 0.5],
        "sinkhorn_rounds": [3, 10, 100],
        "route_dim": [4, 64],
        "sink_tokens": [0, 1],
        "score": ["dot"],
    }
    cells: dict[str, dict[str, Any]] = {"untouched": {}, "default": {"config": default, "objective": OURS}}
    for name, choices in changes.items():
        for value in choices:
            cells[f"{name}={value}"] = {"config": default.replace(**{name: value}), "objective": OURS}
    for name, chosen in (("every second", layers[::2]), ("first half", layers[:half]), ("second half", layers[half:])):
        cells[f"layers={name}"] = {"config": default.replace(layers=chosen), "objective": OURS}
    # Only the language-model loss uses the gate.
    for gate in ("log", "paper"):
        cells[f"objective=lm, gate={gate}"] = {"config": default.replace(gate=gate), "objective": PAPER}
    return cells


def run_ablation(context: Context, cell: str, values: dict[str, Any]) -> dict[str, Any]:
    """Train one variation and measure it causally."""
    if cell == "untouched":
        return {"rows": [row(context.untouched, None)]}
    return trained_rows(context, cell, values["config"], values["objective"], HARD)
